// The whole loss on the CPU, backward.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "pairs.h"
#include "vectorize.h"
#include "wide.h"

namespace edgeloss {

// --------------------------------------------------------------------------------------------------------- edge pixels

template <typename A>
void Gathered<A>::start(const Geometry& g, int64_t rows, int64_t margin) {
  width = g.width;
  for (auto* sums : {&same, &other}) sums->resize(rows * width + margin);
  k.resize(rows * width + margin);
  more.clear();
  dense.clear();
  is_near.assign(rows, 0);
}

template <typename A>
void Gathered<A>::add_up(int64_t classes) {
  const size_t size = k.size() * classes;
  if (more.size() <= size / 4 + 1024) return;
  dense.resize(size);
  for (const Share<A>& share : more) dense[share.pixel * classes + share.k] += share.sum;
  more.clear();
}

template <typename A>
void Gathered<A>::finish(int64_t classes) {
  if (!dense.empty()) {
    for (const Share<A>& share : more) dense[share.pixel * classes + share.k] += share.sum;
    more.clear();
    for (size_t i = 0; i < dense.size(); ++i) {
      const int64_t pixel = static_cast<int64_t>(i) / classes;
      if (dense[i] != A(0)) more.push_back({pixel, static_cast<int32_t>(i - pixel * classes), dense[i]});
    }
  }
  std::stable_sort(more.begin(), more.end(), [](const auto& a, const auto& b) { return a.pixel < b.pixel; });
}

template <typename A>
void Gathered<A>::approach(int64_t first, int64_t last) {
  for (int64_t row = first / width; row <= last / width; ++row) {
    if (is_near[row]) continue;
    is_near[row] = 1;
    std::fill_n(same.begin() + row * width, width, A(0));
    std::fill_n(other.begin() + row * width, width, A(0));
    std::fill_n(k.begin() + row * width, width, -1);
  }
}

template <typename A>
bool Gathered<A>::reaches(int64_t first, int64_t last) {
  const auto rows = is_near.begin();
  if (std::find(rows + first / width, rows + last / width + 1, 1) == rows + last / width + 1) return false;
  approach(first, last);
  return true;
}

template struct Gathered<float>;
template struct Gathered<double>;

namespace {

// Adds what edge pixel e gives, in the lanes, to the sums of the pixels there, counted from `start`: to same, and to
// other where the pixel's k is its own or still -1; to `more` what is left. is_pair: two classes.
template <int64_t Width, typename A>
EDGELOSS_INLINE void add_share(const LaneArrays<A>& lanes, int64_t lane_count, bool is_pair, int32_t own, int64_t e,
                               int64_t p, Gathered<A>& sums) {
  const int64_t width = Width ? Width : lane_count, i = e * width;
  const A *same = lanes.same.share + i, *other = lanes.other.share + i;
  A *same_sum = sums.same.data() + p, *other_sum = sums.other.data() + p;
  const int32_t* label = lanes.label + i;
  int32_t* seen = sums.k.data() + p;
  if constexpr (Width > 0) {
    add_to<Width>(same, same_sum);
    if (is_pair) return add_to<Width>(other, same_sum);
    VectorOf<int32_t, Width> labels, before;
    load(label, labels);
    load(seen, before);
    const VectorOf<int32_t, Width> is_other = (labels >= 0) & (labels != own);
    const VectorOf<int32_t, Width> is_taken = is_other & (before >= 0) & (before != own);
    int64_t taken[Width / 2], any = 0;
    std::memcpy(taken, &is_taken, sizeof(taken));
    for (int64_t part : taken) any |= part;
    if (any == 0) {
      add_to<Width>(other, other_sum);
      store((is_other & own) | (~is_other & before), seen);
      return;
    }
  } else {
    for (int64_t j = 0; j < width; ++j) same_sum[j] += is_pair ? same[j] + other[j] : same[j];
    if (is_pair) return;
  }
  for (int64_t j = 0; j < width; ++j) {
    if (label[j] < 0 || label[j] == own) continue;
    if (seen[j] < 0 || seen[j] == own) {
      seen[j] = own;
      other_sum[j] += other[j];
    } else {
      sums.more.push_back({p + j, own, other[j]});
    }
  }
}

// Adds the shares in the lanes of a group.
template <typename A>
void add_shares(const Group<A>& group, int64_t start, const Lanes<A>& lanes, Gathered<A>& sums) {
  int64_t first = 0, last = group.count - 1;  // in order, but for those that see nothing
  while (lanes.first[first] < 0) ++first;
  while (lanes.first[last] < 0) --last;
  sums.approach(lanes.first[first] - start, lanes.first[last] - start);
  vectorized<A>([=, arrays = static_cast<const LaneArrays<A>&>(lanes), first = lanes.first.data(), k = &group.k[0],
                 count = group.count, width = lanes.width, is_pair = group.call.g.classes == 2, sums = &sums]()
                    EDGELOSS_LOOP {
                      with_width(width, [=](auto constant) EDGELOSS_LOOP {
                        // Every few in turn: neighbors write to the same pixels, and a processor waits where it reads
                        // half of what it has just written.
                        constexpr int64_t kWidth = decltype(constant)::value, kTurns = kWidth ? kWidth : 4;
                        for (int64_t turn = 0; turn < kTurns; ++turn) {
                          for (int64_t e = turn; e < count; e += kTurns) {
                            if (first[e] >= 0)
                              add_share<kWidth>(arrays, width, is_pair, k[e], e, first[e] - start, *sums);
                          }
                        }
                      });
                    });
}

// Repeats on the lanes what the shares of a group need of its sides. means: plain ones.
template <typename A>
void fill_sides(const Call<A>& call, const Upstream<A>& upstream, const Group<A>& group, const Side<A>* sides,
                bool means, Lanes<A>& lanes) {
  const int64_t base = group.image * call.g.pixels;
  for (int side = 0; side < 2; ++side) {
    const auto& lane = side ? lanes.other : lanes.same;
    const auto fill = [&](A* numbers, const auto& number) {
      A own[kEdges];
      for (int64_t e = 0; e < group.count; ++e) own[e] = number(e, sides[2 * e + side]);
      repeat_each(own, group.count, lanes.width, numbers);
    };
    const auto arrives = [&](int64_t e) {
      const int64_t i = base + group.pixel[e];
      return upstream.at(Row::kSameSide + side, i, call.edge_weight_of(i));
    };
    if (means) {
      fill(lane.upstream, [&](int64_t e, const Side<A>& own) { return arrives(e) * own.inverse; });
    } else {
      fill(lane.upstream, [&](int64_t e, const Side<A>&) { return arrives(e); });
      fill(lane.first, [&](int64_t, const Side<A>& own) { return own.first; });
      fill(lane.log_sum, [&](int64_t, const Side<A>& own) { return own.log_sum; });
    }
    if (call.has_decay()) fill(lane.nearest, [&](int64_t, const Side<A>& own) { return own.nearest; });
  }
}

// Adds to a chunk's pixels the shares of the edge pixels in rows [first, last), which lie in one chunk themselves.
template <typename A>
void gather_rows(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, int64_t first, int64_t last,
                 Workspace<A>& space) {
  const Geometry& g = call.g;
  Lanes<A>& lanes = space.lanes;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  const int64_t start = chunk.first_row * g.width, stop = chunk.last_row * g.width;
  const int32_t end = call.list.row_end[rows + last - 1];
  for (int32_t done = call.list.row_first[rows + first]; done < end;) {
    // The ones whose terms were computed from probabilities and the ones from logarithms take turns.
    const bool means = call.is_of_means(base + done);
    int32_t n = 1;
    while (n < lanes.edges && done + n < end && call.is_of_means(base + done + n) == means) ++n;
    const Group<A> group(call, chunk.image, call.list.pixel + base + done, n, lanes);
    Side<A> sides[2 * kEdges];
    call.recall(base + done, n, sides);
    if (!means && call.power() == A(1)) {
      A value[2][kEdges];
      group.terms_of_logs(lanes, value, sides);
    }
    fill_sides(call, upstream, group, sides, means, lanes);
    const Wanted wanted = !means ? Wanted::kLogs : call.power() != A(0) ? Wanted::kProbabilities : Wanted::kNothing;
    group.for_each_row_seen(start, stop, wanted, lanes, [&] {
      if (means) {
        mean_shares(lanes, n * lanes.width, call.lane_options);
      } else {
        log_shares(lanes, n * lanes.width, call.lane_options);
      }
      add_shares(group, start, lanes, space.gathered);
      space.gathered.add_up(g.classes);
    });
    done += n;
  }
}

// Adds to a chunk's pixels the shares of the edge pixels around.
template <typename A>
void gather_in_lanes(const Call<A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                     Workspace<A>& space) {
  const Geometry& g = call.g;
  const int64_t reach_z = std::min(g.radius[0], g.depth - 1), reach_y = std::min(g.radius[1], g.height - 1);
  int64_t row = 0;
  for (int64_t dz = -reach_z; dz <= reach_z; ++dz) {  // the rows that see the chunk's, slice by slice
    row = std::max(row, chunk.first_row + dz * g.height - reach_y);
    const int64_t last = std::min(chunk.last_row + dz * g.height + reach_y, chunks.rows);
    while (row < last) {
      const int64_t next = std::min((row / chunks.rows_per_chunk + 1) * chunks.rows_per_chunk, last);
      gather_rows(call, upstream, chunk, row, next, space);
      row = next;
    }
  }
}

// Adds to a chunk's pixels the shares of the false edges around.
template <typename A>
void gather_false_edges(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, Workspace<A>& space) {
  const Geometry& g = call.g;
  const int32_t* count = call.false_edges.count + chunk.image * g.depth * g.height;
  const auto arrives = [&](int64_t i) { return upstream.at(Row::kFalseEdge, i, call.pixel_weight_of(i)); };
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    int64_t around = 0;
    for_each_row(g, row, g.radius, [&](int64_t first) { around += count[quotient(first, g.width)]; });
    if (around == 0) continue;
    const int64_t first = (row - chunk.first_row) * g.width;
    space.gathered.approach(first, first + g.width - 1);
    space.windows.add_shares(call.false_edges, chunk.image, row, arrives, space.gathered.same.data() + first);
  }
}

}  // namespace

