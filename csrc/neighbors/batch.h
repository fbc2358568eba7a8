// What the kernels of this folder read and write per pixel: logits, the statistics of their softmax, and the gradient.
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

// All images of a call, in the type that is computed in.
template <typename A>
struct SoftmaxBatch {
  using Value = A;

  Geometry g;
  const A* x;
  A *stats, *grad;  // [2, B·P]: m, r; of the logits, null in forward
  Steps x_steps, grad_steps;

  SoftmaxBatch(const Tensor& logits, const Tensor& stats, const Tensor* grad, const std::vector<int64_t>& radius)
      : g(geometry_of(logits, radius)),
        x(static_cast<const A*>(logits.const_data_ptr())),
        stats(static_cast<A*>(stats.mutable_data_ptr())),
        grad(grad ? static_cast<A*>(grad->mutable_data_ptr()) : nullptr),
        x_steps(logits),
        grad_steps(grad ? *grad : logits) {}

  EDGELOSS_INLINE Logits<A, A> logits(int64_t b) const {
    return {x + b * x_steps.image, x_steps.channel, x_steps.pixel, false};
  }
  EDGELOSS_INLINE A* m(int64_t b) const { return stats + b * g.pixels; }
  EDGELOSS_INLINE A* r(int64_t b) const { return stats + (g.batch + b) * g.pixels; }
  EDGELOSS_INLINE void write_gradient(int64_t b, int64_t pixel, int64_t c, A gradient) const {
    grad[b * grad_steps.image + pixel * grad_steps.pixel + c * grad_steps.channel] = gradient;
  }
};

}  // namespace edgeloss
