// The windows of labels.h where they are wide: the labels of each class are summed over windows, axis by axis, so that
// the work per pixel does not grow with the number of neighbors.
#include <cstdint>
#include <cstring>

#include "label_weights.h"

namespace edgeloss {
namespace {

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

}  // namespace

// The classes that the pixels of a block see.
template <typename A>
void EdgeWindows<A>::find_classes(const Extent& block) {
  Flags is_present(g_.classes);
  Extent seen = expanded(block);
  seen.first[2] -= g_.radius[2];
  seen.last[2] += g_.radius[2];
  for_each_row(seen, [&](int64_t z, int64_t y) {
    const auto* label = &label_[box_.at(z, y, seen.first[2])];
    for (int64_t i = 0; i < seen.last[2] - seen.first[2]; ++i) {
      if (label[i] < 0 || is_present[label[i]]) continue;
      is_present[label[i]] = 1;
      classes_.push_back(static_cast<int32_t>(label[i]));
    }
  });
}

// Class by class.
template <typename A>
void EdgeWindows<A>::add_by_class(const Extent& block, const TwoSides<A>& from, const TwoSides<A>& to, Others* others) {
  const Box box(block, g_.radius);
  const int64_t n = block.last[2] - block.first[2], row_length = n + 2 * g_.radius[2];
  sums_of_class_.resize(14 * box.count);
  const auto sums_of = [&](int32_t k, const A* numbers, A* memory) {
    for (int64_t i = 0; i < box.count; i += row_length) {
      const int64_t row = i / row_length, rows = box.step[0] / row_length;
      const int64_t at = box_.at(box.origin[0] + row / rows, box.origin[1] + row % rows, box.origin[2]);
      vectorized<A>([=, label = label_.data() + at, of_row = numbers + at, to_row = memory + i]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t j = 0; j < row_length; ++j) {
          const A value = of_row[j];
          to_row[j] = label[j] == k ? value : A(0);
        }
      });
    }
    return vectorized<A>([=, r = g_.radius]()
                             EDGELOSS_LOOP { return sums_around(box.count, box.step, r, memory, memory + box.count); });
  };
  for_each_row(block, [&](int64_t z, int64_t y) {
    std::fill_n(to.same_side + box_.at(z, y, block.first[2]), n, A(0));
    std::fill_n(to.other_side + box_.at(z, y, block.first[2]), n, A(0));
  });
  for (const int32_t k : classes_) {
    A* memory = sums_of_class_.data();
    const A *all_same = sums_of(k, from.same_side, memory), *all_across = all_same;
    if (from.other_side != from.same_side) all_across = sums_of(k, from.other_side, memory + 7 * box.count);
    for_each_row(block, [&](int64_t z, int64_t y) {
      const int64_t at = box_.at(z, y, block.first[2]), in_block = box.at(z, y, block.first[2]);
      const auto* label = label_.data() + at;
      const A *of_same = all_same + in_block, *of_across = all_across + in_block;
      vectorized<A>([=, same = to.same_side + at, across = to.other_side + at]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t j = 0; j < n; ++j) {
          const A own = of_same[j], other = of_across[j], before = same[j];
          same[j] = label[j] == k ? own : before;
          across[j] += label[j] == k ? A(0) : other;
        }
      });
      for (int64_t j = 0; others && j < n; ++j) {
        if (label[j] < 0 || label[j] == k || of_across[j] == A(0)) continue;
        const int32_t place = slab_.place(g_.width, z, y, block.first[2] + j);
        others->push_back({place, k, of_across[j] * w_[at + j]});
      }
    });
  }
}

template void EdgeWindows<float>::find_classes(const Extent&);
template void EdgeWindows<double>::find_classes(const Extent&);
template void EdgeWindows<float>::add_by_class(const Extent&, const TwoSides<float>&, const TwoSides<float>&, Others*);
template void EdgeWindows<double>::add_by_class(const Extent&, const TwoSides<double>&, const TwoSides<double>&,
                                                Others*);

}  // namespace edgeloss
