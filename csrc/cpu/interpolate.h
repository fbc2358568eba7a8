// Logits of lower resolution, interpolated linearly where they are used, as torch does it with align_corners=False; and
// the way back of their gradient. A row of the image is mixed from low-resolution rows, each of which is interpolated
// along itself once for all rows that need it.
//
// A pixel's logits are interpolated again wherever they are used, and must come out the same to the last bit: one of
// them is recognized as the largest by being equal to it. So the compiler may not choose whether a product is fused
// with the sum it goes into, which it does in one place and not in another. Nothing is fused, since not all processors
// can: a product plus 0 is rounded, fused or not.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tiles.h"

namespace edgeloss {

template <typename A>
EDGELOSS_INLINE A product(A a, A b) {
  return a * b + A(0);
}

// (1 - weight) · first + weight · second; with weight 0 the second one is not used, so it may be nan.
template <typename A>
EDGELOSS_INLINE A mix(A first, A second, A weight) {
  return weight == A(0) ? first : product(first, A(1) - weight) + product(second, weight);
}

// What a place of the upsampled axis is mixed from: two neighbors, or one, and then weight is 0.
template <typename A>
struct Taps {
  int64_t first, second;
  A weight;  // of the second
};

// One axis of both images.
template <typename A>
struct Axis {
  int64_t low, high;  // sizes
  A scale;

  Axis(int64_t low, int64_t high) : low(low), high(high), scale(static_cast<A>(low) / static_cast<A>(high)) {}

  Taps<A> at(int64_t i) const {
    // Where the pixel's center lies, in low-resolution pixels; rounded as torch's is.
    const A place = low == high ? static_cast<A>(i) : std::fma(scale, static_cast<A>(i) + A(0.5), A(-0.5));
    const int64_t first = place > A(0) ? static_cast<int64_t>(place) : 0;
    if (first >= low - 1) return {low - 1, low - 1, A(0)};
    const A weight = place > A(0) ? place - static_cast<A>(first) : A(0);
    return {first, weight == A(0) ? first : first + 1, weight};
  }
};

// What a row is mixed from: its two slices' two rows each, of the low-resolution image.
template <typename A>
struct RowTaps {
  std::array<int64_t, 4> row;  // (first, first), (first, second), (second, first), (second, second) slice and row
  A slice_weight, row_weight;  // of the second ones

  A weight_of(int which) const {
    return (which / 2 ? slice_weight : A(1) - slice_weight) * (which % 2 ? row_weight : A(1) - row_weight);
  }
  // One number of the row from those of the others.
  EDGELOSS_INLINE A mixed(A a, A b, A c, A d) const {
    return mix(mix(a, b, row_weight), mix(c, d, row_weight), slice_weight);
  }
};

// What the interpolation of every image needs.
template <typename A>
struct Upsample {
  Axis<A> along_z, along_y, along_x;
  std::vector<A> weight;       // [W], of the second pixel that each is mixed from
  std::vector<int32_t> begin;  // [low W + 1]: pixels begin[k] to begin[k + 1] are mixed from k and k + 1

  Upsample(const Axis<A>& z, const Axis<A>& y, const Axis<A>& x);

  RowTaps<A> row_taps(int64_t z, int64_t y) const;

  // The way back along rows: the gradient of low-resolution ones, [logits, low W], from that of ones that are
  // interpolated along themselves, [logits, W].
  void adjoint(const A* wide, int64_t logits, A* low) const;
};

// The rows of an image one after another.
template <typename A>
class UpsampledRow {
 public:
  UpsampledRow(const Upsample<A>& up, int64_t logits)
      : up_(up), logits_(logits), memory_(4 * logits * up.along_x.high), held_{-1, -1, -1, -1} {}

  // Goes to a row.
  void start(const Stored<A>& x, int64_t image, int64_t z, int64_t y);

  // Interpolates n pixels of the row from `first` on, as read_tile copies them.
  void read(bool binary, int64_t first, int64_t n, A* tile, int64_t ld) const;

 private:
  const Upsample<A>& up_;
  int64_t logits_;
  RowTaps<A> taps_;
  std::vector<A> memory_;  // [4, logits, W]: rows that are interpolated along themselves
  int64_t held_[4];        // which they are, of all images
  const A* of_[4];         // those of the row, as in taps_
};

}  // namespace edgeloss
