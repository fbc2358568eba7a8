// The loops of tiles.h.
#include "tiles.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstdlib>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kClassBlock = 8;  // classes at a time: a pixel's logits of a block stay in registers

// row[j] = from[j · step]. Such rows are short: what runs them is chosen once a tile.
template <typename T, typename A>
EDGELOSS_INLINE void widen_row(const T* from, int64_t step, int64_t n, A* row) {
  if (std::is_same_v<T, A> && step == 1) {
    std::memcpy(row, from, n * sizeof(A));
  } else if (step == 1) {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) row[j] = widen(from[j]);
  } else {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) row[j] = widen(from[j * step]);
  }
}

// Copies whole lines of the cache to memory, past the cache.
void stream(const void* from, int64_t bytes, void* to) {
#ifdef __SSE2__
  constexpr int64_t kLine = 64, kPart = sizeof(__m128i);
  if (reinterpret_cast<uintptr_t>(to) % kLine == 0 && bytes % kLine == 0) {
    const auto* parts = static_cast<const __m128i*>(from);
    auto* out = static_cast<__m128i*>(to);
    for (int64_t i = 0; i < bytes / kPart; ++i) _mm_stream_si128(out + i, _mm_loadu_si128(parts + i));
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// out[j · step] = row[j].
template <typename T, typename A>
EDGELOSS_INLINE void narrow_row(const A* row, int64_t step, int64_t n, bool streams, T* out) {
  if (std::is_same_v<T, A> && step == 1) {
    streams ? stream(row, n * sizeof(A), out) : static_cast<void>(std::memcpy(out, row, n * sizeof(A)));
  } else if (step == 1) {
    T piece[kTile];
    T* to = streams ? &piece[0] : out;
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) narrow(row[j], to + j);
    if (streams) stream(piece, n * sizeof(T), out);
  } else {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) narrow(row[j], out + j * step);
  }
}

// Asks for a row of a tile ahead of the loops, in the next tile behind the last: a tile's rows are pieces of memory too
// short for the processor to foresee.
template <typename A>
EDGELOSS_INLINE void prefetch_ahead(const Tile<A>& tile, int64_t c) {
  const int64_t ahead = c + std::min(kClassBlock, tile.classes), behind = ahead - tile.classes;
  const A* row = behind < 0 ? tile.x + ahead * tile.ld : tile.x + tile.n + behind * tile.ld;
  for (int64_t j = 0; j < tile.n; j += 64 / sizeof(A)) __builtin_prefetch(row + j);
}

// Calls body(the first class, how many) for blocks of classes of nearly the same size.
template <typename F>
EDGELOSS_INLINE void for_each_class_block(int64_t classes, const F& body) {
  const int64_t blocks = (classes + kClassBlock - 1) / kClassBlock;
  int64_t first = 0;
  for (int64_t block = 1; block <= blocks; ++block) {
    const int64_t last = classes * block / blocks;
    switch (last - first) {
      case 8:
        body(first, std::integral_constant<int, 8>());
        break;
      case 7:
        body(first, std::integral_constant<int, 7>());
        break;
      case 6:
        body(first, std::integral_constant<int, 6>());
        break;
      case 5:
        body(first, std::integral_constant<int, 5>());
        break;
      case 4:
        body(first, std::integral_constant<int, 4>());
        break;
      default:  // a single class
        body(first, std::integral_constant<int, 1>());
    }
    first = last;
  }
}

// What is known of a tile's pixels from the classes so far: x_y is the logit of y.
template <typename A>
struct RunningTile {
  A *m, *r, *lost, *x_y;
};

