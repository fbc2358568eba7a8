// What the operators of this folder have in common: logits and their gradient, the statistics of their softmax, and
// the passes over all pixels.
#pragma once

#include <vector>

#include "math.h"
#include "tensors.h"

namespace edgeloss {

// An image of a tensor [B, C, *S], or null.
template <typename T>
struct Strided {
  T* data;
  Steps step;

  EDGELOSS_INLINE T& at(int64_t pixel, int64_t c) const { return data[c * step.channel + pixel * step.pixel]; }
  EDGELOSS_INLINE void move(int64_t b) {
    if (data) data += b * step.image;
  }
};

// What a center gives to the gradient of a pixel: factor · e^(x(c) - base) of each class c that it chooses, and of each
// other one. Those that it chooses are class k alone, with x(k) for the base, or any with k = -1.
template <typename A>
struct Given {
  struct Part {
    A factor, base;
  };
  int64_t k;
  Part chosen, others;
};

// The passes over all pixels, by which run(pass, row, column) of an operator is chosen.
struct FindLargest {};
struct FindStatistics {};
struct FindValue {};
struct FindGradient {};

constexpr int kBlock = 8;  // logits of a pixel, and sums of its gradient, that registers hold at a time

// What an operator reads and writes of the first image, or, moved, of another one.
template <typename Operator, typename A>
struct SoftmaxImage {
  Geometry g;
  Strided<const A> x;
  Strided<A> grad;  // null in forward
  A *m, *r;         // of the pixels that are read

  // stats: [2, B·P]: m, r.
  SoftmaxImage(const Tensor& logits, const Tensor& stats, const Tensor* grad, const std::vector<int64_t>& radius)
      : g(geometry_of(logits, radius)),
        x{static_cast<const A*>(logits.const_data_ptr()), Steps(logits)},
        grad{grad ? static_cast<A*>(grad->mutable_data_ptr()) : nullptr, Steps(grad ? *grad : logits)},
        m(static_cast<A*>(stats.mutable_data_ptr())),
        r(m + g.batch * g.pixels) {}

  // Goes on from the first image to image b.
  EDGELOSS_INLINE void move(int64_t b) {
    x.move(b);
    grad.move(b);
    m += b * g.pixels;
    r += b * g.pixels;
  }

  EDGELOSS_INLINE const Operator& self() const { return static_cast<const Operator&>(*this); }

  // Whether a pixel is read by a center. Nothing looks at the logits of others, or gives them any gradient but 0.
  EDGELOSS_INLINE bool is_read(int64_t row, int64_t column) const {
    bool result = false;
    self().for_each_center(row, column, [&](int64_t, int64_t) { result = true; });
    return result;
  }

  EDGELOSS_INLINE void run(FindStatistics, int64_t row, int64_t column) const {
    if (!is_read(row, column)) return;
    const int64_t n = row * g.width + column;
    RunningSoftmax<A> softmax;
    for (int64_t begin = 0; begin < g.logits; begin += kBlock) {
      A block[kBlock];
      for (int j = 0; j < kBlock; ++j) block[j] = begin + j < g.logits ? x.at(n, begin + j) : A(-INFINITY);
      softmax.add(block);
    }
    m[n] = softmax.m;
    r[n] = softmax.r;
  }

  EDGELOSS_INLINE void run(FindGradient, int64_t row, int64_t column) const {
    const int64_t n = row * g.width + column;
    const bool gets_any = is_read(row, column);
    const auto e_at = [&](int64_t c) { return exp_negative(x.at(n, c) - m[n]); };
    for (int64_t begin = 0; begin < g.logits; begin += kBlock) {
      A e[kBlock], sum[kBlock] = {};
      for (int j = 0; j < kBlock; ++j) e[j] = gets_any && begin + j < g.logits ? e_at(begin + j) : A(0);
      if (gets_any) add_gradient(row, column, begin, kBlock, e, sum, e_at);
      for (int j = 0; j < kBlock; ++j) {
        if (begin + j < g.logits) grad.at(n, begin + j) = sum[j];
      }
    }
  }

  // Adds the gradient at a pixel that is read to the sums of `block` classes from `begin` on, whose e^(x - m) are
  // given; e_at(c) is that of any class.
  template <typename E>
  EDGELOSS_INLINE void add_gradient(int64_t row, int64_t column, int64_t begin, int block, const A* e, A* sum,
                                    const E& e_at) const {
    const int64_t n = row * g.width + column;
    self().for_each_center(row, column, [&](int64_t i, int64_t number) {
      const Given<A> given = self().given(i, n, number, e_at);
      const A m_n = m[n], own = given.chosen.factor, push = given.others.factor;
      const int k = static_cast<int>(given.k - begin);
      if (given.k >= 0 && given.others.base == m_n) {  // as it usually is, in a loop that vectorizes
        for (int b = 0; b < block; ++b) sum[b] += b == k ? own : push * e[b];
        return;
      }
      for (int b = 0; b < block; ++b) {
        if (begin + b >= g.logits) continue;
        const bool is_chosen = self().chooses(i, begin + b);
        const A factor = is_chosen ? own : push, base = is_chosen ? given.chosen.base : given.others.base;
        if (factor == A(0)) continue;  // the base may be infinite
        sum[b] += factor * (base == m_n ? e[b] : exp_negative(x.at(n, begin + b) - base));
      }
    });
  }
};

}  // namespace edgeloss
