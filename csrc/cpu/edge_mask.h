// The edge mask of a row: the pixels that differ from a valid one in their window. And distances to such ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../distance_search.h"
#include "../labels.h"

namespace edgeloss {

constexpr uint16_t kNoLow = 0xffff;  // the bits of an ignored label: larger than any class
constexpr int64_t kEdgeMargin = 16;  // pixels of a vector, at most

// Marks the pixels of a row that differ from the smallest or the largest valid label of their window, which go to low
// and high. rows: of n pixels, all that the windows reach. low and high have room for n + 2 reach + kEdgeMargin
// numbers.
void mark_edges(const int16_t* label, const std::vector<const int16_t*>& rows, int64_t n, int64_t reach, uint16_t* low,
                int16_t* high, uint8_t* edge);

// The edge masks of an image's rows.
class EdgeMasks {
 public:
  explicit EdgeMasks(const Geometry& g)
      : g_(g), reach_(std::min(g.radius[2], g.width)), low_(g.width + 2 * reach_ + kEdgeMargin), high_(low_.size()) {}

  // label: that of the image, or of its prediction.
  void mark(const int16_t* label, int64_t row, uint8_t* edge) {
    rows_.clear();
    for_each_row(g_, row, g_.radius, [&](int64_t first) { rows_.push_back(label + first); });
    mark_edges(label + row * g_.width, rows_, g_.width, reach_, low_.data(), high_.data(), edge);
  }
  // The smallest and the largest label of the windows of the row's pixels.
  const uint16_t* low() const { return low_.data(); }
  const int16_t* high() const { return high_.data(); }

 private:
  const Geometry& g_;
  int64_t reach_;
  std::vector<uint16_t> low_;  // both with a margin at the ends, so that the window along the row needs no bounds
  std::vector<int16_t> high_;
  std::vector<const int16_t*> rows_;
};

// Two classes: 64 pixels of a row in a word, in as many words those of class 0 as of class 1 after them.
void pack_classes(const int16_t* label, int64_t n, uint64_t* bits);

// The edge pixels of an image of two classes, from these bits.
class PairEdges {
 public:
  explicit PairEdges(const Geometry& g) : g_(g), any_(words()) {}

  // Of a row.
  int64_t words() const { return 2 * ((g_.width + 63) / 64); }
  // Lists the edge pixels of a row of the image that has the bits; returns their number.
  int64_t list(const uint64_t* bits, int64_t row, int32_t* place);

 private:
  const Geometry& g_;
  std::vector<uint64_t> any_;  // of the windows
};

// Of the edges of a prediction, keeps those that the labels have not; returns their number.
int64_t keep_false(const uint8_t* edge, int64_t n, uint8_t* drawn);

// any |= mask.
void merge_row(const uint8_t* mask, int64_t n, uint8_t* any);

// any = whether any of the 2 reach + 1 places from it on is set.
void spread_row(uint8_t* any, int64_t n, int64_t reach);

// The distances of a row of an image's pixels to the nearest one of another class, among the offsets, of increasing
// length: infinite where there is none. Where no pixel of a few next to each other is in `seen`, they are left as they
// are.
template <typename A>
void find_distances(const Geometry& g, const int16_t* label, int64_t row, const std::vector<Offset>& offsets,
                    const uint8_t* seen, A* distance);

// Lists the places, counted from `first`, where the mask of n bytes is 1; returns their number.
int64_t list_places(const uint8_t* mask, int64_t n, int64_t first, int32_t* place);

}  // namespace edgeloss
