// The loops of pixels.h.
#include "terms.h"

#include <algorithm>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {
namespace {

// Compilers vectorize a choice for AVX2 where what is chosen from has been read before it.

// w = weight(y); 0 where y is no class.
template <typename A>
EDGELOSS_INLINE void weights_of(const A* weight, const int32_t* y, int64_t n, A* w) {
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A of_y = weight[y[j] < 0 ? 0 : y[j]];
    w[j] = y[j] < 0 ? A(0) : of_y;
  }
}

template <typename A>
EDGELOSS_INLINE double sum_in_parts(const A* value, int64_t n) {
  double parts[16] = {};
  int64_t j = 0;
  for (; j + 16 <= n; j += 16) {
    for (int64_t l = 0; l < 16; ++l) parts[l] += static_cast<double>(value[j + l]);
  }
  for (; j < n; ++j) parts[0] += static_cast<double>(value[j]);
  double sum = 0;
  for (double part : parts) sum += part;
  return sum;
}

// value · weight, where what has no weight does not count; returns whether anything does.
template <typename A>
EDGELOSS_INLINE bool weigh(const A* value, const A* weight, int64_t n, A* product) {
  int any = 0;
  for (int64_t j = 0; j < n; ++j) any |= weight[j] != A(0);
  if (!any) return false;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A each = value[j] * weight[j];
    product[j] = weight[j] == A(0) ? A(0) : each;
  }
  return true;
}

// Σ value · weight, or Σ value if weight is null, in parts whose order is fixed.
template <typename A>
double weighted_sum(const A* value, const A* weight, int64_t n) {
  return vectorized<A>([=]() EDGELOSS_LOOP {
    A product[kTile];
    if (!weight) return sum_in_parts(value, n);
    return weigh(value, weight, n, product) ? sum_in_parts(product, n) : 0.0;
  });
}

// Adds value · weight to the sums of the pixels' classes, run by run.
template <typename A>
void add_by_class(const A* value, const A* weight, const int32_t* y, int64_t n, double* sums) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    A product[kTile];
    if (!weigh(value, weight, n, product)) return;  // mostly there is no edge nearby
    for (int64_t j = 0, end; j < n; j = end) {
      for (end = j + 1; end < n && y[end] == y[j];) ++end;
      if (y[j] >= 0) sums[y[j]] += sum_in_parts(product + j, end - j);
    }
  });
}

// Both sides of two classes: across the edge is the other class than that of the pixel.
template <typename A>
void add_by_class_of_two(const A* value, const A* same, const A* other, const int32_t* y, int64_t n,
                         const EdgeSums& sums) {
  vectorized<A>([=, of_same = sums.same_side, of_other = sums.other_side]() EDGELOSS_LOOP {
    int any = 0;  // mostly there is no edge nearby
    for (int64_t j = 0; j < n; ++j) any |= (same[j] != A(0)) | (other[j] != A(0));
    if (!any) return;
    A first[2][kTile], second[2][kTile];  // of the pixels of either class
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const A s = value[j] * same[j], o = value[j] * other[j], by_same = same[j] == A(0) ? A(0) : s;
      const A by_other = other[j] == A(0) ? A(0) : o;
      first[0][j] = y[j] == 1 ? A(0) : by_same;
      second[0][j] = y[j] == 1 ? by_same : A(0);
      first[1][j] = y[j] == 1 ? A(0) : by_other;
      second[1][j] = y[j] == 1 ? by_other : A(0);
    }
    of_same[0] += sum_in_parts(first[0], n);
    of_same[1] += sum_in_parts(second[0], n);
    of_other[1] += sum_in_parts(first[1], n);
    of_other[0] += sum_in_parts(second[1], n);
  });
}

template <typename A>
void smooth_cross_entropy(const Tile<A>& tile, const int32_t* y, const A* m, const A* r, const Smoothing<A>& smoothing,
                          A* ce) {
  vectorized<A>([=, weight = smoothing.weight, own = A(1) - smoothing.smoothing, uniform = smoothing.of_others(),
                 total = smoothing.total]() EDGELOSS_LOOP {
    const int64_t n = tile.n;
    if (weight) {
      A w[kTile];
      weights_of(weight, y, n, w);
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) ce[j] *= w[j];
    }
    if (uniform == A(0)) return;
    A every[kTile];
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) every[j] = total * log1p_positive(r[j]);
    for (int64_t c = 0; c < tile.classes; ++c) {
      const A* row = tile.x + c * tile.ld;
      const A of_class = weight ? weight[c] : A(1);
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) every[j] -= of_class * (row[j] - m[j]);
    }
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const A value = own * ce[j] + uniform * every[j];
      ce[j] = y[j] < 0 ? A(0) : value;
    }
  });
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------- forward

