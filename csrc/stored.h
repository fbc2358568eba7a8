// Memory of logits, for loops that need not know torch's tensors: to parse their headers takes longer than to compile
// such loops.
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <type_traits>

#include "math.h"

namespace edgeloss {

using torch::headeronly::ScalarType;

template <typename A>
constexpr ScalarType kScalarType = std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float;

// Memory of logits or of their gradient, in the type that they are stored in, where A is what the kernels compute in:
// class c of pixel p lies at data[c · class_step + p · pixel_step]. Its type is looked up once a tile or a row, so that
// nothing but the copies is compiled for each.
template <typename A, typename Pointer = const void*>
struct Stored {
  Pointer data;
  ScalarType type;
  int64_t class_step, pixel_step;
  bool binary;  // one logit, of class 1

  template <typename T>
  auto as() const {
    return static_cast<std::conditional_t<std::is_same_v<Pointer, void*>, T*, const T*>>(data);
  }
  // Calls body(data, of its type).
  template <typename F>
  EDGELOSS_INLINE auto by_type(const F& body) const {
    if constexpr (std::is_same_v<A, double>) {
      return body(as<double>());
    } else {
      if (type == ScalarType::Half) return body(as<torch::headeronly::Half>());
      if (type == ScalarType::BFloat16) return body(as<torch::headeronly::BFloat16>());
      return body(as<float>());
    }
  }
  A at(int64_t pixel, int64_t c) const {
    if (binary && c == 0) return A(0);
    const int64_t offset = (binary ? 0 : c * class_step) + pixel * pixel_step;
    return by_type([offset](const auto* x) { return static_cast<A>(x[offset]); });
  }
};

}  // namespace edgeloss