// Adds N classes from `first` on; Starts: the first ones.
template <bool Starts, int N, typename A>
EDGELOSS_INLINE void add_classes(const Tile<A>& tile, int64_t first, const int32_t* y, const RunningTile<A>& sums) {
  const int64_t n = tile.n, ld = tile.ld;
  const A* x = tile.x + first * ld;
  A *m = sums.m, *r = sums.r, *lost = sums.lost, *x_y = sums.x_y;
  for (int c = 0; c < N; ++c) prefetch_ahead(tile, first + c);
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    A logit[N], own = Starts ? A(0) : x_y[j];
    for (int c = 0; c < N; ++c) {
      logit[c] = x[c * ld + j];
      own = y[j] == static_cast<int32_t>(first) + c ? logit[c] : own;
    }
    RunningSoftmax<A> softmax;
    if constexpr (Starts) {
      softmax.start(logit);
    } else {
      softmax = {m[j], r[j], lost[j]};
      softmax.add(logit);
    }
    m[j] = softmax.m;
    r[j] = softmax.r;
    lost[j] = softmax.lost;
    x_y[j] = own;
  }
}

template <typename A>
EDGELOSS_INLINE void statistics_of_many(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll) {
  A lost[kTile], x_y[kTile];
  const RunningTile<A> sums = {m, r, lost, x_y};
  for_each_class_block(tile.classes, [&](int64_t first, auto count) EDGELOSS_LOOP {
    constexpr int kCount = decltype(count)::value;
    first == 0 ? add_classes<true, kCount>(tile, first, y, sums) : add_classes<false, kCount>(tile, first, y, sums);
  });
  const int64_t n = tile.n;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A value = log1p_positive(r[j]) - (x_y[j] - m[j]);
    nll[j] = y[j] < 0 ? A(0) : value;
  }
}

// The same for C classes, few enough to hold a pixel's logits in registers.
template <int C, typename A>
EDGELOSS_INLINE void statistics_of(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll) {
  const int64_t n = tile.n, ld = tile.ld;
  const A* x = tile.x;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    A logit[C], x_y = 0;
    for (int c = 0; c < C; ++c) logit[c] = x[c * ld + j];
    RunningSoftmax<A> softmax;
    if constexpr (C == 2) {
      softmax_of_pair(logit[0], logit[1], softmax.m, softmax.r);
    } else {
      softmax.start(logit);
    }
    for (int c = 0; c < C; ++c) {
      const A below = logit[c] - softmax.m;
      x_y = y[j] == c ? below : x_y;
    }
    m[j] = softmax.m;
    r[j] = softmax.r;
    const A value = (C == 2 ? log1p_of_unit(softmax.r) : log1p_positive(softmax.r)) - x_y;
    nll[j] = y[j] < 0 ? A(0) : value;
  }
}

// Compilers vectorize a choice for AVX2 where what is chosen from has been read before it.

// w = weight(y), where weight may be null for ones; 0 where y is no class.
template <typename A>
EDGELOSS_INLINE void weights_of(const A* weight, const int32_t* y, int64_t n, A* w) {
  if (weight) {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const A of_y = weight[y[j] < 0 ? 0 : y[j]];
      w[j] = y[j] < 0 ? A(0) : of_y;
    }
  } else {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) w[j] = y[j] < 0 ? A(0) : A(1);
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

// The gradient of two classes.
template <bool Smooths, typename A>
EDGELOSS_INLINE void softmax_of_two(const A* x, int64_t ld, int64_t n, const Factors<A>& factors, const A* weight,
                                    A total, A* g, int64_t ld_g) {
  const A *alpha = factors.alpha, *at_y = factors.at_y, *spread = factors.uniform;
  const int32_t* y = factors.y;
  const A of_first = weight ? weight[0] : A(1), of_second = weight ? weight[1] : A(1);
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A a = x[j], b = x[ld + j], at = at_y[j];
    A p, q;  // of the first, of the second
    probabilities_of_pair(a - b, p, q);
    A to_first, to_second;
    if constexpr (Smooths) {
      // Not alpha - at_y: where the edge's part of both is large, the difference would lose the smoothing's digits.
      const A all = alpha[j], even = spread[j], rest = even * total;
      to_first = (y[j] == 0 ? rest * p - at * q : all * p) - even * of_first;
      to_second = (y[j] == 1 ? rest * q - at * p : all * q) - even * of_second;
    } else {
      const A at_q = at * q, at_p = at * p;
      to_first = y[j] == 0 ? -at_q : at_p;
      to_second = -to_first;
    }
    g[j] = y[j] < 0 ? A(0) : to_first;
    g[ld_g + j] = y[j] < 0 ? A(0) : to_second;
  }
}

