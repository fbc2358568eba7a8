// The windows around pixels: how their neighbors are numbered. For every kernel of this folder.
#pragma once

#include <algorithm>

#include "../geometry.h"

namespace edgeloss {

// The largest number of a neighbor, K - 1.
EDGELOSS_INLINE int64_t last_number(const Geometry& g) {
  return (2 * g.radius[0] + 1) * (2 * g.radius[1] + 1) * (2 * g.radius[2] + 1) - 2;
}

// The other pixels of the window around pixel `column` of `row`, with their numbers among the K in row-major order:
// calls body(pixel, number). Seen from that pixel, this one has the number K - 1 - number.
template <typename F>
EDGELOSS_INLINE void for_each_neighbor(const Geometry& g, int64_t row, int64_t column, const F& body) {
  const int64_t z = quotient(row, g.height), y = row - z * g.height, center = row * g.width + column;
  const int64_t span_y = 2 * g.radius[1] + 1, span_x = 2 * g.radius[2] + 1;
  const int64_t first_z = z < g.radius[0] ? 0 : z - g.radius[0], first_y = y < g.radius[1] ? 0 : y - g.radius[1];
  const int64_t first_x = column < g.radius[2] ? 0 : column - g.radius[2];
  for (int64_t v = first_z; v < g.depth && v <= z + g.radius[0]; ++v) {
    for (int64_t u = first_y; u < g.height && u <= y + g.radius[1]; ++u) {
      // The number in the whole window of what stands in column 0, were it part of it.
      const int64_t start = ((v - z + g.radius[0]) * span_y + (u - y + g.radius[1])) * span_x + g.radius[2] - column;
      const int64_t first = (v * g.height + u) * g.width;
      for (int64_t x = first_x; x < g.width && x <= column + g.radius[2]; ++x) {
        const int64_t n = first + x;
        if (n != center) body(n, start + x - (n > center));  // the center has no number
      }
    }
  }
}

// The neighbors of a row's pixels, one number after another: calls body(number, shift, first, last), where pixels
// first to last - 1 of the row have the neighbor of that number, `shift` pixels on.
template <typename F>
EDGELOSS_INLINE void for_each_shift(const Geometry& g, int64_t row, const F& body) {
  const int64_t at[3] = {row / g.height, row % g.height, 0}, size[3] = {g.depth, g.height, g.width};
  int64_t low[3], high[3], span[3];  // of the shift along an axis, as far as a pixel of the row has it inside the image
  for (int a = 0; a < 3; ++a) {
    span[a] = 2 * g.radius[a] + 1;
    low[a] = -std::min(g.radius[a], a == 2 ? g.width - 1 : at[a]);
    high[a] = std::min(g.radius[a], size[a] - 1 - at[a]);
  }
  for (int64_t dz = low[0]; dz <= high[0]; ++dz) {
    for (int64_t dy = low[1]; dy <= high[1]; ++dy) {
      for (int64_t dx = low[2]; dx <= high[2]; ++dx) {
        const int64_t number = ((dz + g.radius[0]) * span[1] + dy + g.radius[1]) * span[2] + dx + g.radius[2];
        const int64_t shift = (dz * g.height + dy) * g.width + dx;
        if (shift == 0) continue;
        body(number - (shift > 0), shift, std::max<int64_t>(0, -dx), std::min(g.width, g.width - dx));
      }
    }
  }
}

}  // namespace edgeloss
