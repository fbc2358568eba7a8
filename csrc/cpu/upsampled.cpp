// The passes over logits of lower resolution than the labels.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "passes.h"

namespace edgeloss {

template <typename A>
void upsampled_cross_entropy_chunk(const Call<A>& call, const Target& target, const Chunk& chunk, A* ce_map,
                                   Sums& sums) {
  const Geometry& g = call.g;
  const Stored<A> x = call.image(chunk.image);
  const Upsample<A>& up = *call.up;
  const int64_t step = call.tile();
  std::vector<A> tile(g.classes * step);
  A m[kTile], r[kTile], nll[kTile], ce[kTile], term[kTile];
  int32_t y[kTile], place[kTile];
  int16_t predicted[kTile];
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t start = chunk.image * g.pixels + row * g.width;
    for (int64_t p = 0; p < g.width; p += kTile) {
      const int64_t n = std::min(kTile, g.width - p);
      sums[Row::kWrong] += static_cast<double>(read_labels(target, start + p, n, call.label + start + p, y));
    }
    const RowTaps<A> taps = up.row_taps(row);
    for_each_block(up, step, [&](const Block& block) {
      const Tile<A> logits = {tile.data(), step, g.classes, block.pixels()};
      up.list_pixels(block, place);
      for (int64_t j = 0; j < logits.n; ++j) y[j] = place[j] < 0 ? kIgnored : call.label[start + place[j]];
      up.interpolate_tile(taps, x, g.logits, block, tile.data(), step);
      tile_statistics(logits, y, m, r, nll);
      if (call.predicted) {
        tile_prediction(logits, y, m, predicted);
        tile_terms(nll, y, logits.n, call.false_edges, term);
      }
      cross_entropy_tile(call, {logits, {start, place}, y, m, r, nll}, ce, sums);
      for (int64_t j = 0; j < logits.n; ++j) {
        if (place[j] < 0) continue;
        const int64_t i = start + place[j];
        call.m[i] = m[j];
        call.r[i] = r[j];
        if (call.nll) call.nll[i] = nll[j];
        if (call.predicted) {
          call.predicted[i] = predicted[j];
          call.false_edges.term[i] = term[j];
        }
        if (ce_map) ce_map[i] = ce[j];
      }
    });
  }
}

namespace {

// A box of low-resolution rows of an image: what the backward pass works on. The rows at the labels' resolution that
// are mixed from two boxes are visited for each of them.
struct Box {
  int64_t image, first_slice, last_slice, first_row, last_row;
};

struct Boxes {
  int64_t depth, height, slices, rows;  // of the image; of a box
  int64_t per_slice, per_image, count;

  Boxes(int64_t batch, int64_t depth, int64_t height) : depth(depth), height(height) {
    // Large, so that few rows are visited twice, and yet enough of them for all threads.
    const int64_t most = std::clamp<int64_t>(batch * depth * height / 32, 2, 16);
    slices = std::min<int64_t>(depth, 4);
    rows = std::min(height, most);
    per_slice = (height + rows - 1) / rows;
    per_image = (depth + slices - 1) / slices * per_slice;
    count = batch * per_image;
  }
  Box at(int64_t index) const {
    const int64_t slice = index % per_image / per_slice * slices, row = index % per_slice * rows;
    return {index / per_image, slice, std::min(slice + slices, depth), row, std::min(row + rows, height)};
  }
};

// The places along an axis that are mixed from some in [first, last): from `begin` to `end`.
template <typename A>
void find_support(const std::vector<Taps<A>>& taps, int64_t first, int64_t last, int64_t& begin, int64_t& end) {
  begin =
      std::partition_point(taps.begin(), taps.end(), [&](const Taps<A>& t) { return t.second < first; }) - taps.begin();
  end = std::partition_point(taps.begin(), taps.end(), [&](const Taps<A>& t) { return t.first < last; }) - taps.begin();
}

// The sums of a box's low-resolution pixels: [slice, row, logit, cell and one more at each end].
template <typename A>
struct BoxSums {
  const Box& box;
  const Upsample<A>& up;
  int64_t logits;
  std::vector<A>& sums;

  int64_t stride() const { return up.cells + 2; }
  int64_t rows() const { return box.last_row - box.first_row; }
  void clear() { sums.assign((box.last_slice - box.first_slice) * rows() * logits * stride(), A(0)); }
  A* at(int64_t slice, int64_t row) const {
    return sums.data() + ((slice - box.first_slice) * rows() + row - box.first_row) * logits * stride();
  }
  // The sums of a low-resolution row that a row of the image is mixed from; null where they are not the box's.
  A* of(const RowTaps<A>& taps, int which) const {
    const int64_t slice = taps.row[which] / up.along_y.low, row = taps.row[which] % up.along_y.low;
    const bool inside = slice >= box.first_slice && slice < box.last_slice && row >= box.first_row &&
                        row < box.last_row && taps.weight_of(which) != A(0);
    return inside ? at(slice, row) : nullptr;
  }
  void write(const Stored<A, void*>& out) const {
    for (int64_t slice = box.first_slice; slice < box.last_slice; ++slice) {
      for (int64_t row = box.first_row; row < box.last_row; ++row) {
        A* sum = at(slice, row);
        for (int64_t c = 0; c < logits; ++c)
          sum[c * stride() + 1] += sum[c * stride()];  // the first has none before it
        write_tile(sum + 1, stride(), logits, up.cells, out, (slice * up.along_y.low + row) * up.cells, false);
      }
    }
  }
};

// What a block of a row takes of its pixels.
template <typename A>
struct BlockPixels {
  int32_t place[kTile], k[kTile];
  int16_t label[kTile];
  A m[kTile], r[kTile], same[kTile], other[kTile];

