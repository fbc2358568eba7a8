// The regions of an image: windows of averages over a few pixels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../math.h"

namespace edgeloss {

constexpr int64_t kPool = 3;  // pixels per axis that are averaged
constexpr int64_t kSide = 3;  // averages per axis of a region

// The averages of an image [D, H, W] and its regions; of 2-D ones both have one plane.
struct RegionGrid {
  int64_t size[3], side[3], windows[3];
  int64_t averages, offsets, regions;

  RegionGrid(int64_t depth, int64_t height, int64_t width, bool is_volume) : averages(1), offsets(1), regions(1) {
    const int64_t image[3] = {depth, height, width};
    for (int axis = 0; axis < 3; ++axis) {
      const bool is_flat = axis == 0 && !is_volume;
      size[axis] = is_flat ? 1 : (image[axis] + kPool - 1) / kPool;
      side[axis] = is_flat ? 1 : kSide;
      windows[axis] = std::max<int64_t>(0, size[axis] - side[axis] + 1);
      averages *= size[axis];
      offsets *= side[axis];
      regions *= windows[axis];
    }
  }
  EDGELOSS_INLINE int64_t offset(int64_t z, int64_t y, int64_t x) const { return (z * side[1] + y) * kSide + x; }
  EDGELOSS_INLINE int64_t row(int64_t z, int64_t y) const { return (z * size[1] + y) * size[2]; }
  // The offsets along an axis at which regions have the average `at`: first to last.
  EDGELOSS_INLINE int64_t first(int axis, int64_t at) const { return std::max<int64_t>(0, at - windows[axis] + 1); }
  EDGELOSS_INLINE int64_t last(int axis, int64_t at) const { return std::min(side[axis] - 1, at); }
  // Calls body(z, y) for each row.
  template <typename F>
  EDGELOSS_INLINE void for_each_row(const F& body) const {
    for (int64_t z = 0; z < size[0]; ++z) {
      for (int64_t y = 0; y < size[1]; ++y) body(z, y);
    }
  }
};

}  // namespace edgeloss
