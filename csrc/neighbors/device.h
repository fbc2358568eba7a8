// How CUDA kernels are launched, and how they walk through pixels.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>

namespace edgeloss {

constexpr int kThreads = 256;  // of a block
// Blocks at most; each thread takes one pixel after another. Enough for two waves on the largest devices.
constexpr int64_t kBlocks = 2048;

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clear the sticky error
  STD_TORCH_CHECK(false, "edgeloss: CUDA error: ", cudaGetErrorString(error));
}

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

inline int64_t blocks_for(int64_t items) { return std::min((items + kThreads - 1) / kThreads, kBlocks); }

template <typename... Parameters, typename... Arguments>
void launch(cudaStream_t stream, int64_t blocks, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (blocks == 0) return;  // there is no empty grid
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// Calls body(i) for the items of this thread, of `count` in all.
template <typename F>
__device__ __forceinline__ void for_each_item(int64_t count, const F& body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) body(i);
}

}  // namespace edgeloss
