// The edge terms from the logits around each edge pixel, one neighbor after another: for powers other than 0, and for
// distances whose weights have no common scale. On the CPU, where they are a part of the passes of the loss.
#pragma once

#include <vector>

#include "call.h"

namespace edgeloss {

// Adds v S and v O of the edge pixels of a slab to the sums of their classes, [2, C], and sets the state's `edge` and
// `sides`. Unless it is null, S and O go to `maps`, [2, B, P].
template <typename A>
void add_pair_terms(const Call<A>& call, const Slab& slab, double* sums, A* maps);

// The weights of the terms in a slab's gradient, Σ v π over the edge pixels around a pixel: adds those of its own
// class, of -log p(y), to own[place], and appends those of other classes, in the order of places.
template <typename A>
void find_pair_shares(const Call<A>& call, const Slab& slab, A* own, std::vector<OtherWeight<A>>& others);

}  // namespace edgeloss