namespace {

// Adds b · -log(1 - p(k)) to the sums of the classes k: of few pixels.
template <typename A>
void add_others(const Pixels<A>& pixels, const A* m, const A* r, double* sums) {
  RunSum sum(sums);
  for (const OtherWeight<A>* each = pixels.others; each < pixels.others_end; ++each) {
    const int64_t j = each->place - pixels.place;
    const A term = other_term(pixels.tile, j, pixels.tile.classes, each->k, m[j], r[j]);
    sum.add(each->k, -static_cast<double>(each->weight) * static_cast<double>(term));
  }
}

}  // namespace

template <typename A>
double tile_terms(Pixels<A>& pixels, const Smoothing<A>& smoothing, const EdgeSums& sums, A* m, A* r, A* map) {
  Tile<A>& tile = pixels.tile;
  const int64_t n = tile.n;
  A nll[kTile], ce[kTile];
  tile_statistics(tile, pixels.y, m, r, nll, pixels.buffer, pixels.buffer_ld);
  if (pixels.buffer) tile = {pixels.buffer, pixels.buffer_ld, tile.classes, n};
  const A* of_pixels = nll;
  if (smoothing.weight || smoothing.exists()) {
    std::memcpy(ce, nll, n * sizeof(A));
    smooth_cross_entropy(tile, pixels.y, m, r, smoothing, ce);
    of_pixels = ce;
  }
  if (map) std::copy_n(of_pixels, n, map);
  if (pixels.same_side && pixels.other_side) {
    add_by_class_of_two(nll, pixels.same_side, pixels.other_side, pixels.y, n, sums);
  } else if (pixels.same_side) {
    add_by_class(nll, pixels.same_side, pixels.y, n, sums.same_side);
    add_others(pixels, m, r, sums.other_side);
  }
  return weighted_sum(of_pixels, pixels.weight, n);
}

template <typename A>
void add_residuals(const Pixels<A>& pixels, const A* m, const A* r, const std::vector<int32_t>& classes, int64_t first,
                   int64_t n, A* out, int64_t ld) {
  vectorized<A>([=, tile = pixels.tile, y = pixels.y + first, m = m + first, r = r + first, c = classes.data(),
                 count = static_cast<int64_t>(classes.size())]() EDGELOSS_LOOP {
    A scale[kTile];
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) scale[j] = A(1) / (A(1) + r[j]);
    if (tile.classes == 2) {  // the second class alone: its share is 1 or r of 1 + r
      const A* x = tile.x + tile.ld + first;
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        const A top = scale[j], rest = r[j] * top, p = x[j] == m[j] ? top : rest, q = x[j] == m[j] ? rest : top;
        const A away = -p, residual = y[j] == 1 ? q : away;
        out[j] += y[j] < 0 ? A(0) : residual;
      }
      return;
    }
    for (int64_t of = 0; of < count; ++of) {
      const int32_t k = c[of];
      const A* x = tile.x + k * tile.ld + first;
      A* sum = out + of * ld;
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        const A p = exp_negative(x[j] - m[j]) * scale[j], of_rest = r[j] * scale[j], others = A(1) - p, away = -p;
        const A complement = is_likely(x[j], m[j], r[j]) ? of_rest : others;
        const A residual = y[j] == k ? complement : away;
        sum[j] += y[j] < 0 ? A(0) : residual;
      }
    }
  });
}

// ------------------------------------------------------------------------------------------------------------ backward

namespace {

// What the gradient of each pixel of a tile is made of: p(c) · (own + rest), less own at y, less spread · weight(c).
template <typename A>
struct Factors {
  A own[kTile], rest[kTile], spread[kTile];
};

template <typename A>
EDGELOSS_INLINE void fill_factors(const Pixels<A>& pixels, const TermFactors<A>& factors, const Smoothing<A>& smoothing,
                                  Factors<A>& out) {
  const int64_t n = pixels.tile.n;
  const int32_t* y = pixels.y;
  const A everywhere = factors.cross_entropy, of_y = A(1) - smoothing.smoothing, uniform = smoothing.of_others();
  const A total = smoothing.total;
  A *own = out.own, *rest = out.rest, *spread = out.spread;
  smoothing.weight ? weights_of(smoothing.weight, y, n, own) : std::fill(own, own + n, A(1));
  pixels.weight ? std::copy_n(pixels.weight, n, spread) : std::fill_n(spread, n, A(1));
  const auto fill = [=](const auto& edge) EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const A value = everywhere * spread[j], of_pixel = y[j] < 0 ? A(0) : value;
      own[j] = own[j] * of_pixel * of_y + edge(j);
      spread[j] = of_pixel * uniform;
      rest[j] = spread[j] * total;
    }
  };
  const A *same = pixels.same_side, *other = pixels.other_side;
  if (!same) return fill([](int64_t) EDGELOSS_LOOP { return A(0); });
  if (!other) {  // of more classes: those across the edge are in a list
    A scale[kTile];
    weights_of(factors.same_side, y, n, scale);
    return fill([same, scale = +scale](int64_t j) EDGELOSS_LOOP { return scale[j] * same[j]; });
  }
  const A same_0 = factors.same_side[0], same_1 = factors.same_side[1], other_0 = factors.other_side[0],
          other_1 = factors.other_side[1];
  fill([=](int64_t j) EDGELOSS_LOOP {
    const A of_same = y[j] == 0 ? same_0 : same_1, of_other = y[j] == 0 ? other_1 : other_0;
    return of_same * same[j] + of_other * other[j];
  });
}

