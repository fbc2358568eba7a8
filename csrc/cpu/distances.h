// How far a pixel is from those around it: what EdgeWindows finds the distance to the nearest one of another class by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../geometry.h"
#include "../options.h"

namespace edgeloss {

// The moves to other pixels, from near to far. No neighbor of an edge pixel has a larger distance than
// 2 ‖radius · spacing‖, where they end.
struct Moves {
  struct Move {
    int64_t by[3];
    double length;
  };
  std::vector<Move> moves;
  int64_t farthest[3] = {};  // along each axis

  Moves(const Geometry& g, const Options& options) {
    // Squares of lengths in units of the longest side of a pixel, a power of two, neither overflow nor round.
    const std::vector<double>& sides = options.spacing;
    const double unit = std::exp2(std::ilogb(*std::max_element(sides.begin() + !g.is_volume, sides.end())));
    const int64_t size[3] = {g.depth, g.height, g.width};
    double spacing[3] = {}, limit = 0;
    for (int axis = !g.is_volume; axis < 3; ++axis) {
      spacing[axis] = options.spacing[axis] / unit;
      const double length = static_cast<double>(g.radius[axis]) * spacing[axis];
      limit += 4 * (length * length);
    }
    for (int axis = !g.is_volume; axis < 3; ++axis) {
      const double places = std::ceil(std::sqrt(limit) / spacing[axis]);
      farthest[axis] = static_cast<int64_t>(std::min(places, static_cast<double>(size[axis] - 1)));
    }
    limit *= 1 + 1e-12;  // the square of the longest one may be rounded up
    const auto square = [&](int axis, int64_t by) { return std::pow(static_cast<double>(by) * spacing[axis], 2); };
    for (int64_t z = -farthest[0]; z <= farthest[0]; ++z) {
      for (int64_t y = -farthest[1]; y <= farthest[1]; ++y) {
        for (int64_t x = -farthest[2]; x <= farthest[2]; ++x) {
          const double sum = square(0, z) + square(1, y) + square(2, x);
          if (sum > 0 && sum < limit) moves.push_back({{z, y, x}, std::sqrt(sum) * unit});
        }
      }
    }
    std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.length < b.length; });
  }
};

}  // namespace edgeloss
