// The whole loss on the CPU, backward: the gradient of a slab, tile by tile, and where it goes.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "pairs.h"
#include "parallel.h"
#include "slab_tiles.h"

namespace edgeloss {
namespace {

// What the backward pass of a thread works in.
template <typename A>
class SlabGradient {
 public:
  SlabGradient(const Call<A>& call, const std::vector<A>& slopes)
      : call_(call), slopes_(slopes), windows_(call.g), tiles_(call), gradient_(call.g.classes * call.tile()) {}

  // Calls body(gradient [C, tile()], pixels, where they are) for each tile.
  template <typename F>
  void for_each_tile(const Slab& slab, const F& body) {
    prepare(slab);
    const Smoothing<A> smoothing = call_.smoothing(slab.image);
    const SlabWeights<A>* weights = call_.options.edges ? &weights_ : nullptr;
    const int64_t of_image = 1 + slab.image * call_.g.classes;
    const A* same = slopes_.data() + of_image;
    const TermFactors<A> factors = {slopes_[0], same, same + call_.g.batch * call_.g.classes};
    tiles_.for_each(slab, weights, false, [&](const Pixels<A>& pixels, const TilePlace& at) {
      A own_m[kTile], own_r[kTile], nll[kTile];
      const bool is_kept = call_.state.m != nullptr;
      const A *m = is_kept ? call_.state.m + at.start : own_m, *r = is_kept ? call_.state.r + at.start : own_r;
      if (!is_kept && call_.g.classes > 2) tile_statistics(pixels.tile, pixels.y, own_m, own_r, nll);
      const A* const* slopes = regions_.classes.empty() ? nullptr : regions_.read(pixels.tile.n, at);
      tile_gradient(pixels, factors, smoothing, m, r, slopes, gradient_.data(), call_.tile());
      body(gradient_.data(), pixels, at);
    });
  }

 private:
  // The weights of the edge terms and the slopes of the region term.
  void prepare(const Slab& slab);
  void collect_shares(const Slab& slab);

  const Call<A>& call_;
  const std::vector<A>& slopes_;  // what arrives at the sums, as operators.cpp says
  EdgeWindows<A> windows_;
  SlabWeights<A> weights_;
  SlabTiles<A> tiles_;
  RegionRows<A> regions_;
  std::vector<A> gradient_;
};

template <typename A>
void SlabGradient<A>::prepare(const Slab& slab) {
  const Geometry& g = call_.g;
  if (call_.options.by_pairs) {
    collect_shares(slab);
  } else if (call_.options.edges) {
    windows_.form(call_.label_map(slab.image), slab, &weights_, nullptr);
  }
  regions_.classes.clear();
  const int64_t slice = average_of(slab.first_slice);
  const RegionSize size = region_size(g);
  if (!call_.state.slopes || slice >= size.depth) return;
  for (int32_t c = 0; c < g.classes; ++c) {
    if (call_.state.has_term[slab.image * g.classes + c]) regions_.classes.push_back(c);
  }
  const int64_t image = slab.image / g.tables, maps = g.tables * g.classes;
  const uint8_t* of_image = call_.state.has_term + image * maps;
  const double terms = static_cast<double>(std::count(of_image, of_image + maps, 1));
  const A factor = terms > 0 ? slopes_[1 + 2 * g.batch * g.classes + image] / static_cast<A>(terms) : A(0);
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

// The weights where the edge terms are by pairs: their shares.
template <typename A>
void SlabGradient<A>::collect_shares(const Slab& slab) {
  weights_.clear();
  weights_.start(slab.pixels(call_.g.width), call_.g.classes);
  find_pair_shares(call_, slab, weights_.same_side.data(), weights_.others);
  if (call_.g.classes > 2) return;
  for (const OtherWeight<A>& each : weights_.others) weights_.other_side[each.place] += each.weight;
  weights_.others.clear();
}

// ---------------------------------------------------------------------------------------- logits of lower resolution

// Low-resolution rows of a slice: what the backward pass works on. The rows at the labels' resolution that are mixed
// from two such bands are visited for each of them.
struct LowBand {
  int64_t image, slice, first_row, last_row;

  bool has(int64_t z, int64_t row) const { return z == slice && first_row <= row && row < last_row; }
};

struct LowBands {
  int64_t depth, height, rows, per_slice, count;

  LowBands(int64_t batch, int64_t depth, int64_t height)
      : depth(depth),
        height(height),
        // Large, so that few rows are visited twice, and yet enough of them for all threads.
        rows(std::min(height, std::clamp<int64_t>(batch * depth * height / 32, 2, 16))),
        per_slice((height + rows - 1) / rows),
        count(batch * depth * per_slice) {}
  LowBand at(int64_t index) const {
    const int64_t slice = index / per_slice, row = index % per_slice * rows;
    return {slice / depth, slice % depth, row, std::min(row + rows, height)};
  }
};

// The places along an axis that are mixed from some in [first, last): from `begin` to `end`.
template <typename A>
void find_support(const Axis<A>& axis, int64_t first, int64_t last, int64_t& begin, int64_t& end) {
  for (begin = 0; begin < axis.high && axis.at(begin).second < first;) ++begin;
  for (end = begin; end < axis.high && axis.at(end).first < last;) ++end;
}

// Adds a tile of n pixels to the gradient of the low-resolution row that they are interpolated from along itself.
template <typename A>
void add_tile(const A* tile, int64_t ld, int64_t logits, int64_t n, A weight, A* sum, int64_t step) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    for (int64_t c = 0; c < logits; ++c) {
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) sum[c * step + j] += weight * tile[c * ld + j];
    }
  });
}

