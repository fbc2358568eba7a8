// How low-resolution pixels are divided among blocks, in backward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "call.h"

namespace edgeloss {

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
