// Stands in for the CUDA runtime, so that a C++ compiler takes the CUDA kernels as they are and their threads are
// stepped on the host: blocks one after another, and the threads of a block as fibers that run from one __syncthreads()
// to the next. It is what CUDA promises of them, without its speed. The operators get the name of another library.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration, cudaErrorMemoryAllocation };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "invalid configuration" : "out of memory";
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

enum : unsigned { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
inline cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::malloc(bytes);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

inline int atomicCAS(int* address, int expected, int value) {
  const int old = *address;
  if (old == expected) *address = value;
  return old;
}
template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address += value;
  return old;
}
inline void __threadfence_system() {}

namespace host_shim {

struct Fiber {
  static constexpr size_t kStack = 1 << 16;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool is_done;
};

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline unsigned current;
inline const std::function<void()>* thread;

inline void run_thread() {
  (*thread)();
  fibers[current].is_done = true;
}

inline void run_block(unsigned threads) {
  if (fibers.size() < threads) fibers.resize(threads);
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::kStack;
    fiber.context.uc_link = &scheduler;
    fiber.is_done = false;
    makecontext(&fiber.context, run_thread, 0);
  }
  bool is_forward = true;
  for (unsigned done = 0; done < threads; is_forward = !is_forward) {
    done = 0;
    // To and fro, so that a result which depends on the order of the threads shows.
    for (unsigned t = 0; t < threads; ++t) {
      current = is_forward ? t : threads - 1 - t;
      threadIdx = dim3(current);
      swapcontext(&scheduler, &fibers[current].context);
      done += fibers[current].is_done;
    }
    if (done != 0 && done != threads) {
      std::fputs("some threads of a block left the kernel while others waited for them\n", stderr);
      std::abort();
    }
  }
}

}  // namespace host_shim

inline void __syncthreads() {
  using namespace host_shim;
  swapcontext(&fibers[current].context, &scheduler);
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  // Those of a device, and what the stepping leaves out.
  if (grid.x == 0 || grid.x > 0x7fffffff || block.x == 0 || block.x > 1024) return cudaErrorInvalidConfiguration;
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1) return cudaErrorInvalidConfiguration;
  const std::function<void()> thread = [&] { kernel(arguments...); };
  host_shim::thread = &thread;
  gridDim = grid;
  blockDim = block;
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx = dim3(b);
    host_shim::run_block(block.x);
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
