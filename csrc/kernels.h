// The functions of a device behind the operators.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "options.h"
#include "saved_state.h"
#include "tensors.h"

namespace edgeloss {

// The tensors that forward and backward both read.
struct Inputs {
  const Tensor& logits;
  const std::optional<Tensor>&weight, &pixel_weight, &edge_class_weight;
};

// What arrives at the sums of the terms, [3] float64, and at the region terms of the images, [B / tables] float64.
struct Gradients {
  const Tensor& terms;
  const std::optional<Tensor>& region;
};

using Forward = Outputs(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                        const Options& options);
using Backward = Tensor(const Gradients& gradients, const Inputs& inputs, const SavedState& saved,
                        const Options& options);
// Results: value [B, *S], stats, largest, sides.
using NeighborForward = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor& logits, const Tensor& index,
                                                                   const Tensor& weight,
                                                                   const std::optional<Tensor>& mask,
                                                                   std::vector<int64_t> radius);
using NeighborBackward = Tensor(const Tensor& grad_value, const Tensor& logits, const Tensor& index,
                                const Tensor& weight, const Tensor& stats, const Tensor& largest, const Tensor& sides,
                                std::vector<int64_t> radius);

// Weak: a library may be built without those of a device, and they are null then.
#define EDGELOSS_KERNEL __attribute__((weak, visibility("hidden")))

namespace cpu {
EDGELOSS_KERNEL Forward forward;
EDGELOSS_KERNEL Backward backward;
EDGELOSS_KERNEL NeighborForward neighbor_nll;
EDGELOSS_KERNEL NeighborBackward neighbor_nll_backward;
}  // namespace cpu

namespace cuda {
EDGELOSS_KERNEL NeighborForward neighbor_nll;
EDGELOSS_KERNEL NeighborBackward neighbor_nll_backward;
}  // namespace cuda

}  // namespace edgeloss
