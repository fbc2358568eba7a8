// The logits of a tile -> the statistics of each pixel's softmax.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiles.h"

namespace edgeloss {

constexpr int64_t kClassBlock = 8;  // classes at a time: a pixel's logits of a block stay in registers

// Asks for a row of a tile ahead of the loops, in the next tile behind the last: a tile's rows are pieces of memory too
// short for the processor to foresee.
template <typename A>
EDGELOSS_INLINE void prefetch_ahead(const Tile<A>& tile, int64_t c) {
  const int64_t ahead = c + std::min(kClassBlock, tile.classes), behind = ahead - tile.classes;
  const A* row = behind < 0 ? tile.x + ahead * tile.ld : tile.x + tile.n + behind * tile.ld;
  for (int64_t j = 0; j < tile.n; j += 64 / sizeof(A)) __builtin_prefetch(row + j);
}

// m, r and -log p(y) of a tile; nll is 0 where y is none of the classes. A buffer, unless it is null or the classes are
// two, gets a copy of the tile, its classes `buffer_ld` apart.
template <typename A>
void tile_statistics(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll, A* buffer = nullptr,
                     int64_t buffer_ld = 0);

// v = e^v for n numbers v ≤ 0.
template <typename A>
void exponentials(A* v, int64_t n);

}  // namespace edgeloss
