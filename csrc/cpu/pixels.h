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

#include "statistics.h"

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

// b_k of pixels of a tile, one after another, in full vectors, since there are few: what is left over a loop would be
// computed one by one.
template <typename A>
struct TileOthers {
  int64_t count = 0;
  std::vector<int32_t> j, k;        // pixel and class
  std::vector<A> b, x, m, r, term;  // x: the logit of class k

  int64_t padded() const { return (count + 15) & ~int64_t(15); }
  void add(int64_t pixel, int32_t of_class, A weight) {
    if (static_cast<size_t>(count) == j.size()) resize(2 * j.size() + 64);
    j[count] = static_cast<int32_t>(pixel);
    k[count] = of_class;
    b[count++] = weight;
  }
  void resize(size_t room) {
    for (auto* numbers : {&j, &k}) numbers->resize(room);
    for (auto* numbers : {&b, &x, &m, &r, &term}) numbers->resize(room);
  }
};

// A tile with all that the loss of its pixels depends on.
template <typename A>
struct Pixels {
  Tile<A> tile;
  const int32_t* y;       // kIgnored where a pixel does not count
  const A* weight;        // v, or null
  const A* same;          // A, or null without edges
  const A* other;         // b of the other of two classes, or null
  TileOthers<A>* others;  // of more classes
};

// The region term's classes of an image, and numbers of them for each pixel of a tile.
template <typename A>
struct TileRegions {
  std::vector<int32_t> classes;
  std::vector<A> value;          // [classes and a row of zeros, kTile]
  std::vector<const A*> slopes;  // [C], of each class by pixel

  // Makes room once the classes are set.
  void start(int64_t all) {
    value.resize((classes.size() + 1) * kTile);
    std::fill_n(of(classes.size()), kTile, A(0));
    slopes.assign(all, of(classes.size()));
  }

  A* of(size_t n) { return value.data() + n * kTile; }
};

struct TermSums {
  double cross_entropy = 0, same = 0, other = 0;
};

// m and r, and the sums of the terms.
template <typename A>
TermSums tile_terms(const Pixels<A>& pixels, const Smoothing<A>& smoothing, A* m, A* r);

// z - q of the classes of `regions`; 0 where a pixel does not count.
template <typename A>
void tile_residuals(const Pixels<A>& pixels, const A* m, const A* r, TileRegions<A>& regions);

// What arrives at the terms.
template <typename A>
struct TermFactors {
  A cross_entropy, same, other;
};

// The gradient to g[c · ld + j]; exactly 0 where a pixel does not count, for any logits. slopes: those of the region
// term by the share of each class, or null. Of two classes, m and r are not read.
template <typename A>
void tile_gradient(const Pixels<A>& pixels, const TermFactors<A>& factors, const Smoothing<A>& smoothing, const A* m,
                   const A* r, const A* const* slopes, A* g, int64_t ld);

}  // namespace edgeloss
