// Stands in for the CUDA runtime, so that a C++ compiler takes the CUDA kernels as they are and their threads are
// stepped on the host: blocks one after another, and the threads of a block as fibers, one after another too, since no
// kernel here has threads that wait for each other. The operators get the name of another library.
//
// Compiled with -fsanitize=thread, ThreadSanitizer sees each fiber as a thread, ordered by nothing but the start and
// the end of its block. Two of them that use one address are a race, however they are stepped. With DOUBLED_THREADS=1
// two threads of a block take the same items: the check must see that.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
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
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration"; }

#ifdef __SANITIZE_THREAD__
#define EDGELOSS_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#else
#define EDGELOSS_UNCHECKED
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
#endif

namespace host_shim {

struct Fiber {
  static constexpr size_t kStack = 1 << 18;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};  // of its own: what two threads keep there is no race
  void* checked;                                    // what ThreadSanitizer knows it as
};

inline int launched, finished;      // addresses by which ThreadSanitizer learns what comes before what
constexpr unsigned kUnordered = 1;  // to switch to another fiber orders nothing

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline void* checked_scheduler;
inline const std::function<void()>* thread;

EDGELOSS_UNCHECKED inline void run_thread() {
  __tsan_acquire(&launched);
  (*thread)();
  __tsan_release(&finished);
  __tsan_switch_to_fiber(checked_scheduler, kUnordered);
  setcontext(&scheduler);
}

EDGELOSS_UNCHECKED inline void run_block(unsigned threads, bool is_forward) {
  static const bool are_doubled = std::getenv("DOUBLED_THREADS");
  checked_scheduler = __tsan_get_current_fiber();
  __tsan_release(&launched);
  if (fibers.size() < threads) fibers.resize(threads);
  for (unsigned n = 0; n < threads; ++n) {
    const unsigned t = is_forward ? n : threads - 1 - n;
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::kStack;
    fiber.checked = __tsan_create_fiber(0);
    makecontext(&fiber.context, run_thread, 0);
    threadIdx = dim3(are_doubled ? t / 2 : t);
    __tsan_switch_to_fiber(fiber.checked, kUnordered);
    swapcontext(&scheduler, &fiber.context);
  }
  __tsan_acquire(&finished);
  for (unsigned t = 0; t < threads; ++t) __tsan_destroy_fiber(fibers[t].checked);
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
  const std::function<void()> thread = [&] { kernel(arguments...); };
  host_shim::thread = &thread;
  gridDim = grid;
  blockDim = block;
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx = dim3(b);
    host_shim::run_block(block.x, b % 2 == 0);  // to and fro, so that a result which depends on the order shows
  }
  host_shim::thread = nullptr;
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
