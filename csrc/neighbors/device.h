// The passes of this folder's operators on CUDA: one thread takes a pixel in each. No thread writes where another does,
// so every run gives the same bits.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>

#include "batch.h"

namespace edgeloss {

constexpr int kThreads = 256;  // of a block
// Blocks at most; each thread takes one pixel after another. Enough for two waves on the largest devices.
constexpr int64_t kBlocks = 2048;
constexpr int kBlock = 8;  // logits of a pixel, and sums of its gradient, that registers hold at a time
// The 1 of __launch_bounds__(kThreads, 1) keeps the compiler from spilling registers to let more threads run at a time.

// The stream that torch's own kernels would run on now. A CPU-only torch has no such function, so that the library
// would not load there if it called it by name.
inline cudaStream_t current_stream(int32_t device) {
  using Find = int32_t (*)(int32_t, void**);
  static const Find find = [] {
    void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    return torch_cuda ? reinterpret_cast<Find>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  STD_TORCH_CHECK(find, "edgeloss: this torch has no CUDA streams");
  void* stream = nullptr;
  STD_TORCH_CHECK(find(device, &stream) == 0, "edgeloss: torch has no stream for CUDA device ", device);
  return static_cast<cudaStream_t>(stream);
}

// Calls body(image, number of the image, row, column) for the pixels of this thread.
template <typename Batch, typename F>
__device__ __forceinline__ void for_each_pixel(const Batch& batch, const F& body) {
  const Geometry& g = batch.g;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < g.batch * g.pixels; i += step) {
    const int64_t b = quotient(i, g.pixels), pixel = i - b * g.pixels, row = quotient(pixel, g.width);
    body(batch.image(b), b, row, pixel - row * g.width);
  }
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
  for_each_pixel(batch, [](const auto& image, int64_t, int64_t row, int64_t column) { image.find_value(row, column); });
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
      if (is_read) image.add_gradient(row, column, begin, kBlock, e, sum, e_at);
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
    const int64_t blocks = std::min((batch.g.batch * batch.g.pixels + kThreads - 1) / kThreads, kBlocks);
    if (blocks == 0) return;  // there is no empty grid
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, batch);
    if (error == cudaSuccess) return;
    cudaGetLastError();  // clear the sticky error
    STD_TORCH_CHECK(false, "edgeloss: CUDA error: ", cudaGetErrorString(error));
  }

  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

}  // namespace edgeloss
