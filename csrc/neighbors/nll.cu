// neighbor_nll on CUDA: one thread takes a pixel in each of the passes of nll.h. No thread writes where another does,
// so every run gives the same bits.
#include <torch/csrc/stable/accelerator.h>

#include "../kernels.h"
#include "device.h"
#include "nll.h"

namespace edgeloss {
namespace {

constexpr int kBlock = 8;  // logits of a pixel, and sums of its gradient, that registers hold at a time
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
    for (int64_t begin = 0; begin < image.g.logits; begin += kBlock) {
      A x[kBlock];
#pragma unroll
      for (int j = 0; j < kBlock; ++j) x[j] = begin + j < image.g.logits ? image.x.at(n, begin + j) : A(-INFINITY);
      softmax.add(x);
    }
    image.m[n] = softmax.m;
    image.r[n] = softmax.r;
  });
}

template <typename Batch>
__global__ void __launch_bounds__(kThreads, 1) value_kernel(const Batch batch) {
  for_each_pixel(batch, [&](const auto& image, int64_t b, int64_t row, int64_t column) {
    batch.value[b * batch.g.pixels + row * batch.g.width + column] = image.value(row, column);
  });
}

template <typename Batch>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(const Batch batch) {
  using A = typename Batch::Value;
  for_each_pixel(batch, [&](const auto& image, int64_t b, int64_t row, int64_t column) {
    const int64_t n = row * batch.g.width + column;
    const bool is_read = image.is_read(row, column);
    const auto e_at = [&](int64_t c) { return exp_negative(image.x.at(n, c) - image.m[n]); };
    for (int64_t begin = 0; begin < batch.g.logits; begin += kBlock) {
      A e[kBlock], sum[kBlock] = {};
#pragma unroll
      for (int j = 0; j < kBlock; ++j) e[j] = is_read && begin + j < batch.g.logits ? e_at(begin + j) : A(0);
      if (is_read) image.add_gradient(row, column, batch.value + b * batch.g.pixels, begin, kBlock, e, sum, e_at);
#pragma unroll
      for (int j = 0; j < kBlock; ++j) {
        if (begin + j < batch.g.logits) batch.write_gradient(b, n, begin + j, sum[j]);
      }
    }
  });
}

class OnDevice {
 public:
  explicit OnDevice(const Tensor& like)
      : guard_(like.get_device_index()), stream_(current_stream(like.get_device_index())) {}

  template <typename Batch>
  void find_largest(const Batch& batch) const {
    run(largest_kernel<Batch>, batch);
  }
  template <typename Batch>
  void find_statistics(const Batch& batch) const {
    run(statistics_kernel<Batch>, batch);
  }
  template <typename Batch>
  void find_values(const Batch& batch) const {
    run(value_kernel<Batch>, batch);
  }
  template <typename Batch>
  void find_gradient(const Batch& batch) const {
    run(gradient_kernel<Batch>, batch);
  }

 private:
  template <typename Batch>
  void run(void (*kernel)(Batch), const Batch& batch) const {
    launch(stream_, blocks_for(batch.g.batch * batch.g.pixels), kernel, batch);
  }

  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> cuda::neighbor_nll(const Tensor& logits, const Tensor& index,
                                                              const Tensor& weight, const std::optional<Tensor>& mask,
                                                              std::vector<int64_t> radius) {
  return neighbor_nll_forward(logits, index, weight, mask, radius, OnDevice(logits));
}

Tensor cuda::neighbor_nll_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& index,
                                   const Tensor& weight, const Tensor& stats, const Tensor& largest,
                                   const Tensor& sides, std::vector<int64_t> radius) {
  return neighbor_nll_gradient(grad_value, {logits, index, weight, nullptr, stats, largest, sides}, radius,
                               OnDevice(logits));
}

}  // namespace edgeloss