  BlockPixels(const Call<A>& call, const Block& block, int64_t start) {
    call.up->list_pixels(block, place);
    for (int64_t j = 0; j < block.pixels(); ++j) {
      const int64_t i = start + std::max(place[j], 0);
      label[j] = place[j] < 0 ? kIgnored : call.label[i];
      m[j] = call.m[i];
      r[j] = call.r[i];
    }
  }

  // The shares of n pixels; in_chunk: the row's first pixel, counted from the chunk's.
  TileShares<A> take_shares(const Gathered<A>& gathered, int64_t in_chunk, int64_t n, std::vector<Share<A>>& more) {
    const TileShares<A> row = gathered.from(in_chunk);
    for (int64_t j = 0; j < n; ++j) {
      same[j] = place[j] < 0 ? A(0) : row.same[place[j]];
      other[j] = place[j] < 0 ? A(0) : row.other[place[j]];
      k[j] = place[j] < 0 ? -1 : row.k[place[j]];
    }
    for (int64_t j = 0; j < n && !gathered.more.empty(); ++j) {
      if (place[j] < 0) continue;
      const int64_t pixel = in_chunk + place[j];
      const auto before = [](const Share<A>& share, int64_t p) { return share.pixel < p; };
      auto share = std::lower_bound(gathered.more.begin(), gathered.more.end(), pixel, before);
      for (; share != gathered.more.end() && share->pixel == pixel; ++share) more.push_back({j, share->k, share->sum});
    }
    return {same, other, k};
  }
};

// Adds the gradient of a row of a chunk to the sums of a box.
template <typename A>
void backward_row(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, int64_t row,
                  const BoxSums<A>& sums, Workspace<A>& space) {
  const Geometry& g = call.g;
  const Upsample<A>& up = *call.up;
  const Stored<A> x = call.image(chunk.image);
  const RowTaps<A> taps = up.row_taps(row);
  A* wanted[4];
  for (int which = 0; which < 4; ++which) wanted[which] = sums.of(taps, which);
  const int64_t step = call.tile(), start = chunk.image * g.pixels + row * g.width;
  A *tile = space.buffer.data(), *gradient = tile + g.classes * step;
  const int64_t in_chunk = (row - chunk.first_row) * g.width;
  const bool near = call.list.row_first && space.gathered.reaches(in_chunk, in_chunk + g.width - 1);
  for_each_block(up, step, [&](const Block& block) {
    const int64_t n = block.pixels();
    BlockPixels<A> pixels(call, block, start);
    space.more.clear();
    TileShares<A> shares;
    if (near) shares = pixels.take_shares(space.gathered, in_chunk, n, space.more);
    up.interpolate_tile(taps, x, g.logits, block, tile, step);
    const TileState<A> state = {
        {tile, step, g.classes, n}, {start, pixels.place}, pixels.label, pixels.m, pixels.r, shares};
    gradient_tile(call, upstream, state, gradient, step, space);
    up.share_tile(taps, g.logits, block, gradient + (g.logits == 1 ? step : 0), step, wanted);
  });
}

// The backward pass of a box.
template <typename A>
void backward_box(const Call<A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Box& box,
                  const Stored<A, void*>& out, Workspace<A>& space) {
  const Geometry& g = call.g;
  const Upsample<A>& up = *call.up;
  BoxSums<A> sums = {box, up, g.logits, space.sums};
  sums.clear();
  space.buffer.resize(2 * g.classes * call.tile());
  int64_t first_slice, last_slice, first_row, last_row;
  find_support(up.slice, box.first_slice, box.last_slice, first_slice, last_slice);
  find_support(up.row, box.first_row, box.last_row, first_row, last_row);
  for (int64_t slice = first_slice; slice < last_slice; ++slice) {
    for (int64_t part = first_row; part < last_row; part += chunks.rows_per_chunk) {
      const Chunk chunk = {box.image, slice * g.height + part,
                           slice * g.height + std::min(part + chunks.rows_per_chunk, last_row)};
      if (call.list.row_first) gather_chunk(call, upstream, chunks, chunk, space);
      for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
        backward_row(call, upstream, chunk, row, sums, space);
      }
    }
  }
  sums.write(out);
}

}  // namespace

template <typename A>
void upsampled_backward(const Call<A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Tensor& grad) {
  const Boxes boxes(call.g.batch, call.up->along_z.low, call.up->along_y.low);
  const Steps steps(grad);
  on_each_thread(boxes.count, 1, [&](Tasks& tasks) {
    Workspace<A> space(call.g);
    for (int64_t i, end; tasks.take(i, end);) {
      const Box box = boxes.at(i);
      backward_box(call, upstream, chunks, box, stored_output<A>(grad, steps, box.image), space);
    }
  });
}

#define EDGELOSS_INSTANTIATE(A)                                                                        \
  template void upsampled_cross_entropy_chunk(const Call<A>&, const Target&, const Chunk&, A*, Sums&); \
  template void upsampled_backward(const Call<A>&, const Upstream<A>&, const Chunks&, const Tensor&);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
