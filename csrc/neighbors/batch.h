// What the operators of this folder have in common: logits and their gradient, the statistics of their softmax, and
// the passes over all pixels.
#pragma once

#include <vector>

#include "../math.h"
#include "../tensors.h"

#ifdef __CUDA_ARCH__
#define EDGELOSS_UNROLL _Pragma("unroll")
#else
#define EDGELOSS_UNROLL
#endif

namespace edgeloss {

// Those of an image, in the type that is computed in.
template <typename A>
struct SoftmaxImage {
  const Geometry& g;
  Logits<A, A> x;
  A *m, *r;  // of the pixels that are read
  A* grad;   // of the logits, null in forward
  int64_t grad_class_step, grad_pixel_step;
};

// Those of all images of a call.
template <typename A>
struct SoftmaxBatch {
  Geometry g;
  const A* x;
  A *stats, *grad;  // [2, B·P]: m, r
  Steps x_steps, grad_steps;

  SoftmaxBatch(const Tensor& logits, const Tensor& stats, const Tensor* grad, const std::vector<int64_t>& radius)
      : g(geometry_of(logits, radius)),
        x(static_cast<const A*>(logits.const_data_ptr())),
        stats(static_cast<A*>(stats.mutable_data_ptr())),
        grad(grad ? static_cast<A*>(grad->mutable_data_ptr()) : nullptr),
        x_steps(logits),
        grad_steps(grad ? *grad : logits) {}

  EDGELOSS_INLINE SoftmaxImage<A> softmax(int64_t b) const {
    return {g,
            {x + b * x_steps.image, x_steps.channel, x_steps.pixel, false},
            stats + b * g.pixels,
            stats + (g.batch + b) * g.pixels,
            grad + b * grad_steps.image,
            grad_steps.channel,
            grad_steps.pixel};
  }
};

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
  template <typename A, template <typename...> class Image, typename... W>
  EDGELOSS_INLINE void operator()(const Image<A, W...>& image, int64_t row, int64_t column) const {
    if (!image.is_read(row, column)) return;
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
  template <typename A, template <typename...> class Image, typename... W>
  EDGELOSS_INLINE void operator()(const Image<A, W...>& image, int64_t row, int64_t column) const {
    const int64_t n = row * image.g.width + column, classes = image.g.logits;
    const bool is_read = image.is_read(row, column);
    const auto e_at = [&](int64_t c) { return exp_negative(image.x.at(n, c) - image.m[n]); };
    for (int64_t begin = 0; begin < classes; begin += kBlock) {
      A e[kBlock], sum[kBlock] = {};
      EDGELOSS_UNROLL
      for (int j = 0; j < kBlock; ++j) e[j] = is_read && begin + j < classes ? e_at(begin + j) : A(0);
      if (is_read) image.add_gradient(row, column, begin, kBlock, e, sum, e_at);
      A* grad = image.grad + n * image.grad_pixel_step + begin * image.grad_class_step;
      EDGELOSS_UNROLL
      for (int j = 0; j < kBlock; ++j) {
        if (begin + j < classes) grad[j * image.grad_class_step] = sum[j];
      }
    }
  }
};

}  // namespace edgeloss
