// Linear interpolation of logits of lower resolution, as torch does it with align_corners=False. For every kernel.
//
// A pixel's logits are interpolated again wherever they are used, and must come out the same to the last bit: one of
// them is recognized as the largest by being equal to it. So the compiler may not choose whether a product is fused
// with the sum it goes into, which it does in one place and not in another. CPUs do not fuse it, since not all of them
// can: a product plus 0 is rounded, fused or not. GPUs always do.
#pragma once

#include <cmath>
#include <cstdint>

#include "geometry.h"
#include "math.h"

namespace edgeloss {

template <typename A>
EDGELOSS_INLINE A product(A a, A b) {
  return a * b + A(0);
}

// (1 - weight) · first + weight · second.
template <typename A>
EDGELOSS_INLINE A blend(A first, A second, A weight) {
#ifdef __CUDA_ARCH__
  return std::fma(second, weight, first * (A(1) - weight));
#else
  return product(first, A(1) - weight) + product(second, weight);
#endif
}

// The same; with weight 0 the second one is not used, so it may be nan.
template <typename A>
EDGELOSS_INLINE A mix(A first, A second, A weight) {
  return weight == A(0) ? first : blend(first, second, weight);
}

// What a place of the upsampled axis is mixed from: two neighbors, or one, and then weight is 0.
template <typename A>
struct Taps {
  int64_t first, second;
  A weight;  // of the second

  EDGELOSS_INLINE A weight_of(int64_t i) const {
    if (i == first) return A(1) - weight;
    return i == second ? weight : A(0);
  }
  // That with which blend() returns what mix() does with `weight`, as the second is the first where it is 0.
  EDGELOSS_INLINE A blending() const { return weight == A(0) ? A(0.5) : weight; }
};

// One axis of both images.
template <typename A>
struct Axis {
  int64_t low, high;  // sizes
  A scale;

  Axis(int64_t low, int64_t high) : low(low), high(high), scale(static_cast<A>(low) / static_cast<A>(high)) {}

  // Where pixel i's center lies, in low-resolution pixels; rounded as torch's is.
  EDGELOSS_INLINE A position(int64_t i) const {
    return low == high ? static_cast<A>(i) : std::fma(scale, static_cast<A>(i) + A(0.5), A(-0.5));
  }
  EDGELOSS_INLINE Taps<A> at(int64_t i) const {
    const A place = position(i);
    const int64_t first = place > A(0) ? static_cast<int32_t>(place) : 0;  // 32 bits: quicker on a GPU
    if (first >= low - 1) return {low - 1, low - 1, A(0)};
    const A weight = place > A(0) ? place - static_cast<A>(first) : A(0);
    return {first, weight == A(0) ? first : first + 1, weight};
  }

  // Low-resolution pixel i and the next one are what the pixels from begin(i) to begin(i + 1) are mixed from. Those of
  // interval -1 are copies of pixel 0, and those of the last interval are copies of the last pixel.
  EDGELOSS_INLINE int begin(int i) const {
    if (i < 0 || i >= low) return i < 0 ? 0 : static_cast<int>(high);
    int at = static_cast<int>((static_cast<A>(i) + A(0.5)) / scale);
    while (at > 0 && position(at - 1) >= static_cast<A>(i)) --at;
    while (at < high && position(at) < static_cast<A>(i)) ++at;
    return at;
  }
  // The weight of the second of the two, as at() has it, of pixel `at` in interval i.
  EDGELOSS_INLINE A weight(int i, int at) const {
    const bool is_first = i < 0 || i >= low - 1 || low == high;
    return is_first ? A(0) : std::fma(scale, static_cast<A>(at) + A(0.5), A(-0.5)) - static_cast<A>(i);
  }
};

}  // namespace edgeloss
