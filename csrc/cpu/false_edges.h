// The term of false edges: the same side's at pixels that are edges of the prediction alone.
//
// Off the true edges every valid neighbour is of the pixel's own class k, so -log p(k) is there what the neighbour's
// own cross-entropy is, and that is at hand: no logits are read again. What is left are sums over windows, whole rows
// at a time. With power 0 the mean of the neighbours' cross-entropies is all, and such sums are separable.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../geometry.h"
#include "../math.h"
#include "tiles.h"

namespace edgeloss {
namespace {

// e^x - 1 for x ≤ 0.
EDGELOSS_INLINE float expm1_negative(float x) { return x > -0.34f ? expm1_small(x) : exp_negative(x) - 1.0f; }
EDGELOSS_INLINE double expm1_negative(double x) { return std::expm1(x); }

// What is kept of the false edges of a batch. `term` is the pixels' unweighted cross-entropy, 0 where ignored; with
// another power than 0 its sign is the power's, so that the neighbour that counts most has the least, and it is
// infinite where ignored.
template <typename A>
struct FalseEdges {
  A power;
  A* term;   // [B, P]; at power 0 in forward only
  A* share;  // [B, P], π of the neighbour that counts most, 0 where there is no false edge; of the rows that have one
  A* least;  // [B, P], the least term of the neighbours, of the same rows; not at power 0
  int32_t* count;  // [B, D · H], false edges of each row

  static int64_t numbers(double power) { return power == 0 ? 1 : 3; }

