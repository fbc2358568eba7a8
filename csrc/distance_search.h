// The search for the distance d of a pixel to the nearest one of another class, from near to far. No neighbor of an
// edge pixel has a larger d than 2 ‖radius · spacing‖, where it ends.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "geometry.h"
#include "options.h"

namespace edgeloss {

// How far the search goes along an axis. Rounded up, since rounding could take the last pixel away: the length decides.
inline int64_t search_reach(double limit, double spacing, int64_t size) {
  return static_cast<int64_t>(std::min(std::ceil(limit / spacing), static_cast<double>(size - 1)));
}

// The spacing of the three axes; an image has 1 along the first.
inline std::array<double, 3> spacing_of(const Options& options) {
  std::array<double, 3> spacing = {1, 1, 1};
  std::copy(options.spacing.rbegin(), options.spacing.rend(), spacing.rbegin());
  return spacing;
}

// All offsets of the search in a list, sorted by length: where each of them is a shift that is the same for all pixels.
struct Offset {
  std::array<int64_t, 3> d;
  double length;
};

inline std::vector<Offset> search_offsets(const Geometry& g, const Options& options) {
  const std::array<double, 3> spacing = spacing_of(options);
  const auto length = [&](double z, double y, double x) {
    return std::hypot(z * spacing[0], y * spacing[1], x * spacing[2]);
  };
  const double limit = 2 * length(g.radius[0], g.radius[1], g.radius[2]);
  const int64_t size[3] = {g.depth, g.height, g.width};
  int64_t reach[3];
  for (int axis = 0; axis < 3; ++axis) reach[axis] = search_reach(limit, spacing[axis], size[axis]);
  std::vector<Offset> offsets;
  for (int64_t z = -reach[0]; z <= reach[0]; ++z) {
    for (int64_t y = -reach[1]; y <= reach[1]; ++y) {
      for (int64_t x = -reach[2]; x <= reach[2]; ++x) {
        const double d = length(z, y, x);
        if (d > 0 && d <= limit) offsets.push_back({{z, y, x}, d});
      }
    }
  }
  std::sort(offsets.begin(), offsets.end(), [](const Offset& a, const Offset& b) { return a.length < b.length; });
  return offsets;
}

// The search axis by axis: where each pixel stops by itself. Lengths are in units of `unit`, the longest side of a
// pixel as a power of two: so squares neither overflow nor underflow, and nothing is rounded.
struct Search {
  int64_t reach[3];
  double spacing[3];
  double unit, limit;  // limit: the square of a length that d is less than

  Search(const Geometry& g, const Options& options) : reach(), spacing(), limit(0) {
    const int64_t size[3] = {g.depth, g.height, g.width}, first = g.is_volume ? 0 : 1;
    const std::array<double, 3> lengths = spacing_of(options);
    unit = std::exp2(std::ilogb(*std::max_element(lengths.begin() + first, lengths.end())));
    for (int64_t axis = first; axis < 3; ++axis) {
      spacing[axis] = lengths[axis] / unit;
      const double length = static_cast<double>(g.radius[axis]) * spacing[axis];
      limit += 4 * (length * length);
    }
    for (int64_t axis = first; axis < 3; ++axis) {
      reach[axis] = search_reach(std::sqrt(limit), spacing[axis], size[axis]);
    }
    limit = std::nextafter(limit, INFINITY);
  }

  // Calls body(place, square of the length) along an axis from place `at`, from near to far, as long as the square is
  // less than `nearest`, which body may lower. `square` is that of the axes before.
  template <typename F>
  EDGELOSS_INLINE void along(int axis, int64_t at, int64_t size, double square, const double& nearest,
                             const F& body) const {
    for (int64_t d = 0; d <= reach[axis]; ++d) {
      const double length = static_cast<double>(d) * spacing[axis], sum = square + length * length;
      if (sum >= nearest) return;
      if (at - d >= 0) body(at - d, sum);
      if (d > 0 && at + d < size) body(at + d, sum);
    }
  }
};

}  // namespace edgeloss
