// The work at the edges, vectorized: the windows of many edge pixels are laid side by side, in lanes.
//
// A window has a few rows, and in each of them a few pixels next to each other. `Lanes` holds one row of each window:
// that at the same offset from each of the edge pixels. Forward adds up over these rows; backward adds what is in the
// lanes to the pixels that they show.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "../math.h"

namespace edgeloss {

// An integer as wide as a number.
template <typename A>
using Bits = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;

constexpr int64_t kEdges = 64;  // edge pixels at a time, at most

// Numbers of each lane, [edge pixel, width]. A lane that is no neighbor has the label -1, and what else stands there
// is not used.
template <typename A>
struct LaneArrays {
  // Of the edge pixels' sides; what is known beforehand is repeated on all lanes of an edge pixel.
  struct OneSide {
    A* nearest;                     // the least d
    A *sum, *rest;                  // forward: Σ w P and Σ w (1 - P), or Σ w t and Σ w
    A *upstream, *first, *log_sum;  // backward: upstream is multiplied by `inverse` where there is one
    A* share;                       // backward: what a neighbor gets, but for factors that are the same for all classes
  };

  int32_t *label, *k;             // of the neighbor, and of the edge pixel
  int32_t* other_class;           // the class that `log_other` is of
  A *x, *m, *r, *d;               // logit of class k; m and r; distance
  A* t;                           // log P
  A* log_other;                   // log(1 - p) of other_class
  A *first_logit, *second_logit;  // both of them, where m and r are not kept
  OneSide same, other;
};

enum class Pass { kForward, kBackward };

template <typename A>
struct Lanes : LaneArrays<A> {
  int64_t radius, width;       // width: 2 radius + 1 pixels, and some to fill vectors up
  int64_t edges;               // edge pixels at a time
  std::vector<int64_t> first;  // the pixel in an edge pixel's first lane, or -1: none of that row is wanted
  std::vector<uint8_t> is_unknown;
  // -1 on the lanes that are none of its neighbors, by [its own row?][where it stands among its lanes][lane]; of wide
  // windows it is computed each time.
  std::vector<int32_t> outside;

  Lanes(Pass pass, int64_t reach, int64_t row_width);

