// The tiles of a slab with all that the loss of their pixels depends on, and the rows of the region term around them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "call.h"
#include "vectorize.h"

namespace edgeloss {

// Where the pixels of a tile are in the batch: the j-th one is start + j, or start + place[j] where there are places; a
// place of -1 has no pixel.
struct TilePlace {
  int64_t start;
  const int32_t* place;
  int64_t row, column;  // in its slice, of the first pixel, or of `start` where there are places
  Block block;          // of upsampled logits
};

// Numbers of the region term for each class that has one and each row of averages of a slab, at every pixel of a row.
template <typename A>
struct RegionRows {
  std::vector<A> rows;          // [classes, averages, W]
  int64_t width, first, count;  // the first average of the slab along its rows, and their number

  void start(const Slab& slab, const Geometry& g, size_t classes) {
    width = g.width;
    first = average_of(slab.first_row);
    count = average_of(slab.last_row - 1) + 1 - first;
    rows.assign(classes * count * width, A(0));
  }
  A* at(size_t of, int64_t average) { return rows.data() + (of * count + average) * width; }

  // Calls body(numbers of the tile, numbers of the row, how many) for what the tile and each row have in common.
  template <typename F>
  void for_each_part(TileRegions<A>& regions, int64_t n, const TilePlace& at_tile, const F& body) {
    for (size_t of = 0; of < regions.classes.size(); ++of) {
      int64_t y = at_tile.row, x = at_tile.column;
      for (int64_t j = 0; j < n; ++y, x = 0) {
        const int64_t part = std::min(n - j, width - x);
        body(regions.of(of) + j, at(of, average_of(y) - first) + x, part);
        j += part;
      }
    }
  }
  void add(TileRegions<A>& regions, int64_t n, const TilePlace& at_tile) {
    if (at_tile.place) {
      for (size_t of = 0; of < regions.classes.size(); ++of) {
        A *value = regions.of(of), *row = at(of, average_of(at_tile.row) - first);
        for (int64_t j = 0; j < n; ++j) {
          if (at_tile.place[j] >= 0) row[at_tile.place[j]] += value[j];
        }
      }
      return;
    }
    for_each_part(regions, n, at_tile, [](const A* value, A* row, int64_t part) {
      vectorized<A>([=]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t j = 0; j < part; ++j) row[j] += value[j];
      });
    });
  }
  // The slopes of a tile's pixels, by class; where they lie in a row, as they are.
  const A* const* read(TileRegions<A>& regions, int64_t n, const TilePlace& at_tile) {
    for (size_t of = 0; of < regions.classes.size(); ++of) {
      A* value = regions.of(of);
      const A* row = at(of, average_of(at_tile.row) - first);
      const A*& slope = regions.slopes[regions.classes[of]];
      slope = at_tile.place || at_tile.column + n > width ? value : row + at_tile.column;
      for (int64_t j = 0; at_tile.place && j < n; ++j) value[j] = row[std::max(at_tile.place[j], 0)];
    }
    if (!at_tile.place && at_tile.column + n > width) {
      for_each_part(regions, n, at_tile, [](A* value, const A* row, int64_t part) { std::copy_n(row, part, value); });
    }
    return regions.slopes.data();
  }
};

// The tiles of slabs, one after another.
template <typename A>
class SlabTiles {
 public:
  explicit SlabTiles(const Call<A>& call) : call_(call), step_(call.tile()), buffer_(call.g.classes * step_) {}

  // Calls body(pixels, where they are) for each tile. weights may be null; rereads: the tile is read more than once.
  template <typename F>
  void for_each(const Slab& slab, const EdgeWeights<A>* weights, bool rereads, const F& body) {
    weights_ = weights && weights->any ? weights : nullptr;
    next_ = 0;
    for (int64_t z = slab.first_slice; z < slab.last_slice; ++z) {
      const int64_t first = slab.place(call_.g.width, z, slab.first_row, 0);
      if (call_.up) {
        for (int64_t y = slab.first_row; y < slab.last_row; ++y) {
          upsampled_row(slab.image, z, y, slab.place(call_.g.width, z, y, 0), body);
        }
      } else {
        slice(slab, z, first, rereads, body);
      }
    }
  }

