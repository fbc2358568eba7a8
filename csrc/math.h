// The formulas of the loss, one copy for every kernel. Symbols are those of edgeloss/_reference/terms.py.
//
// What a pixel's logits say is kept as two numbers: m = max_c x(c), and the rest r = Σ exp(x(c) - m) over all classes
// but one of those that reach the max. Then Σ exp(x - m) = 1 + r, and
//
//     log p(k)       = (x(k) - m) - log1p(r)
//     log(1 - p(k))  = log(r) - log1p(r)        where k is the max, and p(k) ≥ 1/2
//
// are exact at any offset and for p within rounding of 0 and of 1.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifdef __CUDACC__
#define EDGELOSS_INLINE __host__ __device__ __forceinline__
#else
#define EDGELOSS_INLINE inline __attribute__((always_inline))
#endif

namespace edgeloss {

template <typename To, typename From>
EDGELOSS_INLINE To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &value, sizeof(to));
  return to;
}

// (((c x + c) x + c) ...), from the first coefficient to the last.
template <typename... C>
EDGELOSS_INLINE float polynomial(float x, float sum, C... coefficients) {
  ((sum = sum * x + coefficients), ...);
  return sum;
}

// e^x for x ≤ 0 in float, 2 ulp: 2^k · e^f with |f| ≤ ln 2 / 2, by a minimax polynomial, in a form that vectorizes. It
// is cut off where results would have few digits. CUDA's own rounds x log2(e), which changes the result by as much as
// rounding x does, a difference of two logits.
EDGELOSS_INLINE float exp_negative(float x) {
#ifdef __CUDA_ARCH__
  return __expf(x);
#else
  // 1.5 · 2^23 rounds to an integer, and 127 more makes of its lowest bits the exponent of 2^k.
  constexpr float kShift = 12582912.0f + 127.0f;
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504f + kShift, k = shifted - kShift;
  const float f = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;
  const float p =
      polynomial(f, 1.381459879e-3f, 8.368716575e-3f, 4.166838899e-2f, 1.666652113e-1f, 4.999999404e-1f, 1.0f, 1.0f);
  return x < -87.0f ? 0.0f : p * bits_of<float>(bits_of<uint32_t>(shifted) << 23);
#endif
}
EDGELOSS_INLINE double exp_negative(double x) { return std::exp(x); }

template <typename A>
EDGELOSS_INLINE A larger(A a, A b) {
  return b > a ? b : a;
}
// The smaller of two numbers, or nan where the second one is.
template <typename A>
EDGELOSS_INLINE A smaller_or_nan(A a, A b) {
  return b > a ? a : b;
}

// log u for normal u > 0 in float, 2 ulp, by a minimax polynomial (Cephes), in a form that vectorizes.
EDGELOSS_INLINE float log_positive(float u) {
  // u = 2^k (1 + f) with 1 + f in [√½, √2)
  const int32_t bits = bits_of<int32_t>(u), k = (bits - 0x3f3504f3) >> 23;
  const float f = bits_of<float>(bits - k * (1 << 23)) - 1.0f, e = static_cast<float>(k), z = f * f;
  const float p =
      polynomial(f, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                 -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f);
  return (f + (p * f * z + e * -2.12194440e-4f - 0.5f * z)) + e * 0.693359375f;
}
EDGELOSS_INLINE double log_positive(double u) { return std::log(u); }

// What rounding took from log u, u = 1 + r.
template <typename A>
EDGELOSS_INLINE A lost_by_rounding(A r, A u) {
  return (r - (u - A(1))) / u;
}

// log(1 + r) for r ≥ -1/2, 2 ulp.
EDGELOSS_INLINE float log1p_positive(float r) {
  const float u = 1.0f + r;
  return log_positive(u) + lost_by_rounding(r, u);
}
EDGELOSS_INLINE double log1p_positive(double r) { return std::log1p(r); }

// Of two classes p(y) and 1 - p(y), each with all its digits.
template <typename A>
EDGELOSS_INLINE void probabilities_of_pair(A z, A& p, A& complement) {
  const A e = exp_negative(-std::abs(z)), large = A(1) / (A(1) + e), small = e * large;
  p = z < A(0) ? small : large;
  complement = z < A(0) ? large : small;
}

// log p(k).
template <typename A>
EDGELOSS_INLINE A log_p(A x_k, A m, A r) {
  return (x_k - m) - log1p_positive(r);
}

// The class is its pixel's only likely one: 1 - p would cancel.
template <typename A>
EDGELOSS_INLINE bool is_likely(A x_k, A m, A r) {
  return (x_k == m) & (r < A(1));  // no short cut: loops over this vectorize
}

// A running log-sum-exp that never overflows: Σ e^v = sum · e^max.
template <typename A>
struct LogSumExp {
  A max = -INFINITY;
  A sum = 0;

  EDGELOSS_INLINE void add(A v) {
    if (v > max) {
      sum = sum * exp_negative(max - v) + A(1);
      max = v;
    } else {
      sum += exp_negative(v - max);
    }
  }
  EDGELOSS_INLINE A value() const { return max + std::log(sum); }
};

