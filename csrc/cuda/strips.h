// How logits of lower resolution are read and divided among blocks: a thread takes a column of pixels, whose
// low-resolution neighbors it mixes along the rows first, once for all pixels between two of these rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "call.h"

namespace edgeloss {

// Where the logits that a column of pixels is mixed from lie in a row: bytes from its begin, and weights.
template <typename A>
struct LowColumn {
  uint32_t nearer[2], farther[2];  // of the two slices, which are one in an image
  A x, z;                          // of the second ones
};

// Some classes of an image of lower resolution, which take less than 2^32 bytes: an address is that of their first
// logit and 32 bits of each thread, which an instruction adds as it reads.
template <typename T, typename A>
struct LowResolution {
  static constexpr int kClasses = 16;  // at most

  const char* data;
  uint32_t class_bytes, pixel_bytes, row_bytes, slice_bytes;

  __device__ LowResolution(const Call<T, A, true>& call, int image, int first_logit)
      : data(reinterpret_cast<const char*>(call.x + image * call.steps.image + first_logit * call.steps.channel)),
        class_bytes(static_cast<uint32_t>(call.steps.channel * static_cast<int64_t>(sizeof(T)))),
        pixel_bytes(static_cast<uint32_t>(call.steps.pixel * static_cast<int64_t>(sizeof(T)))),
        row_bytes(pixel_bytes * static_cast<uint32_t>(call.along_x.low)),
        slice_bytes(row_bytes * static_cast<uint32_t>(call.along_y.low)) {}

  static void check(const Call<T, A, true>& call) {
    const int64_t pixels = call.along_z.low * call.along_y.low * call.along_x.low;
    const int64_t classes = std::min<int64_t>(call.g.logits, kClasses);
    const double most = static_cast<double>(pixels) * static_cast<double>(call.steps.pixel) +
                        static_cast<double>(classes) * static_cast<double>(call.steps.channel);
    STD_TORCH_CHECK(most * sizeof(T) < 0x1p32, "logits: expected ", kClasses,
                    " classes of an image of lower resolution in less than 4 GiB, but got more; use smaller crops");
  }

  __device__ uint32_t row(int y) const { return static_cast<uint32_t>(y) * row_bytes; }
  __device__ LowColumn<A> column(const Taps<A>& x, const Taps<A>& z) const {
    const auto place = [&](int64_t slice, int64_t column) {
      return static_cast<uint32_t>(slice) * slice_bytes + static_cast<uint32_t>(column) * pixel_bytes;
    };
    return {{place(z.first, x.first), place(z.first, x.second)},
            {place(z.second, x.first), place(z.second, x.second)},
            x.blending(),
            z.blending()};
  }
  // Mixed as Mixture::row does it.
  template <bool kVolume>
  __device__ __forceinline__ A read(int nth, uint32_t line, const LowColumn<A>& column) const {
    line += static_cast<uint32_t>(nth) * class_bytes;
    const auto at = [&](uint32_t place) { return static_cast<A>(*reinterpret_cast<const T*>(data + (line + place))); };
    const A mixed = blend(at(column.nearer[0]), at(column.nearer[1]), column.x);
    if constexpr (!kVolume) return mixed;
    return blend(mixed, blend(at(column.farther[0]), at(column.farther[1]), column.x), column.z);
  }
};

// The low-resolution pixels of a strip, one slice of them, and their classes.
struct BoxOfStrip {
  int image, z, first_x, end_x, first_y, end_y, chunk;
};

// Low-resolution images in strips of rows. A strip takes 2^k threads, one for each column of the pixels that are mixed
// from its own; those of a block lie below each other.
struct Strips {
  static constexpr int kRows = 512, kMost = kThreads / 32;  // low-resolution rows of a block, and its strips, at most

  int log_width;
  bool is_wide;      // more columns than a block's threads for a single low-resolution pixel: they are taken in turns
  int across, down;  // low-resolution pixels of a strip, at most
  int count_across, count_down, chunks, depth, low_width, low_height;
  int64_t blocks;

  __device__ int width() const { return 1 << log_width; }

  template <typename C>
  Strips(const C& call, int classes)
      : log_width(8),
        is_wide(true),
        across(1),
        chunks(static_cast<int>((call.g.logits + classes - 1) / classes)),
        depth(static_cast<int>(call.along_z.low)),
        low_width(static_cast<int>(call.along_x.low)),
        low_height(static_cast<int>(call.along_y.low)) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int log = 5; log <= 8; ++log) {
      const int cells = most_across(call.along_x, int64_t(1) << log);
      if (cells == 0) continue;
      const int64_t threads = int64_t((low_width + cells - 1) / cells) << log;
      if (threads >= least) continue;
      least = threads;
      log_width = log;
      across = cells;
      is_wide = false;
    }
    count_across = across ? (low_width + across - 1) / across : 0;
    // The rows between two strips are visited twice, but there are blocks for all of the device.
    const int strips = kThreads >> log_width;
    for (down = std::min(32, kRows / strips);; down /= 2) {
      count_down = (low_height + down * strips - 1) / (down * strips);
      blocks = call.g.batch * chunks * depth * count_across * count_down;
      if (down == 4 || blocks >= 512) break;
    }
  }

  // The most low-resolution pixels whose columns a strip of `width` threads has room for, all strips nearly equal.
  template <typename A>
  int most_across(const Axis<A>& along, int64_t width) const {
    for (int most = static_cast<int>(std::min(width * along.low / along.high, along.low)); most > 0; --most) {
      const int count = (low_width + most - 1) / most, cells = (low_width + count - 1) / count;
      bool fits = true;
      for (int first = 0; first < low_width && fits; first += cells) {
        fits = along.begin(std::min(first + cells, low_width)) - along.begin(first - 1) <= width;
      }
      if (fits) return cells;
    }
    return 0;
  }

  __device__ BoxOfStrip box(unsigned block, int strip) const {
    const auto take = [&](int count) {
      const unsigned rest = block / static_cast<unsigned>(count);
      const auto place = static_cast<int>(block - rest * static_cast<unsigned>(count));
      block = rest;
      return place;
    };
    BoxOfStrip box;
    box.chunk = take(chunks);
    box.first_x = take(count_across) * across;
    box.end_x = std::min(box.first_x + across, low_width);
    const int row = take(count_down);
    box.first_y = (row * (kThreads >> log_width) + strip) * down;
    if (box.first_y >= low_height) box.first_y = low_height + 1;  // none, nor what lies between two of them
    box.end_y = std::min(box.first_y + down, low_height);
    box.z = take(depth);
    box.image = static_cast<int>(block);
    return box;
  }
};

}  // namespace edgeloss
