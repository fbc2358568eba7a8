// Tiles of logits of lower resolution, interpolated where they are used; and the way back of their gradient.
//
// A tile holds some slots of neighboring cells. A cell is a low-resolution pixel together with the pixels of a
// full-resolution row that lie nearest to it, and a slot is one of these: first those to its left, which are mixed from
// the cell before and the cell itself, then those to its right, mixed from the cell itself and the next. So the pixels
// of a slot, from cell to cell, are mixed from numbers that lie side by side, and the loops vectorize. Where the ratio
// is no integer, some slots of some cells have no pixel.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "../upsample.h"
#include "tiles.h"

namespace edgeloss {

// What a row is mixed from: its two slices' two rows each, of the low-resolution image.
template <typename A>
struct RowTaps {
  std::array<int64_t, 4> row;  // (first, first), (first, second), (second, first), (second, second) slice and row
  A slice_weight, row_weight;  // of the second ones

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

// What the interpolation of every image needs.
template <typename A>
struct Upsample {
  Axis<A> along_z, along_y, along_x;
  std::vector<Taps<A>> slice, row, column;  // of each along its axis
  int64_t cells, slots, left;               // of a row; the slots on the left
  std::vector<int32_t> pixel;               // [slots, cells], of the row, or -1
  std::vector<A> weight;                    // [slots, cells], of the second of the two that it is mixed from
  std::vector<int32_t> home;                // [W], the place of each pixel in `pixel`

  Upsample(const Axis<A>& z, const Axis<A>& y, const Axis<A>& x);

  RowTaps<A> row_taps(int64_t z, int64_t y) const;
  RowTaps<A> row_taps(int64_t high_row) const { return row_taps(high_row / along_y.high, high_row % along_y.high); }

  // The pixels of a block, in the order of its tile.
  void list_pixels(const Block& block, int32_t* places) const;

  // Where a pixel of the row is in the tile of a block; -1 if it is in another one.
  int64_t place_in(const Block& block, int64_t pixel) const {
    const int64_t slot = home[pixel] / cells - block.first_slot, cell = home[pixel] % cells - block.first_cell;
    if (slot < 0 || slot >= block.last_slot - block.first_slot || cell < 0 || cell >= block.cells()) return -1;
    return slot * block.cells() + cell;
  }

  // Class c of a pixel, the same as in a tile.
  A at(const Stored<A>& x, int64_t pixel, int64_t c) const;

  // Class c of n pixels of the row that `taps` mixes, from pixel `first` on.
  void along_row(const Stored<A>& x, const RowTaps<A>& taps, int64_t first, int64_t n, int64_t c, A* out) const;

  // Interpolates a block of a row, as read_tile copies one.
  void interpolate_tile(const RowTaps<A>& taps, const Stored<A>& x, int64_t logits, const Block& block, A* tile,
                        int64_t ld) const;

  // Adds a tile of gradients to the low-resolution rows that its row was mixed from, [logits, cells and one more at
  // each end] each; a null one is not wanted.
  void share_tile(const RowTaps<A>& taps, int64_t logits, const Block& block, const A* tile, int64_t ld,
                  A* const* rows) const;
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

}  // namespace edgeloss
