// Sums of numbers over windows, axis by axis.
#pragma once

#include <cstdint>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {

// Σ in[i + j · step] over 0 ≤ j < length, for each i, by sums of 2, 4, 8, ... numbers: no difference of two sums, which
// would lose small weights next to large ones. Returns where they are.
template <typename A>
EDGELOSS_INLINE const A* window_sums(const A* in, int64_t count, int64_t step, int64_t length, A* part, A* sum) {
  if (length == 1) return in;
  std::memcpy(part, in, count * sizeof(A));
  int64_t covered = 0;
  for (int64_t reach = 1;; reach *= 2) {
    if (length & reach) {
      const A* from = part + covered * step;
      const int64_t n = count - (covered + reach - 1) * step;
      if (covered == 0) {
        std::memcpy(sum, from, n * sizeof(A));
      } else {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) sum[i] += from[i];
      }
      covered += reach;
    }
    if (covered == length) return sum;
    const int64_t n = count - (2 * reach - 1) * step, shift = reach * step;
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) part[i] += part[i + shift];
  }
}

// The sums of `chosen` over the window of each pixel of a box, with so many steps along each axis, without the pixel
// itself; not of its margins. Axis by axis: along the line through the pixel, what is before and behind it; along the
// window's other lines, everything. numbers: room for 6 · count.
template <typename A>
EDGELOSS_INLINE const A* sums_around(int64_t count, const int64_t* steps, const int64_t* radius, const A* chosen,
                                     A* numbers) {
  A *part = numbers, *sum = part + count, *of_axes = sum + count;
  const A *sides = nullptr, *all = chosen;
  const int last_axis = radius[0] ? 0 : radius[1] ? 1 : 2;
  for (int axis = 2; axis >= 0; --axis) {
    const int64_t r = radius[axis], step = steps[axis], first = r * step, last = count - first;
    if (r == 0) continue;
    const A* window = window_sums(all, count, step, r, part, sum);
    const A *before = window - first, *behind = window + step;
    A *new_sides = of_axes + axis % 2 * count, *new_all = new_sides + 2 * count;
    if (sides) {
      EDGELOSS_INDEPENDENT
      for (int64_t i = first; i < last; ++i) new_sides[i] = sides[i] + (before[i] + behind[i]);
    } else {
      EDGELOSS_INDEPENDENT
      for (int64_t i = first; i < last; ++i) new_sides[i] = before[i] + behind[i];
    }
    sides = new_sides;
    if (axis == last_axis) break;
    EDGELOSS_INDEPENDENT
    for (int64_t i = first; i < last; ++i) new_all[i] = all[i] + (before[i] + behind[i]);
    all = new_all;
  }
  return sides;
}

}  // namespace edgeloss
