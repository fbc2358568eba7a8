// Checks of what the operators get: shapes, dtypes, devices and layouts, so that a kernel reads and writes inside of
// its tensors, whoever calls it. Values are checked in Python, and labels by the kernels.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"

namespace edgeloss::checks {

using Types = std::initializer_list<ScalarType>;
using Sizes = std::vector<int64_t>;
constexpr Types kLogits = {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double};
constexpr Types kLabels = {ScalarType::Long, ScalarType::Int, ScalarType::Short, ScalarType::Byte, ScalarType::Bool};

inline std::string text(const Sizes& sizes) {
  std::string all;
  for (const int64_t size : sizes) all += (all.empty() ? "" : ", ") + std::to_string(size);
  return "[" + all + "]";
}

inline void dtype(const char* name, const Tensor& x, Types types) {
  std::string expected;
  for (const ScalarType type : types) {
    if (x.scalar_type() == type) return;
    expected += (expected.empty() ? "" : ", ") + std::string(torch::headeronly::toString(type));
  }
  STD_TORCH_CHECK(false, name, ": expected the dtype ", expected, ", but got ",
                  torch::headeronly::toString(x.scalar_type()));
}

// Whether the pixels of an image are evenly spaced, as Steps reads them.
inline bool is_evenly_spaced(const Tensor& x) {
  if (x.numel() == 0) return true;
  int64_t next = -1;  // the step that the next axis outwards must have
  for (int64_t axis = x.dim() - 1; axis >= 2; --axis) {
    if (x.size(axis) == 1) continue;
    if (next >= 0 && x.stride(axis) != next) return false;
    next = x.stride(axis) * x.size(axis);
  }
  return true;
}

// The tensors of one call, all of which are compared with its logits.
class Call {
 public:
  Call(const Tensor& logits, const std::vector<int64_t>& radius) : logits_(logits), dims_(logits.dim() - 2) {
    STD_TORCH_CHECK(dims_ == 2 || dims_ == 3, "logits: expected [B, C, H, W] or [B, C, D, H, W], but got ",
                    text(sizes_of(logits)));
    dtype("logits", logits, kLogits);
    STD_TORCH_CHECK(0 < logits.size(1) && logits.size(1) <= INT16_MAX, "logits: expected 1 to ", INT16_MAX,
                    " classes, but got ", logits.size(1));
    STD_TORCH_CHECK(is_evenly_spaced(logits), "logits: expected evenly spaced pixels; call .contiguous()");
    for (const int64_t each : radius) STD_TORCH_CHECK(each >= 0, "radius: expected at least 0, but got ", each);
  }

  ScalarType real() const {
    return logits_.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  }
  int64_t classes() const { return std::max<int64_t>(2, logits_.size(1)); }
  // [B, *S] with the logits' sizes.
  Sizes image() const {
    Sizes sizes = sizes_of(logits_);
    sizes.erase(sizes.begin() + 1);
    return sizes;
  }

  template <typename T>
  void axes(const char* name, const std::vector<T>& values) const {
    STD_TORCH_CHECK(static_cast<int64_t>(values.size()) == dims_, name, ": expected ", dims_,
                    " numbers, one per axis, but got ", values.size());
  }
  void device(const char* name, const Tensor& x) const {
    const bool same = x.is_cuda() == logits_.is_cuda() && x.is_cpu() == logits_.is_cpu() &&
                      x.get_device_index() == logits_.get_device_index();
    STD_TORCH_CHECK(same, name, ": expected a tensor on the logits' device, but got one on another");
  }
  void tensor(const char* name, const Tensor& x, const Sizes& sizes, Types types, bool is_contiguous = true) const {
    device(name, x);
    dtype(name, x, types);
    STD_TORCH_CHECK(sizes_of(x) == sizes, name, ": expected ", text(sizes), ", but got ", text(sizes_of(x)));
    STD_TORCH_CHECK(is_contiguous ? x.is_contiguous() : is_evenly_spaced(x), name,
                    ": expected evenly spaced elements; call .contiguous()");
  }
  void tensor(const char* name, const std::optional<Tensor>& x, const Sizes& sizes, Types types) const {
    if (x) tensor(name, *x, sizes, types);
  }
  // Of any shape.
  void flat(const char* name, const Tensor& x, int64_t length, ScalarType type) const {
    device(name, x);
    dtype(name, x, {type});
    STD_TORCH_CHECK(x.numel() == length && x.is_contiguous(), name, ": expected ", length,
                    " contiguous elements, but got ", text(sizes_of(x)));
  }

