// What the operators of every device read from their tensors.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "geometry.h"
#include "labels.h"
#include "options.h"
#include "stored.h"

namespace edgeloss {

using torch::stable::Tensor;

// What the kernels compute in.
inline ScalarType real_type(const Tensor& logits) {
  return logits.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}
// Calls body(A()) with that type.
template <typename F>
auto by_arithmetic(const Tensor& logits, const F& body) {
  return real_type(logits) == ScalarType::Double ? body(double()) : body(float());
}

template <typename A>
const A* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<const A*>(tensor->const_data_ptr()) : nullptr;
}

inline Labels labels_of(const Tensor& tensor) {
  return {tensor.const_data_ptr(), static_cast<int64_t>(tensor.element_size())};
}

// Of the pixels that the last axes of `image` hold, which the logits may have fewer of.
inline Geometry geometry_of(const Tensor& logits, const Tensor& image, const std::vector<int64_t>& radius) {
  const int64_t dims = logits.dim() - 2, first = image.dim() - dims;
  Geometry g;
  g.is_volume = dims == 3;
  g.batch = logits.size(0);
  g.logits = logits.size(1);
  g.classes = std::max<int64_t>(2, g.logits);
  g.tables = 1;
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

// The same for a call of the loss, with a radius that ends with the image: a larger one may not fit into sums of it.
inline Geometry clipped_geometry(const Tensor& logits, const Tensor& image, const Options& options) {
  Geometry g = geometry_of(logits, image, {0, 0, 0});
  g.tables = options.tables;
  const int64_t size[3] = {g.depth, g.height, g.width};
  for (int axis = 0; axis < 3; ++axis) {
    g.radius[axis] = std::min(options.radius[axis], std::max<int64_t>(size[axis] - 1, 0));
  }
  return g;
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

// A new tensor for the gradient of logits, whose own layout may be one that empty_like() does not repeat:
// edgeloss/_reference/custom_ops.py has the same.
inline Tensor new_gradient(const Tensor& logits) {
  Tensor gradient = torch::stable::empty_like(logits);
  return is_evenly_spaced(gradient) ? gradient
                                    : torch::stable::new_empty(logits, sizes_of(logits), logits.scalar_type());
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

template <typename A>
Stored<A> stored(const Tensor& x, const Steps& steps, int64_t image, bool binary) {
  const char* data = static_cast<const char*>(x.const_data_ptr()) + image * steps.image * x.element_size();
  return {data, x.scalar_type(), steps.channel, steps.pixel, binary};
}
template <typename A>
Stored<A, void*> stored_output(const Tensor& x, const Steps& steps, int64_t image) {
  char* data = static_cast<char*>(x.mutable_data_ptr()) + image * steps.image * x.element_size();
  return {data, x.scalar_type(), steps.channel, steps.pixel, false};
}

}  // namespace edgeloss
