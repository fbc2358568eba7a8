// Two classes without class weights, smoothing, pixel weights and false edges, of one logit or two: the passes over all
// pixels in fewer loops, from the logits where they lie. A pixel is then z = x(y) - x(the other class) alone.
#pragma once

#include "passes.h"

namespace edgeloss {

template <typename A>
bool are_plain_pairs(const Call<A>& call) {
  return call.g.classes == 2 && !call.up && !call.predicted && !call.pixel_weight && !call.smoothing.weight &&
         !call.smoothing.exists();
}

// Pass 1 of forward: labels and cross-entropy of a chunk. ce_map may be null.
template <typename A>
void pair_cross_entropy_chunk(const Call<A>& call, const Target& target, const Chunk& chunk, A* ce_map, Sums& sums);

// The gradient of a chunk, where `everywhere` arrives at the cross-entropy; `gathered` has the shares of edge pixels.
template <typename A>
void pair_backward_chunk(const Call<A>& call, A everywhere, const Chunk& chunk, const Stored<A, void*>& out,
                         bool streams, Gathered<A>& gathered);

}  // namespace edgeloss
