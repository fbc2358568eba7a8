// Labels -> the weights of the edge terms. With power 0, for the edge pixels i with the neighbors N(i) and weights v,
//
//     Σ_E v S = Σ_n A_n · -log p_n(y_n)              A_n    = w_n · Σ { v_i / D_i  : i ∈ N(n), y_i = y_n }
//     Σ_E v O = Σ_n Σ_k B_n(k) · -log(1 - p_n(k))    B_n(k) = w_n · Σ { v_i / D'_i : i ∈ N(n), y_i = k ≠ y_n }
//
// where D_i and D'_i are Σ w over the neighbors of i on the same side and on the other. So the sums over the edge
// pixels of class c alone are those over A_n with y_n = c, and over B_n(c).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "../geometry.h"
#include "../labels.h"
#include "distances.h"
#include "slabs.h"
#include "vectorize.h"

namespace edgeloss {

constexpr int64_t kGroup = 8;  // pixels of a row that are looked at together

// B_n(k) of one pixel and class.
template <typename A>
struct OtherWeight {
  int32_t place;  // of the pixel in its slab
  int32_t k;
  A weight;
};

// Of a slab.
template <typename A>
struct SlabWeights {
  std::vector<A> same_side;            // A_n, by place
  std::vector<A> other_side;           // B_n of two classes, by place
  std::vector<OtherWeight<A>> others;  // B_n(k) of more classes, in the order of places: up to C - 1 per pixel
  bool any;                            // whether there is an edge nearby; else nothing is set

  void clear() {
    any = false;
    others.clear();
  }
  void start(int64_t pixels, int64_t classes) {
    any = true;
    same_side.assign(pixels + kGroup, A(0));  // whole groups are written
    if (classes == 2) other_side.assign(pixels + kGroup, A(0));
  }
};

// What counts for the edge pixels of a slab.
struct EdgeTotals {
  std::vector<int64_t> counts;  // of edge pixels, per class; then of others
  std::vector<double> weights;  // Σ v of edge pixels, per class
};

// Adds numbers of classes to a sum of each, those of a run of one class first: the roundings of a long sum of nearly
// equal numbers may all have the same sign.
class RunSum {
 public:
  explicit RunSum(double* sums) : sums_(sums) {}
  RunSum(const RunSum&) = delete;
  ~RunSum() { end(); }

  void add(int64_t c, double value) {
    if (c != class_) end();
    class_ = c;
    run_ += value;
  }

 private:
  void end() {
    if (class_ >= 0) sums_[class_] += run_;
    run_ = 0;
  }

  double *sums_, run_ = 0;
  int64_t class_ = -1;
};

// What the weights of an image come from.
template <typename A>
struct LabelMap {
  const int16_t* label;   // kIgnored where a pixel does not count
  const A* pixel_weight;  // or null
  const A* field;         // d, or null: all neighbors weigh the same
  A per_decay;
};

// Calls body(i) for each i where found[i] is 1, else 0; reads up to 7 bytes more.
template <typename F>
EDGELOSS_INLINE void for_each_found(const uint8_t* found, int64_t n, const F& body) {
  for (int64_t first = 0; first < n; first += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, found + first, sizeof(bytes));
    if (n - first < 8) bytes &= (uint64_t(1) << 8 * (n - first)) - 1;
    for (; bytes; bytes &= bytes - 1) body(first + __builtin_ctzll(bytes) / 8);
  }
}

// Pixels of an image, [first, last) along each axis.
struct Extent {
  int64_t first[3], last[3];
};

// Calls body(slice, row) for each row of a region.
template <typename F>
void for_each_row(const Extent& region, const F& body) {
  for (int64_t z = region.first[0]; z < region.last[0]; ++z) {
    for (int64_t y = region.first[1]; y < region.last[1]; ++y) body(z, y);
  }
}

