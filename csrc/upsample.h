// Linear interpolation of logits of lower resolution, as torch does it with align_corners=False. For every kernel.
//
// A pixel's logits are interpolated again wherever they are used, and must come out the same to the last bit: one of
// them is recognized as the largest by being equal to it. So the compiler may not choose whether a product is fused
// with the sum it goes into, which it does in one place and not in another. Nothing is fused, since not all processors
// can: a product plus 0 is rounded, fused or not.
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

// (1 - weight) · first + weight · second; with weight 0 the second one is not used, so it may be nan.
template <typename A>
EDGELOSS_INLINE A mix(A first, A second, A weight) {
  return weight == A(0) ? first : product(first, A(1) - weight) + product(second, weight);
}

// What a place of the upsampled axis is mixed from: two neighbors, or one, and then weight is 0.
template <typename A>
struct Taps {
  int64_t first, second;
  A weight;  // of the second
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
    const int64_t first = place > A(0) ? static_cast<int64_t>(place) : 0;
    if (first >= low - 1) return {low - 1, low - 1, A(0)};
    const A weight = place > A(0) ? place - static_cast<A>(first) : A(0);
    return {first, weight == A(0) ? first : first + 1, weight};
  }
};

}  // namespace edgeloss
