// The whole loss on the CPU: what forward and backward share.
//
// Forward (forward.cpp): (1) labels: which of them count, how many, and their averages for the region term; with decay
// the distances; (2) slab by slab, the weights of the edge terms from the labels (label_weights.h), and tile by
// tile the sums of the terms and the averages of the shares (terms.h); (3) where the edge terms are by pairs, the edge
// terms of pairs of pixels (pairs.h); (4) from the averages, the region terms and their slopes (region.h).
// Backward (backward.cpp) forms these weights again, and the gradient from them and the logits. Logits of lower
// resolution are interpolated row by row (interpolate.h). What a slab is does not depend on the number of threads, and
// sums are added up in the order of the slabs, so every run gives the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "interpolate.h"
#include "label_weights.h"
#include "saved_state.h"
#include "slabs.h"
#include "terms.h"
#include "tiles.h"

namespace edgeloss {

// The tensors that forward and backward both read.
struct Inputs {
  const Tensor& logits;
  const std::optional<Tensor>&weight, &pixel_weight;
  const std::optional<Tensor>& edge_pixel_weight;  // v of the edge terms, where it is another
};

// What arrives at the sums, as operators.cpp says.
struct Gradients {
  const std::optional<Tensor>& grad;
  const Tensor& slopes;
};

Outputs forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                const Options& options);
Tensor backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved, const Options& options);

template <typename A>
A* data_of(const Tensor& tensor) {
  return tensor.numel() > 0 ? static_cast<A*>(tensor.mutable_data_ptr()) : nullptr;
}

using Sums = std::array<double, Row::kCount>;

// Everything that the passes share: arguments, and the state that forward leaves to backward.
template <typename A>
struct Call {
  Geometry g;
  Slabs slabs;
  const Options& options;
  const Tensor& logits;
  Steps steps;
  std::optional<Upsample<A>> up;  // where the logits are not of the labels' resolution
  const A* pixel_weight;          // [B, P] or null
  const A* edge_pixel_weight;     // [B, P] or null
  const A* weight;                // [tables, C] or null
  int16_t* label;                 // [B, P]
  State<A> state;
  const A* field;  // [B, P] or null: that of the state, or the user's

  Call(const Inputs& inputs, const Tensor& target, const SavedState& saved, const Options& options)
      : g(clipped_geometry(inputs.logits, target, options)),
        slabs(g),
        options(options),
        logits(inputs.logits),
        steps(inputs.logits),
        pixel_weight(data_or_null<A>(inputs.pixel_weight)),
        edge_pixel_weight(inputs.edge_pixel_weight ? data_or_null<A>(inputs.edge_pixel_weight) : pixel_weight),
        weight(data_or_null<A>(inputs.weight)),
        label(data_of<int16_t>(saved.label)),
        state(data_of<std::byte>(saved.memory), g, options, is_upsampled(g, inputs.logits), saved.distance.has_value()),
        field(options.has_decay() && saved.distance ? data_or_null<A>(saved.distance) : state.field) {
    if (!is_upsampled(g, logits) || g.batch * g.pixels == 0) return;
    const Geometry low = geometry_of(logits, {0, 0, 0});
    up.emplace(Axis<A>(low.depth, g.depth), Axis<A>(low.height, g.height), Axis<A>(low.width, g.width));
  }

  Stored<A> image(int64_t b) const { return stored<A>(logits, steps, b, g.logits == 1); }
  A per_decay() const { return options.has_decay() ? static_cast<A>(1 / options.decay) : A(0); }
  Smoothing<A> smoothing(int64_t image) const {
    return {weight ? weight + g.table(image) : nullptr, g.classes, static_cast<A>(options.label_smoothing)};
  }
  LabelMap<A> label_map(int64_t image) const {
    const int64_t first = image * g.pixels;
    return {label + first, edge_pixel_weight ? edge_pixel_weight + first : nullptr,
            field && !options.by_pairs ? field + first : nullptr, per_decay()};
  }
  // Pixels of a tile. Of many classes they are fewer, so that it stays in the second-level cache.
  int64_t tile() const {
    const int64_t pixels = (1 << 17) / (g.classes * static_cast<int64_t>(sizeof(A)));
    return std::clamp<int64_t>(pixels & ~int64_t(15), 16, g.classes > 4 ? kTile / 2 : kTile);
  }
};

// New memory's first touch costs a page fault every 4 KB, more than the arithmetic that fills it: ask for 2 MB pages.
void want_large_pages(void* memory, int64_t bytes);

}  // namespace edgeloss