 private:
  std::vector<A> numbers_;
  std::vector<int32_t> labels_;
};

// Width numbers as one vector: the compiler does not see by itself that the lanes of an edge pixel make one.
template <typename V, int64_t Width>
struct Vector {
  typedef V type __attribute__((vector_size(Width * sizeof(V))));
};
template <typename V, int64_t Width>
using VectorOf = typename Vector<V, Width>::type;

// By reference: how vectors are passed by value depends on the processor.
template <typename Vec, typename V>
EDGELOSS_INLINE void load(const V* from, Vec& v) {
  std::memcpy(&v, from, sizeof(v));
}
template <typename Vec, typename V>
EDGELOSS_INLINE void store(const Vec& v, V* memory) {
  std::memcpy(memory, &v, sizeof(v));
}
template <int64_t Width, typename V>
EDGELOSS_INLINE void add_to(const V* value, V* sum) {
  VectorOf<V, Width> a, b;
  load(value, a);
  load(sum, b);
  store(a + b, sum);
}

// Copies n labels of a row from x on, -1 outside of it. Not inlined: what it computes would be done for each vector.
__attribute__((noinline, cold)) inline void copy_labels(const int16_t* row, int64_t x, int64_t width, int64_t n,
                                                        int16_t* labels) {
  for (int64_t j = 0; j < n; ++j) labels[j] = x + j >= 0 && x + j < width ? row[x + j] : int16_t(-1);
}

// The labels of the pixels of a row from x on, -1 outside of it.
template <int64_t Width>
EDGELOSS_INLINE void load_labels(const int16_t* row, int64_t x, int64_t width, VectorOf<int16_t, Width>& labels) {
  if (__builtin_expect(x >= 0 && x + Width <= width, 1)) {
    load(row + x, labels);
  } else {
    int16_t part[Width];
    copy_labels(row, x, width, Width, part);
    load(part, labels);
  }
}

// Calls body(width), a constant where the compiler is to know it, else 0.
template <typename F>
EDGELOSS_INLINE void with_width(int64_t width, const F& body) {
  if (width == 4) {
    body(std::integral_constant<int64_t, 4>());
  } else if (width == 8) {
    body(std::integral_constant<int64_t, 8>());
  } else {
    body(std::integral_constant<int64_t, 0>());
  }
}

// Repeats each of n numbers on `width` lanes.
template <typename V>
void repeat_each(const V* value, int64_t n, int64_t width, V* lanes) {
  with_width(width, [&](auto constant) __attribute__((always_inline)) {
    constexpr int64_t kWidth = decltype(constant)::value;
    if constexpr (kWidth > 0) {
      for (int64_t e = 0; e < n; ++e) store(value[e] - VectorOf<V, kWidth>{}, lanes + e * kWidth);
    } else {
      for (int64_t e = 0; e < n; ++e) std::fill_n(lanes + e * width, width, value[e]);
    }
  });
}

// Adds up the lanes of each of n edge pixels.
template <typename A>
void add_lanes(const A* lanes, int64_t n, int64_t width, A* sum);

template <typename A>
void negate(A* value, int64_t n);

// Makes log P of t, which holds -log p(y) of the neighbors: on the other side their `log_other`. Sets is_unknown where
// that is of another class than k, and returns whether it is anywhere.
template <typename A>
bool known_terms(const LaneArrays<A>& lanes, int64_t n, uint8_t* is_unknown);

// log(1 - p(k)) of n pixels, of math.h. True if one of them is undefined, as below.
template <typename A>
bool other_terms(const A* x, const A* m, const A* r, int64_t n, A* t);

// What the loops below need of a call.
template <typename A>
struct LaneOptions {
  A power, inverse_decay;
  bool has_decay;
};

// nearest = the least d on each side, of the rows so far.
template <typename A>
void least_distance(const LaneArrays<A>& lanes, int64_t n);

// Adds Σ w P and Σ w (1 - P) of each side, where P is p(k) on the same side and 1 - p(k) on the other.
template <typename A>
void sum_probabilities(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options);

// t: log p(k) on the same side, log(1 - p(k)) on the other, of math.h. True if one of them is undefined, since r
// underflowed and the max is k.
template <typename A>
bool log_terms(const LaneArrays<A>& lanes, int64_t n);

// Adds Σ w t and Σ w of each side.
template <typename A>
void sum_logs(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options);

// upstream · π of each neighbor, where the means are plain ones: of logarithms (power 0), which read no logits, or of
// probabilities.
template <typename A>
void mean_shares(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options);

// The same where they were computed by logarithms.
template <typename A>
void log_shares(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options);

// value *= the other side's slope, from the logit x of class k.
template <typename A>
void multiply_by_slopes(const A* x, const A* m, const A* r, int64_t n, A* value);

// The terms of the windows of `count` edge pixels, [place in the window, edge pixel].
template <typename A>
struct WindowTerms {
  int64_t count;
  std::vector<A> t, d;
  std::vector<int32_t> side;  // 0 on the same side, 1 on the other, -1: no neighbor

  int64_t places() const { return static_cast<int64_t>(t.size()) / count; }
};

// -log M_q of one side, as negative_log_mean of math.h has it, and what backward needs of it.
template <typename A>
void power_means(const WindowTerms<A>& terms, int side, const LaneOptions<A>& options, A* value, Side<A>* sides);

// -log M_0 of n sides from Σ w t and Σ w, and 1 / Σ w for backward.
template <typename A>
void finish_logs(const A* sum, const A* weights, int64_t n, A* value, A* inverse);

// -log M_1 of n sides from Σ w P and Σ w (1 - P), and 1 / Σ w P for backward: 0 where A can't hold it.
template <typename A>
void finish_means(const A* mean, const A* complement, int64_t n, A* value, A* inverse);

}  // namespace edgeloss
