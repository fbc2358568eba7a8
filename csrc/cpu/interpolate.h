// Tiles of logits of lower resolution, interpolated where they are used; and the way back of their gradient.
//
// A tile holds some slots of neighbouring cells. A cell is a low-resolution pixel together with the pixels of a
// full-resolution row that lie nearest to it, and a slot is one of these: first those to its left, which are mixed from
// the cell before and the cell itself, then those to its right, mixed from the cell itself and the next. So the pixels
// of a slot, from cell to cell, are mixed from numbers that lie side by side, and the loops vectorise. Where the ratio
// is no integer, some slots of some cells have no pixel.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../upsample.h"
#include "tiles.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

// What a row is mixed from: its two slices' two rows each, of the low-resolution image.
template <typename A>
struct RowTaps {
  std::array<int64_t, 4> row;  // of (first, first), (first, second), (second, first), (second, second) slice and row
  A slice_weight, row_weight;

  A weight_of(int which) const {
    return (which / 2 ? slice_weight : A(1) - slice_weight) * (which % 2 ? row_weight : A(1) - row_weight);
  }
};

// Some slots of some cells of a row, or of all.
struct Block {
  int64_t first_slot, last_slot, first_cell, last_cell;

  int64_t cells() const { return last_cell - first_cell; }
  int64_t pixels() const { return (last_slot - first_slot) * cells(); }
};

// to[k] = pixel k of two low-resolution rows, mixed.
template <typename T, typename A>
EDGELOSS_INLINE void mix_rows(const T* __restrict first, const T* __restrict second, int64_t step, int64_t n, A weight,
                              A* __restrict to) {
  if (weight == A(0)) {
    for (int64_t k = 0; k < n; ++k) to[k] = widen(first[k * step]);
  } else if (step == 1) {
    for (int64_t k = 0; k < n; ++k) to[k] = mix(widen(first[k]), widen(second[k]), weight);
  } else {
    for (int64_t k = 0; k < n; ++k) to[k] = mix(widen(first[k * step]), widen(second[k * step]), weight);
  }
}

// All that an image's interpolation needs to know, the same for every image.
template <typename A>
struct Upsample {
  Axis<A> along_z, along_y, along_x;
  std::vector<Taps<A>> slice, row, column;  // of each along its axis
  int64_t cells, slots, left;               // of a row; the slots on the left
  std::vector<int32_t> pixel;               // [slots, cells], of the row, or -1
  std::vector<A> weight;                    // [slots, cells], of the second of the two that it is mixed from

  Upsample(const Axis<A>& z, const Axis<A>& y, const Axis<A>& x) : along_z(z), along_y(y), along_x(x), cells(x.low) {
    const auto taps = [](const Axis<A>& axis) {
      std::vector<Taps<A>> all(axis.high);
      for (int64_t i = 0; i < axis.high; ++i) all[i] = axis.at(i);
      return all;
    };
    slice = taps(z);
    row = taps(y);
    column = taps(x);
    std::vector<int64_t> count[2] = {std::vector<int64_t>(cells), std::vector<int64_t>(cells)};  // left and right
    const auto for_each_pixel = [&](const auto& body) {
      for (auto& n : count) std::fill(n.begin(), n.end(), 0);
      for (int64_t i = 0; i < x.high; ++i) {
        const A place = x.position(i);
        const int64_t cell = std::clamp<int64_t>(static_cast<int64_t>(std::floor(place + A(0.5))), 0, cells - 1);
        const int side = place >= static_cast<A>(cell);
        body(i, cell, side, count[side][cell]++);
      }
    };
    for_each_pixel([](int64_t, int64_t, int, int64_t) {});
    left = *std::max_element(count[0].begin(), count[0].end());
    slots = left + *std::max_element(count[1].begin(), count[1].end());
    pixel.assign(slots * cells, -1);
    weight.assign(slots * cells, A(0));
    for_each_pixel([&](int64_t i, int64_t cell, int side, int64_t n) {
      const int64_t at = (side ? left + n : n) * cells + cell;
      pixel[at] = static_cast<int32_t>(i);
      weight[at] = column[i].weight;
    });
  }