// The gradient of C classes, few enough to hold a pixel's logits in registers.
template <int C, bool Smooths, typename A>
EDGELOSS_INLINE void softmax_of(const A* x, int64_t ld, int64_t n, const Factors<A>& factors, const A* weight, A* g,
                                int64_t ld_g) {
  const A *alpha = factors.alpha, *at_y = factors.at_y, *spread = factors.uniform;
  const int32_t* y = factors.y;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    A e[C], top = x[j], sum = 0;
    for (int c = 0; c < C; ++c) {
      e[c] = x[c * ld + j];
      top = e[c] > top ? e[c] : top;
    }
    for (int c = 0; c < C; ++c) {
      e[c] = exp_negative(e[c] - top);
      sum += e[c];
    }
    const A at = at_y[j], scale = alpha[j] / sum;
    for (int c = 0; c < C; ++c) {
      A value = scale * e[c] - (y[j] == c ? at : A(0));
      if constexpr (Smooths) value -= spread[j] * (weight ? weight[c] : A(1));
      g[c * ld_g + j] = y[j] < 0 ? A(0) : value;
    }
  }
}

// The same of more classes, from m and r.
template <bool Smooths, typename A>
EDGELOSS_INLINE void softmax_of_many(const Tile<A>& tile, const Factors<A>& factors, const A* weight, const A* m,
                                     const A* r, A* g, int64_t ld_g) {
  const A *alpha = factors.alpha, *at_y = factors.at_y, *spread = factors.uniform;
  const int32_t* y = factors.y;
  const int64_t n = tile.n;
  A scale[kTile];
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) scale[j] = alpha[j] / (A(1) + r[j]);
  for (int64_t c = 0; c < tile.classes; ++c) {
    prefetch_ahead(tile, c);
    const A* row = tile.x + c * tile.ld;
    A* out = g + c * ld_g;
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const A at = at_y[j], p = exp_negative(row[j] - m[j]);
      const A value = scale[j] * p - (y[j] == static_cast<int32_t>(c) ? at : A(0));
      out[j] = y[j] < 0 ? A(0) : value;
    }
    if (!Smooths) continue;
    const A of_class = weight ? weight[c] : A(1);
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) out[j] -= spread[j] * of_class;
  }
}

}  // namespace

template <typename A>
void read_tile(const Stored<A>& x, int64_t classes, int64_t p, int64_t n, A* tile, int64_t ld) {
  x.by_type([&](const auto* data) {
    const auto* first = data + p * x.pixel_step;
    if (x.class_step == 1 && classes > 1 && !x.binary) {
      for (int64_t j = 0; j < n; ++j, first += x.pixel_step) {
        for (int64_t c = 0; c < classes; ++c) tile[c * ld + j] = widen(first[c]);
      }
    } else {
      vectorized<A>([=, class_step = x.class_step, step = x.pixel_step, begin = x.binary ? 1 : 0]() EDGELOSS_LOOP {
        for (int64_t c = begin; c < classes; ++c) {
          const auto* row = first + (c - begin) * class_step;
          // Of 2 bytes each, they are too short a piece of memory for the processor to foresee the next tile's.
          const auto* next = row + n * step;
          for (int64_t j = 0; j < n && sizeof(*next) == 2 && step == 1; j += 32) __builtin_prefetch(next + j);
          widen_row(row, step, n, tile + c * ld);
        }
      });
    }
  });
}