 private:
  template <typename F>
  void slice(const Slab& slab, int64_t z, int64_t first_place, bool rereads, const F& body) {
    const Geometry& g = call_.g;
    const Stored<A> x = call_.image(slab.image);
    const int64_t begin = (z * g.height + slab.first_row) * g.width, all = slab.rows() * g.width;
    const bool in_place = is_in_place(x) && !(rereads && g.classes > kFewClasses);
    for (int64_t p = 0; p < all; p += step_) {
      const int64_t n = std::min(step_, all - p), i = slab.image * g.pixels + begin + p, place = first_place + p;
      if (!in_place) read_tile(x, g.classes, begin + p, n, buffer_.data(), step_);
      const Tile<A> tile = {in_place ? static_cast<const A*>(x.data) + begin + p : buffer_.data(),
                            in_place ? x.class_step : step_, g.classes, n};
      for (int64_t j = 0; j < n; ++j) y_[j] = call_.label[i + j];
      Pixels<A> pixels = {tile, y_, call_.pixel_weight ? call_.pixel_weight + i : nullptr, nullptr, nullptr, nullptr};
      if (weights_) {
        pixels.same = weights_->same.data() + place;
        if (g.classes == 2) pixels.other = weights_->other.data() + place;
        take_others(place + n, [place](int64_t at) { return at - place; });
        pixels.others = &others_;
      }
      const int64_t row = slab.first_row + p / g.width;
      body(pixels, TilePlace{i, nullptr, row, p % g.width, {}});
    }
  }

  template <typename F>
  void upsampled_row(int64_t image, int64_t z, int64_t y, int64_t first_place, const F& body) {
    const Geometry& g = call_.g;
    const Upsample<A>& up = *call_.up;
    const int64_t row = z * g.height + y, start = image * g.pixels + row * g.width;
    const RowTaps<A> taps = up.row_taps(row);
    const Stored<A> x = call_.image(image);
    const size_t begin = next_;
    for_each_block(up, step_, [&](const Block& block) {
      const int64_t n = block.pixels();
      up.list_pixels(block, place_);
      up.interpolate_tile(taps, x, g.logits, block, buffer_.data(), step_);
      for (int64_t j = 0; j < n; ++j) y_[j] = place_[j] < 0 ? kIgnored : call_.label[start + place_[j]];
      const auto take = [&](const A* from, A* to) {
        for (int64_t j = 0; j < n; ++j) to[j] = place_[j] < 0 ? A(0) : from[place_[j]];
        return to;
      };
      Pixels<A> pixels = {{buffer_.data(), step_, g.classes, n}, y_, nullptr, nullptr, nullptr, nullptr};
      if (call_.pixel_weight) pixels.weight = take(call_.pixel_weight + start, weight_);
      if (weights_) {
        pixels.same = take(weights_->same.data() + first_place, same_);
        if (g.classes == 2) pixels.other = take(weights_->other.data() + first_place, other_);
        next_ = begin;  // of the row, as each block has some of its pixels
        take_others(first_place + g.width, [&](int64_t at) { return up.place_in(block, at - first_place); });
        pixels.others = &others_;
      }
      body(pixels, TilePlace{start, place_, y, 0, block});
    });
  }

  // The weights of other classes at places before `last`, where those of the tile are at place_of(place), or -1.
  template <typename F>
  void take_others(int64_t last, const F& place_of) {
    others_.count = 0;
    const auto& all = weights_->others;
    for (; next_ < all.size() && all[next_].place < last; ++next_) {
      const int64_t j = place_of(all[next_].place);
      if (j >= 0) others_.add(j, all[next_].k, all[next_].weight);
    }
  }

  const Call<A>& call_;
  int64_t step_;
  std::vector<A> buffer_;
  const EdgeWeights<A>* weights_ = nullptr;
  size_t next_ = 0;
  TileOthers<A> others_;
  int32_t y_[kTile], place_[kTile];
  A weight_[kTile], same_[kTile], other_[kTile];
};

}  // namespace edgeloss
