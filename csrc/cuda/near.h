// What edge pixels give the pixels of a tile around them, for the gradient: a block lists those that are near edge
// pixels, each of its threads takes one of them after another, and leaves their factors in shared memory.
#pragma once

#include <climits>
#include <cstdint>

#include "gradient.h"

namespace edgeloss {

constexpr int kClassesAround = 2;  // other classes of edge pixels around a pixel, collected at a time

// Sums for the lowest classes of those that come.
template <typename A>
struct Shares {
  int k[kClassesAround];  // ascending, INT_MAX where there is none
  A sum[kClassesAround];
  bool more = false;  // there were others

  __device__ Shares() {
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) k[s] = INT_MAX;
  }
  __device__ A at(int c) const {
    A value = 0;
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) value = k[s] == c ? sum[s] : value;
    return value;
  }
  __device__ int highest() const { return k[kClassesAround - 1]; }
  __device__ void add(int c, A value) {
    bool known = false;
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) {
      if (k[s] != c) continue;
      sum[s] += value;
      known = true;
    }
    if (known) return;
    // Insert it, and carry on what it displaces.
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) {
      if (c > k[s]) continue;
      const int displaced = k[s];
      const A displaced_sum = sum[s];
      k[s] = c;
      sum[s] = value;
      c = displaced;
      value = displaced_sum;
    }
    more |= c != INT_MAX;
  }
};

// Writes the gradient of all classes of a pixel, if it is wanted: more other classes than fit at a time take several
// rounds, each for those above the last. kLogMeans: the power is 0.
template <bool kLogMeans, typename T, typename A>
__device__ __forceinline__ void rewrite(const Call<T, A, false>& call, const Upstream<A>& upstream,
                                        const GradientOutput<T>& output, const Tile& tile, int p, bool wanted) {
  int floor = -1;
#pragma unroll 1
  while (wanted) {
    const Place at = tile.place(p);
    const int64_t i = at.base + at.pixel;
    const int16_t y = call.class_at(i);
    const auto x = call.image(at.image);
    const int classes = static_cast<int>(call.g.classes);
    const A m = call.max_at(i), r = call.r[i];
    const bool is_first = floor < 0;
    PixelGradient<A> all(call, upstream, at.image, i, y, call.smoothed_weight(at.image));
    Shares<A> shares;  // Σ π · slope for the others
    A others = 0;
    all.template add_edges<kLogMeans>(
        call, upstream, at, y, x, m, r, [](int) { return true; },
        [&](int k, A value) {
          others += value;
          if (k > floor) shares.add(k, value);
        });
    all.alpha -= others;
    const ClassGradient<A> gradient(all, x, at.pixel, classes, m, r);
#pragma unroll 1
    for (int c = 0; c < classes; ++c) {
      const A share = shares.at(c), logit = x.at(at.pixel, c);
      if (!is_first && (share == A(0) || c <= floor)) continue;
      const A value = gradient.of(c, y, logit, [&](int64_t k) { return call.weight_of(at.image, k); }) + share;
      output.store(x.binary, at.image, at.pixel, c, value);
    }
    floor = shares.highest();
    wanted = shares.more;
  }
}

// A tile's pixels near edge pixels: their gradient is factor · e^(x(c) - m), less at_y for class y, and of_k for the
// class of the edge pixels around that is another one.
template <typename A>
struct NearPixels {
  static constexpr int16_t kNoClass = -1, kManyClasses = -2;  // of_k is of none; rewrite() has to
  uint32_t bits[kTileWords];
  uint16_t places[kTilePixels];
  int16_t k[kTilePixels];
  A factor[kTilePixels], at_y[kTilePixels], of_k[kTilePixels];
  int count;

  // Finds them, and returns how many they are. kThree: windows are 3 × 3 pixels.
  template <bool kThree, typename C>
  __device__ __forceinline__ int list(const C& call, const Tile& tile) {
    return list_places(places,
                       [&](int w) { return bits[w] = near_edges<kThree>(call.g, tile, call.tiles, call.edges, w); });
  }
};

// What edge pixels around a pixel give it.
template <typename A>
struct EdgeShares {
  A same = 0, other = 0;  // Σ π of those of its class; Σ π · slope of those of class k
  int k = -1;             // another class, or -1
  bool likely = false;    // it is
  bool several = false;   // there are others still
};

// The factor of e^(x(c) - m) in the gradient of all classes but k, and that of class k.
template <typename A>
struct NearFactor {
  A scale, value;
  bool is_far;  // it takes more than a factor

  __device__ NearFactor(A alpha, const EdgeShares<A>& shares, A r)
      : scale(ratio(alpha + shares.same - (shares.likely ? A(0) : shares.other), A(1) + r)),
        // ∂O = -π p(k) e^(x(c) - m) / r for the other classes where k is likely; 1 / r may be too large, and r
        // underflow.
        is_far(shares.likely && !is_near(r)) {
    value = shares.likely && !is_far ? scale - ratio(shares.other, r) : scale;
  }
};

