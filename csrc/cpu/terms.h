// What a pixel's own logits say: the terms of the loss and their gradient, tile by tile.
//
// The loss of a pixel is a · -log p(y) + Σ_k b_k · -log(1 - p(k)) + Σ_c s_c · -log p(c) + the region term, with a from
// the cross-entropy and A, b from B, s from label smoothing. With t_k = b_k p(k) / (1 - p(k)) and the slope g of the
// region term by each share its gradient is
//
//     (a + Σ s - Σ t) p(c) - s_c - a [c = y] + t_c + p(c) (g_c - Σ p g)
//
// where element y has -a (1 - p(y)) for a p(y) - a, and a class k with p(k) > 1/2 takes t_k e^(x_c - log Σ_{j≠k} e^x_j)
// from each other class c: 1 - p is the sum of the others, and never a difference.
#pragma once

#include <cstdint>
#include <vector>

#include "label_weights.h"
#include "softmax.h"

namespace edgeloss {

// Class weights and label smoothing.
template <typename A>
struct Smoothing {
  const A* weight;  // [C], or null for ones
  int64_t classes;
  A smoothing;
  A total;  // Σ weight

  Smoothing(const A* weight, int64_t classes, A smoothing)
      : weight(weight), classes(classes), smoothing(smoothing), total(0) {
    for (int64_t c = 0; c < classes; ++c) total += of_class(c);
  }
  EDGELOSS_INLINE A of_class(int64_t c) const { return weight ? weight[c] : A(1); }
  A of_others() const { return smoothing / static_cast<A>(classes); }
  bool exists() const { return of_others() != A(0); }
};

// A tile with all that the loss of its pixels depends on.
template <typename A>
struct Pixels {
  Tile<A> tile;
  const int32_t* y;                        // kIgnored where a pixel does not count
  const A* weight;                         // v, or null
  const A* same_side = nullptr;            // A, or null without edges
  const A* other_side = nullptr;           // b of the other of two classes, or null
  const OtherWeight<A>* others = nullptr;  // b_k of more classes, in the order of places, up to others_end
  const OtherWeight<A>* others_end = nullptr;
  int32_t place = 0;    // of the first pixel, as in OtherWeight
  A* buffer = nullptr;  // where a tile that is read more than once is moved to, or null
  int64_t buffer_ld = 0;
};

// Sums of the edge terms by class, [C].
struct EdgeSums {
  double *same_side, *other_side;
};

// Returns the sum of the cross-entropy, adds the edge terms to those of their classes, and finds m and r; the
// cross-entropy of each pixel goes to `map`, unless it is null. Moves the tile to the buffer, if there is one.
template <typename A>
double tile_terms(Pixels<A>& pixels, const Smoothing<A>& smoothing, const EdgeSums& sums, A* m, A* r, A* map);

// Adds z - q of some classes at n pixels from `first` on to out[of · ld], where they count.
template <typename A>
void add_residuals(const Pixels<A>& pixels, const A* m, const A* r, const std::vector<int32_t>& classes, int64_t first,
                   int64_t n, A* out, int64_t ld);

// What arrives at the terms, at those of edges by class, [C].
template <typename A>
struct TermFactors {
  A cross_entropy;
  const A *same_side, *other_side;
};

// The gradient to g[c · ld + j]; exactly 0 where a pixel does not count, for any logits. slopes: those of the region
// term by the share of each class, null where it has none, or null. Of two classes, m and r are not read.
template <typename A>
void tile_gradient(const Pixels<A>& pixels, const TermFactors<A>& factors, const Smoothing<A>& smoothing, const A* m,
                   const A* r, const A* const* slopes, A* g, int64_t ld);

}  // namespace edgeloss