// The gradient of two classes, of which the second has the slope; that of the first is its opposite.
template <typename A>
EDGELOSS_INLINE void gradient_of_two(const Pixels<A>& pixels, const Factors<A>& factors, const Smoothing<A>& smoothing,
                                     const A* slope, A* g, int64_t ld) {
  const A *first = pixels.tile.x, *second = first + pixels.tile.ld, *own = factors.own, *spread = factors.spread;
  const A of_first = smoothing.of_class(0), of_second = smoothing.of_class(1);
  const int32_t* y = pixels.y;
  const int64_t n = pixels.tile.n;
  A* second_g = g + ld;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    A p, q;  // of the first, of the second
    probabilities_of_pair(first[j] - second[j], p, q);
    const A at = own[j], of_y = y[j] == 0 ? -at * q : at * p;
    const A value = of_y + spread[j] * (of_second * p - of_first * q) - slope[j] * p * q;
    g[j] = y[j] < 0 ? A(0) : value;
    second_g[j] = -g[j];
  }
}

// The shares p of the classes that have slopes g of the region term, and what these add to `rest`: less Σ p g of all
// classes elsewhere, and g less it at a class with p > 1/2, where nothing may cancel: g (1 - p), less Σ p g of the
// others.
template <typename A>
struct Centers {
  A elsewhere[kTile], at_likely[kTile];
};
template <typename A>
EDGELOSS_INLINE void center_slopes(const Tile<A>& tile, const A* m, const A* r, const A* scale, const A* const* slopes,
                                   Centers<A>& centers, A* g, int64_t ld) {
  const int64_t n = tile.n;
  A *sum = centers.elsewhere, *likely = centers.at_likely;
  std::fill_n(sum, n, A(0));
  std::fill_n(likely, n, A(0));
  for (int64_t c = 0; c < tile.classes; ++c) {
    if (!slopes[c]) continue;
    const A *x = tile.x + c * tile.ld, *slope = slopes[c];
    A* p = g + c * ld;
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      p[j] = exp_negative(x[j] - m[j]) * scale[j];
      const A own = slope[j], product = p[j] * own;
      const bool is_top = p[j] > A(0.5);
      sum[j] += is_top ? A(0) : product;
      likely[j] += is_top ? own : A(0);
    }
  }
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A of_likely = likely[j] * scale[j], others = sum[j];
    likely[j] = of_likely * r[j] - others;
    sum[j] = of_likely + others;
  }
}

// The gradient of class c of a tile. HasShare: the share is in `out`.
template <bool HasSlopes, bool HasShare, typename A>
EDGELOSS_INLINE void gradient_of_class(const Pixels<A>& pixels, const Factors<A>& factors, const A* m, const A* r,
                                       const A* scale, const A* slope, const Centers<A>& centers, int32_t c, A* out) {
  const int64_t n = pixels.tile.n;
  const A *x = pixels.tile.x + c * pixels.tile.ld, *own = factors.own, *rest = factors.rest;
  const int32_t* y = pixels.y;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A p = HasShare ? out[j] : exp_negative(x[j] - m[j]) * scale[j], of_rest = r[j] * scale[j];
    const bool is_top = p > A(0.5);
    const A complement = is_top ? of_rest : A(1) - p;
    A others = rest[j];
    if constexpr (HasSlopes) {
      const A likely = centers.at_likely[j], centered = (HasShare ? slope[j] : A(0)) - centers.elsewhere[j];
      others += is_top ? likely : centered;
    }
    const A at_y = p * others - own[j] * complement, elsewhere = p * (own[j] + others);
    const A value = y[j] == c ? at_y : elsewhere;
    out[j] = y[j] < 0 ? A(0) : value;
  }
}

