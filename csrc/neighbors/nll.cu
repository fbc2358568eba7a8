// neighbor_nll on CUDA: one thread takes a pixel in each of the passes of math.h. No thread writes where another does,
// so every run gives the same bits.
#include <torch/csrc/stable/accelerator.h>

#include "../kernels.h"
#include "device.h"
#include "nll.h"

namespace edgeloss {
namespace {

constexpr int kClasses = 8;  // logits of a pixel, and sums of its gradient, that registers hold at a time
// The 1 of __launch_bounds__(kThreads, 1) keeps the compiler from spilling registers to let more threads run at a time.

// Calls body(image, number of the image, row, column) for the pixels of this thread.
template <typename Batch, typename F>
__device__ __forceinline__ void for_each_pixel(const Batch& batch, const F& body) {
  const Geometry& g = batch.g;
  for_each_item(g.batch * g.pixels, [&](int64_t i) {
    const int64_t b = quotient(i, g.pixels), pixel = i - b * g.pixels, row = quotient(pixel, g.width);
    body(batch.image(b), b, row, pixel - row * g.width);
  });
}

template <typename Batch>
__global__ void __launch_bounds__(kThreads, 1) largest_kernel(const Batch batch) {
  for_each_pixel(batch,
                 [](const auto& image, int64_t, int64_t row, int64_t column) { image.find_largest(row, column); });
}

template <typename Batch>
__global__ void __launch_bounds__(kThreads, 1) statistics_kernel(const Batch batch) {
  using A = typename Batch::Value;
  for_each_pixel(batch, [](const auto& image, int64_t, int64_t row, int64_t column) {
    if (!image.is_read(row, column)) return;
    const int64_t n = row * image.g.width + column;
    RunningSoftmax<A> softmax;
    for (int64_t begin = 0; begin < image.g.logits; begin += kClasses) {
      A x[kClasses];
#pragma unroll
      for (int j = 0; j < kClasses; ++j) x[j] = begin + j < image.g.logits ? image.x.at(n, begin + j) : A(-INFINITY);
      softmax.add(x);
    }
    image.m[n] = softmax.m;
    image.r[n] = softmax.r;
  });
}

template <typename Batch>
__global__ void __launch_bounds__(kThreads, 1) value_kernel(const Batch batch, typename Batch::Value* value) {
  for_each_pixel(batch, [&](const auto& image, int64_t b, int64_t row, int64_t column) {
    value[b * batch.g.pixels + row * batch.g.width + column] = image.value(row, column);
  });
}

template <typename Batch>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(const Batch batch, const typename Batch::Value* upstream,
                                                               typename Batch::Logit* grad, const Steps steps) {
  using T = typename Batch::Logit;
  using A = typename Batch::Value;
  for_each_pixel(batch, [&](const auto& image, int64_t b, int64_t row, int64_t column) {
    T* pixel = grad + b * steps.image + (row * batch.g.width + column) * steps.pixel;
    const auto write = [&](int64_t c, A value) { pixel[c * steps.channel] = static_cast<T>(value); };
    if (image.is_read(row, column)) {
      image.template gradient<kClasses>(row, column, upstream + b * batch.g.pixels, write);
    } else {
      for (int64_t c = 0; c < batch.g.logits; ++c) write(c, A(0));
    }
  });
}

}  // namespace

NeighborNllForward cuda::neighbor_nll(const Tensor& logits, const Tensor& index, const Tensor& weight,
                                      const std::optional<Tensor>& mask, std::vector<int64_t> radius) {
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = current_stream(logits.get_device_index());
  return neighbor_nll_forward<false>(logits, index, weight, mask, radius, [&](const auto& batch, auto* value) {
    using Batch = std::decay_t<decltype(batch)>;
    const int64_t blocks = blocks_for(batch.g.batch * batch.g.pixels);
    launch(stream, blocks, largest_kernel<Batch>, batch);
    launch(stream, blocks, statistics_kernel<Batch>, batch);
    launch(stream, blocks, value_kernel<Batch>, batch, value);
  });
}

Tensor cuda::neighbor_nll_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& index,
                                   const Tensor& weight, const Tensor& stats, const Tensor& largest,
                                   const Tensor& sides, std::vector<int64_t> radius) {
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = current_stream(logits.get_device_index());
  const NeighborNllTensors tensors = {logits, index, weight, nullptr, stats, largest, sides};
  return edgeloss::neighbor_nll_backward<false>(
      grad_value, tensors, radius, [&](const auto& batch, const auto* upstream, Tensor& grad) {
        using Batch = std::decay_t<decltype(batch)>;
        launch(stream, blocks_for(batch.g.batch * batch.g.pixels), backward_kernel<Batch>, batch, upstream,
               static_cast<typename Batch::Logit*>(grad.mutable_data_ptr()), Steps(grad));
      });
}

}  // namespace edgeloss
