// Labels -> the weights of the edge terms. With power 0, for the edge pixels i with the neighbors N(i), and with u_i
// the product of the pixel's weight and its class's,
//
//     Σ_E u S = Σ_n A_n · -log p_n(y_n)              A_n    = w_n · Σ { u_i / D_i  : i ∈ N(n), y_i = y_n }
//     Σ_E u O = Σ_n Σ_k B_n(k) · -log(1 - p_n(k))    B_n(k) = w_n · Σ { u_i / D'_i : i ∈ N(n), y_i = k ≠ y_n }
//
// where D_i and D'_i are Σ w over the neighbors of i on its own side and across the edge.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../geometry.h"
#include "../labels.h"
#include "slabs.h"
#include "vectorize.h"

namespace edgeloss {

// B_n(k) of one pixel and class.
template <typename A>
struct OtherWeight {
  int32_t place;  // of the pixel in its slab
  int32_t k;
  A weight;
};

// Of a slab.
template <typename A>
struct EdgeWeights {
  std::vector<A> same;                 // A_n, by place
  std::vector<A> other;                // B_n of two classes, by place
  std::vector<OtherWeight<A>> others;  // B_n(k) of more classes, in the order of places
  bool any;                            // whether there is an edge nearby; else nothing is set

  void clear() {
    any = false;
    others.clear();
  }
  void start(int64_t pixels, int64_t classes) {
    any = true;
    same.assign(pixels, A(0));
    if (classes == 2) other.assign(pixels, A(0));
  }
};

// What counts for the edge pixels of a slab.
struct EdgeTotals {
  double weight = 0;            // Σ_E u
  std::vector<int64_t> counts;  // of edge pixels, per class
};

// What the weights of an image come from.
template <typename A>
struct LabelMap {
  const int16_t* label;   // kIgnored where a pixel does not count
  const A* pixel_weight;  // or null
  const A* class_weight;  // of each class, or null
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

// Whether all labels of a box of an image, [first, last) along each axis, are the same.
bool is_uniform(const Geometry& g, const int16_t* label, const int64_t* first, const int64_t* last);

// A block of the pixels of a slab, [first, last) along each axis, in a box of the image with a margin, where numbers
// lie in rows. The inner pixels of the box, from `begin` to `end`, see no pixel outside.
struct Box {
  int64_t first[3], last[3], origin[3], size[3], step[3], radius[3], count, begin, end;

  int64_t at(int64_t z, int64_t y, int64_t x) const {
    return (z - origin[0]) * step[0] + (y - origin[1]) * step[1] + x - origin[2];
  }
  // Calls body(slice, row, where it begins) for each row of the block.
  template <typename F>
  EDGELOSS_INLINE void for_each_row(const F& body) const {
    for (int64_t z = first[0]; z < last[0]; ++z) {
      for (int64_t y = first[1]; y < last[1]; ++y) body(z, y, at(z, y, first[2]));
    }
  }
};

// Numbers for the neighbors on a pixel's own side, and across the edge.
template <typename A>
struct TwoSides {
  A *same, *across;
};

// Numbers of each pixel of a box: w, 0 where a pixel does not count; u, which is -1 where no edge pixel is; the sums D
// and D', and then in their places u / D and u / D' of edge pixels, 0 elsewhere; what these give to the pixels around
// them. The rest is for sums.
template <typename A>
struct BoxNumbers {
  int32_t* label;
  A *w, *u;
  TwoSides<A> sums, given;
  A *chosen, *sum, *part, *sides[2], *all[2];
};

// Forms the weights of slabs, one after another, in memory of its own.
template <typename A>
class EdgeWindows {
 public:
  explicit EdgeWindows(const Geometry& g) : g_(g) {}

  // weights and totals: each may be null.
  void form(const LabelMap<A>& map, const Slab& slab, EdgeWeights<A>* weights, EdgeTotals* totals);

 private:
  Box box_around(const Slab& slab, int64_t first_column, int64_t last_column);
  void load(const LabelMap<A>& map, const Box& box);
  void find_edges(const Box& box, const A* class_weight);
  void count_edges(const Box& box, EdgeTotals& totals);
  void give(const Box& box, const Slab& slab);
  void list_others(const Box& box, const Slab& slab);
  void write(const Box& box, const Slab& slab, EdgeWeights<A>& weights) const;
  void sort(int64_t pixels, std::vector<OtherWeight<A>>& others);

  const Geometry& g_;
  bool by_neighbor_ = false;      // whether the neighbors of a box are looked at one by one
  std::vector<int64_t> offsets_;  // then those of the neighbors of a pixel
  std::vector<A> numbers_;
  std::vector<int32_t> labels_, starts_, classes_;  // classes_: those of the box
  std::vector<uint8_t> found_;
  BoxNumbers<A> box_;
  std::vector<OtherWeight<A>> unsorted_;
  std::vector<int64_t> newest_;  // of each class, its last place in unsorted_
};

}  // namespace edgeloss
