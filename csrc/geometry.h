// Images of pixels: how they are numbered and which are neighbors. For every kernel.
#pragma once

#include <cstdint>

#include "math.h"

namespace edgeloss {

// n / d for n, d ≥ 0: of 32 bits where they are enough, which take less time.
EDGELOSS_INLINE int64_t quotient(int64_t n, int64_t d) {
  return ((n | d) >> 32) == 0 ? static_cast<uint32_t>(n) / static_cast<uint32_t>(d) : n / d;
}

// A batch of images of D × H × W pixels; 2-D ones have D = 1 and radius 0 along it. Pixels are numbered in an image.
struct Geometry {
  int64_t batch, depth, height, width;
  int64_t pixels;   // of an image
  int64_t logits;   // per pixel
  int64_t classes;  // max(2, logits): one logit x is the two-class logits (0, x)
  int64_t tables;   // of class weights and counts: image b has that of b % tables
  int64_t radius[3];
  bool is_volume;

  // Where the class weights of an image begin.
  EDGELOSS_INLINE int table(int64_t image) const {
    return tables == 1 ? 0 : static_cast<int>(image % tables * classes);
  }
};

// The rows of the window around row (z, y) that lie inside the image: calls body(first pixel of the row).
template <typename F>
EDGELOSS_INLINE void for_each_row(const Geometry& g, int64_t row, const int64_t* reach, const F& body) {
  const int64_t z = quotient(row, g.height), y = row - z * g.height;
  const int64_t first_z = z < reach[0] ? 0 : z - reach[0], first_y = y < reach[1] ? 0 : y - reach[1];
  for (int64_t v = first_z; v < g.depth && v <= z + reach[0]; ++v) {
    for (int64_t u = first_y; u < g.height && u <= y + reach[1]; ++u) body((v * g.height + u) * g.width);
  }
}

// The other pixels of the window around pixel `column` of `row`: calls body(pixel).
template <typename F>
EDGELOSS_INLINE void for_each_neighbor(const Geometry& g, int64_t row, int64_t column, const F& body) {
  const int64_t left = column < g.radius[2] ? 0 : column - g.radius[2];
  const int64_t right = column + g.radius[2] < g.width ? column + g.radius[2] : g.width - 1;
  const int64_t center = row * g.width + column;
  for_each_row(g, row, g.radius, [&](int64_t first) {
    for (int64_t n = first + left; n <= first + right; ++n) {
      if (n != center) body(n);
    }
  });
}

}  // namespace edgeloss
