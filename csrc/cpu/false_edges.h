// The term of false edges: the same side's at pixels that are edges of the prediction alone.
//
// Off the true edges every valid neighbor is of the pixel's own class k, so -log p(k) is there what the neighbor's
// own cross-entropy is, and that is at hand: no logits are read again. What is left are sums over windows, whole rows
// at a time. With power 0 the mean of the neighbors' cross-entropies is all, and such sums are separable.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../geometry.h"
#include "../math.h"

namespace edgeloss {

// What is kept of the false edges of a batch. `term` is the pixels' unweighted cross-entropy, 0 where ignored; with
// another power than 0 its sign is the power's, so that the neighbor that counts most has the least, and it is
// infinite where ignored.
template <typename A>
struct FalseEdges {
  A power;
  A* term;   // [B, P]; at power 0 in forward only
  A* share;  // [B, P], π of the neighbor that counts most, 0 where there is no false edge; of the rows that have one
  A* least;  // [B, P], the least term of the neighbors, or 0, of the same rows; not at power 0
  int32_t* count;  // [B, D · H], false edges of each row

  bool exist() const { return share != nullptr; }
  A sign() const { return power < A(0) ? A(-1) : A(1); }
  A ignored() const { return power == A(0) ? A(0) : A(INFINITY); }
};

// --------------------------------------------------------------------------------------------------------------- loops

// Loops over n pixels of a row. What they look at begins `reach` pixels before them and goes on as far behind them; of
// the 2 reach + 1 places around a pixel the middle one, itself, is left out in its own row (`own`).

// Adds the places around.
template <typename A>
void sum_around(const A* row, int64_t n, int64_t reach, bool own, A* sum);

template <typename A>
void least_around(const A* term, int64_t n, int64_t reach, bool own, A* least);

// Replaces least terms by 0 where the exponents need none: log Σ e^v would cancel most of a large one.
template <typename A>
void center_exponents(int64_t n, A scale, A* least);

// Adds e^v and e^v - 1 with v = -scale (term - least), of places that are not ignored.
template <typename A>
void sum_exponentials(const A* term, int64_t n, int64_t reach, bool own, const A* least, A scale, A* sum, A* less_one);

// Adds the shares of pixels of the term `term` in those around them; `arrives` is that of the one that counts most.
template <typename A>
void exponential_shares(const A* arrives, const A* least, int64_t n, int64_t reach, bool own, const A* term, A scale,
                        A* sum);

// What the neighbors of a row's pixels come to.
template <typename A>
struct Around {
  const A *count, *least, *sum, *less_one;
};

// -log M_q at the false edges, elsewhere 0, and π of the neighbor that counts most.
template <typename A>
void finish_false_edges(const uint8_t* is_false, int64_t n, const Around<A>& around, A power, A* value, A* share);

// The terms of n pixels, from -log p(y).
template <typename A>
void tile_terms(const A* nll, const int32_t* y, int64_t n, const FalseEdges<A>& f, A* term);

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
    const int64_t start = base + row * g_.width;
    A* least = f.power == A(0) ? nullptr : f.least + start;
    const auto count = [&](int64_t first, A* sum) {
      for (int64_t j = 0; j < g_.width; ++j) sum[j] += label[first + j] >= 0 ? A(1) : A(0);
    };
    sum_windows(row, count, count_.data());
    if (f.power == A(0)) {
      sum_windows(row, [&](int64_t first, A* sum) { add(f.term + base + first, sum); }, sum_.data());
    } else {
      find_exponentials(f, base, is_false, row, least);
    }
    const Around<A> around = {count_.data(), least, sum_.data(), less_one_.data()};
    finish_false_edges(is_false, g_.width, around, f.power, value, f.share + start);
  }

  // Adds to the sums of a row what the false edges around give its pixels; upstream(pixel) is what arrives at one.
  template <typename F>
  void add_shares(const FalseEdges<A>& f, int64_t image, int64_t row, const F& upstream, A* sum) {
    const int64_t base = image * g_.pixels, rows = image * g_.depth * g_.height;
    const auto arrives = [&](int64_t first, A* total) {
      if (f.count[rows + quotient(first, g_.width)] == 0) return;
      for (int64_t j = 0; j < g_.width; ++j) {
        const A share = f.share[base + first + j];
        if (share > A(0)) total[j] += share * upstream(base + first + j);  // elsewhere what arrives may be infinite
      }
    };
    if (f.power == A(0)) {
      sum_windows(row, arrives, sum_.data());
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
        exponential_shares(begin, others_.data() + x, n, reach_, first == row * g_.width, term + x, std::abs(f.power),
                           sum + x);
      });
    });
  }

 private:
  // The least term around the false edges of a row, and with it the sums of exponentials.
  void find_exponentials(const FalseEdges<A>& f, int64_t base, const uint8_t* is_false, int64_t row, A* least) {
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
    sweep([&](const A* term, int64_t x, int64_t n, bool own) { least_around(term, n, reach_, own, least + x); });
    center_exponents(g_.width, scale, least);
    sweep([&](const A* term, int64_t x, int64_t n, bool own) {
      sum_exponentials(term, n, reach_, own, least + x, scale, sum_.data() + x, less_one_.data() + x);
    });
  }

  // sum = Σ over the neighbors of each pixel of a row, of what read(first pixel of a row, sum) adds.
  template <typename F>
  void sum_windows(int64_t row, const F& read, A* sum) {
    std::fill(own_.begin(), own_.end(), A(0));
    std::fill(others_.begin(), others_.end(), A(0));
    for_each_row(g_, row, g_.radius,
                 [&](int64_t first) { read(first, (first == row * g_.width ? own_ : others_).data() + reach_); });
    std::fill_n(sum, g_.width, A(0));
    sum_around(others_.data(), g_.width, reach_, false, sum);
    sum_around(own_.data(), g_.width, reach_, true, sum);
  }

  void add(const A* row, A* sum) const {
    for (int64_t j = 0; j < g_.width; ++j) sum[j] += row[j];
  }
  void pad(const A* row, A margin, std::vector<A>& padded) const {
    std::fill(padded.begin(), padded.end(), margin);
    std::copy_n(row, g_.width, padded.begin() + reach_);
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

}  // namespace edgeloss
