// Distances to the nearest pixel of another class where the search goes far: axis by axis.
//
// Along each row, the nearest pixel of another class than k is known beforehand for every place and every k: on each
// side it is the nearest valid pixel, or, where that is of class k, the nearest one of another class than it. The
// search then goes over the rows, from near to far, as far as a row by itself is nearer than what was found. The work
// per pixel grows with its distance instead of the distance's square.
#pragma once

#include <cstdint>
#include <vector>

#include "../distance_search.h"
#include "parallel.h"

namespace edgeloss {

constexpr int64_t kFar = 200;  // pixels of a window from which on this takes less time

class RowSearch {
 public:
  RowSearch(const Geometry& g, const Options& options);

  // Prepares the rows of a chunk. label: that of the image.
  void prepare(const Chunk& chunk, const int16_t* label);

  // The distances of a row, once all rows of the image are prepared; where no pixel of a few next to each other is in
  // `seen`, they are left as they are.
  template <typename A>
  void find(int64_t image, int64_t row, const int16_t* label, const uint8_t* seen, A* distance) const;

 private:
  // Of each pixel of the batch, on one side: the class of the nearest valid pixel, itself included, how far that is,
  // and how far the nearest one of another class than it.
  struct Side {
    std::vector<int16_t> label;
    std::vector<int32_t> nearest, next;
  };

  const Geometry& g_;
  Search search_;
  Side sides_[2];
};

}  // namespace edgeloss
