// The operators of this folder on CUDA: one thread takes a pixel in each pass. No thread writes where another does, so
// every run gives the same bits.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>

#include "../neighbor_nll.h"
#include "pair_terms.h"

namespace edgeloss {
namespace {

constexpr int kThreads = 256;  // of a block

// The stream that torch's own kernels would run on now. A CPU-only torch has no such function, so that the library
// would not load there if it called it by name.
cudaStream_t current_stream(int32_t device) {
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

// The 1 of __launch_bounds__(kThreads, 1) keeps the compiler from spilling registers to let more threads run at a time.
template <typename Pass, typename Image>
__global__ void __launch_bounds__(kThreads, 1) pixel_kernel(const Image first) {
  const Geometry& g = first.g;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= g.batch * g.pixels) return;
  const int64_t b = quotient(i, g.pixels), pixel = i - b * g.pixels, row = quotient(pixel, g.width);
  Image image = first;
  image.move(b);
  image.run(Pass(), row, pixel - row * g.width);
}

class OnDevice {
 public:
  explicit OnDevice(const Tensor& like)
      : guard_(like.get_device_index()), stream_(current_stream(like.get_device_index())) {}

  template <typename Pass, typename Image>
  void run(Pass, const Image& first) const {
    const int64_t blocks = (first.g.batch * first.g.pixels + kThreads - 1) / kThreads;
    if (blocks == 0) return;  // there is no empty grid
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
    const cudaError_t error = cudaLaunchKernelEx(&config, pixel_kernel<Pass, Image>, first);
    if (error == cudaSuccess) return;
    cudaGetLastError();  // clear the sticky error
    STD_TORCH_CHECK(false, "edgeloss: CUDA error: ", cudaGetErrorString(error));
  }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CUDA, m) {
  using namespace edgeloss;
  m.impl("pair_terms", TORCH_BOX(&pair_terms<OnDevice>));
  m.impl("pair_terms_backward", TORCH_BOX(&pair_terms_backward<OnDevice>));
  m.impl("neighbor_nll", TORCH_BOX(&neighbor_nll<OnDevice>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&neighbor_nll_backward<OnDevice>));
}
