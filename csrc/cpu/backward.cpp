// The whole loss on the CPU, backward: the gradient of a slab, tile by tile, and where it goes.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "../neighbors/gather.h"
#include "parallel.h"
#include "slab_tiles.h"

namespace edgeloss {
namespace {

// What the backward pass of a thread works in.
template <typename A>
class SlabGradient {
 public:
  SlabGradient(const Call<A>& call, const Gradients& gradients);

  // Calls body(gradient [C, tile()], pixels, where they are) for each tile.
  template <typename F>
  void for_each_tile(const Slab& slab, const F& body) {
    prepare(slab);
    const Smoothing<A> smoothing = call_.smoothing(slab.image);
    const EdgeWeights<A>* weights = call_.options.edges ? &weights_ : nullptr;
    tiles_.for_each(slab, weights, false, [&](const Pixels<A>& pixels, const TilePlace& at) {
      A own_m[kTile], own_r[kTile], nll[kTile];
      const bool is_kept = call_.state.m != nullptr;
      const A *m = is_kept ? call_.state.m + at.start : own_m, *r = is_kept ? call_.state.r + at.start : own_r;
      if (!is_kept && call_.g.classes > 2) tile_statistics(pixels.tile, pixels.y, own_m, own_r, nll);
      const A* const* slopes = regions_.classes.empty() ? nullptr : regions_.read(pixels.tile.n, at);
      tile_gradient(pixels, factors_, smoothing, m, r, slopes, gradient_.data(), call_.tile());
      body(gradient_.data(), pixels, at);
    });
  }

 private:
  // The weights of the edge terms and the slopes of the region term.
  void prepare(const Slab& slab);
  void collect_shares(const Slab& slab);

  const Call<A>& call_;
  TermFactors<A> factors_;
  const double* of_region_;
  EdgeWindows<A> windows_;
  EdgeWeights<A> weights_;
  SlabTiles<A> tiles_;
  RegionRows<A> regions_;
  std::vector<A> gradient_;
};

template <typename A>
SlabGradient<A>::SlabGradient(const Call<A>& call, const Gradients& gradients)
    : call_(call),
      of_region_(gradients.region ? static_cast<const double*>(gradients.region->const_data_ptr()) : nullptr),
      windows_(call.g),
      tiles_(call),
      gradient_(call.g.classes * call.tile()) {
  const double* terms = static_cast<const double*>(gradients.terms.const_data_ptr());
  factors_ = {static_cast<A>(terms[Row::kCrossEntropy]), static_cast<A>(terms[Row::kSameSide]),
              static_cast<A>(terms[Row::kOtherSide])};
}

template <typename A>
void SlabGradient<A>::prepare(const Slab& slab) {
  const Geometry& g = call_.g;
  if (call_.options.gathers) {
    collect_shares(slab);
  } else if (call_.options.edges) {
    windows_.form(call_.label_map(slab.image), slab, &weights_, nullptr);
  }
  regions_.classes.clear();
  const int64_t slice = average_of(slab.first_slice);
  const RegionSize size = region_size(g);
  if (!call_.state.slopes || !of_region_ || slice >= size.depth) return;
  for (int32_t c = 0; c < g.classes; ++c) {
    if (call_.state.has_term[slab.image * g.classes + c]) regions_.classes.push_back(c);
  }
  const int64_t image = slab.image / g.tables, maps = g.tables * g.classes;
  const uint8_t* of_image = call_.state.has_term + image * maps;
  const double terms = static_cast<double>(std::count(of_image, of_image + maps, 1));
  const A factor = terms > 0 ? static_cast<A>(of_region_[image] / terms) : A(0);
  regions_.start(slab, g);
  regions_.for_each_row(size, [&](int32_t c, int64_t start, A* row) {
    const A* slope = call_.state.slopes + (slab.image * g.classes + c) * averages_in(size) + start;
    for (int64_t i = 0; i < size.width; ++i) {
      const A value = factor * slope[i];
      const int64_t x = kPool * i;
      if (i > 0) row[x - 1] = value;
      row[x] = value;
      if (x + 1 < g.width) row[x + 1] = value;
    }
  });
}

// The weights where neighbors are gathered: their shares.
template <typename A>
void SlabGradient<A>::collect_shares(const Slab& slab) {
  weights_.clear();
  weights_.start(slab.pixels(call_.g.width), call_.g.classes);
  gather_shares(call_, slab, weights_.same.data(), weights_.others);
  if (call_.g.classes > 2) return;
  for (const OtherWeight<A>& each : weights_.others) weights_.other[each.place] += each.weight;
  weights_.others.clear();
}

// ---------------------------------------------------------------------------------------- logits of lower resolution

// A box of low-resolution rows of an image: what the backward pass works on. The rows at the labels' resolution that
// are mixed from two boxes are visited for each of them.
struct LowBox {
  int64_t image, first_slice, last_slice, first_row, last_row;
};

struct LowBoxes {
  int64_t depth, height, slices, rows;  // of the image; of a box
  int64_t per_slice, per_image, count;

