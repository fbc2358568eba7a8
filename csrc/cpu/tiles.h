// Loops over tiles: some pixels with all their classes, few enough to stay in cache; a class's pixels lie side by side,
// so that the loops vectorize.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../labels.h"
#include "../math.h"
#include "../tensors.h"
#include "vectorize.h"

namespace edgeloss {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

constexpr int64_t kTile = 256;  // pixels at most: their statistics stay in the first-level cache

// ---------------------------------------------------------------------------------------------------------- precisions

template <typename Target, typename Source>
EDGELOSS_INLINE Target bits_of(Source value) {
  static_assert(sizeof(Target) == sizeof(Source));
  Target out;
  std::memcpy(&out, &value, sizeof(out));
  return out;
}

// Half-precision numbers as float and back, in forms that vectorize.
EDGELOSS_INLINE float widen(float x) { return x; }
EDGELOSS_INLINE double widen(double x) { return x; }
EDGELOSS_INLINE float widen(BFloat16 x) { return bits_of<float>(static_cast<uint32_t>(x.x) << 16); }
EDGELOSS_INLINE float widen(Half x) {
  const uint32_t size = x.x & 0x7fffu;
  const uint32_t wide = bits_of<uint32_t>(bits_of<float>(size << 13) * 0x1p112f);  // subnormal ones come out right
  return bits_of<float>((size >= 0x7c00u ? wide | 0x7f800000u : wide) | (x.x & 0x8000u) << 16);
}
EDGELOSS_INLINE void narrow(float x, float* out) { *out = x; }
EDGELOSS_INLINE void narrow(double x, double* out) { *out = x; }
EDGELOSS_INLINE void narrow(float x, BFloat16* out) {
  const uint32_t b = bits_of<uint32_t>(x);
  const uint32_t rounded = (b + 0x7fffu + (b >> 16 & 1u)) >> 16;  // to nearest, ties to even
  out->x = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}
EDGELOSS_INLINE void narrow(float x, Half* out) {
  const uint32_t b = bits_of<uint32_t>(x), sign = b >> 16 & 0x8000u, size = b & 0x7fffffffu;
  const uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  // Below 2^-14 an addition rounds to a multiple of 2^-24.
  const uint32_t small = bits_of<uint32_t>(bits_of<float>(size) + 0.5f) - 0x3f000000u;
  const uint32_t finite = size < 0x38800000u ? small : normal;
  const uint32_t other = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  out->x = static_cast<uint16_t>(sign | (size < 0x477ff000u ? finite : other));
}

// --------------------------------------------------------------------------------------------------------------- tiles

// The logits of n ≤ kTile pixels: class c of pixel j at x[c · ld + j].
template <typename A>
struct Tile {
  const A* x;
  int64_t ld, classes, n;
};

// Whether tiles can be used where they lie. The loops over many classes read each logit once, in order: they take no
// harm where the classes of a tile lie a power of two apart, and evict each other from the cache.
template <typename A>
bool is_in_place(const Stored<A>& x) {
  return x.type == kScalarType<A> && !x.binary && x.pixel_step == 1;
}

// Copies the tile of n pixels from p on into the buffer, as A, its classes ld apart. Of a binary pixel the first class
// has no logit: the caller sets it to 0 once.
template <typename A>
void read_tile(const Stored<A>& x, int64_t classes, int64_t p, int64_t n, A* tile, int64_t ld);

// Writes a tile of `count` logits of n pixels to where pixel p and those after it are stored. streams: where nothing
// reads it soon; then n ≤ kTile. Stores past the cache do not fetch the lines that they overwrite from memory first.
template <typename A>
void write_tile(const A* tile, int64_t ld, int64_t count, int64_t n, const Stored<A, void*>& out, int64_t p,
                bool streams);

// Makes what this thread has streamed visible to the others.
void end_streams();

// y of n labels, kIgnored where they do not count; returns how many are out of range.
template <typename Label>
EDGELOSS_INLINE int64_t classes_of(const Label* label, int64_t n, int64_t ignore_index, int64_t classes, int32_t* y) {
  int64_t wrong = 0;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const int64_t value = static_cast<int64_t>(label[j]);
    const bool ignored = value == ignore_index, in_range = value >= 0 && value < classes;
    y[j] = !ignored && in_range ? static_cast<int32_t>(value) : kIgnored;
    wrong += !ignored && !in_range;
  }
  return wrong;
}
EDGELOSS_INLINE void narrow_labels(const int32_t* y, int64_t n, int16_t* label) {
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) label[j] = static_cast<int16_t>(y[j]);
}

// The labels of n pixels from the first on, kIgnored where they do not count; returns how many are out of range.
int64_t read_labels(const Target& target, int64_t first, int64_t n, int16_t* label, int32_t* y);

// m, r and -log p(y) of a tile; nll is 0 where y is none of the classes.
template <typename A>
void tile_statistics(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll);

// m and r of two classes alone: so quick to form that they are not kept.
template <typename A>
void statistics_of_two(const A* first, const A* second, int64_t n, A* m, A* r);

// The first of the classes that reach the max; kIgnored where y is.
template <typename A>
void tile_prediction(const Tile<A>& tile, const int32_t* y, const A* m, int16_t* predicted);

// Σ value, in parts whose order is fixed.
template <typename A>
double row_sum(const A* value, int64_t n);

// Σ value · weight, in parts whose order is fixed.
template <typename A>
double weighted_sum(const A* value, const A* weight, int64_t n);

struct CrossEntropy {
  double sum, valid;  // valid: pixels
};

// Σ nll, and how many y are a class.
template <typename A>
CrossEntropy tile_cross_entropy(const A* nll, const int32_t* y, int64_t n);

// Class weights and label smoothing.
template <typename A>
struct Smoothing {
  const A* weight;  // [C], or null for ones
  int64_t classes;
  A smoothing;
  A total;  // Σ weight

  Smoothing(const A* weight, int64_t classes, A smoothing)
      : weight(weight), classes(classes), smoothing(smoothing), total(0) {
    for (int64_t c = 0; c < classes; ++c) total += of_class(c);
  }
  EDGELOSS_INLINE A of_class(int64_t c) const { return weight ? weight[c] : A(1); }
  A of_others() const { return smoothing / static_cast<A>(classes); }
  bool exists() const { return of_others() != A(0); }
};

// Makes of nll in `ce` the cross-entropy with class weights and smoothing; w = weight(y), or 0 where y is no class.
template <typename A>
void smooth_cross_entropy(const Tile<A>& tile, const int32_t* y, const A* m, const A* r, const Smoothing<A>& smoothing,
                          A* ce, A* w);

// The gradient of a tile is alpha · p(c) - at_y · [c = y] - uniform · weight(c), but for corrections. Without smoothing
// `uniform` is not set.
template <typename A>
struct Factors {
  A alpha[kTile], at_y[kTile], uniform[kTile];
  int32_t y[kTile];
};

// y of n pixels, and the factors, 0 where it is no class, from what arrives at the cross-entropy, or `everywhere` where
// that is null, and the shares of the same side, which may be null.
template <typename A>
void fill_factors(const int16_t* label, int64_t n, A everywhere, const A* arrives, const A* same,
                  const Smoothing<A>& smoothing, Factors<A>& factors);

// The gradient to g[c · ld_g + j] where y is a class; exactly 0 elsewhere, for any logits. m and r of few classes are
// not read.
template <typename A>
void tile_softmax(const Tile<A>& tile, const Factors<A>& factors, const Smoothing<A>& smoothing, const A* m, const A* r,
                  A* g, int64_t ld_g);

}  // namespace edgeloss
