// The loops of edge_mask.h.
#include "edge_mask.h"

#include <algorithm>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {

void widen_range(const int16_t* label, int64_t n, int16_t* low, int16_t* high) {
  vectorized([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t x = 0; x < n; ++x) {
      const int16_t as_low = label[x] < 0 ? INT16_MAX : label[x];
      low[x] = as_low < low[x] ? as_low : low[x];
      high[x] = label[x] > high[x] ? label[x] : high[x];
    }
  });
}

void mark_edges(const int16_t* label, int64_t n, int64_t reach, int16_t* low, int16_t* high, uint8_t* edge) {
  vectorized([=]() EDGELOSS_LOOP {
    // The extremes over 2 reach + 1 values side by side, by doubling how many each place covers. Not independent: a
    // place is read before it is written, which the compiler sees by itself.
    int64_t covered = 1;
    while (covered < 2 * reach + 1) {
      const int64_t step = std::min(covered, 2 * reach + 1 - covered);
      const int64_t last = n + 2 * reach - step;
      for (int64_t x = 0; x < last; ++x) {
        low[x] = low[x + step] < low[x] ? low[x + step] : low[x];
        high[x] = high[x + step] > high[x] ? high[x + step] : high[x];
      }
      covered += step;
    }
    EDGELOSS_INDEPENDENT
    for (int64_t x = 0; x < n; ++x) edge[x] = (label[x] >= 0) & ((low[x] < label[x]) | (high[x] > label[x]));
  });
}

int64_t keep_false(const uint8_t* edge, int64_t n, uint8_t* drawn) {
  return vectorized([=]() EDGELOSS_LOOP {
    int64_t count = 0;
    EDGELOSS_INDEPENDENT
    for (int64_t x = 0; x < n; ++x) {
      drawn[x] &= ~edge[x];
      count += drawn[x];
    }
    return count;
  });
}

void merge_row(const uint8_t* mask, int64_t n, uint8_t* any) {
  vectorized([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t x = 0; x < n; ++x) any[x] |= mask[x];
  });
}

int64_t list_places(const uint8_t* mask, int64_t n, int64_t first, int32_t* place) {
  int64_t count = 0, x = 0;
  for (; x + 8 <= n; x += 8) {
    uint64_t word;
    std::memcpy(&word, mask + x, sizeof(word));
    for (; word != 0; word &= word - 1) place[count++] = static_cast<int32_t>(first + x + (__builtin_ctzll(word) >> 3));
  }
  for (; x < n; ++x) {
    if (mask[x]) place[count++] = static_cast<int32_t>(first + x);
  }
  return count;
}

}  // namespace edgeloss