// p(k) and 1 - p(k) from e = e^(x(k) - m), each with all its digits unless it underflows. The class is likely where e
// is 1 and r < 1: another one that rounds to 1 is part of r.
template <typename A>
EDGELOSS_INLINE void probabilities_of(A e, A r, A& p, A& complement) {
  const A scale = A(1) / (A(1) + r);
  p = e * scale;
  complement = ((e == A(1)) & (r < A(1))) ? r * scale : A(1) - p;
}
template <typename A>
EDGELOSS_INLINE void probabilities(A x_k, A m, A r, A& p, A& complement) {
  probabilities_of(exp_negative(x_k - m), r, p, complement);
}

// m and r of a pixel's logits, read once, in blocks of N. No branch: a GPU's threads would take both sides.
template <typename A>
struct RunningSoftmax {
  A m = -INFINITY;
  A r = 0;
  A lost = 0;  // what rounding added to r: over a thousand classes it would add up

  // The first block, where nothing is scaled.
  template <int N>
  EDGELOSS_INLINE void start(const A (&x)[N]) {
    A below[N];
    m = x[0];
    for (int j = 1; j < N; ++j) {
      below[j] = smaller_or_nan(m, x[j]);
      m = larger(m, x[j]);
    }
    const A base = larger(m, std::numeric_limits<A>::lowest());  // all of them may be -inf
    r = lost = 0;
    for (int j = 1; j < N; ++j) r += exp_negative(below[j] - base);
  }

  template <int N>
  EDGELOSS_INLINE void add(const A (&x)[N]) {
    A top = m, below[N];
    for (int j = 0; j < N; ++j) {  // of each pair the smaller one: one that reaches the max is left out of r
      below[j] = smaller_or_nan(top, x[j]);
      top = larger(top, x[j]);
    }
    const A base = larger(top, std::numeric_limits<A>::lowest());
    const A scale = exp_negative(m - base);
    A part = 0;
    for (int j = 0; j < N; ++j) part += exp_negative(below[j] - base);
    part -= lost * scale;
    const A scaled = r * scale, sum = scaled + part;
    lost = (sum - scaled) - part;
    r = sum;
    m = top;
  }
};

// The same of two logits alone.
template <typename A>
EDGELOSS_INLINE void softmax_of_pair(A first, A second, A& m, A& r) {
  m = larger(first, second);
  r = exp_negative(-std::abs(first - second));
}

// Whether a sum of exponentials is so large that those which underflowed do not matter to it.
template <typename A>
EDGELOSS_INLINE bool is_exact(A sum) {
  return sum > std::numeric_limits<A>::min() / std::numeric_limits<A>::epsilon();
}

// Σ e^x(c) over the classes of a pixel but k, from the logits, x.at(pixel, c). Its max and its sum stay apart, as m and
// r do: far below m, one number has no digits for both.
template <typename A, typename X>
EDGELOSS_INLINE LogSumExp<A> sum_others(const X& x, int64_t pixel, int64_t classes, int64_t k) {
  LogSumExp<A> others;
  for (int64_t c = 0; c < classes; ++c) {
    if (c != k) others.add(x.at(pixel, c));
  }
  return others;
}

// Whether e^(x - m) / r has nearly all digits for the classes of r: x - m is rounded where r is small.
template <typename A>
EDGELOSS_INLINE bool is_near(A r) {
  return r > A(1e-6);
}

// log r of a pixel whose class k is likely: its logarithm where nothing underflowed, else from the logits.
template <typename X, typename A>
EDGELOSS_INLINE A log_rest(const X& x, int64_t pixel, int64_t classes, int64_t k, A m, A r) {
  if (is_exact(r)) return log_positive(r);
  const LogSumExp<A> others = sum_others<A>(x, pixel, classes, k);
  return (others.max - m) + std::log(others.sum);
}

// t of the edge terms on the other side, b_n = log(1 - p(k)), undefined where k is likely and r underflowed.
template <typename A>
EDGELOSS_INLINE A other_term(A x_k, A m, A r) {
  A p, complement;
  probabilities(x_k, m, r, p, complement);
  return log_positive(complement) + (is_likely(x_k, m, r) ? A(0) : lost_by_rounding(-p, complement));
}
// The same everywhere, from the logits.
template <typename X, typename A>
EDGELOSS_INLINE A other_term(const X& x, int64_t pixel, int64_t classes, int64_t k, A m, A r) {
  const A x_k = x.at(pixel, k);
  if (!is_likely(x_k, m, r) || is_exact(r)) return other_term(x_k, m, r);
  return log_rest(x, pixel, classes, k, m, r) - log1p_positive(r);
}

// -log M_1 from the weighted mean of what is averaged and the mean of its complement to 1: exact near 0 and near 1.
template <typename A>
EDGELOSS_INLINE A negative_log(A mean, A complement) {
  return mean < A(0.5) ? -log_positive(mean) : -log1p_positive(-complement);
}

}  // namespace edgeloss
