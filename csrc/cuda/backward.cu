// The whole loss on CUDA, backward.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <climits>
#include <cstdint>

#include "gradient.h"

namespace edgeloss {
namespace {

constexpr int kShares = 4;  // classes of edge pixels around a pixel, collected at a time

// Sums for the kShares lowest classes of those that come.
template <typename A>
struct Shares {
  int k[kShares];  // ascending, INT_MAX where there is none
  A sum[kShares];
  bool more = false;  // there were others

  __device__ Shares() {
#pragma unroll
    for (int s = 0; s < kShares; ++s) k[s] = INT_MAX;
  }
  __device__ A at(int64_t c) const {
    A value = 0;
#pragma unroll
    for (int s = 0; s < kShares; ++s) value = k[s] == c ? sum[s] : value;
    return value;
  }
  __device__ int highest() const { return k[kShares - 1]; }
  __device__ void add(int c, A value) {
    bool known = false;
#pragma unroll
    for (int s = 0; s < kShares; ++s) {
      if (k[s] != c) continue;
      sum[s] += value;
      known = true;
    }
    if (known) return;
    // Insert it, and carry on what it displaces.
#pragma unroll
    for (int s = 0; s < kShares; ++s) {
      if (c > k[s]) continue;
      const int displaced = k[s];
      const A displaced_sum = sum[s];
      k[s] = c;
      sum[s] = value;
      c = displaced;
      value = displaced_sum;
    }
    more |= c != INT_MAX;
  }
};

// The gradient of the cross-entropy, exactly 0 on invalid pixels, for any logits.
template <typename T, typename A, bool kStaged>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_backward_kernel(const Call<T, A, false> call, const Upstream<A> upstream,
                                  const GradientOutput<T> output) {
  const A total = call.smoothed_weight();
  for_each_item_together(call.count(), [&](int64_t i, bool exists) {
    const int64_t image = quotient(i, call.g.pixels), pixel = i - image * call.g.pixels;
    const Steps& steps = output.steps;
    T* out = output.grad + image * steps.image + pixel * steps.pixel;
    const int16_t y = exists ? call.label[i] : kIgnored;
    const bool valid = y >= 0;
    const auto x = call.image(image);
    const PixelGradient<A> ce(call, upstream, i, y, total);
    const A m = valid ? call.m[i] : A(0), scale = valid ? ce.alpha / (A(1) + call.r[i]) : A(0);
    const auto differentiate = [&](int64_t c, A(&block)[kClasses], int n) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        if (j >= n) continue;
        A value = scale * exp_negative(block[j] - m) - (c + j == y ? ce.at_y : A(0));
        if (ce.uniform != A(0)) value -= ce.uniform * call.weight_of(c + j);
        block[j] = valid ? value : A(0);
      }
    };
    if constexpr (kStaged) {
      const T* from = valid ? x.data + pixel * x.pixel_step : nullptr;
      for_each_staged_block<true, T, A>(from, exists ? out : nullptr, call.g.classes, differentiate);
    } else if (valid) {
      for_each_block(x, pixel, call.g.classes, [&](int64_t c, A(&block)[kClasses], int n) {
        differentiate(c, block, n);
#pragma unroll
        for (int j = 0; j < kClasses; ++j) {
          if (j >= n || (x.binary && j == 0)) continue;
          *out = static_cast<T>(block[j]);
          out += steps.channel;
        }
      });
    } else if (exists) {
      for (int64_t c = 0; c < call.g.logits; ++c, out += steps.channel) *out = static_cast<T>(A(0));
    }
  });
}

// The whole gradient of the pixels around edge pixels, in place of what stands there: one kernel for all would hold so
// many registers that few threads could run at a time.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads, 1)
    edge_terms_backward_kernel(const Call<T, A, false> call, const Upstream<A> upstream,
                               const GradientOutput<T> output) {
  const Geometry& g = call.g;
  const A total = call.smoothed_weight();
  for_each_item(call.count(), [&](int64_t i) {
    const Place at = place_of(call.g, i);
    if (!is_near_edge(call, at)) return;
    const int16_t y = call.label[i];
    const auto x = call.image(at.image);
    const A m = call.m[i], r = call.r[i];
    PixelGradient<A> all(call, upstream, i, y, total);
    // More other classes than fit at a time take several rounds, each for those above the last.
    int floor = -1;
    bool is_first = true, more = false;
    do {
      Shares<A> shares;  // Σ π · slope for the others
      all.add_edges(
          call, upstream, at, y, x, m, r, [&](int k) { return is_first || !(k == y || k == all.likely || k <= floor); },
          [&](int k, A value) {
            if (is_first) all.alpha -= value;
            shares.add(k, value);
          });

      const ClassGradient<A> gradient(all, x, at.pixel, g.classes, m, r);
      const auto write = [&](int64_t c, A share) {
        const A logit = x.at(at.pixel, c);
        const A value = gradient.of(c, y, logit, [&](int64_t k) { return call.weight_of(k); }) + share;
        output.store(x.binary, at.image, at.pixel, c, value);
      };
      if (is_first) {
        for (int64_t c = 0; c < g.classes; ++c) write(c, shares.at(c));
      } else {
#pragma unroll
        for (int s = 0; s < kShares; ++s) {
          if (shares.k[s] != INT_MAX) write(shares.k[s], shares.sum[s]);
        }
      }
      floor = shares.highest();
      more = shares.more;
      is_first = false;
    } while (more);
  });
}

}  // namespace

Tensor cuda::backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved,
                      const Options& options) {
  const Tensor& logits = inputs.logits;
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Geometry g = clipped_geometry(logits, saved.label, options.radius);
  const cudaStream_t stream = current_stream(device);
  Tensor grad = torch::stable::empty_like(logits);
  by_type(logits, [&](auto t, auto a) {
    using T = decltype(t);
    using A = decltype(a);
    const Upstream<A> upstream(gradients);
    const GradientOutput<T> output = {static_cast<T*>(grad.mutable_data_ptr()), Steps(grad)};
    if (is_upsampled(g, logits)) {
      upsampled_backward(Call<T, A, true>(g, inputs, saved, options), upstream, output, logits, stream);
      return;
    }
    const Call<T, A, false> call(g, inputs, saved, options);
    const int64_t blocks = blocks_for(g.batch * g.pixels);
    const auto cross_entropy = is_staged(g, call.steps) && is_staged(g, output.steps)
                                   ? cross_entropy_backward_kernel<T, A, true>
                                   : cross_entropy_backward_kernel<T, A, false>;
    launch(stream, blocks, cross_entropy, call, upstream, output);
    if (options.edges) launch(stream, blocks, edge_terms_backward_kernel<T, A>, call, upstream, output);
  });
  return grad;
}

}  // namespace edgeloss
