// The edge terms from the logits around each edge pixel, one neighbor after another: for powers other than 0, and for
// distances whose weights have no common scale. A neighbor n of edge pixel i has the share
//
//     π_n = w_n e^(q t_n) / Σ w e^(q t) = e^((d - d_n) / decay + q (t_n - t) - log_sum)
//
// of the gradient, where t_n is log p_n(y_i) on the same side and log(1 - p_n(y_i)) on the other, t and d are those of
// the neighbor with the largest share, and log_sum is log Σ of the rest of the exponents. So all numbers keep their
// digits, however far apart the weights and the terms are.
//
// Forward has the terms of a chunk's edge pixels, when the softmax statistics of all pixels are known. Backward
// collects the shares of a chunk's pixels: they are the weights of -log p(y) and -log(1 - p(k)) in its gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "../cpu/call.h"
#include "../cpu/parallel.h"

namespace edgeloss {

// The weight of -log(1 - p(k)) of a pixel, counted from the chunk's first.
template <typename A>
struct Entry {
  int32_t pixel;
  int16_t k;
  A weight;
};

template <typename A>
struct Gather {
  // What backward needs of one side of an edge pixel; see above.
  struct Side {
    A t, d, log_sum;
  };

  const Geometry& g;  // its radius ends with the image
  A power, per_decay;
  const int16_t* label;        // [B, P]
  const A *m, *r;              // [B, P], of math.h
  const A* distance;           // [B, P], or null: all neighbors weigh the same
  const A* pixel_weight;       // [B, P] or null
  const A* edge_class_weight;  // [tables, C] or null
  uint8_t* edge;               // [B, P], set in forward: 1 on edge pixels
  Side* sides;                 // [B, P, 2], the same and the other side; set on edge pixels

  // Adds Σ v u S and Σ v u O of the chunk's edge pixels to the sums.
  void add_terms(const Reader<A>& x, const Chunk& chunk, double* same_side, double* other_side) const;

  // Adds Σ v u π of each pixel on the side of its own class to own[pixel - first of the chunk], and lists those of
  // other classes, by pixel.
  void collect_shares(const Reader<A>& x, const Chunk& chunk, A* own, std::vector<Entry<A>>& others) const;

  A edge_weight(int64_t image, int64_t pixel) const {
    const int64_t i = image * g.pixels + pixel;
    const A v = pixel_weight ? pixel_weight[i] : A(1);
    return edge_class_weight ? v * edge_class_weight[g.table(image) + label[i]] : v;
  }
};

}  // namespace edgeloss