  RowTaps<A> row_taps(int64_t high_row) const { return row_taps(high_row / along_y.high, high_row % along_y.high); }
  RowTaps<A> row_taps(int64_t at_z, int64_t at_y) const {
    const Taps<A>&of_z = slice[at_z], &of_y = row[at_y];
    const int64_t first = of_z.first * along_y.low, second = of_z.second * along_y.low;
    return {
        {first + of_y.first, first + of_y.second, second + of_y.first, second + of_y.second}, of_z.weight, of_y.weight};
  }

  // The pixels of a block, in the order of its tile.
  void list_pixels(const Block& block, int32_t* to) const {
    for (int64_t slot = block.first_slot; slot < block.last_slot; ++slot) {
      to = std::copy_n(pixel.data() + slot * cells + block.first_cell, block.cells(), to);
    }
  }

  // Class c of a pixel, the same as in a tile.
  template <typename T>
  A at(const Logits<T, A>& x, int64_t pixel, int64_t c) const {
    const int64_t high_row = pixel / along_x.high;
    A value;
    along_row(x, row_taps(high_row), pixel - high_row * along_x.high, 1, c, &value);
    return value;
  }

  // Class c of the n pixels of a row from the first one on.
  template <typename T>
  EDGELOSS_INLINE void along_row(const Logits<T, A>& x, const RowTaps<A>& taps, int64_t first, int64_t n, int64_t c,
                                 A* to) const {
    if (x.binary && c == 0) {
      std::fill_n(to, n, A(0));
      return;
    }
    constexpr int64_t kMost = 16;  // pixels at a time
    for (; n > 0; first += kMost, to += kMost, n -= kMost) {
      const Taps<A>* at = column.data() + first;
      const int64_t count = std::min(n, kMost), start = at[0].first, cells = at[count - 1].second - start + 1;
      A low[kMost + 2];
      const auto row = [&](int which) {
        return x.data + (x.binary ? 0 : c) * x.class_step + (taps.row[which] * this->cells + start) * x.pixel_step;
      };
      mix_rows(row(0), row(1), x.pixel_step, cells, taps.row_weight, low);
      if (taps.slice_weight != A(0)) {
        A other[kMost + 2];
        mix_rows(row(2), row(3), x.pixel_step, cells, taps.row_weight, other);
        for (int64_t i = 0; i < cells; ++i) low[i] = mix(low[i], other[i], taps.slice_weight);
      }
      for (int64_t j = 0; j < count; ++j) {
        to[j] = mix(low[at[j].first - start], low[at[j].second - start], at[j].weight);
      }
    }
  }
};

// Calls body(block) for the blocks of at most `most` pixels that make up a row.
template <typename A, typename F>
void for_each_block(const Upsample<A>& up, int64_t most, const F& body) {
  const int64_t slots = std::min(up.slots, most), wide = most / slots;
  const int64_t cells = wide < 16 ? wide : wide / 16 * 16;  // whole vectors
  for (int64_t slot = 0; slot < up.slots; slot += slots) {
    for (int64_t cell = 0; cell < up.cells; cell += cells) {
      body(Block{slot, std::min(slot + slots, up.slots), cell, std::min(cell + cells, up.cells)});
    }
  }
}

