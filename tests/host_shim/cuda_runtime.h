// Stands in for the CUDA runtime, so that a C++ compiler takes the CUDA kernels as they are and their threads are
// stepped on the host: one after another, since no kernel here has threads that wait for each other. The operators get
// the name of another library.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <cmath>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration"; }

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  // Those of a device, and what the stepping leaves out.
  if (grid.x == 0 || grid.x > 0x7fffffff || block.x == 0 || block.x > 1024) return cudaErrorInvalidConfiguration;
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1) return cudaErrorInvalidConfiguration;
  gridDim = grid;
  blockDim = block;
  // To and fro, so that a result which depends on the order shows.
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx = dim3(b);
    for (unsigned t = 0; t < block.x; ++t) {
      threadIdx = dim3(b % 2 ? block.x - 1 - t : t);
      kernel(arguments...);
    }
  }
  return cudaSuccess;
}

// What torch does for CUDA tensors, which are CPU tensors here.
namespace host_shim {

struct NoDeviceGuard {
  explicit NoDeviceGuard(int32_t) {}
};
inline int32_t default_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}
inline void* find_library(const char*, int) { return reinterpret_cast<void*>(&default_stream); }
inline void* find_function(void* function, const char*) { return function; }

}  // namespace host_shim

namespace torch::stable::accelerator {
using host_shim::NoDeviceGuard;
}
#define DeviceGuard NoDeviceGuard
#define dlopen host_shim::find_library
#define dlsym host_shim::find_function

#undef STABLE_TORCH_LIBRARY
#define STABLE_TORCH_LIBRARY(library, m) _STABLE_TORCH_LIBRARY_FRAGMENT(edgeloss_host, m, C10_UID)
#undef STABLE_TORCH_LIBRARY_IMPL
#define STABLE_TORCH_LIBRARY_IMPL(library, device, m) _STABLE_TORCH_LIBRARY_IMPL(edgeloss_host, CPU, m, C10_UID)