  LowBoxes(int64_t batch, int64_t depth, int64_t height) : depth(depth), height(height) {
    // Large, so that few rows are visited twice, and yet enough of them for all threads.
    const int64_t most = std::clamp<int64_t>(batch * depth * height / 32, 2, 16);
    slices = std::min<int64_t>(depth, 4);
    rows = std::min(height, most);
    per_slice = (height + rows - 1) / rows;
    per_image = (depth + slices - 1) / slices * per_slice;
    count = batch * per_image;
  }
  LowBox at(int64_t index) const {
    const int64_t slice = index % per_image / per_slice * slices, row = index % per_slice * rows;
    return {index / per_image, slice, std::min(slice + slices, depth), row, std::min(row + rows, height)};
  }
};

// The places along an axis that are mixed from some in [first, last): from `begin` to `end`.
template <typename A>
void find_support(const Axis<A>& axis, int64_t first, int64_t last, int64_t& begin, int64_t& end) {
  for (begin = 0; begin < axis.high && axis.at(begin).second < first;) ++begin;
  for (end = begin; end < axis.high && axis.at(end).first < last;) ++end;
}

// The gradient of a box's low-resolution rows, as they are interpolated along themselves: [slice, row, logit, W].
template <typename A>
struct WideSums {
  const LowBox& box;
  const Upsample<A>& up;
  int64_t logits;
  std::vector<A>& sums;