template <typename A>
void gather_chunk(const Call<A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                  Workspace<A>& space) {
  const Geometry& g = call.g;
  space.gathered.start(g, chunk.last_row - chunk.first_row, std::max(space.lanes.width, kBlock));
  const bool is_wide = gather_wide_windows(call, upstream, chunk, space.gathered);
  if (!is_wide && call.in_blocks()) {
    gather_blocks(call, upstream, chunk, space.neighbor_shares, space.gathered);
  } else if (!is_wide) {
    gather_in_lanes(call, upstream, chunks, chunk, space);
  }
  if (call.false_edges.exist()) gather_false_edges(call, upstream, chunk, space);
  space.gathered.finish(g.classes);
}

// --------------------------------------------------------------------------------------------------------------- tiles

namespace {

// x, m and r of the corrected pixels.
template <typename A>
void read_statistics(const TileState<A>& state, Corrections<A>& of) {
  const Tile<A>& tile = state.tile;
  for (auto* places : {&of.j, &of.k}) std::fill(places->begin() + of.count, places->begin() + of.padded(), 0);
  for (int64_t i = 0; i < of.count; ++i) of.x[i] = tile.x[of.k[i] * tile.ld + of.j[i]];
  if (state.m) {
    for (int64_t i = 0; i < of.count; ++i) {
      of.m[i] = state.m[of.j[i]];
      of.r[i] = state.r[of.j[i]];
    }
    return;
  }
  A logits[kFewClasses * kTile], nll[kTile];
  for (int64_t first = 0; first < of.count; first += kTile) {
    const int64_t n = std::min(kTile, of.padded() - first);
    for (int64_t c = 0; c < tile.classes; ++c) {
      for (int64_t i = 0; i < n; ++i) logits[c * kTile + i] = tile.x[c * tile.ld + of.j[first + i]];
    }
    const Tile<A> few = {logits, kTile, tile.classes, n};
    tile_statistics(few, of.k.data() + first, of.m.data() + first, of.r.data() + first, nll);
  }
}

// The factors of a tile's softmax, and what edge pixels of other classes add to single classes.
template <typename A>
void find_factors(const Call<A>& call, const Upstream<A>& upstream, const TileState<A>& state, Factors<A>& factors,
                  Workspace<A>& space) {
  const Tile<A>& tile = state.tile;
  const bool varies = call.pixel_weight || upstream.map[Row::kCrossEntropy];
  A arrives[kTile];
  for (int64_t j = 0; varies && j < tile.n; ++j) {
    const int64_t i = state.label[j] < 0 ? 0 : state.pixels.at(j);
    arrives[j] = upstream.at(Row::kCrossEntropy, i, call.pixel_weight_of(i));
  }
  fill_factors(state.label, tile.n, upstream.of_sum(Row::kCrossEntropy), varies ? arrives : nullptr, state.shares.same,
               call.smoothing_of(state.pixels.start), factors);
  auto& corrections = space.corrections;
  corrections.start(tile.n + static_cast<int64_t>(space.more.size()));
  if (!state.shares.same) return;
  const int32_t* k = state.shares.k;
  for (int64_t j = 0; j < tile.n; ++j) {
    if (j + 4 <= tile.n && (k[j] & k[j + 1] & k[j + 2] & k[j + 3]) < 0) {
      j += 3;  // all four are -1
    } else if (k[j] >= 0) {
      corrections.add(j, k[j], state.shares.other[j]);
    }
  }
  for (const Share<A>& share : space.more) corrections.add(share.pixel, share.k, share.sum);
  if (corrections.count == 0) return;
  read_statistics(state, corrections);
  multiply_by_slopes(corrections.x.data(), corrections.m.data(), corrections.r.data(), corrections.padded(),
                     corrections.value.data());
  for (int64_t i = 0; i < corrections.count; ++i) {
    if (!corrections.is_likely(i)) factors.alpha[corrections.j[i]] -= corrections.value[i];
  }
}

}  // namespace

