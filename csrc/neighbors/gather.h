// The edge terms from the logits around each edge pixel, one neighbor after another: for powers other than 0, and for
// distances whose weights have no common scale. On the CPU, where they are a part of the passes of the loss.
#pragma once

#include <cstdint>
#include <vector>

#include "../cpu/call.h"
#include "../cpu/parallel.h"
#include "power_mean.h"

namespace edgeloss {

template <typename A>
struct Gather {
  using Side = edgeloss::Side<A>;

  const Geometry& g;  // its radius ends with the image
  A power, per_decay;
  const int16_t* label;        // [B, P]
  const A *m, *r;              // [B, P], the softmax statistics of math.h
  const A* distance;           // [B, P], or null: all neighbors weigh the same
  const A* pixel_weight;       // [B, P] or null
  const A* edge_class_weight;  // [tables, C] or null
  uint8_t* edge;               // [B, P], set by add_terms: 1 on edge pixels
  Side* sides;                 // [B, P, 2], the same and the other side; set by add_terms on edge pixels alone

  // Adds Σ v u S and Σ v u O of the edge pixels of a chunk to the two sums.
  void add_terms(const Reader<A>& x, const Chunk& chunk, double* same_side, double* other_side) const;

  // The weights of the terms in a chunk's gradient, Σ v u π over the edge pixels around a pixel: adds those of its own
  // class, of -log p(y), to own[pixel - first of the chunk], and appends those of other classes, with such places, in
  // the order of pixels.
  void collect_shares(const Reader<A>& x, const Chunk& chunk, A* own, std::vector<OtherWeight<A>>& others) const;

  PowerMean<A> mean() const { return {power, per_decay}; }
  A edge_weight(int64_t image, int64_t pixel) const {
    const int64_t i = image * g.pixels + pixel;
    const A v = pixel_weight ? pixel_weight[i] : A(1);
    return edge_class_weight ? v * edge_class_weight[g.table(image) + label[i]] : v;
  }
};

}  // namespace edgeloss
