// The loops of false_edges.h.
#include "false_edges.h"

#include "vectorize.h"

namespace edgeloss {
namespace {

// e^x - 1 for x ≤ 1.
EDGELOSS_INLINE float expm1_negative(float x) { return std::abs(x) < 0.34f ? expm1_small(x) : exp_negative(x) - 1.0f; }
EDGELOSS_INLINE double expm1_negative(double x) { return std::expm1(x); }

// Calls body(i) for the places around, without the middle one in its own row.
template <typename F>
EDGELOSS_INLINE void for_each_place(int64_t reach, bool own, const F& body) {
  for (int64_t i = 0; i <= 2 * reach; ++i) {
    if (own && i == reach) continue;
    body(i);
  }
}

}  // namespace

template <typename A>
void sum_around(const A* row, int64_t n, int64_t reach, bool own, A* sum) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    for_each_place(reach, own, [=](int64_t i) EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) sum[j] += row[j + i];
    });
  });
}

template <typename A>
void least_around(const A* term, int64_t n, int64_t reach, bool own, A* least) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    for_each_place(reach, own, [=](int64_t i) EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) least[j] = term[j + i] < least[j] ? term[j + i] : least[j];
    });
  });
}

template <typename A>
void center_exponents(int64_t n, A scale, A* least) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) least[j] = scale * std::abs(least[j]) <= A(1) ? A(0) : least[j];
  });
}

template <typename A>
void sum_exponentials(const A* term, int64_t n, int64_t reach, bool own, const A* least, A scale, A* sum, A* less_one) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    for_each_place(reach, own, [=](int64_t i) EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        const bool valid = term[j + i] < A(INFINITY);
        const A v = valid ? scale * (least[j] - term[j + i]) : A(0);
        sum[j] += valid ? exp_negative(v) : A(0);
        less_one[j] += expm1_negative(v);
      }
    });
  });
}

template <typename A>
void exponential_shares(const A* arrives, const A* least, int64_t n, int64_t reach, bool own, const A* term, A scale,
                        A* sum) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    for_each_place(reach, own, [=](int64_t i) EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        const A v = scale * (least[j + i] - term[j]);
        sum[j] += arrives[j + i] * exp_negative(v < A(1) ? v : A(1));  // above 1 where nothing arrives
      }
    });
  });
}

template <typename A>
void finish_false_edges(const uint8_t* is_false, int64_t n, const Around<A>& around, A power, A* value, A* share) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    if (power == A(0)) {  // -log M_0, from the sum of the terms
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        share[j] = is_false[j] ? A(1) / around.count[j] : A(0);
        value[j] = is_false[j] ? around.sum[j] / around.count[j] : A(0);
      }
      return;
    }
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
      const A mean = around.less_one[j] / around.count[j];
      const A log_mean = mean < A(-0.5) ? log_positive(around.sum[j] / around.count[j]) : log1p_positive(mean);
      const A nll = (power < A(0) ? -around.least[j] : around.least[j]) - log_mean / power;
      value[j] = is_false[j] && nll > A(0) ? nll : A(0);
      share[j] = is_false[j] ? A(1) / around.sum[j] : A(0);
    }
  });
}

template <typename A>
void tile_terms(const A* nll, const int32_t* y, int64_t n, const FalseEdges<A>& f, A* term) {
  vectorized<A>([=, sign = f.sign(), ignored = f.ignored()]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) term[j] = y[j] < 0 ? ignored : sign * nll[j];
  });
}

#define EDGELOSS_INSTANTIATE(A)                                                                  \
  template void sum_around(const A*, int64_t, int64_t, bool, A*);                                \
  template void least_around(const A*, int64_t, int64_t, bool, A*);                              \
  template void center_exponents(int64_t, A, A*);                                                \
  template void sum_exponentials(const A*, int64_t, int64_t, bool, const A*, A, A*, A*);         \
  template void exponential_shares(const A*, const A*, int64_t, int64_t, bool, const A*, A, A*); \
  template void finish_false_edges(const uint8_t*, int64_t, const Around<A>&, A, A*, A*);        \
  template void tile_terms(const A*, const int32_t*, int64_t, const FalseEdges<A>&, A*);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
