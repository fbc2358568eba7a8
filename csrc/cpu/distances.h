// Labels -> the distance d of a pixel to the nearest one of another class, axis by axis. No neighbor of an edge pixel
// has a larger d than 2 ‖radius · spacing‖, where the search ends.
//
// Along each row, the nearest pixel of another class than k is known beforehand for every place and every k: on each
// side it is the nearest valid pixel, or, where that is of class k, the nearest one of another class than it. The
// search then goes over the rows, from near to far, as far as a row by itself is nearer than what was found. The work
// per pixel grows with its distance instead of the distance's square.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../geometry.h"
#include "../options.h"
#include "slabs.h"

namespace edgeloss {

// The search axis by axis: where each pixel stops by itself. Lengths are in units of `unit`, the longest side of a
// pixel as a power of two: so squares neither overflow nor underflow, and nothing is rounded.
struct Search {
  int64_t reach[3];
  double spacing[3];
  double unit, limit;  // limit: the square of a length that d is less than

  Search(const Geometry& g, const Options& options) : reach(), spacing(), limit(0) {
    const int64_t size[3] = {g.depth, g.height, g.width}, first = g.is_volume ? 0 : 1;
    const double* lengths = options.spacing;
    unit = std::exp2(std::ilogb(*std::max_element(lengths + first, lengths + 3)));
    for (int64_t axis = first; axis < 3; ++axis) {
      spacing[axis] = lengths[axis] / unit;
      const double length = static_cast<double>(g.radius[axis]) * spacing[axis];
      limit += 4 * (length * length);
    }
    for (int64_t axis = first; axis < 3; ++axis) {
      // Rounded up, since rounding could take the last pixel away: the length decides.
      const double places = std::ceil(std::sqrt(limit) / spacing[axis]);
      reach[axis] = static_cast<int64_t>(std::min(places, static_cast<double>(size[axis] - 1)));
    }
    limit *= 1 + 1e-12;  // the last pixel's square may be rounded up, as a product that is fused with a sum
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

class Distances {
 public:
  Distances(const Geometry& g, const Options& options);

  // Prepares the rows of a slab. label: that of the image.
  void prepare(const Slab& slab, const int16_t* label);

  // The distances of a slab, once all rows of the image are prepared; where no edge is near, they are left as they are.
  template <typename A>
  void find(const Slab& slab, const int16_t* label, A* distance) const;

 private:
  template <typename A>
  void find_row(int64_t image, int64_t z, int64_t y, const int16_t* label, A* distance) const;

  // Of each pixel of the batch, on one side: the class of the nearest valid pixel, itself included, how far that is,
  // and how far the nearest one of another class than it.
  struct Side {
    std::vector<int16_t> label;
    std::vector<int32_t> nearest, next;
  };

  const Geometry& g_;
  Search search_;
  Side sides_[2];
};

}  // namespace edgeloss
