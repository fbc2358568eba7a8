// Images of pixels, and how they are numbered. For every kernel.
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

}  // namespace edgeloss
