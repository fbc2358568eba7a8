// The loops of edge_mask.h.
#include "edge_mask.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "../labels.h"
#include "lanes.h"
#include "vectorize.h"

namespace edgeloss {

void mark_edges(const int16_t* label, const std::vector<const int16_t*>& rows, int64_t n, int64_t reach, uint16_t* low,
                int16_t* high, uint8_t* edge) {
  vectorized_by_size([=, rows = rows.data(), count = rows.size()](auto bytes) EDGELOSS_LOOP {
    constexpr int64_t kWidth = decltype(bytes)::value / sizeof(int16_t);
    std::fill_n(low, reach, kNoLow);
    std::fill_n(high, reach, kIgnored);
    int64_t x = 0;
    for (; x < n; x += kWidth) {
      VectorOf<uint16_t, kWidth> unsigned_labels, lowest = VectorOf<uint16_t, kWidth>{} + kNoLow;
      VectorOf<int16_t, kWidth> labels, highest = VectorOf<int16_t, kWidth>{} + kIgnored;
      for (size_t i = 0; i < count; ++i) {
        load_labels<kWidth>(rows[i], x, n, labels);
        std::memcpy(&unsigned_labels, &labels, sizeof(labels));
        lowest = unsigned_labels < lowest ? unsigned_labels : lowest;
        highest = labels > highest ? labels : highest;
      }
      store(lowest, low + reach + x);
      store(highest, high + reach + x);
    }
    std::fill_n(low + reach + n, reach, kNoLow);
    std::fill_n(high + reach + n, reach, kIgnored);
    // The extremes over 2 reach + 1 values side by side, by doubling how many each place covers. Not independent: a
    // place is read before it is written, which the compiler sees by itself.
    int64_t covered = 1;
    for (; 2 * covered < 2 * reach + 1; covered *= 2) {
      for (x = 0; x < n + 2 * reach - covered; ++x) {
        low[x] = low[x + covered] < low[x] ? low[x + covered] : low[x];
        high[x] = high[x + covered] > high[x] ? high[x + covered] : high[x];
      }
    }
    const uint16_t* next_low = low + 2 * reach + 1 - covered;
    const int16_t* next_high = high + 2 * reach + 1 - covered;
    EDGELOSS_INDEPENDENT
    for (x = 0; x < n; ++x) {
      const int16_t own = label[x];
      const uint16_t lowest = next_low[x] < low[x] ? next_low[x] : low[x];
      const int16_t highest = next_high[x] > high[x] ? next_high[x] : high[x];
      low[x] = lowest;
      high[x] = highest;
      edge[x] = (own >= 0) & ((static_cast<int16_t>(lowest) != own) | (highest != own));
    }
  });
}

void pack_classes(const int16_t* label, int64_t n, uint64_t* bits) {
  const int64_t words = (n + 63) / 64;
  for (int64_t word = 0; word < words; ++word, label += 64, n -= 64) {
    const int64_t count = std::min<int64_t>(n, 64);
    uint64_t odd = 0, ignored = 0;  // kIgnored is both
    int64_t j = 0;
#ifdef __SSE2__
    for (; j + 16 <= count; j += 16) {
      const auto* from = reinterpret_cast<const __m128i*>(label + j);
      const __m128i bytes = _mm_packs_epi16(_mm_loadu_si128(from), _mm_loadu_si128(from + 1));
      odd |= static_cast<uint64_t>(_mm_movemask_epi8(_mm_slli_epi16(bytes, 7))) << j;
      ignored |= static_cast<uint64_t>(_mm_movemask_epi8(bytes)) << j;
    }
#endif
    for (; j < count; ++j) {
      odd |= static_cast<uint64_t>(label[j] & 1) << j;
      ignored |= static_cast<uint64_t>(label[j] < 0) << j;
    }
    const uint64_t valid = ~ignored & (~uint64_t(0) >> (64 - count));
    bits[word] = valid & ~odd;
    bits[words + word] = valid & odd;
  }
}

namespace {

// any = whether any of the pixels up to one before or behind is set.
void spread_bits(uint64_t* any, int64_t words) {
  uint64_t before = 0;
  for (int64_t word = 0; word < words; ++word) {
    const uint64_t own = any[word], behind = word + 1 < words ? any[word + 1] : 0;
    any[word] = own | own << 1 | own >> 1 | before >> 63 | behind << 63;
    before = own;
  }
}

}  // namespace

int64_t PairEdges::list(const uint64_t* bits, int64_t row, int32_t* place) {
  const int64_t both = words(), words = both / 2, first = row * g_.width;
  uint64_t *first_class = any_.data(), *second_class = first_class + words;
  std::fill(any_.begin(), any_.end(), 0);
  for_each_row(g_, row, g_.radius, [&](int64_t pixel) {
    const uint64_t* of_row = bits + quotient(pixel, g_.width) * both;
    for (int64_t word = 0; word < both; ++word) first_class[word] |= of_row[word];
  });
  for (int64_t step = 0; step < g_.radius[2]; ++step) {
    spread_bits(first_class, words);
    spread_bits(second_class, words);
  }
  const uint64_t* own = bits + row * both;
  int64_t count = 0;
  for (int64_t word = 0; word < words; ++word) {
    uint64_t edges = (own[word] & second_class[word]) | (own[words + word] & first_class[word]);
    for (; edges != 0; edges &= edges - 1) {
      place[count++] = static_cast<int32_t>(first + 64 * word + __builtin_ctzll(edges));
    }
  }
  return count;
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

void spread_row(uint8_t* any, int64_t n, int64_t reach) {
  vectorized([=]() EDGELOSS_LOOP {
    for (int64_t covered = 1; covered < 2 * reach + 1;) {  // as above
      const int64_t step = std::min(covered, 2 * reach + 1 - covered), last = n + 2 * reach - step;
      for (int64_t x = 0; x < last; ++x) any[x] |= any[x + step];
      covered += step;
    }
  });
}

namespace {

// Pixels at a time: GCC 12 takes vectors of 16 apart where there are no byte and word masks.
constexpr int64_t kBlock = 8;
using BlockLabels = VectorOf<int32_t, kBlock>;

// Where an offset leads: `shift` pixels on in a row.
struct Place {
  const int16_t* row;
  int64_t shift;
  double length;
};

EDGELOSS_INLINE void load_block(const int16_t* row, int64_t x, int64_t width, BlockLabels& labels) {
  VectorOf<int16_t, kBlock> narrow;
  load_labels<kBlock>(row, x, width, narrow);
  labels = __builtin_convertvector(narrow, BlockLabels);
}

EDGELOSS_INLINE bool is_any_set(const BlockLabels& mask) {
  int64_t parts[kBlock / 2], any = 0;
  std::memcpy(parts, &mask, sizeof(parts));
  for (int64_t part : parts) any |= part;
  return any != 0;
}

}  // namespace

template <typename A>
void find_distances(const Geometry& g, const int16_t* label, int64_t row, const std::vector<Offset>& offsets,
                    const uint8_t* seen, A* distance) {
  const int64_t z = row / g.height, y = row % g.height;
  std::vector<Place> places(offsets.size());  // of the rows inside the image
  int64_t count = 0;
  for (const Offset& offset : offsets) {
    const int64_t nz = z + offset.d[0], ny = y + offset.d[1];
    if (nz < 0 || nz >= g.depth || ny < 0 || ny >= g.height) continue;
    places[count++] = {label + (nz * g.height + ny) * g.width, offset.d[2], offset.length};
  }
  vectorized([=, width = g.width, places = places.data()]() EDGELOSS_LOOP {
    for (int64_t x = 0; x < width; x += kBlock) {
      const int64_t n = std::min(kBlock, width - x);
      if (!std::memchr(seen + x, 1, n)) continue;
      BlockLabels own, other, passed = {}, wanted = {};  // passed: places before the first of another class
      load_block(label + row * width, x, width, own);
      for (int64_t j = 0; j < n; ++j) wanted[j] = -static_cast<int32_t>(seen[x + j]);
      wanted &= own >= 0;
      const BlockLabels all = wanted;
      for (int64_t i = 0; i < count; ++i) {
        if (i % 8 == 0 && !is_any_set(wanted)) break;
        load_block(places[i].row, x + places[i].shift, width, other);
        wanted &= (other < 0) | (other == own);
        passed -= wanted;
      }
      for (int64_t j = 0; j < n; ++j) {
        distance[x + j] = all[j] && !wanted[j] ? static_cast<A>(places[passed[j]].length) : A(INFINITY);
      }
    }
  });
}

template void find_distances(const Geometry&, const int16_t*, int64_t, const std::vector<Offset>&, const uint8_t*,
                             float*);
template void find_distances(const Geometry&, const int16_t*, int64_t, const std::vector<Offset>&, const uint8_t*,
                             double*);

int64_t list_places(const uint8_t* mask, int64_t n, int64_t first, int32_t* place) {
  int64_t count = 0, x = 0;
  for (; x + 8 <= n; x += 8) {
    uint64_t word, next[8] = {};
    std::memcpy(&word, mask + x, sizeof(word));
    while (word == 0 && x + 72 <= n) {  // most are none: 64 at a time
      std::memcpy(next, mask + x + 8, sizeof(next));
      uint64_t any = 0;
      for (uint64_t part : next) any |= part;
      if (any) break;
      x += 64;
    }
    for (; word != 0; word &= word - 1) place[count++] = static_cast<int32_t>(first + x + (__builtin_ctzll(word) >> 3));
  }
  for (; x < n; ++x) {
    if (mask[x]) place[count++] = static_cast<int32_t>(first + x);
  }
  return count;
}

}  // namespace edgeloss
