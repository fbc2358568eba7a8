// Loops over tiles: some pixels with all their classes, few enough to stay in cache; a class's pixels lie side by side,
// so that the loops vectorize.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../labels.h"
#include "../math.h"
#include "../stored.h"
#include "vectorize.h"

namespace edgeloss {

constexpr int64_t kTile = 256;  // pixels at most: their statistics stay in the first-level cache

template <typename A>
constexpr A kZeros[kTile] = {};

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