  int64_t rows() const { return box.last_row - box.first_row; }
  A* at(int64_t slice, int64_t row) const {
    return sums.data() + ((slice - box.first_slice) * rows() + row - box.first_row) * logits * up.along_x.high;
  }
  // Adds a tile of n pixels from a column on, of the row that is mixed from some of them.
  void add(const RowTaps<A>& taps, int64_t column, int64_t n, const A* tile, int64_t ld) const {
    for (int which = 0; which < 4; ++which) {
      const int64_t slice = taps.row[which] / up.along_y.low, row = taps.row[which] % up.along_y.low;
      const bool inside =
          slice >= box.first_slice && slice < box.last_slice && row >= box.first_row && row < box.last_row;
      const A weight = taps.weight_of(which);
      if (!inside || weight == A(0)) continue;
      vectorized<A>([=, sum = at(slice, row) + column, step = up.along_x.high, logits = logits]() EDGELOSS_LOOP {
        for (int64_t c = 0; c < logits; ++c) {
          EDGELOSS_INDEPENDENT
          for (int64_t j = 0; j < n; ++j) sum[c * step + j] += weight * tile[c * ld + j];
        }
      });
    }
  }
  void write(const Stored<A, void*>& out) const {
    const int64_t low = up.along_x.low;
    std::vector<A> narrow(logits * low);
    for (int64_t slice = box.first_slice; slice < box.last_slice; ++slice) {
      for (int64_t row = box.first_row; row < box.last_row; ++row) {
        up.adjoint(at(slice, row), logits, narrow.data());
        write_tile(narrow.data(), low, logits, low, out, (slice * up.along_y.low + row) * low, false);
      }
    }
  }
};

// What the rows at the labels' resolution give to a box.
template <typename A>
void backward_box(const Call<A>& call, const LowBox& box, const Stored<A, void*>& out, SlabGradient<A>& space,
                  std::vector<A>& memory) {
  const Geometry& g = call.g;
  const Upsample<A>& up = *call.up;
  const WideSums<A> sums = {box, up, g.logits, memory};
  memory.assign((box.last_slice - box.first_slice) * sums.rows() * g.logits * g.width, A(0));
  int64_t first_slice, last_slice, first_row, last_row;
  find_support(up.along_z, box.first_slice, box.last_slice, first_slice, last_slice);
  find_support(up.along_y, box.first_row, box.last_row, first_row, last_row);
  for (int64_t z = first_slice; z < last_slice; ++z) {
    for (int64_t y = first_row; y < last_row; y += call.slabs.rows) {
      const Slab slab = {box.image, z, z + 1, y, std::min(y + call.slabs.rows, last_row)};
      space.for_each_tile(slab, [&](const A* gradient, const Pixels<A>& pixels, const TilePlace& at) {
        sums.add(up.row_taps(z, at.row), at.column, pixels.tile.n, gradient + (g.logits == 1 ? call.tile() : 0),
                 call.tile());
      });
    }
  }
  sums.write(out);
}

template <typename A>
void upsampled_backward(const Call<A>& call, const Gradients& gradients, const Tensor& grad) {
  const LowBoxes boxes(call.g.batch, call.up->along_z.low, call.up->along_y.low);
  const Steps steps(grad);
  on_each_thread(boxes.count, 1, [&](Tasks& tasks) {
    SlabGradient<A> space(call, gradients);
    std::vector<A> sums;
    for (int64_t i, end; tasks.take(i, end);) {
      const LowBox box = boxes.at(i);
      backward_box(call, box, stored_output<A>(grad, steps, box.image), space, sums);
    }
  });
}

// ------------------------------------------------------------------------------------------------------------ operator

constexpr int64_t kStreamed = 1 << 23;  // bytes of a gradient that is not in cache when the next operator reads it

template <typename A>
Tensor run_backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved, const Options& options) {
  Tensor grad = torch::stable::empty_like(inputs.logits);
  const int64_t bytes = grad.numel() * static_cast<int64_t>(grad.element_size());
  want_large_pages(grad.mutable_data_ptr(), bytes);
  const Call<A> call(inputs, saved.label, saved, options);
  const Geometry& g = call.g;
  if (g.batch * g.pixels == 0) {
    torch::stable::zero_(grad);
    return grad;
  }
  if (call.up) {
    upsampled_backward(call, gradients, grad);
    return grad;
  }
  const Steps steps(grad);
  on_each_thread(call.slabs.count, 1, [&](Tasks& tasks) {
    SlabGradient<A> space(call, gradients);
    for (int64_t i, end; tasks.take(i, end);) {
      const Slab slab = call.slabs.at(i);
      const Stored<A, void*> out = stored_output<A>(grad, steps, slab.image);
      space.for_each_tile(slab, [&](const A* gradient, const Pixels<A>& pixels, const TilePlace& at) {
        // Of one logit, the second class has it.
        write_tile(gradient + (g.logits == 1 ? call.tile() : 0), call.tile(), g.logits, pixels.tile.n, out,
                   at.start - slab.image * g.pixels, bytes >= kStreamed);
      });
    }
    end_streams();
  });
  return grad;
}

}  // namespace

Tensor backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved, const Options& options) {
  return by_arithmetic(inputs.logits,
                       [&](auto a) { return run_backward<decltype(a)>(gradients, inputs, saved, options); });
}

}  // namespace edgeloss
