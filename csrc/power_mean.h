// The edge term of one side of an edge pixel, -log M_q{e^t; w} over its neighbors there. One copy for every kernel.
//
// A neighbor n of an edge pixel i has the share
//
//     π_n = w_n e^(q t_n) / Σ w e^(q t) = e^((d - d_n) / decay + q (t_n - t) - log_sum)
//
// of the gradient, with t_n = log p_n(y_i) on the same side and log(1 - p_n(y_i)) on the other. t and d are those of
// the neighbor with the largest share, and log_sum is the logarithm of the sum of all shares over it. So no digits are
// lost, however far apart weights and terms are.
#pragma once

#include "math.h"

namespace edgeloss {

// What backward needs of one side of an edge pixel.
template <typename A>
struct Side {
  A t, d, log_sum;
};

// What is averaged: log p_n(k) of a neighbor on an edge pixel's own side, with k the class of the edge pixel, and
// log(1 - p_n(k)) of one across the edge. x: logits, x.at(pixel, class).
template <typename X, typename A>
EDGELOSS_INLINE A averaged(const X& x, int64_t n, int64_t classes, int64_t k, A m, A r, bool is_same) {
  return is_same ? log_p(x.at(n, k), m, r) : other_term(x, n, classes, k, m, r);
}

template <typename A>
struct PowerMean {
  A power, per_decay;

  // The logarithm of a share. By rounding it may be more than that of the largest: not 1e20 decays away.
  EDGELOSS_INLINE A log_share(const Side<A>& side, A t, A d) const {
    const A below = power == A(0) || t == side.t ? A(0) : t - side.t;  // both may be infinite
    return smaller_or_nan(A(0), (side.d - d) * per_decay + power * below) - side.log_sum;
  }

  // The term of a side, 0 without neighbors, and what backward needs of it. for_each calls body(t, d) for each
  // neighbor.
  template <typename F>
  EDGELOSS_INLINE A find_term(const F& for_each, Side<A>& side) const {
    A nearest = INFINITY, largest = -INFINITY;
    for_each([&](A, A d) { nearest = d < nearest ? d : nearest; });
    side = {};
    if (nearest == A(INFINITY)) return A(0);
    for_each([&](A t, A d) {
      const A v = log_weight(d, nearest) + (power == A(0) ? A(0) : power * t);
      if (!(v > largest)) return;
      largest = v;
      side = {t, d, A(0)};
    });
    const auto for_each_weighted = [&](const auto& body) {
      for_each([&](A t, A d) { body(t, exp_negative(log_weight(d, nearest)), exp_negative(log_share(side, t, d))); });
    };
    return find_value(for_each_weighted, side, nearest);
  }

 private:
  // log w over that of the nearest neighbor.
  EDGELOSS_INLINE A log_weight(A d, A nearest) const { return (nearest - d) * per_decay; }

  // The term, and log_sum. for_each calls body(t, w, share), with w over that of the nearest neighbor, and shares over
  // the largest one.
  //
  // log M = c + log(Σ w e^(q (t - c)) / Σ w) / q for any constant c. With the mean of t for c, and where the exponents
  // are small, the quotient is 1 + Σ w expm1(...) / Σ w, and no digits are lost for 1/q to magnify. Else c is the t
  // that counts most.
  template <typename F>
  EDGELOSS_INLINE A find_value(const F& for_each, Side<A>& side, A nearest) const {
    const A q = power;
    A weights = 0, mean = 0, sum = 0, largest = 0, small = 0;
    for_each([&](A t, A w, A share) {
      weights += w;
      mean += w * t;
      sum += share;
    });
    mean /= weights;
    side.log_sum = std::log(sum);
    for_each([&](A t, A, A) {
      const A exponent = std::abs(q * (t - mean));
      if (!(exponent <= largest)) largest = exponent;  // nan too
    });
    A log_m = mean;
    if (q != A(0) && largest <= A(1)) {
      for_each([&](A t, A w, A) { small += w * std::expm1(q * (t - mean)); });
      log_m += std::log1p(small / weights) / q;
    } else if (q != A(0)) {
      log_m = side.t + (side.log_sum - (std::log(weights) + (side.d - nearest) * per_decay)) / q;
    }
    return log_m > A(0) ? A(0) : A(0) - log_m;  // M ≤ 1: rounding may not make the loss negative
  }
};

}  // namespace edgeloss
