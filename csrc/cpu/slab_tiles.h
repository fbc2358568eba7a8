// The tiles of a slab with all that the loss of their pixels depends on, and the rows of the region term around them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "call.h"
#include "vectorize.h"

namespace edgeloss {

// Where the pixels of a tile are: the j-th one is start + j in the batch. Its row, in its slice, and its column are
// those of the first one.
struct TilePlace {
  int64_t start, row, column;
};

// Numbers of the region term for the classes of an image and each row of averages of a slab, at every pixel of a row.
template <typename A>
struct RegionRows {
  std::vector<int32_t> classes;        // those that have a term
  int64_t width, slice, first, count;  // the averages of the slab: their slice, the first row of them, and how many
  std::vector<A> numbers;              // [classes, count, W]
  std::vector<A> tile;                 // [classes, kTile]
  std::vector<const A*> slopes;        // [C], of the pixels of a tile; null where a class has none

  // Once the classes are set.
  void start(const Slab& slab, const Geometry& g) {
    width = g.width;
    slice = average_of(slab.first_slice);
    first = average_of(slab.first_row);
    count = average_of(slab.last_row - 1) + 1 - first;
    numbers.assign(classes.size() * class_step(), A(0));
    tile.resize(classes.size() * kTile);
    slopes.assign(g.classes, nullptr);
  }
  int64_t class_step() const { return count * width; }
  A* at(size_t of, int64_t average) { return numbers.data() + of * class_step() + (average - first) * width; }

  // Calls body(class, where a row of averages begins in a map, its numbers) for each class and row of averages.
  template <typename F>
  void for_each_row(const RegionSize& size, const F& body) {
    for (size_t of = 0; of < classes.size(); ++of) {
      for (int64_t y = first; y < std::min(first + count, size.height); ++y) {
        body(classes[of], (slice * size.height + y) * size.width, at(of, y));
      }
    }
  }
  // Calls body(the first pixel, how many, their numbers of the first class) for the parts of a tile that lie in a row.
  template <typename F>
  void for_each_part(int64_t n, const TilePlace& place, const F& body) {
    int64_t y = place.row, x = place.column;
    for (int64_t j = 0; j < n; ++y, x = 0) {
      const int64_t part = std::min(n - j, width - x);
      body(j, part, at(0, average_of(y)) + x);
      j += part;
    }
  }
  // The slopes of the pixels of a tile, by class; where they lie in one row, as they are.
  const A* const* read(int64_t n, const TilePlace& place) {
    const bool is_whole = place.column + n <= width;
    for (size_t of = 0; of < classes.size(); ++of) {
      slopes[classes[of]] = is_whole ? at(of, average_of(place.row)) + place.column : &tile[of * kTile];
    }
    if (is_whole) return slopes.data();
    for_each_part(n, place, [&](int64_t j, int64_t part, const A* row) {
      for (size_t of = 0; of < classes.size(); ++of) std::copy_n(row + of * class_step(), part, &tile[of * kTile + j]);
    });
    return slopes.data();
  }
};

// The tiles of slabs, one after another.
template <typename A>
class SlabTiles {
 public:
  explicit SlabTiles(const Call<A>& call) : call_(call), step_(call.tile()), buffer_(call.g.classes * step_) {
    if (call.up) upsampled_.emplace(*call.up, call.g.logits);
  }

  // Calls body(pixels, where they are) for each tile. weights may be null; rereads: most of the tile is read
  // more than once, so it has a buffer unless it lies in one.
  template <typename F>
  void for_each(const Slab& slab, const SlabWeights<A>* weights, bool rereads, const F& body) {
    const OtherWeight<A>* next = weights ? weights->others.data() : nullptr;
    for (int64_t z = slab.first_slice; z < slab.last_slice; ++z) {
      next = of_slice(slab, z, weights && weights->any ? weights : nullptr, next, rereads, body);
    }
  }

 private:
  // next: the first weight of other classes in the slice; returns the one after it.
  template <typename F>
  const OtherWeight<A>* of_slice(const Slab& slab, int64_t z, const SlabWeights<A>* weights, const OtherWeight<A>* next,
                                 bool rereads, const F& body) {
    const Geometry& g = call_.g;
    const Stored<A> x = call_.image(slab.image);
    const int64_t begin = (z * g.height + slab.first_row) * g.width, all = slab.rows() * g.width;
    const bool in_place = !upsampled_ && is_in_place(x);
    for (int64_t p = 0, n; p < all; p += n) {
      const TilePlace at = {slab.image * g.pixels + begin + p, slab.first_row + p / g.width, p % g.width};
      n = std::min(step_, upsampled_ ? g.width - at.column : all - p);
      if (upsampled_) {
        if (at.column == 0) upsampled_->start(x, slab.image, z, at.row);
        upsampled_->read(x.binary, at.column, n, buffer_.data(), step_);
      } else if (!in_place) {
        read_tile(x, g.classes, begin + p, n, buffer_.data(), step_);
      }
      const Tile<A> tile = {in_place ? static_cast<const A*>(x.data) + begin + p : buffer_.data(),
                            in_place ? x.class_step : step_, g.classes, n};
      for (int64_t j = 0; j < n; ++j) y_[j] = call_.label[at.start + j];
      Pixels<A> pixels = {tile, y_, call_.pixel_weight ? call_.pixel_weight + at.start : nullptr};
      if (in_place && rereads && g.classes > kFewClasses) {
        pixels.buffer = buffer_.data();
        pixels.buffer_ld = step_;
      }
      if (weights) {
        pixels.place = slab.place(g.width, z, at.row, at.column);
        pixels.same_side = weights->same_side.data() + pixels.place;
        if (g.classes == 2) pixels.other_side = weights->other_side.data() + pixels.place;
        pixels.others = next;
        const OtherWeight<A>* end = weights->others.data() + weights->others.size();
        while (next < end && next->place < pixels.place + n) ++next;
        pixels.others_end = next;
      }
      body(pixels, at);
    }
    return next;
  }

  const Call<A>& call_;
  int64_t step_;
  std::vector<A> buffer_;
  std::optional<UpsampledRow<A>> upsampled_;
  int32_t y_[kTile];
};

}  // namespace edgeloss