// What the rows at the labels' resolution give to a band. wide, narrow: memory for [row, logit, W] of both widths.
template <typename A>
void backward_band(const Call<A>& call, const LowBand& band, const Stored<A, void*>& out, SlabGradient<A>& space,
                   std::vector<A>& wide, std::vector<A>& narrow) {
  const Geometry& g = call.g;
  const Upsample<A>& up = *call.up;
  const int64_t low = up.along_x.low, low_y = up.along_y.low, per_row = g.logits * g.width;
  wide.assign((band.last_row - band.first_row) * per_row, A(0));
  narrow.resize(g.logits * low);
  int64_t first_slice, last_slice, first_row, last_row;
  find_support(up.along_z, band.slice, band.slice + 1, first_slice, last_slice);
  find_support(up.along_y, band.first_row, band.last_row, first_row, last_row);
  for (int64_t z = first_slice; z < last_slice; ++z) {
    for (int64_t y = first_row; y < last_row; y += call.slabs.rows) {
      const Slab slab = {band.image, z, z + 1, y, std::min(y + call.slabs.rows, last_row)};
      space.for_each_tile(slab, [&](const A* gradient, const Pixels<A>& pixels, const TilePlace& at) {
        const RowTaps<A> taps = up.row_taps(z, at.row);
        for (int which = 0; which < 4; ++which) {
          const int64_t row = taps.row[which] % low_y;
          const A weight = taps.weight_of(which);
          if (weight == A(0) || !band.has(taps.row[which] / low_y, row)) continue;
          add_tile(gradient + (g.logits == 1 ? call.tile() : 0), call.tile(), g.logits, pixels.tile.n, weight,
                   wide.data() + (row - band.first_row) * per_row + at.column, g.width);
        }
      });
    }
  }
  for (int64_t row = band.first_row; row < band.last_row; ++row) {
    up.adjoint(wide.data() + (row - band.first_row) * per_row, g.logits, narrow.data());
    write_tile(narrow.data(), low, g.logits, low, out, (band.slice * low_y + row) * low, false);
  }
}

template <typename A>
void upsampled_backward(const Call<A>& call, const std::vector<A>& slopes, const Tensor& grad) {
  const LowBands bands(call.g.batch, call.up->along_z.low, call.up->along_y.low);
  const Steps steps(grad);
  on_each_thread(bands.count, 1, [&](Tasks& tasks) {
    SlabGradient<A> space(call, slopes);
    std::vector<A> wide, narrow;
    for (int64_t i, end; tasks.take(i, end);) {
      const LowBand band = bands.at(i);
      backward_band(call, band, stored_output<A>(grad, steps, band.image), space, wide, narrow);
    }
  });
}

// ------------------------------------------------------------------------------------------------------------ operator

constexpr int64_t kStreamed = 1 << 23;  // bytes of a gradient that is not in cache when the next operator reads it

// What arrives at the sums, times the gradient of the loss.
template <typename A>
std::vector<A> slopes_of(const Gradients& gradients) {
  double factor = 1;
  if (gradients.grad) {
    const void* data = gradients.grad->const_data_ptr();
    const bool is_double = gradients.grad->scalar_type() == ScalarType::Double;
    factor = is_double ? *static_cast<const double*>(data) : static_cast<double>(*static_cast<const float*>(data));
  }
  const double* slopes = static_cast<const double*>(gradients.slopes.const_data_ptr());
  std::vector<A> result(gradients.slopes.numel());
  for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<A>(factor * slopes[i]);
  return result;
}

// Where the edge terms are by pairs labels are indices: those that forward has left are in range, others need not be.
template <typename A>
void check_labels(const Call<A>& call) {
  const int64_t n = call.g.batch * call.g.pixels;
  int16_t least = 0, largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    least = std::min(least, call.label[i]);
    largest = std::max(largest, call.label[i]);
  }
  STD_TORCH_CHECK(least >= kIgnored && largest < call.g.classes, "label: expected -1 to ", call.g.classes - 1,
                  ", but got ", least, " to ", largest);
}

template <typename A>
Tensor run_backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved, const Options& options) {
  Tensor grad = new_gradient(inputs.logits);
  const int64_t bytes = grad.numel() * static_cast<int64_t>(grad.element_size());
  want_large_pages(grad.mutable_data_ptr(), bytes);
  const Call<A> call(inputs, saved.label, saved, options);
  const Geometry& g = call.g;
  if (g.batch * g.pixels == 0) {
    torch::stable::zero_(grad);
    return grad;
  }
  if (options.by_pairs) check_labels(call);
  const std::vector<A> slopes = slopes_of<A>(gradients);
  if (call.up) {
    upsampled_backward(call, slopes, grad);
    return grad;
  }
  const Steps steps(grad);
  on_each_thread(call.slabs.count, 1, [&](Tasks& tasks) {
    SlabGradient<A> space(call, slopes);
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