// Windows of 3 × 3 pixels, with power 0, without decay and weights of pixels. kPair: of two classes, where both sides'
// terms are those of the pixel's own class.
template <bool kPair, typename C, typename A>
__device__ __forceinline__ EdgeShares<A> gather_three(const C& call, const Upstream<A>& upstream, const Tile& tile,
                                                      const Place& at, int y, A m, A r) {
  const int row = static_cast<int>(at.row), column = static_cast<int>(at.column);
  const int i = tile.base + static_cast<int>(at.pixel);
  const bool exists[3] = {column > 0, true, column < tile.columns - 1};
  A inverses[2] = {};                     // of both sides, from edge pixels of class y and of others
  int lowest = kClassBits, highest = -1;  // of the other classes
#pragma unroll 1
  for (int dy = row > 0 ? -1 : 0; dy <= 1 && row + dy < tile.rows; ++dy) {
    const int64_t center = i + dy * tile.columns;
    const uint16_t* label = call.label_bits() + center;
    const A* same = call.sides + center;
    const A* other = same + call.count();
#pragma unroll
    for (int dx = -1; dx <= 1; ++dx) {
      const int bits = exists[dx + 1] && (dx != 0 || dy != 0) ? label[dx] : kIgnoredBits, k = bits & kClassBits;
      const bool edge = is_edge_of_bits(bits), is_other = k != y;
      const A inverse = edge ? (is_other ? other : same)[dx] : A(0);
      inverses[0] += is_other ? A(0) : inverse;
      inverses[1] += is_other ? inverse : A(0);
      if constexpr (!kPair) {
        lowest = edge && is_other ? std::min(lowest, k) : lowest;
        highest = edge && is_other ? std::max(highest, k) : highest;
      }
    }
  }
  EdgeShares<A> shares;
  const A of_same = upstream.of_sum(Row::kSameSide), of_other = upstream.of_sum(Row::kOtherSide);
  shares.same = of_same * call.edge_class_weight_of(tile.image, y) * inverses[0];
  if constexpr (kPair) {
    shares.same += of_other * call.edge_class_weight_of(tile.image, 1 - y) * inverses[1];
  } else if (highest >= 0) {
    shares.k = highest;
    shares.several = lowest != highest;
    const A x_k = call.image(at.image).at(at.pixel, highest);
    A p, complement;
    probabilities(x_k, m, r, p, complement);
    shares.likely = is_likely(x_k, m, r);
    shares.other = of_other * call.edge_class_weight_of(tile.image, highest) * inverses[1] *
                   other_slope(p, complement, shares.likely);
  }
  return shares;
}

// kPlain: by gather_three.
template <bool kPlain, typename C, typename A>
__device__ __forceinline__ EdgeShares<A> gather(const C& call, const Upstream<A>& upstream, const Tile& tile,
                                                const Place& at, int16_t y, A m, A r) {
  if constexpr (kPlain) return gather_three<false>(call, upstream, tile, at, y, m, r);
  EdgeShares<A> shares;
  const auto meet = [&](int k) {
    shares.several |= shares.k >= 0 && shares.k != k;
    shares.k = k;
  };
  PixelGradient<A> around;
  around.template add_edges<false>(
      call, upstream, at, y, call.image(at.image), m, r, [](int) { return true; },
      [&](int k, A value) {
        meet(k);
        shares.other += value;
      });
  shares.same = around.same;
  if (around.likely >= 0) {
    meet(around.likely);
    shares.likely = true;
    shares.other = around.likely_sum;
  }
  return shares;
}

// The factors of the tile's pixels near edge pixels. base(i, y): the PixelGradient of the cross-entropy. kPlain: the
// edge terms are those of gather_three.
template <bool kPlain, typename T, typename A, typename F>
__device__ __forceinline__ void find_near(const Call<T, A, false>& call, const Upstream<A>& upstream, const Tile& tile,
                                          NearPixels<A>& near, const F& base) {
  const int count = near.template list<kPlain>(call, tile);
  if (threadIdx.x == 0) near.count = count;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < count; n += kThreads) {
    const int p = near.places[n];
    const Place at = tile.place(p);
    const int i = tile.base + static_cast<int>(at.pixel);
    const int16_t y = call.class_at(i);
    near.k[p] = NearPixels<A>::kNoClass;
    if (y < 0) continue;
    const A m = call.max_at(i), r = call.r[i];
    const EdgeShares<A> shares = gather<kPlain>(call, upstream, tile, at, y, m, r);
    const PixelGradient<A> all = base(i, y);
    const NearFactor<A> factor(all.alpha, shares, r);
    near.factor[p] = factor.value;
    near.at_y[p] = all.at_y + shares.same;
    if (shares.k < 0) continue;
    near.k[p] = shares.several || factor.is_far ? NearPixels<A>::kManyClasses : static_cast<int16_t>(shares.k);
    A of_k = factor.scale * exp_negative(call.image(tile.image).at(at.pixel, shares.k) - m) + shares.other;
    if (all.uniform != A(0)) of_k -= all.uniform * call.weight_of(tile.image, shares.k);
    near.of_k[p] = of_k;
  }
  __syncthreads();
}

// The classes that the factors do not serve, once the block has written all others.
template <bool kPlain, typename T, typename A>
__device__ __forceinline__ void patch_near(const Call<T, A, false>& call, const Upstream<A>& upstream, const Tile& tile,
                                           const NearPixels<A>& near, const GradientOutput<T>& output) {
  __syncthreads();
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < near.count; n += kThreads) {
    const int p = near.places[n], k = near.k[p];
    if (k >= 0) output.store(call.g.logits == 1, tile.image, tile.pixel(p), k, near.of_k[p]);
    rewrite<kPlain>(call, upstream, output, tile, p, k == NearPixels<A>::kManyClasses);
  }
}

}  // namespace edgeloss