  bool exist() const { return share != nullptr; }
  A sign() const { return power < A(0) ? A(-1) : A(1); }
  A ignored() const { return power == A(0) ? A(0) : A(INFINITY); }
};

// ---------------------------------------------------------------------------------------------------------------- rows

// Loops over n pixels of a row. `from` begins `reach` pixels before them and goes on as far behind them; of the 2 reach
// + 1 places around a pixel the middle one, itself, is left out in its own row.

template <typename A>
EDGELOSS_INLINE void sum_places(const A* __restrict from, int64_t n, int64_t reach, bool own, A* __restrict sum) {
  for (int64_t i = 0; i <= 2 * reach; ++i) {
    if (own && i == reach) continue;
    for (int64_t j = 0; j < n; ++j) sum[j] += from[j + i];
  }
}

template <typename A>
EDGELOSS_INLINE void least_place(const A* __restrict term, int64_t n, int64_t reach, bool own, A* __restrict least) {
  for (int64_t i = 0; i <= 2 * reach; ++i) {
    if (own && i == reach) continue;
    for (int64_t j = 0; j < n; ++j) least[j] = term[j + i] < least[j] ? term[j + i] : least[j];
  }
}

// Adds e^v and e^v - 1 with v = -scale (term - least), of places that are not ignored.
template <typename A>
EDGELOSS_INLINE void exponentials(const A* __restrict term, int64_t n, int64_t reach, bool own,
                                  const A* __restrict least, A scale, A* __restrict sum, A* __restrict less_one) {
  for (int64_t i = 0; i <= 2 * reach; ++i) {
    if (own && i == reach) continue;
    for (int64_t j = 0; j < n; ++j) {
      const bool valid = term[j + i] < A(INFINITY);
      const A v = valid ? scale * (least[j] - term[j + i]) : A(0);
      sum[j] += valid ? exp_negative(v) : A(0);
      less_one[j] += expm1_negative(v);
    }
  }
}

// Adds the shares of pixels of the term `term` in those around them, of which `arrives` has the largest.
template <typename A>
EDGELOSS_INLINE void exponential_shares(const A* __restrict arrives, const A* __restrict least, int64_t n,
                                        int64_t reach, bool own, const A* __restrict term, A scale, A* __restrict sum) {
  for (int64_t i = 0; i <= 2 * reach; ++i) {
    if (own && i == reach) continue;
    for (int64_t j = 0; j < n; ++j) {
      const A v = scale * (least[j + i] - term[j]);
      sum[j] += arrives[j + i] * exp_negative(v < A(0) ? v : A(0));  // above 0 where nothing arrives
    }
  }
}

// -log M_q at the false edges, elsewhere 0, and π of the neighbour that counts most.
template <typename A>
EDGELOSS_INLINE void finish_exponentials(const uint8_t* __restrict is_false, int64_t n, const A* __restrict count,
                                         const A* __restrict least, const A* __restrict sum,
                                         const A* __restrict less_one, A power, A* __restrict value,
                                         A* __restrict share) {
  for (int64_t j = 0; j < n; ++j) {
    const A mean = less_one[j] / count[j];
    const A log_mean = mean < A(-0.5) ? log_positive(sum[j] / count[j]) : log1p_positive(mean);
    const A nll = (power < A(0) ? -least[j] : least[j]) - log_mean / power;
    value[j] = is_false[j] && nll > A(0) ? nll : A(0);
    share[j] = is_false[j] ? A(1) / sum[j] : A(0);
  }
}

// The same of M_0, from the sum of the terms.
template <typename A>
EDGELOSS_INLINE void finish_sums(const uint8_t* __restrict is_false, int64_t n, const A* __restrict count,
                                 const A* __restrict sum, A* __restrict value, A* __restrict share) {
  for (int64_t j = 0; j < n; ++j) {
    share[j] = is_false[j] ? A(1) / count[j] : A(0);
    value[j] = is_false[j] ? sum[j] / count[j] : A(0);
  }
}

template <typename A>
EDGELOSS_INLINE void terms_of_labels(const A* __restrict nll, const int32_t* __restrict y, int64_t n, A sign, A ignored,
                                     A* __restrict term) {
  for (int64_t j = 0; j < n; ++j) term[j] = y[j] < 0 ? ignored : sign * nll[j];
}

EDGELOSS_VECTORIZED void find_sum_around(const float* from, int64_t n, int64_t reach, bool own, float* sum) {
  sum_places(from, n, reach, own, sum);
}
EDGELOSS_VECTORIZED void find_least_around(const float* term, int64_t n, int64_t reach, bool own, float* least) {
  least_place(term, n, reach, own, least);
}
EDGELOSS_VECTORIZED void find_exponentials(const float* term, int64_t n, int64_t reach, bool own, const float* least,
                                           float scale, float* sum, float* less_one) {
  exponentials(term, n, reach, own, least, scale, sum, less_one);
}
EDGELOSS_VECTORIZED void find_exponential_shares(const float* arrives, const float* least, int64_t n, int64_t reach,
                                                 bool own, const float* term, float scale, float* sum) {
  exponential_shares(arrives, least, n, reach, own, term, scale, sum);
}
EDGELOSS_VECTORIZED void finish_false_edges(const uint8_t* is_false, int64_t n, const float* count, const float* least,
                                            const float* sum, const float* less_one, float power, float* value,
                                            float* share) {
  if (power == 0.0f) return finish_sums(is_false, n, count, sum, value, share);
  finish_exponentials(is_false, n, count, least, sum, less_one, power, value, share);
}
EDGELOSS_VECTORIZED void tile_terms(const float* nll, const int32_t* y, int64_t n, float sign, float ignored,
                                    float* term) {
  terms_of_labels(nll, y, n, sign, ignored, term);
}

inline void find_sum_around(const double* from, int64_t n, int64_t reach, bool own, double* sum) {
  sum_places(from, n, reach, own, sum);
}
inline void find_least_around(const double* term, int64_t n, int64_t reach, bool own, double* least) {
  least_place(term, n, reach, own, least);
}
inline void find_exponentials(const double* term, int64_t n, int64_t reach, bool own, const double* least, double scale,
                              double* sum, double* less_one) {
  exponentials(term, n, reach, own, least, scale, sum, less_one);
}
inline void find_exponential_shares(const double* arrives, const double* least, int64_t n, int64_t reach, bool own,
                                    const double* term, double scale, double* sum) {
  exponential_shares(arrives, least, n, reach, own, term, scale, sum);
}
inline void finish_false_edges(const uint8_t* is_false, int64_t n, const double* count, const double* least,
                               const double* sum, const double* less_one, double power, double* value, double* share) {
  if (power == 0.0) return finish_sums(is_false, n, count, sum, value, share);
  finish_exponentials(is_false, n, count, least, sum, less_one, power, value, share);
}
inline void tile_terms(const double* nll, const int32_t* y, int64_t n, double sign, double ignored, double* term) {
  terms_of_labels(nll, y, n, sign, ignored, term);
}

// -------------------------------------------------------------------------------------------------------------- images

// Goes through the rows of an image's windows, with room for what it needs.
template <typename A>
class RowWindows {
 public:
  explicit RowWindows(const Geometry& g)
      : g_(g),
        reach_(std::min(g.radius[2], g.width)),
        own_(g.width + 2 * reach_),
        others_(g.width + 2 * reach_),
        count_(g.width),
        sum_(g.width),
        less_one_(g.width) {}

