// How images are divided among blocks: a block takes a tile of 1024 pixels, each of its threads four of them. And what
// a tile's pixels need of those around: bits of the edge pixels, lists of bits, and values merged over windows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"
#include "device.h"

namespace edgeloss {

constexpr int kTilePixels = 4 * kThreads, kTileWords = kTilePixels / 32;

// The tiles of a batch, 2^k × 2^(10 - k) pixels each. The slices of a volume lie below each other.
struct Tiles {
  int log_width;
  int across, down;  // of an image
  int rows, words;   // rows of an image, and words of 32 bits of a row
  int64_t count;     // of the batch
  Divisor by_across, by_down;

  explicit Tiles(const Geometry& g)
      : rows(static_cast<int>(g.depth * g.height)), words((g.width + 31) / 32), by_across(1), by_down(1) {
    const auto aim = [&](int log) {
      const int64_t width = int64_t(1) << log, height = kTilePixels >> log;
      log_width = log;
      across = static_cast<int>((g.width + width - 1) / width);
      down = static_cast<int>((rows + height - 1) / height);
      return int64_t(across) * down;
    };
    int best = 7;
    for (int log = 6; log >= 5; --log) best = aim(log) < aim(best) ? log : best;
    count = g.batch * aim(best);
    by_across = Divisor(std::max(across, 1));
    by_down = Divisor(std::max(down, 1));
  }
};

struct Place {
  int64_t image, row, column;
  int64_t base, pixel;  // of the image in the batch, of the pixel in the image
};

// The tile of this block.
struct Tile {
  int image, first_row, first_column, log_width, rows, columns;  // rows and columns of an image
  int base;                                                      // the image's first pixel in the batch

  __device__ Tile(const Geometry& g, const Tiles& tiles)
      : log_width(tiles.log_width), rows(tiles.rows), columns(static_cast<int>(g.width)) {
    const int line = tiles.by_across.quotient(static_cast<int>(blockIdx.x));
    image = tiles.by_down.quotient(line);
    first_row = (line - image * tiles.down) << (10 - log_width);
    first_column = (static_cast<int>(blockIdx.x) - line * tiles.across) << log_width;
    base = image * static_cast<int>(g.pixels);
  }

  // Of place p < kTilePixels.
  __device__ int row(int p) const { return first_row + (p >> log_width); }
  __device__ int column(int p) const { return first_column + (p & ((1 << log_width) - 1)); }
  __device__ bool exists(int p) const { return row(p) < rows && column(p) < columns; }
  __device__ int pixel(int p) const { return row(p) * columns + column(p); }  // in the image
  __device__ Place place(int p) const { return {image, row(p), column(p), base, pixel(p)}; }
};

// Whether windows are 3 × 3 pixels, for which kernels have a quicker way.
inline bool is_three(const Geometry& g) { return g.depth == 1 && g.radius[1] == 1 && g.radius[2] == 1; }

// Calls body(number) for the rows of the window around a row of an image.
template <typename F>
__device__ __forceinline__ void for_each_window_row(const Geometry& g, int row, const F& body) {
  const int depth = static_cast<int>(g.depth), height = static_cast<int>(g.height);
  const int reach_z = static_cast<int>(g.radius[0]), reach_y = static_cast<int>(g.radius[1]);
  const int z = depth == 1 ? 0 : row / height, y = row - z * height;
  const int first = std::max(y - reach_y, 0), last = std::min(y + reach_y, height - 1);
  for (int slice = std::max(z - reach_z, 0); slice <= z + reach_z && slice < depth; ++slice) {
    for (int around = slice * height + first; around <= slice * height + last; ++around) body(around);
  }
}

// --------------------------------------------------------------------------------------------------------------- bits

EDGELOSS_INLINE int count_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}
EDGELOSS_INLINE int highest_bit(uint32_t word) {  // of one that has any
#ifdef __CUDA_ARCH__
  return 31 - __clz(static_cast<int>(word));
#else
  return 31 - __builtin_clz(word);
#endif
}
EDGELOSS_INLINE int lowest_bit(uint32_t word) { return highest_bit(word & (0u - word)); }

// One bit per pixel, 32 of a row in a word; rows begin with a new one.
struct Bits {
  uint32_t* words;  // [B, rows, tiles.words]

  // Word w < kTileWords of the tile; `read(image_row, word)` of those that exist.
  template <typename F>
  __device__ static uint32_t of_tile(const Tile& tile, const Tiles& tiles, int w, const F& read) {
    const int row = tile.row(32 * w), word = tile.column(32 * w) / 32;
    return row < tiles.rows && word < tiles.words ? read(row, word) : 0;
  }
  __device__ unsigned at(const Tile& tile, const Tiles& tiles, int row, int word) const {
    return static_cast<unsigned>(tile.image * tiles.rows + row) * tiles.words + word;
  }
  __device__ uint32_t of_tile(const Tile& tile, const Tiles& tiles, int w) const {
    return of_tile(tile, tiles, w, [&](int row, int word) { return words[at(tile, tiles, row, word)]; });
  }
  __device__ bool has(const Tile& tile, const Tiles& tiles, int row, int column) const {
    return words[at(tile, tiles, row, column / 32)] >> (column % 32) & 1;
  }
  __device__ void write(const Tile& tile, const Tiles& tiles, int w, uint32_t value) const {
    of_tile(tile, tiles, w, [&](int row, int word) { return words[at(tile, tiles, row, word)] = value; });
  }
};

