// The functions of a device behind the operators.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "options.h"
#include "saved_state.h"
#include "tensors.h"
#include "upstream.h"

namespace edgeloss {

// The tensors that forward and backward both read.
struct Inputs {
  const Tensor& logits;
  const std::optional<Tensor>&weight, &pixel_weight, &edge_class_weight;
};

// The most classes that one read of the logits is enough for.
constexpr int kMostClassesOfSingleRead = 32;

// What count_labels() leaves to single_read(): the counts among the sums, the edge pixels of each class, which it has
// for their weights too, and the state of CUDA's forward pass, without statistics and sides.
struct LabelState {
  Tensor sums, edge_counts, label, edge_list;
};

// The factors of the terms in the loss, and those of a gradient that is there already.
struct TermFactors {
  const Tensor& needed;
  const std::optional<Tensor>& assumed;
};

using CountLabels = LabelState(const Inputs& inputs, const Tensor& target, const Options& options);
// Writes the gradient and the terms among the sums, each where it is wanted.
using SingleRead = void(const Inputs& inputs, const LabelState& labels, const TermFactors& factors,
                        const std::optional<Tensor>& gradient, const std::optional<Tensor>& sums,
                        const Options& options);

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
// Results: value [B], valid pixels of each class [B, classes], slope, classes that there are.
using RegionForward = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor& logits, const Tensor& target,
                                                                 int64_t ignore_index);
// Adds to the gradient of the logits.
using RegionBackward = void(const Tensor& gradient, const Tensor& grad_value, const Tensor& logits,
                            const Tensor& target, const Tensor& slope, const Tensor& classes, int64_t ignore_index);

// Weak: a library may be built without those of a device, and they are null then.
#define EDGELOSS_KERNEL __attribute__((weak, visibility("hidden")))

namespace cpu {
EDGELOSS_KERNEL Forward forward;
EDGELOSS_KERNEL Backward backward;
EDGELOSS_KERNEL NeighborForward neighbor_nll;
EDGELOSS_KERNEL NeighborBackward neighbor_nll_backward;
EDGELOSS_KERNEL RegionForward region;
EDGELOSS_KERNEL RegionBackward region_backward;
}  // namespace cpu

namespace cuda {
EDGELOSS_KERNEL Forward forward;
EDGELOSS_KERNEL Backward backward;
EDGELOSS_KERNEL CountLabels count_labels;
EDGELOSS_KERNEL SingleRead single_read;
EDGELOSS_KERNEL NeighborForward neighbor_nll;
EDGELOSS_KERNEL NeighborBackward neighbor_nll_backward;
}  // namespace cuda

}  // namespace edgeloss
