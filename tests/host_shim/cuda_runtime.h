// Stands in for the CUDA runtime, so that a C++ compiler takes the CUDA kernels as they are and their threads are
// stepped on the host: blocks one after another, and the threads of a block as fibers that run from one __syncthreads()
// to the next, those of a warp from one exchange between them to the next. It is what CUDA promises of them, without
// its speed. The operators get the name of another library.
//
// Compiled with -fsanitize=thread, ThreadSanitizer sees each fiber as a thread, ordered by nothing but what orders the
// threads of a block: the launch, __syncthreads() and the end, but no exchange in a warp. Two of them that use one
// address without a barrier between are a race, however they are stepped. With MUTED_BARRIER=n the nth place that calls
// __syncthreads(), counted from 0 as they come, orders nothing: the check must see that.
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

constexpr unsigned kWarp = 32;

struct Fiber {
  static constexpr size_t kStack = 1 << 18;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  enum { kReady, kAtBarrier, kDone } state;
  void* checked;  // what ThreadSanitizer knows it as
  unsigned barriers, exchanges;
  uint64_t given[2];  // to the warp; two exchanges take turns, as a thread may be at the next one before others
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

// Until the others of the block, or with kReady of the warp, have come as far.
EDGELOSS_UNCHECKED inline void leave(Fiber& fiber, decltype(Fiber::state) state) {
  fiber.state = state;
  __tsan_switch_to_fiber(checked_scheduler, kUnordered);
  swapcontext(&fiber.context, &scheduler);
}

EDGELOSS_UNCHECKED inline void run_thread() {
  __tsan_acquire(&launched);
  (*thread)();
  __tsan_release(&finished);
  leave(fibers[current], Fiber::kDone);
}

// Runs the threads of a warp until all of them have left, or wait for the block; returns how many have left.
EDGELOSS_UNCHECKED inline unsigned run_warp(unsigned first, unsigned count, bool is_forward) {
  unsigned done = 0;
  for (unsigned waiting = 0; done + waiting < count; is_forward = !is_forward) {
    done = waiting = 0;
    for (unsigned t = 0; t < count; ++t) {
      current = first + (is_forward ? t : count - 1 - t);
      threadIdx = dim3(current);
      if (fibers[current].state == Fiber::kReady) {
        __tsan_switch_to_fiber(fibers[current].checked, kUnordered);
        swapcontext(&scheduler, &fibers[current].context);
      }
      done += fibers[current].state == Fiber::kDone;
      waiting += fibers[current].state == Fiber::kAtBarrier;
    }
    if (done + waiting != 0 && done + waiting != count) {
      std::fputs("some threads of a warp left an exchange out that others take part in\n", stderr);
      std::abort();
    }
  }
  return done;
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
    fiber.state = Fiber::kReady;
    fiber.barriers = fiber.exchanges = 0;
    fiber.checked = __tsan_create_fiber(0);
    makecontext(&fiber.context, run_thread, 0);
  }
  const unsigned warps = (threads + kWarp - 1) / kWarp;
  bool is_forward = true;
  for (unsigned done = 0; done < threads; is_forward = !is_forward) {
    done = 0;
    // To and fro, so that a result which depends on the order of the threads shows.
    for (unsigned w = 0; w < warps; ++w) {
      const unsigned first = (is_forward ? w : warps - 1 - w) * kWarp;
      done += run_warp(first, threads - first < kWarp ? threads - first : kWarp, is_forward);
    }
    for (unsigned t = 0; t < threads && done == 0; ++t) fibers[t].state = Fiber::kReady;
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
  leave(own, Fiber::kAtBarrier);
  if (orders) __tsan_acquire(at);
}

// Exchanges between the threads of a warp, which all of them take part in. They order no use of memory.
namespace host_shim {

template <typename T>
EDGELOSS_UNCHECKED T exchanged(T value, unsigned lane) {  // what that lane gives
  Fiber& own = fibers[current];
  const unsigned turn = own.exchanges++ % 2, first = current / kWarp * kWarp;
  std::memcpy(&own.given[turn], &value, sizeof(T));
  leave(own, Fiber::kReady);
  std::memcpy(&value, &fibers[first + lane].given[turn], sizeof(T));
  return value;
}

}  // namespace host_shim

template <typename T>
EDGELOSS_UNCHECKED T __shfl_sync(unsigned, T value, unsigned lane) {
  return host_shim::exchanged(value, lane % host_shim::kWarp);
}
template <typename T>
EDGELOSS_UNCHECKED T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return host_shim::exchanged(value, (threadIdx.x % host_shim::kWarp) ^ mask);
}
template <typename T>
EDGELOSS_UNCHECKED T __shfl_up_sync(unsigned, T value, unsigned distance) {
  const unsigned lane = threadIdx.x % host_shim::kWarp;
  return host_shim::exchanged(value, lane < distance ? lane : lane - distance);
}
EDGELOSS_UNCHECKED inline unsigned __ballot_sync(unsigned, bool is_set) {
  using namespace host_shim;
  const unsigned turn = fibers[current].exchanges % 2, first = current / kWarp * kWarp;
  exchanged<uint64_t>(is_set, 0);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane)
    votes |= static_cast<unsigned>(fibers[first + lane].given[turn]) << lane;
  return votes;
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
