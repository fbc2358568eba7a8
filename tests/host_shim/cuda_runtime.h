// Stands in for the CUDA runtime, so that a C++ compiler takes the CUDA kernels as they are and the host runs their
// threads one after another: no kernel here has threads that wait for each other. The operators get the name of another
// library.
//
// Compiled with -fsanitize=thread, the threads of a block are those of the host, and ThreadSanitizer finds two of them
// that use one address. With DOUBLED_THREADS=1 two of them take the same items: the check must see that.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local dim3 threadIdx;
inline dim3 blockIdx;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration"; }

namespace host_shim {

template <typename Kernel>
void run_block(const Kernel& kernel, unsigned threads, bool is_forward) {
#ifdef __SANITIZE_THREAD__
  static const bool are_doubled = std::getenv("DOUBLED_THREADS");
  std::vector<std::thread> started;
#endif
  for (unsigned n = 0; n < threads; ++n) {
    const unsigned t = is_forward ? n : threads - 1 - n;
#ifdef __SANITIZE_THREAD__
    started.emplace_back([&kernel, t] {
      threadIdx = dim3(are_doubled ? t / 2 : t);
      kernel();
    });
  }
  for (std::thread& thread : started) thread.join();
#else
    threadIdx = dim3(t);
    kernel();
  }
#endif
}

}  // namespace host_shim

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
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx = dim3(b);
    // To and fro, so that a result which depends on the order shows.
    host_shim::run_block([&] { kernel(arguments...); }, block.x, b % 2 == 0);
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
