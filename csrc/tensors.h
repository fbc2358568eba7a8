// What the operators of every device read off their tensors.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "geometry.h"

namespace edgeloss {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename A>
constexpr ScalarType kScalarType = std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float;

// Calls body(T(), A()) with the type of the logits and the type to reckon in.
template <typename F>
auto by_type(const Tensor& logits, const F& body) {
  switch (logits.scalar_type()) {
    case ScalarType::Double:
      return body(double(), double());
    case ScalarType::Float:
      return body(float(), float());
    case ScalarType::Half:
      return body(torch::headeronly::Half(), float());
    case ScalarType::BFloat16:
      return body(torch::headeronly::BFloat16(), float());
    default:
      STD_TORCH_CHECK(false, "logits: expected float16, bfloat16, float32 or float64");
  }
}

template <typename A>
const A* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<const A*>(tensor->const_data_ptr()) : nullptr;
}

// Of the pixels that the last axes of `image` hold, which the logits may have fewer of.
inline Geometry geometry_of(const Tensor& logits, const Tensor& image, const std::vector<int64_t>& radius) {
  const int64_t dims = logits.dim() - 2, first = image.dim() - dims;
  Geometry g;
  g.is_volume = dims == 3;
  g.batch = logits.size(0);
  g.logits = logits.size(1);
  g.classes = std::max<int64_t>(2, g.logits);
  g.depth = g.is_volume ? image.size(first) : 1;
  g.height = image.size(first + dims - 2);
  g.width = image.size(first + dims - 1);
  g.pixels = g.depth * g.height * g.width;
  g.radius[0] = g.is_volume ? radius[0] : 0;
  g.radius[1] = radius[dims - 2];
  g.radius[2] = radius[dims - 1];
  return g;
}
inline Geometry geometry_of(const Tensor& logits, const std::vector<int64_t>& radius) {
  return geometry_of(logits, logits, radius);
}

// Whether the logits are of another resolution than the image.
inline bool is_upsampled(const Geometry& g, const Tensor& logits) {
  const Geometry low = geometry_of(logits, {0, 0, 0});
  return low.depth != g.depth || low.height != g.height || low.width != g.width;
}

inline std::vector<int64_t> sizes_of(const Tensor& x) {
  std::vector<int64_t> sizes(x.dim());
  for (int64_t axis = 0; axis < x.dim(); ++axis) sizes[axis] = x.size(axis);
  return sizes;
}

// The steps of a tensor [B, C, *S] whose pixels are evenly spaced, as in contiguous and channels_last ones.
struct Steps {
  int64_t image, channel, pixel;

  explicit Steps(const Tensor& x) : image(x.stride(0)), channel(x.stride(1)), pixel(1) {
    for (int64_t axis = 2; axis < x.dim(); ++axis) {
      if (x.size(axis) > 1) pixel = x.stride(axis);  // the step along an axis of one pixel may be anything
    }
  }
};

}  // namespace edgeloss
