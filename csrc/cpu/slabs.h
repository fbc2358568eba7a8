// The parts of a batch that the passes of the loss work on, and the places of their pixels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"
#include "region.h"

namespace edgeloss {

// Rows [first_row, last_row) of slices [first_slice, last_slice) of an image. It begins and ends where averages do, so
// that each average is formed by one slab.
struct Slab {
  int64_t image, first_slice, last_slice, first_row, last_row;

  int64_t rows() const { return last_row - first_row; }
  int64_t pixels(int64_t width) const { return (last_slice - first_slice) * rows() * width; }
  // The place of a pixel among those of the slab.
  int32_t place(int64_t width, int64_t z, int64_t y, int64_t x) const {
    return static_cast<int32_t>(((z - first_slice) * rows() + y - first_row) * width + x);
  }
};

// The average that a row or a slice belongs to; past the last one where it belongs to none.
inline int64_t average_of(int64_t place) { return (place + 1) / kPool; }

// Calls body(slice, row) for each row of a slab.
template <typename F>
void for_each_row(const Slab& slab, const F& body) {
  for (int64_t z = slab.first_slice; z < slab.last_slice; ++z) {
    for (int64_t y = slab.first_row; y < slab.last_row; ++y) body(z, y);
  }
}

struct Slabs {
  int64_t depth, height, rows, along_y, per_image, count;

  // Large enough to hide what each costs, small enough that what it works on stays in cache, and enough of them for all
  // threads even of a small batch. Rows at the borders of slabs are looked at twice: wide windows need taller ones.
  explicit Slabs(const Geometry& g) : depth(g.depth), height(g.height) {
    const int64_t pixels = std::clamp<int64_t>(g.batch * g.pixels / 16, 1024, 4096);
    const int64_t slices = std::min(kPool, g.depth), per_average = std::max<int64_t>(1, kPool * slices * g.width);
    rows = kPool * std::max((pixels + per_average / 2) / per_average, (4 * g.radius[1] + kPool - 1) / kPool);
    rows = std::max(rows, kPool);
    along_y = g.height / rows + 1;  // slab n begins one row before rows · n
    per_image = along_y * (g.depth / kPool + 1);
    count = g.batch * per_image;
  }

  Slab at(int64_t index) const {
    const int64_t z = index % per_image / along_y * kPool, y = index % along_y * rows;
    return {index / per_image, std::max<int64_t>(0, z - 1), std::min(z + kPool - 1, depth), std::max<int64_t>(0, y - 1),
            std::min(y + rows - 1, height)};
  }
};

}  // namespace edgeloss