  // Labels, of the logits' resolution or of a higher one.
  void target(const char* name, const Tensor& x, Types types) const {
    const Sizes low = image(), high = sizes_of(x);
    bool fits = high.size() == low.size() && high[0] == low[0];
    for (size_t axis = 1; fits && axis < low.size(); ++axis) fits = high[axis] >= low[axis];
    STD_TORCH_CHECK(fits, name, ": expected ", text(low), " or more along the axes of space, but got ", text(high));
    for (size_t axis = 1; axis < low.size(); ++axis) {
      STD_TORCH_CHECK(low[axis] > 0 || high[axis] == 0, name, ": expected no pixels as there are no logits, but got ",
                      text(high));
    }
    tensor(name, x, high, types);
  }

 private:
  const Tensor& logits_;
  int64_t dims_;
};

inline void weights(const Call& call, const Inputs& inputs, const Sizes& image, int64_t tables) {
  STD_TORCH_CHECK(tables >= 1 && image[0] % tables == 0, "tables: expected a divisor of the batch, ", image[0],
                  ", but got ", tables);
  call.tensor("weight", inputs.weight, {tables * call.classes()}, {call.real()});
  call.tensor("pixel_weight", inputs.pixel_weight, image, {call.real()});
  call.tensor("edge_class_weight", inputs.edge_class_weight, {tables * call.classes()}, {call.real()});
}

inline void forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                    const Options& options) {
  const Call call(inputs.logits, {options.radius, options.radius + 3});
  call.target("target", target, kLabels);
  weights(call, inputs, sizes_of(target), options.tables);
  call.tensor("distance", distance, sizes_of(target), {call.real()});
}

// The state must be one that forward returns.
inline void backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved,
                     const Options& options) {
  const Call call(inputs.logits, {options.radius, options.radius + 3});
  call.target("label", saved.label, {ScalarType::Short});
  weights(call, inputs, sizes_of(saved.label), options.tables);
  const Geometry g = clipped_geometry(inputs.logits, saved.label, options);
  call.flat("grad_terms", gradients.terms, Row::kTerms, ScalarType::Double);
  if (gradients.region) call.flat("grad_region", *gradients.region, g.batch / g.tables, ScalarType::Double);
  const StateSizes sizes(inputs.logits, g, options);
  call.flat("stats", saved.stats, sizes.stats, call.real());
  call.flat("field", saved.field, sizes.field, call.real());
  call.flat("slopes", saved.slopes, sizes.slopes, call.real());
  call.flat("has_term", saved.has_term, sizes.has_term, ScalarType::Byte);
  call.flat("edge", saved.edge, sizes.edge, ScalarType::Byte);
  call.flat("sides", saved.sides, sizes.sides, call.real());
  call.flat("near_place", saved.near_place, sizes.near, ScalarType::Int);
  call.flat("near_class", saved.near_class, sizes.near, ScalarType::Short);
  call.flat("near_weight", saved.near_weight, sizes.near, call.real());
  call.flat("near_count", saved.near_count, sizes.near_count, ScalarType::Int);
}

inline void neighbor_nll(const Tensor& logits, const Tensor& index, const Tensor& weight,
                         const std::optional<Tensor>& mask, const std::vector<int64_t>& radius) {
  const Call call(logits, radius);
  call.axes("radius", radius);
  const Sizes image = call.image();
  if (index.dim() == logits.dim()) {
    call.tensor("index", index, sizes_of(logits), {ScalarType::Bool, ScalarType::Byte}, false);
  } else {
    call.tensor("index", index, image, kLabels);
  }
  Sizes per_neighbor = sizes_of(logits);
  int64_t window = 1;
  for (const int64_t each : radius) window *= 2 * each + 1;
  per_neighbor[1] = window - 1;
  call.tensor("weight", weight, per_neighbor, {ScalarType::Float, ScalarType::Double}, false);
  call.tensor("mask", mask, image, {ScalarType::Bool, ScalarType::Byte});
}

inline void neighbor_nll_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& index,
                                  const Tensor& weight, const Tensor& stats, const Tensor& largest, const Tensor& sides,
                                  const std::vector<int64_t>& radius) {
  neighbor_nll(logits, index, weight, std::nullopt, radius);
  const Call call(logits, radius);
  int64_t pixels = 1;
  for (const int64_t size : call.image()) pixels *= size;
  call.flat("grad_value", grad_value, pixels, call.real());
  call.flat("stats", stats, 2 * pixels, call.real());
  call.flat("largest", largest, pixels, weight.scalar_type());
  call.flat("sides", sides, 3 * pixels, call.real());
}

}  // namespace edgeloss::checks