template <typename A>
void gradient_tile(const Call<A>& call, const Upstream<A>& upstream, const TileState<A>& state, A* g, int64_t ld,
                   Workspace<A>& space) {
  const Tile<A>& tile = state.tile;
  Factors<A> factors;
  find_factors(call, upstream, state, factors, space);
  tile_softmax(tile, factors, call.smoothing_of(state.pixels.start), state.m, state.r, g, ld);
  const auto& corrections = space.corrections;
  for (int64_t i = 0; i < corrections.count; ++i) {
    const int64_t j = corrections.j[i], k = corrections.k[i];
    const A value = corrections.value[i];
    g[k * ld + j] += value;
    if (!corrections.is_likely(i)) continue;
    // The others' shares, from logits that may lie so far below the top that r is 0.
    const Logits<A, A> x = {tile.x, tile.ld, 1, false};
    LogSumExp<A> others = {corrections.m[i], corrections.r[i]};
    if (!is_near(others.sum)) others = sum_others<A>(x, j, tile.classes, k);
    for (int64_t other = 0; other < tile.classes; ++other) {
      if (other == k) continue;
      g[other * ld + j] -= value / others.sum * exp_negative(x.at(j, other) - others.max);
    }
  }
}

#define EDGELOSS_INSTANTIATE(A)                                                                               \
  template void gather_chunk(const Call<A>&, const Upstream<A>&, const Chunks&, const Chunk&, Workspace<A>&); \
  template void gradient_tile(const Call<A>&, const Upstream<A>&, const TileState<A>&, A*, int64_t, Workspace<A>&);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