  // value = the term at the false edges of a row, 0 elsewhere; leaves to backward what it needs. `base` is the number
  // of the image's first pixel, `label` its labels, is_false the row's mask.
  void find_terms(const FalseEdges<A>& f, int64_t base, const int16_t* label, const uint8_t* is_false, int64_t row,
                  A* value) {
    A *share = f.share + base + row * g_.width, *least = nullptr;
    sum_around(
        row,
        [&](int64_t first, A* to) {
          for (int64_t j = 0; j < g_.width; ++j) to[j] += label[first + j] >= 0 ? A(1) : A(0);
        },
        count_.data());
    if (f.power == A(0)) {
      sum_around(row, [&](int64_t first, A* to) { add(f.term + base + first, to); }, sum_.data());
    } else {
      least = f.least + base + row * g_.width;
      std::fill_n(least, g_.width, A(INFINITY));
      std::fill(sum_.begin(), sum_.end(), A(0));
      std::fill(less_one_.begin(), less_one_.end(), A(0));
      const A scale = std::abs(f.power);
      const auto sweep = [&](const auto& body) {
        for_each_row(g_, row, g_.radius, [&](int64_t first) {
          pad(f.term + base + first, A(INFINITY), own_);
          for_each_part([&](int64_t x, int64_t n) {
            if (std::find(is_false + x, is_false + x + n, 1) == is_false + x + n) return;
            body(own_.data() + x, x, n, first == row * g_.width);
          });
        });
      };
      sweep([&](const A* of, int64_t x, int64_t n, bool own) { find_least_around(of, n, reach_, own, least + x); });
      sweep([&](const A* of, int64_t x, int64_t n, bool own) {
        find_exponentials(of, n, reach_, own, least + x, scale, sum_.data() + x, less_one_.data() + x);
      });
    }
    finish_false_edges(is_false, g_.width, count_.data(), least, sum_.data(), less_one_.data(), f.power, value, share);
  }

  // Adds to the sums of a row what the false edges around give its pixels; upstream(pixel) is what arrives at one.
  template <typename F>
  void add_shares(const FalseEdges<A>& f, int64_t image, int64_t row, const F& upstream, A* sum) {
    const int64_t base = image * g_.pixels, rows = image * g_.depth * g_.height;
    const auto arrives = [&](int64_t first, A* to) {
      if (f.count[rows + quotient(first, g_.width)] == 0) return;
      for (int64_t j = 0; j < g_.width; ++j) {
        const A share = f.share[base + first + j];
        if (share > A(0)) to[j] += share * upstream(base + first + j);  // elsewhere what arrives may be infinite
      }
    };
    if (f.power == A(0)) {
      sum_around(row, arrives, sum_.data());
      add(sum_.data(), sum);
      return;
    }
    const A* term = f.term + base + row * g_.width;
    for_each_row(g_, row, g_.radius, [&](int64_t first) {
      if (f.count[rows + quotient(first, g_.width)] == 0) return;
      std::fill(own_.begin(), own_.end(), A(0));
      arrives(first, own_.data() + reach_);
      pad(f.least + base + first, A(0), others_);
      for_each_part([&](int64_t x, int64_t n) {
        const A *begin = own_.data() + x, *end = begin + n + 2 * reach_;
        if (std::all_of(begin, end, [](A share) { return share == A(0); })) return;
        find_exponential_shares(begin, others_.data() + x, n, reach_, first == row * g_.width, term + x,
                                std::abs(f.power), sum + x);
      });
    });
  }

 private:
  // sum = Σ over the neighbours of each pixel of a row, of what read(first pixel of a row, to) adds.
  template <typename F>
  void sum_around(int64_t row, const F& read, A* sum) {
    std::fill(own_.begin(), own_.end(), A(0));
    std::fill(others_.begin(), others_.end(), A(0));
    for_each_row(g_, row, g_.radius,
                 [&](int64_t first) { read(first, (first == row * g_.width ? own_ : others_).data() + reach_); });
    std::fill_n(sum, g_.width, A(0));
    find_sum_around(others_.data(), g_.width, reach_, false, sum);
    find_sum_around(own_.data(), g_.width, reach_, true, sum);
  }

  void add(const A* from, A* to) const {
    for (int64_t j = 0; j < g_.width; ++j) to[j] += from[j];
  }
  void pad(const A* row, A margin, std::vector<A>& to) const {
    std::fill(to.begin(), to.end(), margin);
    std::copy_n(row, g_.width, to.begin() + reach_);
  }
  // Parts of a row that are looked through by themselves: most have no false edge.
  template <typename F>
  void for_each_part(const F& body) const {
    for (int64_t x = 0; x < g_.width; x += 32) body(x, std::min<int64_t>(32, g_.width - x));
  }

  const Geometry& g_;
  int64_t reach_;
  std::vector<A> own_, others_, count_, sum_, less_one_;
};

}  // namespace
}  // namespace edgeloss
