// Loops over tiles: some pixels with all their classes, few enough to stay in cache; a class's pixels lie side by side,
// so that the loops vectorise.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "../math.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

constexpr int64_t kTile = 256;  // pixels at most: their statistics stay in the first-level cache
constexpr int64_t kBlock = 32;  // classes summed up by themselves
constexpr int16_t kIgnored = -1;

// ---------------------------------------------------------------------------------------------------------- precisions

template <typename To, typename From>
EDGELOSS_INLINE To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(&out, &value, sizeof(out));
  return out;
}

// Half-precision numbers as float and back, in forms that vectorise.
EDGELOSS_INLINE float widen(float x) { return x; }
EDGELOSS_INLINE double widen(double x) { return x; }
EDGELOSS_INLINE float widen(BFloat16 x) { return bits_of<float>(static_cast<uint32_t>(x.x) << 16); }
EDGELOSS_INLINE float widen(Half x) {
  const uint32_t size = x.x & 0x7fffu;
  const uint32_t wide = bits_of<uint32_t>(bits_of<float>(size << 13) * 0x1p112f);  // subnormal ones come out right
  return bits_of<float>((size >= 0x7c00u ? wide | 0x7f800000u : wide) | (x.x & 0x8000u) << 16);
}
EDGELOSS_INLINE void narrow(float x, float* out) { *out = x; }
EDGELOSS_INLINE void narrow(double x, double* out) { *out = x; }
EDGELOSS_INLINE void narrow(float x, BFloat16* out) {
  const uint32_t b = bits_of<uint32_t>(x);
  const uint32_t rounded = (b + 0x7fffu + (b >> 16 & 1u)) >> 16;  // to nearest, ties to even
  out->x = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}
EDGELOSS_INLINE void narrow(float x, Half* out) {
  const uint32_t b = bits_of<uint32_t>(x), sign = b >> 16 & 0x8000u, size = b & 0x7fffffffu;
  const uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  // Below 2^-14 an addition rounds to a multiple of 2^-24.
  const uint32_t small = bits_of<uint32_t>(bits_of<float>(size) + 0.5f) - 0x3f000000u;
  const uint32_t finite = size < 0x38800000u ? small : normal;
  const uint32_t other = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  out->x = static_cast<uint16_t>(sign | (size < 0x477ff000u ? finite : other));
}

// to[j] = from[j · step].
template <typename T, typename A>
EDGELOSS_INLINE void widen_each(const T* __restrict from, int64_t step, int64_t n, A* __restrict to) {
  if (step == 1) {
    for (int64_t j = 0; j < n; ++j) to[j] = widen(from[j]);
  } else {
    for (int64_t j = 0; j < n; ++j) to[j] = widen(from[j * step]);
  }
}
EDGELOSS_VECTORIZED void widen_row(const float* from, int64_t step, int64_t n, float* to) {
  widen_each(from, step, n, to);
}
EDGELOSS_VECTORIZED void widen_row(const BFloat16* from, int64_t step, int64_t n, float* to) {
  widen_each(from, step, n, to);
}
EDGELOSS_VECTORIZED void widen_row(const Half* from, int64_t step, int64_t n, float* to) {
  widen_each(from, step, n, to);
}
inline void widen_row(const double* from, int64_t step, int64_t n, double* to) { widen_each(from, step, n, to); }

// to[j · step] = from[j].
template <typename T, typename A>
EDGELOSS_INLINE void narrow_each(const A* __restrict from, int64_t step, int64_t n, T* __restrict to) {
  if (step == 1) {
    for (int64_t j = 0; j < n; ++j) narrow(from[j], to + j);
  } else {
    for (int64_t j = 0; j < n; ++j) narrow(from[j], to + j * step);
  }
}
EDGELOSS_VECTORIZED void narrow_row(const float* from, int64_t step, int64_t n, float* to) {
  narrow_each(from, step, n, to);
}
EDGELOSS_VECTORIZED void narrow_row(const float* from, int64_t step, int64_t n, BFloat16* to) {
  narrow_each(from, step, n, to);
}
EDGELOSS_VECTORIZED void narrow_row(const float* from, int64_t step, int64_t n, Half* to) {
  narrow_each(from, step, n, to);
}
inline void narrow_row(const double* from, int64_t step, int64_t n, double* to) { narrow_each(from, step, n, to); }