// The gradient of more classes but for what single classes of single pixels add. slopes: of each class, or null.
template <typename A>
EDGELOSS_INLINE void gradient_of_many(const Pixels<A>& pixels, const Factors<A>& factors, const Smoothing<A>& smoothing,
                                      const A* m, const A* r, const A* const* slopes, A* g, int64_t ld) {
  const Tile<A>& tile = pixels.tile;
  const int64_t n = tile.n;
  A scale[kTile];
  Centers<A> centers;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) scale[j] = A(1) / (A(1) + r[j]);
  if (slopes) center_slopes(tile, m, r, scale, slopes, centers, g, ld);
  for (int32_t c = 0; c < tile.classes; ++c) {
    A* out = g + c * ld;
    const A* slope = slopes ? slopes[c] : nullptr;
    prefetch_ahead(tile, c);
    if (slope) {
      gradient_of_class<true, true>(pixels, factors, m, r, scale, slope, centers, c, out);
    } else if (slopes) {
      gradient_of_class<true, false>(pixels, factors, m, r, scale, slope, centers, c, out);
    } else {
      gradient_of_class<false, false>(pixels, factors, m, r, scale, slope, centers, c, out);
    }
    if (!smoothing.exists()) continue;
    const A of_class = smoothing.of_class(c), *spread = factors.spread;
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) out[j] -= spread[j] * of_class;
  }
}

// p / (1 - p) of a class, of a likely one p.
template <typename A>
A slope_of_other(A x_k, A m, A r) {
  A p, complement;
  probabilities(x_k, m, r, p, complement);
  return is_likely(x_k, m, r) ? p : p / complement;
}

// Calls body(pixel, class, t_k, whether the class is likely) for the classes across an edge.
template <typename A, typename F>
void for_each_other(const Pixels<A>& pixels, const A* m, const A* r, const A* factors, const F& body) {
  const Tile<A>& tile = pixels.tile;
  for (const OtherWeight<A>* each = pixels.others; each < pixels.others_end; ++each) {
    const int64_t j = each->place - pixels.place, k = each->k;
    const A x_k = tile.x[k * tile.ld + j];
    body(j, k, factors[k] * each->weight * slope_of_other(x_k, m[j], r[j]), is_likely(x_k, m[j], r[j]));
  }
}

// Adds what a class across an edge gives to itself, and a likely one to all classes.
template <typename A>
void add_other(const Tile<A>& tile, const A* m, const A* r, int64_t j, int64_t k, A slope, bool is_likely, A* g,
               int64_t ld) {
  g[k * ld + j] += slope;
  if (!is_likely) return;
  // The others' shares, from logits that may lie so far below the top that r is 0.
  LogSumExp<A> rest = {m[j], r[j]};
  if (!is_near(rest.sum)) rest = sum_others<A>(tile, j, tile.classes, k);
  const A scale = slope / rest.sum;
  for (int64_t c = 0; c < tile.classes; ++c) {
    if (c != k) g[c * ld + j] -= scale * exp_negative(tile.x[c * tile.ld + j] - rest.max);
  }
}

}  // namespace

template <typename A>
void tile_gradient(const Pixels<A>& pixels, const TermFactors<A>& factors, const Smoothing<A>& smoothing, const A* m,
                   const A* r, const A* const* slopes, A* g, int64_t ld) {
  Factors<A> of;
  vectorized<A>([=, px = &pixels, smoothing = &smoothing, of = &of]()
                    EDGELOSS_LOOP { fill_factors(*px, factors, *smoothing, *of); });
  if (pixels.tile.classes == 2) {
    vectorized<A>(
        [=, px = &pixels, smoothing = &smoothing, of = &of, slope = slopes && slopes[1] ? slopes[1] : kZeros<A>]()
            EDGELOSS_LOOP { gradient_of_two(*px, *of, *smoothing, slope, g, ld); });
    return;
  }
  for_each_other(pixels, m, r, factors.other_side, [&](int64_t j, int64_t, A slope, bool is_likely) {
    if (!is_likely) of.rest[j] -= slope;
  });
  vectorized<A>([=, px = &pixels, smoothing = &smoothing, of = &of]()
                    EDGELOSS_LOOP { gradient_of_many(*px, *of, *smoothing, m, r, slopes, g, ld); });
  for_each_other(pixels, m, r, factors.other_side, [&](int64_t j, int64_t k, A slope, bool is_likely) {
    add_other(pixels.tile, m, r, j, k, slope, is_likely, g, ld);
  });
}

#define EDGELOSS_INSTANTIATE(A)                                                                                        \
  template double tile_terms(Pixels<A>&, const Smoothing<A>&, const EdgeSums&, A*, A*, A*);                            \
  template void add_residuals(const Pixels<A>&, const A*, const A*, const std::vector<int32_t>&, int64_t, int64_t, A*, \
                              int64_t);                                                                                \
  template void tile_gradient(const Pixels<A>&, const TermFactors<A>&, const Smoothing<A>&, const A*, const A*,        \
                              const A* const*, A*, int64_t);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
