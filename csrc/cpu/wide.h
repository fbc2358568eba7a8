// The windows of edge pixels where they are wide: class by class, by sums over rows.
//
// What a window adds up depends on the neighbor and on the edge pixel's class k alone, with `decay` too: w t of the
// neighbors, of powers w e^(q t), in backward what edge pixels of class k give. Such sums are separable: along the
// columns of the window first, in volumes with those of all its slices, and then along its rows. Nothing is subtracted,
// so nothing cancels, and the work per pixel and class grows with the rows of a window, the radius or in volumes its
// square, instead of its pixels. They are in double, where weights may be relative to any distance near, and
// exponentials to one number for all windows of a class. Windows that underflow so are left to edge_pixels.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "passes.h"

namespace edgeloss {

// A side of an edge pixel; not `is_held`, where sums in double can't hold what its window adds up.
template <typename A>
struct WideSide {
  A value;
  Side<A> side;
  bool is_held;
};

// Both sides of each of a chunk's edge pixels, in their order.
template <typename A>
using WideSides = std::vector<std::array<WideSide<A>, 2>>;

// Sets the sides. Returns false where the windows by themselves take less time.
template <typename A>
bool sum_wide_windows(const Call<A>& call, const Chunk& chunk, WideSides<A>& sides);

// Gathers the shares of a chunk's pixels; false, and nothing is done, where the windows by themselves take less time.
template <typename A>
bool gather_wide_windows(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, Gathered<A>& gathered);

}  // namespace edgeloss
