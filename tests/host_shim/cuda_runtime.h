// Stands in for the CUDA runtime, so that a C++ compiler takes the CUDA kernels as they are and their threads are
// stepped on the host: blocks one after another, and the threads of a block as fibers that run from one __syncthreads()
// to the next. It is what CUDA promises of them, without its speed. The operators get the name of another library.
//
// Compiled with -fsanitize=thread, ThreadSanitizer sees each fiber as a thread, ordered by nothing but what orders the
// threads of a block: the launch, __syncthreads() and the end. Two of them that use one address without a barrier
// between are a race, however they are stepped. With MUTED_BARRIER=n the nth place that calls __syncthreads(), counted
// from 0 as they come, orders nothing: the check must see that.
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
#define __noinline__
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

enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

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
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool is_done;
  void* checked;  // what ThreadSanitizer knows it as
  unsigned barriers;
};

// Addresses by which ThreadSanitizer learns what comes before what. Two barriers take turns: a thread may reach the
// next one before the last has left this one.
inline int launched, finished, barrier[2];
constexpr unsigned kUnordered = 1;  // to switch to another fiber orders nothing

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline unsigned current;
inline const std::function<void()>* thread;

inline void* checked_scheduler;

EDGELOSS_UNCHECKED inline void leave(Fiber& fiber) {
  __tsan_switch_to_fiber(checked_scheduler, kUnordered);
  swapcontext(&fiber.context, &scheduler);
}

EDGELOSS_UNCHECKED inline void run_thread() {
  __tsan_acquire(&launched);
  (*thread)();
  __tsan_release(&finished);
  fibers[current].is_done = true;
  leave(fibers[current]);
}

EDGELOSS_UNCHECKED inline void run_block(unsigned threads) {
  checked_scheduler = __tsan_get_current_fiber();
  __tsan_release(&launched);
  if (fibers.size() < threads) fibers.resize(threads);
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::kStack;
    fiber.context.uc_link = &scheduler;
    fiber.is_done = false;
    fiber.barriers = 0;
    fiber.checked = __tsan_create_fiber(0);
    makecontext(&fiber.context, run_thread, 0);
  }
  bool is_forward = true;
  for (unsigned done = 0; done < threads; is_forward = !is_forward) {
    done = 0;
    // To and fro, so that a result which depends on the order of the threads shows.
    for (unsigned t = 0; t < threads; ++t) {
      current = is_forward ? t : threads - 1 - t;
      threadIdx = dim3(current);
      if (!fibers[current].is_done) {
        __tsan_switch_to_fiber(fibers[current].checked, kUnordered);
        swapcontext(&scheduler, &fibers[current].context);
      }
      done += fibers[current].is_done;
    }
    if (done != 0 && done != threads) {
      std::fputs("some threads of a block left the kernel while others waited for them\n", stderr);
      std::abort();
    }
  }
  __tsan_acquire(&finished);  // of each block, as the next one uses the same shared memory here
  for (unsigned t = 0; t < threads; ++t) __tsan_destroy_fiber(fibers[t].checked);
}

// Without containers, whose code would be checked too.
EDGELOSS_UNCHECKED inline bool is_muted(void* place) {
  static const char* const muted = std::getenv("MUTED_BARRIER");
  static void* places[1024];
  if (!muted) return false;
  long number = 0;
  while (number < 1023 && places[number] && places[number] != place) ++number;
  places[number] = place;
  return number == std::atol(muted);
}

}  // namespace host_shim

EDGELOSS_UNCHECKED inline void __syncthreads() {
  using namespace host_shim;
  Fiber& own = fibers[current];
  const bool orders = !is_muted(__builtin_return_address(0));
  int* const at = &barrier[own.barriers++ % 2];
  if (orders) __tsan_release(at);
  leave(own);
  if (orders) __tsan_acquire(at);
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
