// What the operators of this folder have in common: logits and their gradient, the statistics of their softmax, and
// the passes over all pixels. An operator is an Image: what it reads and writes of the first image, or, moved, of
// another one.
#pragma once

#include <type_traits>
#include <vector>

#include "../math.h"
#include "../tensors.h"

#ifdef __CUDA_ARCH__
#define EDGELOSS_UNROLL _Pragma("unroll")
#else
#define EDGELOSS_UNROLL
#endif

namespace edgeloss {

// Numbers of an image of a tensor [B, C, *S], or null.
template <typename T>
struct Strided {
  T* data = nullptr;
  int64_t image_step = 0, class_step = 0, pixel_step = 0;

  explicit Strided(const Tensor* tensor) {
    if (!tensor) return;
    if constexpr (std::is_const_v<T>) {
      data = static_cast<T*>(tensor->const_data_ptr());
    } else {
      data = static_cast<T*>(tensor->mutable_data_ptr());
    }
    const Steps steps(*tensor);
    image_step = steps.image, class_step = steps.channel, pixel_step = steps.pixel;
  }
  EDGELOSS_INLINE T& at(int64_t pixel, int64_t c) const { return data[c * class_step + pixel * pixel_step]; }
};

template <typename A>
struct SoftmaxImage {
  using Real = A;

  Geometry g;
  Strided<const A> x;
  Strided<A> grad;  // null in forward
  A *m, *r;         // of the pixels that are read

  // stats: [2, B·P]: m, r.
  SoftmaxImage(const Tensor& logits, const Tensor& stats, const Tensor* grad, const std::vector<int64_t>& radius)
      : g(geometry_of(logits, radius)),
        x(&logits),
        grad(grad),
        m(static_cast<A*>(stats.mutable_data_ptr())),
        r(m + g.batch * g.pixels) {}

  // Goes on from the first image to image b.
  EDGELOSS_INLINE void move(int64_t b) {
    x.data += b * x.image_step;
    grad.data += b * grad.image_step;
    m += b * g.pixels;
    r += b * g.pixels;
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

// Whether a pixel is read by a center. Nothing looks at the logits of others, or gives them any gradient but 0.
template <typename Image>
EDGELOSS_INLINE bool is_read(const Image& image, int64_t row, int64_t column) {
  bool result = false;
  image.for_each_center(row, column, [&](int64_t, int64_t) { result = true; });
  return result;
}

// Adds the gradient at a pixel that is read to the sums of `block` classes from `begin` on, whose e^(x - m) are given;
// e_at(c) is that of any class.
template <typename Image, typename A, typename E>
EDGELOSS_INLINE void add_gradient(const Image& image, int64_t row, int64_t column, int64_t begin, int block, const A* e,
                                  A* sum, const E& e_at) {
  const int64_t n = row * image.g.width + column;
  image.for_each_center(row, column, [&](int64_t i, int64_t number) {
    const Given<A> given = image.given(i, n, number, e_at);
    const A m = image.m[n], own = given.chosen.factor, push = given.others.factor;
    const int k = static_cast<int>(given.k - begin);
    if (given.k >= 0 && given.others.base == m) {  // as it usually is, in a loop that vectorizes
      EDGELOSS_UNROLL
      for (int b = 0; b < block; ++b) sum[b] += b == k ? own : push * e[b];
      return;
    }
    EDGELOSS_UNROLL
    for (int b = 0; b < block; ++b) {
      if (begin + b >= image.g.logits) continue;
      const auto& part = image.chooses(i, begin + b) ? given.chosen : given.others;
      if (part.factor == A(0)) continue;  // the base may be infinite
      sum[b] += part.factor * (part.base == m ? e[b] : exp_negative(image.x.at(n, begin + b) - part.base));
    }
  });
}

// The passes: what each does at one pixel.
struct FindLargest {
  template <typename Image>
  EDGELOSS_INLINE void operator()(const Image& image, int64_t row, int64_t column) const {
    image.find_largest(row, column);
  }
};

struct FindValue {
  template <typename Image>
  EDGELOSS_INLINE void operator()(const Image& image, int64_t row, int64_t column) const {
    image.find_value(row, column);
  }
};

constexpr int kBlock = 8;  // logits of a pixel, and sums of its gradient, that registers hold at a time

struct FindStatistics {
  template <typename Image>
  EDGELOSS_INLINE void operator()(const Image& image, int64_t row, int64_t column) const {
    using A = typename Image::Real;
    if (!is_read(image, row, column)) return;
    const int64_t n = row * image.g.width + column;
    RunningSoftmax<A> softmax;
    for (int64_t begin = 0; begin < image.g.logits; begin += kBlock) {
      A x[kBlock];
      EDGELOSS_UNROLL
      for (int j = 0; j < kBlock; ++j) x[j] = begin + j < image.g.logits ? image.x.at(n, begin + j) : A(-INFINITY);
      softmax.add(x);
    }
    image.m[n] = softmax.m;
    image.r[n] = softmax.r;
  }
};

struct FindGradient {
  template <typename Image>
  EDGELOSS_INLINE void operator()(const Image& image, int64_t row, int64_t column) const {
    using A = typename Image::Real;
    const int64_t n = row * image.g.width + column, classes = image.g.logits;
    const bool gets_any = is_read(image, row, column);
    const auto e_at = [&](int64_t c) { return exp_negative(image.x.at(n, c) - image.m[n]); };
    for (int64_t begin = 0; begin < classes; begin += kBlock) {
      A e[kBlock], sum[kBlock] = {};
      EDGELOSS_UNROLL
      for (int j = 0; j < kBlock; ++j) e[j] = gets_any && begin + j < classes ? e_at(begin + j) : A(0);
      if (gets_any) add_gradient(image, row, column, begin, kBlock, e, sum, e_at);
      EDGELOSS_UNROLL
      for (int j = 0; j < kBlock; ++j) {
        if (begin + j < classes) image.grad.at(n, begin + j) = sum[j];
      }
    }
  }
};

}  // namespace edgeloss