template <typename A>
void write_tile(const A* tile, int64_t ld, int64_t count, int64_t n, const Stored<A, void*>& out, int64_t p,
                bool streams) {
  out.by_type([&](auto* data) {
    vectorized<A>([=, first = data + p * out.pixel_step, class_step = out.class_step, step = out.pixel_step]()
                      EDGELOSS_LOOP {
                        for (int64_t c = 0; c < count; ++c)
                          narrow_row(tile + c * ld, step, n, streams, first + c * class_step);
                      });
  });
}

void end_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

int64_t read_labels(const Target& target, int64_t first, int64_t n, int16_t* label, int32_t* y) {
  const int64_t classes = target.classes, ignore_index = target.ignore_index;
  return target.labels.by_type([&](const auto* labels) {
    const auto* from = labels + first;
    // The next tile's: 8 bytes a pixel are more than those of a logit.
    for (int64_t j = 0; j < n; j += 64 / sizeof(*from)) __builtin_prefetch(from + n + j);
    return vectorized([=]() EDGELOSS_LOOP {
      const int64_t wrong = classes_of(from, n, ignore_index, classes, y);
      narrow_labels(y, n, label);
      return wrong;
    });
  });
}

template <typename A>
void tile_statistics(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    if (tile.classes == 2) return statistics_of<2>(tile, y, m, r, nll);
    if (tile.classes == 3) return statistics_of<3>(tile, y, m, r, nll);
    if (tile.classes == 4) return statistics_of<4>(tile, y, m, r, nll);
    statistics_of_many(tile, y, m, r, nll);
  });
}

template <typename A>
void statistics_of_two(const A* first, const A* second, int64_t n, A* m, A* r) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const A a = first[j], b = second[j], top = b > a ? b : a;
      r[j] = exp_negative((a - top) + (b - top));
      m[j] = top;
    }
  });
}

template <typename A>
void tile_prediction(const Tile<A>& tile, const int32_t* y, const A* m, int16_t* predicted) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    const int64_t n = tile.n;
    const A* x = tile.x;
    int32_t first[kTile] = {};
    for (int64_t c = tile.classes - 1; c > 0; --c) {
      const A* row = x + c * tile.ld;
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) first[j] = row[j] == m[j] ? static_cast<int32_t>(c) : first[j];
    }
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const int32_t top = x[j] == m[j] ? 0 : first[j];
      predicted[j] = static_cast<int16_t>(y[j] < 0 ? kIgnored : top);
    }
  });
}

template <typename A>
double row_sum(const A* value, int64_t n) {
  return vectorized<A>([=]() EDGELOSS_LOOP { return sum_in_parts(value, n); });
}

template <typename A>
double weighted_sum(const A* value, const A* weight, int64_t n) {
  return vectorized<A>([=]() EDGELOSS_LOOP {
    double product[kTile];
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) product[j] = static_cast<double>(value[j]) * static_cast<double>(weight[j]);
    return sum_in_parts(product, n);
  });
}

template <typename A>
CrossEntropy tile_cross_entropy(const A* nll, const int32_t* y, int64_t n) {
  return vectorized<A>([=]() EDGELOSS_LOOP {
    int32_t valid = 0;
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) valid += y[j] >= 0;
    return CrossEntropy{sum_in_parts(nll, n), static_cast<double>(valid)};
  });
}

