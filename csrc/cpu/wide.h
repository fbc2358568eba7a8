// The windows of edge pixels at power 0 where they are wide: class by class, by sums over rows.
//
// What a window adds up depends on the neighbor and on the edge pixel's class k alone, with `decay` too: w t of the
// neighbors, in backward what edge pixels of class k give. Such sums are separable: along the columns of the window
// first, in volumes with those of all its slices, and then along its rows. Nothing is subtracted, so nothing cancels,
// and the work per pixel and class grows with the rows of a window, the radius or in volumes its square, instead of its
// pixels. They are in double, where weights may be relative to any distance near.
#pragma once

#include <cstdint>
#include <vector>

#include "passes.h"

namespace edgeloss {

// What forward adds up over the windows of a chunk's edge pixels, in their order.
struct WideSums {
  struct Sides {
    double same_sum, same_rest, other_sum, other_rest;  // Σ w t and Σ w of each side
  };
  std::vector<Sides> sides;
  double nearest;  // the distance that weights are relative to
};

// Returns false where the windows by themselves take less time.
template <typename A>
bool sum_wide_windows(const Call<A>& call, const Chunk& chunk, WideSums& sums);

// Gathers the shares of a chunk's pixels; false, and nothing is done, where the windows by themselves take less time.
template <typename A>
bool gather_wide_windows(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, Gathered<A>& gathered);

}  // namespace edgeloss