namespace {

// -------------------------------------------------------------------------------------------------------------- chunks

// The backward pass of a chunk.
template <typename A>
void backward_chunk(const Call<A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                    const Stored<A, void*>& out, bool streams, Workspace<A>& space) {
  const Geometry& g = call.g;
  if (call.list.row_first) gather_chunk(call, upstream, chunks, chunk, space);
  Gathered<A>& gathered = space.gathered;
  if (are_plain_pairs(call) && !upstream.map[Row::kCrossEntropy]) {
    return pair_backward_chunk(call, upstream.of_sum(Row::kCrossEntropy), chunk, out, streams, gathered);
  }
  const Stored<A> x = call.image(chunk.image);
  const int64_t start = chunk.first_row * g.width, last = chunk.last_row * g.width, step = call.tile();
  const bool reads_in_place = is_in_place(x);
  const bool writes_in_place = reads_in_place && out.pixel_step == 1 && !streams;
  const int64_t ld = reads_in_place ? x.class_step : step, out_ld = writes_in_place ? out.class_step : step;
  space.buffer.resize(2 * g.classes * step);
  auto more = gathered.more.begin();

  for (int64_t p = start; p < last; p += step) {
    const int64_t n = std::min(step, last - p), i = chunk.image * g.pixels + p;
    if (!reads_in_place) read_tile(x, g.classes, p, n, space.buffer.data(), step);
    const A* logits = reads_in_place ? static_cast<const A*>(x.data) + p : space.buffer.data();
    A* gradient = writes_in_place ? static_cast<A*>(out.data) + p : space.buffer.data() + g.classes * step;
    const A *m = call.m ? call.m + i : nullptr, *r = call.m ? call.r + i : nullptr;
    TileShares<A> shares;
    if (call.list.row_first && gathered.reaches(p - start, p - start + n - 1)) shares = gathered.from(p - start);
    space.more.clear();
    for (; shares.same && more != gathered.more.end() && more->pixel < p - start + n; ++more) {
      space.more.push_back({more->pixel - (p - start), more->k, more->sum});
    }
    gradient_tile(call, upstream, {{logits, ld, g.classes, n}, {i, nullptr}, call.label + i, m, r, shares}, gradient,
                  out_ld, space);
    // Of a binary pixel, the second class has the logit.
    if (!writes_in_place) write_tile(gradient + (g.logits == 1 ? step : 0), step, g.logits, n, out, p, streams);
  }
}

// ------------------------------------------------------------------------------------------------------------ operator

constexpr int64_t kStreamed = 1 << 23;  // bytes of a gradient that is not in cache when the next operator reads it

template <typename A>
Tensor run_backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved, const Options& options) {
  const Geometry g = clipped_geometry(inputs.logits, saved.label, options);
  const Chunks chunks(g);
  const std::optional<Upsample<A>> up = upsample_for<A>(g, inputs.logits);
  Tensor grad = torch::stable::empty_like(inputs.logits);
  const int64_t bytes = grad.numel() * static_cast<int64_t>(grad.element_size());
  want_large_pages(grad);
  const Call<A> call(g, up, inputs, saved, options);
  const Upstream<A> upstream(gradients);
  if (up) {
    upsampled_backward(call, upstream, chunks, grad);
    return grad;
  }
  const Steps steps(grad);
  const bool streams = bytes >= kStreamed;
  // A few in order: they share the rows that their windows reach.
  const int64_t step = std::min(2 * chunks.reach, chunks.count / 16);
  on_each_thread(chunks.count, step, [&](Tasks& tasks) {
    Workspace<A> space(g);
    for (int64_t begin, end; tasks.take(begin, end);) {
      for (int64_t i = begin; i < end; ++i) {
        const Chunk chunk = chunks.at(i);
        backward_chunk(call, upstream, chunks, chunk, stored_output<A>(grad, steps, chunk.image), streams, space);
      }
    }
    end_streams();
  });
  return grad;
}

}  // namespace

Tensor cpu::backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved,
                     const Options& options) {
  return by_arithmetic(inputs.logits,
                       [&](auto a) { return run_backward<decltype(a)>(gradients, inputs, saved, options); });
}

}  // namespace edgeloss
