// Loops over tiles: some pixels with all their classes, few enough to stay in cache; a class's pixels lie side by side,
// so that the loops vectorize.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../labels.h"
#include "../math.h"
#include "../stored.h"
#include "vectorize.h"

namespace edgeloss {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

constexpr int64_t kTile = 256;  // pixels at most: their statistics stay in the first-level cache

template <typename A>
constexpr A kZeros[kTile] = {};

// ---------------------------------------------------------------------------------------------------------- precisions

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

  EDGELOSS_INLINE A at(int64_t j, int64_t c) const { return x[c * ld + j]; }
};

// Whether tiles can be used where they lie, by loops that read each logit once: of many classes, the rows of a tile may
// lie a power of two apart and evict each other from the cache.
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

// The labels of n pixels from the first on, kIgnored where they do not count; returns how many are out of range.
int64_t read_labels(const Target& target, int64_t first, int64_t n, int16_t* label);

}  // namespace edgeloss