template <typename A>
void smooth_cross_entropy(const Tile<A>& tile, const int32_t* y, const A* m, const A* r, const Smoothing<A>& smoothing,
                          A* ce, A* w) {
  vectorized<A>([=, weight = smoothing.weight, own = A(1) - smoothing.smoothing, uniform = smoothing.of_others(),
                 total = smoothing.total]() EDGELOSS_LOOP {
    const int64_t n = tile.n;
    weights_of(weight, y, n, w);
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) ce[j] *= w[j];
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

template <typename A>
void fill_factors(const int16_t* label, int64_t n, A everywhere, const A* arrives, const A* same,
                  const Smoothing<A>& smoothing, Factors<A>& factors) {
  vectorized<A>([=, out = &factors, weight = smoothing.weight, own = A(1) - smoothing.smoothing,
                 uniform = smoothing.of_others(), total = smoothing.total]() EDGELOSS_LOOP {
    A *alpha = out->alpha, *at_y = out->at_y, *spread = out->uniform;
    int32_t* y = out->y;
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) y[j] = label[j];
    if (!weight && !arrives) {  // the same for all pixels
      const A at = everywhere * own, even = everywhere * uniform, all = at + even * total;
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        at_y[j] = y[j] < 0 ? A(0) : at;
        alpha[j] = y[j] < 0 ? A(0) : all;
      }
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; uniform != A(0) && j < n; ++j) spread[j] = y[j] < 0 ? A(0) : even;
    } else {
      weights_of(weight, y, n, at_y);
      if (arrives) {
        std::memcpy(spread, arrives, n * sizeof(A));
      } else {
        std::fill_n(spread, n, everywhere);
      }
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        const A value = spread[j], ce = y[j] < 0 ? A(0) : value;
        spread[j] = ce * uniform;
        at_y[j] *= ce * own;
        alpha[j] = at_y[j] + spread[j] * total;
      }
    }
    if (!same) return;
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {  // ∂S = π (p(c) - δ_cy)
      alpha[j] += same[j];
      at_y[j] += same[j];
    }
  });
}

template <typename A>
void tile_softmax(const Tile<A>& tile, const Factors<A>& factors, const Smoothing<A>& smoothing, const A* m, const A* r,
                  A* g, int64_t ld_g) {
  vectorized<A>([=, factors = &factors, weight = smoothing.weight, total = smoothing.total,
                 is_smooth = smoothing.exists()]() EDGELOSS_LOOP {
    const A* x = tile.x;
    const int64_t ld = tile.ld, n = tile.n;
    const auto with = [=](auto smooths) EDGELOSS_LOOP {
      constexpr bool kSmooths = decltype(smooths)::value;
      if (tile.classes == 2) return softmax_of_two<kSmooths>(x, ld, n, *factors, weight, total, g, ld_g);
      if (tile.classes == 3) return softmax_of<3, kSmooths>(x, ld, n, *factors, weight, g, ld_g);
      if (tile.classes == 4) return softmax_of<4, kSmooths>(x, ld, n, *factors, weight, g, ld_g);
      softmax_of_many<kSmooths>(tile, *factors, weight, m, r, g, ld_g);
    };
    is_smooth ? with(std::true_type()) : with(std::false_type());
  });
}

#define EDGELOSS_INSTANTIATE(A)                                                                                        \
  template void read_tile(const Stored<A>&, int64_t, int64_t, int64_t, A*, int64_t);                                   \
  template void write_tile(const A*, int64_t, int64_t, int64_t, const Stored<A, void*>&, int64_t, bool);               \
  template void tile_statistics(const Tile<A>&, const int32_t*, A*, A*, A*);                                           \
  template void statistics_of_two(const A*, const A*, int64_t, A*, A*);                                                \
  template void tile_prediction(const Tile<A>&, const int32_t*, const A*, int16_t*);                                   \
  template double row_sum(const A*, int64_t);                                                                          \
  template double weighted_sum(const A*, const A*, int64_t);                                                           \
  template CrossEntropy tile_cross_entropy(const A*, const int32_t*, int64_t);                                         \
  template void smooth_cross_entropy(const Tile<A>&, const int32_t*, const A*, const A*, const Smoothing<A>&, A*, A*); \
  template void fill_factors(const int16_t*, int64_t, A, const A*, const A*, const Smoothing<A>&, Factors<A>&);        \
  template void tile_softmax(const Tile<A>&, const Factors<A>&, const Smoothing<A>&, const A*, const A*, A*, int64_t);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