// tile[c · ld + slot · block.cells() + cell] of a row's block.
template <typename T, typename A>
EDGELOSS_INLINE void mix_tile(const Upsample<A>& up, const RowTaps<A>& taps, const Logits<T, A>& x, int64_t logits,
                              const Block& block, A* tile, int64_t ld) {
  A column[kTile + 2];  // of the cells, and one more at each end
  const int64_t count = block.cells(), step = x.pixel_step;
  const int64_t before = block.first_cell > 0 ? 1 : 0, after = block.last_cell < up.cells ? 1 : 0;
  const int64_t n = before + count + after;
  A* __restrict low = column + 1 - before;
  if (x.binary) {
    std::fill_n(tile, block.pixels(), A(0));
    tile += ld;
  }
  for (int64_t c = 0; c < logits; ++c) {
    const auto row = [&](int which) {
      return x.data + c * x.class_step + (taps.row[which] * up.cells + block.first_cell - before) * step;
    };
    mix_rows(row(0), row(1), step, n, taps.row_weight, low);
    if (taps.slice_weight != A(0)) {
      A other[kTile + 2];
      mix_rows(row(2), row(3), step, n, taps.row_weight, other);
      for (int64_t k = 0; k < n; ++k) low[k] = mix(low[k], other[k], taps.slice_weight);
    }
    if (before == 0) column[0] = column[1];
    if (after == 0) column[count + 1] = column[count];
    A* __restrict to = tile + c * ld;
    for (int64_t slot = block.first_slot; slot < block.last_slot; ++slot, to += count) {
      const A* __restrict a = column + (slot < up.left ? 0 : 1);
      const A* __restrict weight = up.weight.data() + slot * up.cells + block.first_cell;
      for (int64_t i = 0; i < count; ++i) to[i] = mix(a[i], a[i + 1], weight[i]);
    }
  }
}
// Interpolates a tile of a row, as read_tile copies one.
EDGELOSS_VECTORIZED void interpolate_tile(const Upsample<float>& up, const RowTaps<float>& taps,
                                          const Logits<float, float>& x, int64_t logits, const Block& block,
                                          float* tile, int64_t ld) {
  mix_tile(up, taps, x, logits, block, tile, ld);
}
EDGELOSS_VECTORIZED void interpolate_tile(const Upsample<float>& up, const RowTaps<float>& taps,
                                          const Logits<BFloat16, float>& x, int64_t logits, const Block& block,
                                          float* tile, int64_t ld) {
  mix_tile(up, taps, x, logits, block, tile, ld);
}
EDGELOSS_VECTORIZED void interpolate_tile(const Upsample<float>& up, const RowTaps<float>& taps,
                                          const Logits<Half, float>& x, int64_t logits, const Block& block, float* tile,
                                          int64_t ld) {
  mix_tile(up, taps, x, logits, block, tile, ld);
}
inline void interpolate_tile(const Upsample<double>& up, const RowTaps<double>& taps, const Logits<double, double>& x,
                             int64_t logits, const Block& block, double* tile, int64_t ld) {
  mix_tile(up, taps, x, logits, block, tile, ld);
}

// Adds a tile of gradients to the low-resolution rows that its row was mixed from, [logits, cells and one more at each
// end] each; a null one is not wanted.
template <typename A>
EDGELOSS_INLINE void share_out(const Upsample<A>& up, const RowTaps<A>& taps, int64_t logits, const Block& block,
                               const A* tile, int64_t ld, A* const* rows) {
  A column[kTile + 2];
  const int64_t count = block.cells();
  for (int64_t c = 0; c < logits; ++c) {
    for (int64_t k = 0; k < count + 2; ++k) column[k] = A(0);
    const A* __restrict g = tile + c * ld;
    for (int64_t slot = block.first_slot; slot < block.last_slot; ++slot, g += count) {
      A* __restrict a = column + (slot < up.left ? 0 : 1);
      const A* __restrict weight = up.weight.data() + slot * up.cells + block.first_cell;
      for (int64_t i = 0; i < count; ++i) a[i] += (A(1) - weight[i]) * g[i];
      for (int64_t i = 0; i < count; ++i) a[i + 1] += weight[i] * g[i];
    }
    for (int k = 0; k < 4; ++k) {
      if (!rows[k]) continue;
      A* __restrict to = rows[k] + c * (up.cells + 2) + block.first_cell;
      const A weight = taps.weight_of(k);
      for (int64_t i = 0; i < count + 2; ++i) to[i] += weight * column[i];
    }
  }
}
EDGELOSS_VECTORIZED void share_tile(const Upsample<float>& up, const RowTaps<float>& taps, int64_t logits,
                                    const Block& block, const float* tile, int64_t ld, float* const* rows) {
  share_out(up, taps, logits, block, tile, ld, rows);
}
inline void share_tile(const Upsample<double>& up, const RowTaps<double>& taps, int64_t logits, const Block& block,
                       const double* tile, int64_t ld, double* const* rows) {
  share_out(up, taps, logits, block, tile, ld, rows);
}

}  // namespace
}  // namespace edgeloss