// Where the numbers of the pixels of a region lie, and of so many pixels more on either side along each axis: in rows.
struct Box {
  int64_t origin[3], step[3], count;

  Box() = default;
  Box(const Extent& region, const int64_t* margin) {
    for (int a = 2; a >= 0; --a) {
      origin[a] = region.first[a] - margin[a];
      step[a] = a == 2 ? 1 : count;
      count = step[a] * (region.last[a] + margin[a] - origin[a]);
    }
  }
  int64_t at(int64_t z, int64_t y, int64_t x) const {
    return (z - origin[0]) * step[0] + (y - origin[1]) * step[1] + x - origin[2];
  }
};

// Numbers for the neighbors on a pixel's own side, and on the other side of the edge.
template <typename A>
struct TwoSides {
  A *same_side, *other_side;
};

// As wide as the numbers that are chosen by comparisons of labels.
template <typename A>
using WideLabel = std::conditional_t<std::is_same_v<A, double>, int64_t, int32_t>;

// Forms the weights of slabs, one after another, in memory of its own.
template <typename A>
class EdgeWindows {
 public:
  explicit EdgeWindows(const Geometry& g);

  // weights and totals: each may be null.
  void form(const LabelMap<A>& map, const Slab& slab, SlabWeights<A>* weights, EdgeTotals* totals);

  // Writes d of the pixels of a slab that are near an edge to `field`, that of the image.
  void find_distances(const int16_t* label, const Slab& slab, const Moves& moves, A* field);

 private:
  using Flags = std::vector<uint8_t>;
  using Others = std::vector<OtherWeight<A>>;

  Extent expanded(const Extent& region) const;
  void start(const int16_t* label, const Slab& slab);
  void compare(const int16_t* label);
  bool find_groups(const Extent& region, int64_t reach, Flags& found);
  template <typename F>
  void for_each_flagged(const Extent& region, const uint8_t* groups, const F& body) const;
  void load(const LabelMap<A>& map, const Extent& region, const int64_t* margin);
  void add_around(const Extent& region, const Flags& groups, const TwoSides<A>& from, const TwoSides<A>& to,
                  Others* others);
  void add_by_neighbor(const Extent& block, const uint8_t* groups, const TwoSides<A>& from, const TwoSides<A>& to,
                       Others* others);
  void list_others(int64_t i, int32_t place, Others& others);
  void find_classes(const Extent& block);
  void add_by_class(const Extent& block, const TwoSides<A>& from, const TwoSides<A>& to, Others* others);
  void divide_sides(const LabelMap<A>& map, EdgeTotals* totals);
  void count(const WideLabel<A>* label, const A* v, const uint8_t* groups, bool has_weights, EdgeTotals& totals) const;
  void write(SlabWeights<A>& weights) const;

  const Geometry& g_;
  int64_t neighbors_, groups_, columns_;  // of a window; of a row; of a block
  Slab slab_;
  Extent inner_, edges_, all_;             // the slab, the edge pixels that its weights come from, and what these see
  Flags differs_;                          // of a row: whether a pixel and the next one have other labels
  std::vector<int16_t> first_, steps_[2];  // of each group: its first label; a bit per step in reach of 1 or 2 windows
  Flags edge_groups_, near_groups_;        // where edge pixels may be, and what they give may be
  Box box_;                                // of the numbers of pixels that follow
  std::vector<WideLabel<A>> label_, other_;  // other_: the class across the edge, kIgnored if there are several
  std::vector<A> numbers_;
  A *w_, *v_;                     // w is 0 where a pixel does not count, v -1 where no edge pixel is
  TwoSides<A> sums_, scales_;     // D and D', then v / D and v / D' of edge pixels; what these give
  std::vector<int64_t> offsets_;  // of neighbors
  std::vector<size_t> newest_;    // of each class, its last place in a list
  std::vector<int32_t> classes_;  // of a block
  std::vector<A> sums_of_class_;
};

}  // namespace edgeloss
