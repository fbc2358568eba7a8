// The windows around pixels: how their neighbors are numbered. For every kernel of this folder.
#pragma once

#include "geometry.h"

namespace edgeloss {

// The largest number of a neighbor, K - 1.
EDGELOSS_INLINE int64_t last_number(const Geometry& g) {
  return (2 * g.radius[0] + 1) * (2 * g.radius[1] + 1) * (2 * g.radius[2] + 1) - 2;
}

// The rows of the windows around the pixels of `row`: calls body(first pixel of the row, number that the pixel in the
// row's middle has in the whole window).
template <typename F>
EDGELOSS_INLINE void for_each_row_around(const Geometry& g, int64_t row, const F& body) {
  const int64_t z = quotient(row, g.height), y = row - z * g.height;
  const int64_t span_y = 2 * g.radius[1] + 1, span_x = 2 * g.radius[2] + 1;
  for (int64_t v = larger<int64_t>(0, z - g.radius[0]); v < g.depth && v <= z + g.radius[0]; ++v) {
    for (int64_t u = larger<int64_t>(0, y - g.radius[1]); u < g.height && u <= y + g.radius[1]; ++u) {
      const int64_t number = ((v - z + g.radius[0]) * span_y + (u - y + g.radius[1])) * span_x + g.radius[2];
      body((v * g.height + u) * g.width, number);
    }
  }
}

// The other pixels of the window around pixel `column` of `row`, with their numbers among the K in row-major order:
// calls body(pixel, number). Seen from that pixel, this one has the number K - 1 - number.
template <typename F>
EDGELOSS_INLINE void for_each_neighbor(const Geometry& g, int64_t row, int64_t column, const F& body) {
  const int64_t center = row * g.width + column;
  for_each_row_around(g, row, [&](int64_t first, int64_t middle) {
    for (int64_t x = larger<int64_t>(0, column - g.radius[2]); x < g.width && x <= column + g.radius[2]; ++x) {
      const int64_t n = first + x;
      if (n != center) body(n, middle + x - column - (n > center));  // the center has no number
    }
  });
}

}  // namespace edgeloss