// Whether tiles of n pixels need not be copied: not where more than four of their classes meet in the same places of a
// cache of 64 KB a way, and so, with their gradient, drive each other out between two looks at them. Those of a picture
// of 512 × 512 all do, since they lie a power of two apart.
template <typename T, typename A>
bool fits_in_place(const Logits<T, A>& x, int64_t classes, int64_t n) {
  if (!std::is_same_v<T, A> || x.binary || x.pixel_step != 1 || classes > 32) return false;
  constexpr int64_t kWay = 1 << 16, kSize = sizeof(A);
  for (int64_t c = 0; c < classes; ++c) {
    int64_t meet = 0;
    for (int64_t other = 0; other < classes; ++other) {
      const int64_t distance = std::abs(other - c) * x.class_step * kSize % kWay;
      meet += std::min(distance, kWay - distance) < n * kSize;
    }
    if (meet > 4) return false;
  }
  return true;
}

// Copies the tile of n pixels from p on into the buffer, as A, its classes ld apart.
template <typename T, typename A>
void read_tile(const Logits<T, A>& x, int64_t classes, int64_t p, int64_t n, A* tile, int64_t ld) {
  if (x.binary) {
    std::fill_n(tile, n, A(0));
    widen_row(x.data + p * x.pixel_step, x.pixel_step, n, tile + ld);
  } else if (x.class_step == 1 && classes > 1) {
    for (int64_t j = 0; j < n; ++j) {
      const T* pixel = x.data + (p + j) * x.pixel_step;
      for (int64_t c = 0; c < classes; ++c) tile[c * ld + j] = widen(pixel[c]);
    }
  } else {
    for (int64_t c = 0; c < classes; ++c) {
      const T* row = x.data + c * x.class_step + p * x.pixel_step;
      // Of 2 bytes each, they are too short a piece of memory for the processor to foresee the next tile's.
      const T* next = row + n * x.pixel_step;
      for (int64_t j = 0; j < n && sizeof(T) == 2 && x.pixel_step == 1; j += 32) __builtin_prefetch(next + j);
      widen_row(row, x.pixel_step, n, tile + c * ld);
    }
  }
}

// Writes a tile of logits [count, n] as T to where it belongs: to[c · class_step + j · pixel_step].
template <typename T, typename A>
void write_tile(const A* tile, int64_t ld, int64_t count, int64_t n, T* to, int64_t class_step, int64_t pixel_step) {
  for (int64_t c = 0; c < count; ++c) narrow_row(tile + c * ld, pixel_step, n, to + c * class_step);
}

// -------------------------------------------------------------------------------------------------------------- labels

// y, -1 on pixels that do not count, of n labels; returns how many are out of range.
template <typename L>
EDGELOSS_INLINE int64_t valid_labels(const L* __restrict target, int64_t n, int64_t classes, int64_t ignore_index,
                                     int16_t* __restrict label, int32_t* __restrict y) {
  int64_t wrong = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t value = static_cast<int64_t>(target[j]);
    const bool ignored = value == ignore_index, in_range = value >= 0 && value < classes;
    y[j] = !ignored && in_range ? static_cast<int32_t>(value) : kIgnored;
    wrong += !ignored && !in_range;
  }
  for (int64_t j = 0; j < n; ++j) label[j] = static_cast<int16_t>(y[j]);
  return wrong;
}
EDGELOSS_VECTORIZED int64_t read_labels(const int64_t* target, int64_t n, int64_t classes, int64_t ignore_index,
                                        int16_t* label, int32_t* y) {
  return valid_labels(target, n, classes, ignore_index, label, y);
}
EDGELOSS_VECTORIZED int64_t read_labels(const int32_t* target, int64_t n, int64_t classes, int64_t ignore_index,
                                        int16_t* label, int32_t* y) {
  return valid_labels(target, n, classes, ignore_index, label, y);
}
EDGELOSS_VECTORIZED int64_t read_labels(const int16_t* target, int64_t n, int64_t classes, int64_t ignore_index,
                                        int16_t* label, int32_t* y) {
  return valid_labels(target, n, classes, ignore_index, label, y);
}
EDGELOSS_VECTORIZED int64_t read_labels(const uint8_t* target, int64_t n, int64_t classes, int64_t ignore_index,
                                        int16_t* label, int32_t* y) {
  return valid_labels(target, n, classes, ignore_index, label, y);
}

// ------------------------------------------------------------------------------------------------------------- softmax

