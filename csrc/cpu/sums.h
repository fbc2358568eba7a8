// Sums of the terms -> the loss, what it gives back to the sums, and its figures: the formula of
// edgeloss/_reduction.py.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "../tensors.h"

namespace edgeloss {

// Places of the figures.
struct Value {
  enum : int { kCrossEntropy, kSameSide, kOtherSide, kEdge, kRegion, kEdgeFraction, kEdgeFocused, kEdgeFocus, kCount };
};

// The operator: library.cpp has its schema. sums, edge_sums, region and region_weight are those of edge_loss.
// normalizer: W and n of all classes, or W and E. Returns the loss, its derivatives by the sums as `slopes`, and
// figures by Value.
std::tuple<Tensor, Tensor, Tensor> reduce(const Tensor& sums, const Tensor& edge_sums, const Tensor& region,
                                          const Tensor& region_weight, const std::optional<Tensor>& edge_class_weight,
                                          const std::optional<Tensor>& normalizer, int64_t tables, bool balanced,
                                          bool mean, bool wide, double ce_weight, double edge_weight,
                                          double other_side_weight, double same_side_weight,
                                          double region_weight_of_loss, double edge_focus);

}  // namespace edgeloss
