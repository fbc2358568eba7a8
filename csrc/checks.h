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

#include "tensors.h"

namespace edgeloss::checks {

using Types = std::initializer_list<ScalarType>;
using Sizes = std::vector<int64_t>;
constexpr Types kLogits = {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double};
constexpr Types kReal = {ScalarType::Float, ScalarType::Double}, kFlags = {ScalarType::Bool, ScalarType::Byte};
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

// Compares the tensors of one call with its logits.
class Checker {
 public:
  const ScalarType real;  // what is computed in
  Sizes image;            // [B, *S] of the logits

  explicit Checker(const Tensor& logits, Types types = kLogits)
      : real(real_type(logits)), image(sizes_of(logits)), logits_(logits), dims_(logits.dim() - 2) {
    STD_TORCH_CHECK(dims_ == 2 || dims_ == 3, "logits: expected [B, C, H, W] or [B, C, D, H, W], but got ",
                    text(image));
    dtype("logits", logits, types);
    STD_TORCH_CHECK(0 < logits.size(1) && logits.size(1) <= INT16_MAX, "logits: expected 1 to ", INT16_MAX,
                    " classes, but got ", logits.size(1));
    STD_TORCH_CHECK(is_evenly_spaced(logits), "logits: expected evenly spaced pixels; call .contiguous()");
    image.erase(image.begin() + 1);
  }

  int64_t pixels() const { return logits_.numel() / logits_.size(1); }

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

  // The number of neighbors of a pixel.
  int64_t neighbors(const std::vector<int64_t>& radius) const {
    STD_TORCH_CHECK(static_cast<int64_t>(radius.size()) == dims_, "radius: expected ", dims_,
                    " numbers, one per axis, but got ", radius.size());
    int64_t window = 1;
    for (const int64_t each : radius) {
      STD_TORCH_CHECK(each >= 0, "radius: expected at least 0, but got ", each);
      window *= 2 * each + 1;
    }
    return window - 1;
  }

 private:
  const Tensor& logits_;
  int64_t dims_;
};

// Of `reduce`.
inline void check_sums(const Tensor& sums, const Tensor& edge_sums, const Tensor& region, const Tensor& image_weight,
                       const std::optional<Tensor>& edge_class_weight, const std::optional<Tensor>& normalizer,
                       int64_t tables) {
  STD_TORCH_CHECK(edge_sums.dim() == 3 && edge_sums.size(0) == EdgeRow::kCount && edge_sums.size(2) > 1,
                  "edge_sums: expected [3, B, C], but got ", text(sizes_of(edge_sums)));
  STD_TORCH_CHECK(tables >= 1 && edge_sums.size(1) % tables == 0, "tables: expected a divisor of ", edge_sums.size(1),
                  ", but got ", tables);
  const int64_t classes = tables * edge_sums.size(2);
  const auto flat = [](const char* name, const Tensor& x, int64_t length, Types types) {
    STD_TORCH_CHECK(x.is_cpu() && x.is_contiguous() && x.numel() == length, name, ": expected ", length,
                    " contiguous elements on the CPU, but got ", text(sizes_of(x)));
    dtype(name, x, types);
  };
  flat("sums", sums, Row::kCount, {ScalarType::Double});
  flat("edge_sums", edge_sums, edge_sums.numel(), {ScalarType::Double});
  flat("region", region, region.numel() > 0 ? edge_sums.size(1) / tables : 0, {ScalarType::Double});
  flat("image_weight", image_weight, region.numel(), {ScalarType::Double});
  if (edge_class_weight) flat("edge_class_weight", *edge_class_weight, classes, kReal);
  if (normalizer) flat("normalizer", *normalizer, normalizer->numel() == 2 ? 2 : 1 + classes, {ScalarType::Double});
}

}  // namespace edgeloss::checks