// m, r and -log p(y) of n pixels, n ≤ kTile; x has its classes ld apart. A pixel whose y is none of them gets no sense.
template <typename A>
EDGELOSS_INLINE void statistics_of_many(const A* __restrict x, int64_t ld, int64_t classes, int64_t n,
                                        const int32_t* __restrict y, A* __restrict m, A* __restrict r,
                                        A* __restrict nll) {
  A x_y[kTile];     // x(y) - m
  A part[kTile];    // of r, over some classes: a sum of sums keeps more digits than one of a thousand terms
  A others[kTile];  // classes that reach the max, but one: an integer, so that r keeps all digits of a small sum
  for (int64_t j = 0; j < n; ++j) m[j] = x[j];
  for (int64_t c = 1; c < classes; ++c) {
    const A* row = x + c * ld;
    for (int64_t j = 0; j < n; ++j) m[j] = row[j] > m[j] ? row[j] : m[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    r[j] = A(0);
    others[j] = A(-1);
    x_y[j] = A(0);
  }
  for (int64_t first = 0; first < classes; first += kBlock) {
    for (int64_t j = 0; j < n; ++j) part[j] = A(0);
    for (int64_t c = first; c < std::min(first + kBlock, classes); ++c) {
      const A* row = x + c * ld;
      for (int64_t j = 0; j < n; ++j) {
        const A below = row[j] - m[j];
        part[j] += below == A(0) ? A(0) : exp_negative(below);
        others[j] += below == A(0) ? A(1) : A(0);
        x_y[j] = y[j] == static_cast<int32_t>(c) ? below : x_y[j];
      }
    }
    for (int64_t j = 0; j < n; ++j) r[j] += part[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    r[j] += others[j];
    nll[j] = log1p_positive(r[j]) - x_y[j];
  }
}
// The same for C classes, few enough to hold a pixel's logits in registers.
template <int C, typename A>
EDGELOSS_INLINE void statistics_of(const A* __restrict x, int64_t ld, int64_t n, const int32_t* __restrict y,
                                   A* __restrict m, A* __restrict r, A* __restrict nll) {
  for (int64_t j = 0; j < n; ++j) {
    A logit[C], top = x[j];
    for (int c = 0; c < C; ++c) {
      logit[c] = x[c * ld + j];
      top = logit[c] > top ? logit[c] : top;
    }
    A sum = 0, others = -1, x_y = 0;
    if constexpr (C == 2) {  // one of them is the max
      sum = exp_negative((logit[0] - top) + (logit[1] - top));
      others = 0;
    }
    for (int c = 0; c < C; ++c) {
      const A below = logit[c] - top;
      if constexpr (C > 2) {
        sum += below == A(0) ? A(0) : exp_negative(below);
        others += below == A(0) ? A(1) : A(0);
      }
      x_y = y[j] == c ? below : x_y;
    }
    m[j] = top;
    r[j] = sum + others;
    nll[j] = log1p_positive(r[j]) - x_y;
  }
}
template <typename A>
EDGELOSS_INLINE void statistics(const A* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y, A* m, A* r,
                                A* nll) {
  if (classes == 2) return statistics_of<2>(x, ld, n, y, m, r, nll);
  if (classes == 3) return statistics_of<3>(x, ld, n, y, m, r, nll);
  if (classes == 4) return statistics_of<4>(x, ld, n, y, m, r, nll);
  statistics_of_many(x, ld, classes, n, y, m, r, nll);
}
EDGELOSS_VECTORIZED void tile_statistics(const float* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y,
                                         float* m, float* r, float* nll) {
  statistics(x, ld, classes, n, y, m, r, nll);
}
inline void tile_statistics(const double* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y, double* m,
                            double* r, double* nll) {
  statistics(x, ld, classes, n, y, m, r, nll);
}

// The first of the classes that reach the max of n pixels, n ≤ kTile; -1 where y is.
template <typename A>
EDGELOSS_INLINE void first_at_max(const A* __restrict x, int64_t ld, int64_t classes, int64_t n,
                                  const int32_t* __restrict y, const A* __restrict m, int16_t* __restrict predicted) {
  int32_t first[kTile] = {};
  for (int64_t c = classes - 1; c > 0; --c) {
    const A* row = x + c * ld;
    for (int64_t j = 0; j < n; ++j) first[j] = row[j] == m[j] ? static_cast<int32_t>(c) : first[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    predicted[j] = static_cast<int16_t>(y[j] < 0 ? kIgnored : x[j] == m[j] ? 0 : first[j]);
  }
}
EDGELOSS_VECTORIZED void tile_prediction(const float* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y,
                                         const float* m, int16_t* predicted) {
  first_at_max(x, ld, classes, n, y, m, predicted);
}
inline void tile_prediction(const double* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y, const double* m,
                            int16_t* predicted) {
  first_at_max(x, ld, classes, n, y, m, predicted);
}

// m and r of two classes alone: so quick to form that they are not kept.
template <typename A>
EDGELOSS_INLINE void statistics_of_two(const A* __restrict first, const A* __restrict second, int64_t n,
                                       A* __restrict m, A* __restrict r) {
  for (int64_t j = 0; j < n; ++j) {
    const A a = first[j], b = second[j], top = b > a ? b : a;
    r[j] = exp_negative((a - top) + (b - top));
    m[j] = top;
  }
}
EDGELOSS_VECTORIZED void tile_statistics_of_two(const float* first, const float* second, int64_t n, float* m,
                                                float* r) {
  statistics_of_two(first, second, n, m, r);
}
inline void tile_statistics_of_two(const double* first, const double* second, int64_t n, double* m, double* r) {
  statistics_of_two(first, second, n, m, r);
}

// Σ value, in parts whose order is fixed.
template <typename A>
EDGELOSS_INLINE double sum_in_parts(const A* __restrict value, int64_t n) {
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
EDGELOSS_VECTORIZED double row_sum(const float* value, int64_t n) { return sum_in_parts(value, n); }
inline double row_sum(const double* value, int64_t n) { return sum_in_parts(value, n); }

// ce = nll where y ≥ 0, else 0; returns their sum.
template <typename A>
EDGELOSS_INLINE double select_and_sum(const A* __restrict nll, const int32_t* __restrict y, int64_t n,
                                      A* __restrict ce) {
  // A loop of its own: where 16 choices and sums stood in one, GCC 12 applied the first eight's mask to the others too.
  for (int64_t j = 0; j < n; ++j) ce[j] = y[j] >= 0 ? nll[j] : A(0);
  return sum_in_parts(ce, n);
}
EDGELOSS_VECTORIZED double tile_cross_entropy(const float* nll, const int32_t* y, int64_t n, float* ce) {
  return select_and_sum(nll, y, n, ce);
}
inline double tile_cross_entropy(const double* nll, const int32_t* y, int64_t n, double* ce) {
  return select_and_sum(nll, y, n, ce);
}

// y of n pixels, and the two factors of scaled_softmax, each the same on all that are valid.
template <typename A>
EDGELOSS_INLINE void spread_factors(const int16_t* __restrict label, int64_t n, A of_p, A of_y, int32_t* __restrict y,
                                    A* __restrict alpha, A* __restrict at_y) {
  for (int64_t j = 0; j < n; ++j) {
    y[j] = label[j];
    alpha[j] = label[j] < 0 ? A(0) : of_p;
    at_y[j] = label[j] < 0 ? A(0) : of_y;
  }
}
EDGELOSS_VECTORIZED void tile_factors(const int16_t* label, int64_t n, float of_p, float of_y, int32_t* y, float* alpha,
                                      float* at_y) {
  spread_factors(label, n, of_p, of_y, y, alpha, at_y);
}
inline void tile_factors(const int16_t* label, int64_t n, double of_p, double of_y, int32_t* y, double* alpha,
                         double* at_y) {
  spread_factors(label, n, of_p, of_y, y, alpha, at_y);
}

// g(c) = alpha · p(c) - at_y · [c = y] where y ≥ 0; exactly 0 elsewhere, whatever the logits are. x has its classes ld
// apart, g ld_g.
template <typename A>
EDGELOSS_INLINE void scaled_softmax(const A* __restrict x, int64_t ld, int64_t classes, int64_t n,
                                    const int32_t* __restrict y, const A* __restrict m, const A* __restrict r,
                                    const A* __restrict alpha, const A* __restrict at_y, A* __restrict g,
                                    int64_t ld_g) {
  A scale[kTile];
  for (int64_t j = 0; j < n; ++j) scale[j] = alpha[j] / (A(1) + r[j]);
  if (classes == 2) {  // one of them is the max, and r is what the other one comes to
    for (int64_t c = 0; c < 2; ++c) {
      for (int64_t j = 0; j < n; ++j) {
        const A value = scale[j] * (x[c * ld + j] == m[j] ? A(1) : r[j]) - (y[j] == c ? at_y[j] : A(0));
        g[c * ld_g + j] = y[j] < 0 ? A(0) : value;
      }
    }
    return;
  }
  for (int64_t c = 0; c < classes; ++c) {
    const A* row = x + c * ld;
    A* out = g + c * ld_g;
    for (int64_t j = 0; j < n; ++j) {
      const A value = scale[j] * exp_negative(row[j] - m[j]) - (y[j] == static_cast<int32_t>(c) ? at_y[j] : A(0));
      out[j] = y[j] < 0 ? A(0) : value;
    }
  }
}
EDGELOSS_VECTORIZED void tile_softmax(const float* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y,
                                      const float* m, const float* r, const float* alpha, const float* at_y, float* g,
                                      int64_t ld_g) {
  scaled_softmax(x, ld, classes, n, y, m, r, alpha, at_y, g, ld_g);
}
inline void tile_softmax(const double* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y, const double* m,
                         const double* r, const double* alpha, const double* at_y, double* g, int64_t ld_g) {
  scaled_softmax(x, ld, classes, n, y, m, r, alpha, at_y, g, ld_g);
}

}  // namespace
}  // namespace edgeloss