// The bits of a word at most `reach` from a bit of another one of its row, `distance` words to the right of it.
__device__ __forceinline__ uint32_t bits_around(uint32_t word, int distance, int reach) {
  if (word == 0) return 0;
  if (distance == 0) {
    uint32_t around = word;
    for (int step = 0; step < reach && step < 31; ++step) around |= around << 1 | around >> 1;
    return around;
  }
  if (distance < 0) {  // up to the place that the last of its bits reaches
    const int last = highest_bit(word) + reach + 32 * distance;
    return last < 0 ? 0 : last >= 31 ? ~0u : (2u << last) - 1;
  }
  const int first = lowest_bit(word) - reach + 32 * distance;
  return first > 31 ? 0 : first <= 0 ? ~0u : ~0u << first;
}

// Word w of the tile's pixels that have an edge pixel in their window, or are one. kThree: windows are 3 × 3 pixels.
template <bool kThree>
__device__ __forceinline__ uint32_t near_edges(const Geometry& g, const Tile& tile, const Tiles& tiles,
                                               const Bits& edges, int w) {
  const int reach = static_cast<int>(g.radius[2]), words_around = (reach + 31) / 32;
  return Bits::of_tile(tile, tiles, w, [&](int row, int word) {
    uint32_t near = 0;
    if constexpr (kThree) {
      uint32_t merged[3] = {};  // of three rows: the words on the left, at the place and on the right
#pragma unroll
      for (int dy = -1; dy <= 1; ++dy) {
        if (row + dy < 0 || row + dy >= tiles.rows) continue;
        const uint32_t* at = edges.words + edges.at(tile, tiles, row + dy, word);
        if (word > 0) merged[0] |= at[-1];
        merged[1] |= at[0];
        if (word + 1 < tiles.words) merged[2] |= at[1];
      }
      near = merged[1] | merged[1] << 1 | merged[1] >> 1 | merged[0] >> 31 | merged[2] << 31;
    } else {
      for (int other = std::max(word - words_around, 0); other <= word + words_around && other < tiles.words; ++other) {
        uint32_t merged = 0;
        for_each_window_row(g, row, [&](int around) { merged |= edges.words[edges.at(tile, tiles, around, other)]; });
        near |= bits_around(merged, other - word, reach);
      }
    }
    const int left = tile.columns - 32 * word;  // of the row
    return left < 32 ? near & ((1u << left) - 1) : near;
  });
}

// Lists the places of a tile whose bits are set, in order, and returns their number; word(w) is the w-th of the tile.
// The threads of a block call it together, once a kernel.
template <typename F>
__device__ __forceinline__ int list_places(uint16_t (&list)[kTilePixels], const F& word) {
  static_assert(kTileWords == kWarp);
  __shared__ uint32_t words[kTileWords];
  __shared__ int ends[kTileWords];  // in the list
  const int own = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int w = own; w < kTileWords; w += kThreads) {  // a warp of eight
    const uint32_t bits = word(w);
    int end = count_bits(bits);
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, step);
      end += w >= step ? before : 0;
    }
    words[w] = bits;
    ends[w] = end;
  }
  __syncthreads();
  uint32_t bits = words[own / 8] >> (4 * (own % 8));  // from the thread's four on
  int place = ends[own / 8] - count_bits(bits);
  for (bits &= 15; bits != 0; bits &= bits - 1) list[place++] = static_cast<uint16_t>(4 * own + lowest_bit(bits));
  __syncthreads();
  return ends[kTileWords - 1];
}

// ------------------------------------------------------------------------------------------------------------- windows

// Merges into own[k] what read(pixel) returns of the pixels in the window of place threadIdx.x + k · kThreads, but for
// itself if Value::kSkipsSelf: along the columns first, then along the rows, so that the cost does not grow with the
// radius's square. The threads of a block call it together.
template <typename Value, typename F>
__device__ void merge_windows(const Geometry& g, const Tile& tile, const F& read, Value (&own)[4]) {
  constexpr int kPart = 3 * kTilePixels / 2;  // columns of the tile's rows at a time
  __shared__ typename Value::Bytes merged[kPart];
  const int width = 1 << tile.log_width, height = kTilePixels >> tile.log_width, columns = kPart / height;
  const int reach = static_cast<int>(g.radius[2]), thread = static_cast<int>(threadIdx.x);
  if constexpr (Value::kSkipsSelf) {
    for (int k = 0; k < 4; ++k) {
      const int p = thread + k * kThreads, row = tile.row(p);
      if (!tile.exists(p)) continue;
      for_each_window_row(g, row, [&](int around) {
        if (around != row) own[k].merge(read(around * tile.columns + tile.column(p)));
      });
    }
  }
  const int last = std::min(tile.first_column + width + reach, tile.columns);
  for (int first = std::max(tile.first_column - reach, 0); first < last; first += columns) {
    const int end = std::min(first + columns, last);
    __syncthreads();
    for (int row = thread >> tile.log_width; row < height; row += kThreads >> tile.log_width) {
      if (tile.first_row + row >= tile.rows) break;
      for (int column = first + (thread & (width - 1)); column < end; column += width) {
        Value value;
        for_each_window_row(g, tile.first_row + row,
                            [&](int around) { value.merge(read(around * tile.columns + column)); });
        merged[row * columns + column - first] = value.bytes();
      }
    }
    __syncthreads();
    for (int k = 0; k < 4; ++k) {
      const int p = thread + k * kThreads, column = tile.column(p);
      if (!tile.exists(p)) continue;
      const int row = (p >> tile.log_width) * columns, stop = std::min(column + reach + 1, end);
      for (int n = std::max(column - reach, first); n < stop; ++n) {
        if (!Value::kSkipsSelf || n != column) own[k].merge(Value(merged[row + n - first]));
      }
    }
  }
}

}  // namespace edgeloss
