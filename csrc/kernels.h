// The passes of the loss behind its operators.
#pragma once

#include <optional>

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

namespace cpu {
Outputs forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                const Options& options);
Tensor backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved, const Options& options);
}  // namespace cpu

}  // namespace edgeloss
