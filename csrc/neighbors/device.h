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

template <typename Pass, typename Batch>
__global__ void __launch_bounds__(kThreads, 1) pixel_kernel(const Batch batch) {
  const Geometry& g = batch.g;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < g.batch * g.pixels; i += step) {
    const int64_t b = quotient(i, g.pixels), pixel = i - b * g.pixels, row = quotient(pixel, g.width);
    Pass()(batch.image(b), row, pixel - row * g.width);
  }
}

class OnDevice {
 public:
  explicit OnDevice(const Tensor& like)
      : guard_(like.get_device_index()), stream_(current_stream(like.get_device_index())) {}

  template <typename Pass, typename Batch>
  void run(Pass, const Batch& batch) const {
    const int64_t blocks = std::min((batch.g.batch * batch.g.pixels + kThreads - 1) / kThreads, kBlocks);
    if (blocks == 0) return;  // there is no empty grid
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
    const cudaError_t error = cudaLaunchKernelEx(&config, pixel_kernel<Pass, Batch>, batch);
    if (error == cudaSuccess) return;
    cudaGetLastError();  // clear the sticky error
    STD_TORCH_CHECK(false, "edgeloss: CUDA error: ", cudaGetErrorString(error));
  }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

}  // namespace edgeloss
