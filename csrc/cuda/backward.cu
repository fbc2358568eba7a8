// The whole loss on CUDA, backward.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "dense.h"
#include "near.h"
#include "passes.h"

namespace edgeloss {
namespace {

// A number where all bits of `mask` are set, 0 where none is: in one instruction.
__device__ __forceinline__ float kept(float x, uint32_t mask) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits &= mask;
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}
__device__ __forceinline__ double kept(double x, uint32_t mask) { return mask ? x : 0; }

// A pixel's gradient as the loops over classes need it: factor · e^(x(c) - m), less at_y for class y, and less
// uniform · weight(c).
template <typename A>
struct Factors {
  A m = 0, factor = 0, at_y = 0, uniform = 0;
  int y = 0;
  uint32_t valid = 0;  // all bits of a pixel that counts

  __device__ __forceinline__ A of(int c, A logit) const {
    const A value = factor * exp_negative(logit - m);
    return c == y ? value - at_y : value;
  }
};

// The gradient of a tile, exactly 0 on invalid pixels, for any logits. kPlain: the edge terms are those that have a
// quicker way, and the cross-entropy of all pixels weighs the same: no weights, label smoothing, gradients of maps or
// false edges.
template <typename T, typename A, Layout kLayout, bool kPlain>
struct GradientTile {
  static constexpr int V = pixels_of(kLayout);

  const Call<T, A, false>& call;
  const Upstream<A>& upstream;
  const GradientOutput<T>& output;
  const NearPixels<A>& near;  // not read without edges
  int64_t image;
  A total;  // the image's smoothed_weight()
  A ce;     // what arrives at the cross-entropy of each pixel, if all weigh the same

  __device__ __forceinline__ PixelGradient<A> of_cross_entropy(int64_t i, int16_t y) const {
    if constexpr (!kPlain) return PixelGradient<A>(call, upstream, image, i, y, total);
    PixelGradient<A> all;
    all.alpha = all.at_y = ce;
    return all;
  }

  // Returns whether any of the pixels counts.
  __device__ __forceinline__ bool find_factors(int p, int64_t i, Factors<A> (&factors)[V]) const {
    bool any = false;
    int bits[V];
    T m[V];
    A r[V];
    load_wide(call.label_bits() + i, bits);
    load<false>(call.m + i, m);
    load<false>(call.r + i, r);
    const uint32_t is_near = call.edges.words ? near.bits[p / 32] >> (p % 32) : 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      Factors<A>& own = factors[v];
      const bool is_valid = bits[v] != kIgnoredBits;
      own.valid = is_valid ? ~0u : 0;
      own.y = bits[v] & kClassBits;
      any |= is_valid;
      const PixelGradient<A> all = of_cross_entropy(i + v, class_of(static_cast<int16_t>(bits[v])));
      own.m = static_cast<A>(m[v]);
      own.uniform = all.uniform;
      const bool edges = is_near >> v & 1;
      own.factor = edges ? near.factor[p + v] : ratio(all.alpha, A(1) + r[v]);
      own.at_y = edges ? near.at_y[p + v] : all.at_y;
    }
    return any;
  }

  // In place of the logits of a block of classes.
  template <int N>
  __device__ __forceinline__ void differentiate(const Factors<A> (&factors)[V], int c, A (&block)[V][N]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        A value = factors[v].of(c + j, block[v][j]);
        if constexpr (!kPlain) {
          const bool is_class = c + j < call.g.classes;
          if (factors[v].uniform != A(0) && is_class) value -= factors[v].uniform * call.weight_of(image, c + j);
        }
        block[v][j] = kept(value, factors[v].valid);
      }
    }
  }

  // Writes class c of V pixels from `to` on.
  template <int N>
  __device__ __forceinline__ void write(T* to, const A (&block)[V][N], int j) const {
    T value[V];
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = static_cast<T>(block[v][j]);
    store<true>(to, value);
  }

  __device__ __forceinline__ void run(const Tile& tile) const {
    const auto x = call.image(tile.image);
    const int classes = static_cast<int>(call.g.classes);
    for_each_run<V>(tile, [&](int p, bool exists) {
      const int pixel = exists ? tile.pixel(p) : 0;
      T* out = output.grad + tile.image * output.steps.image + pixel * output.steps.pixel;
      Factors<A> factors[V];
      const bool any = exists && find_factors(p, tile.base + pixel, factors);
      if constexpr (kLayout == Layout::kStaged) {
        for_each_staged_block<true, T, A>(any ? x.data + pixel * x.pixel_step : nullptr, exists ? out : nullptr,
                                          classes, [&](int c, auto& block, auto) { differentiate(factors, c, block); });
      } else if (any) {
        for_each_class_block<V, kLayout == Layout::kPairs ? 2
                                : V == 1 ? kBlock<A>
                                         : 4>(x, pixel, classes, [&](int c, const auto& logits, auto are_all) {
          constexpr int N = sizeof(logits) / sizeof(logits[0]);
          A block[V][N];
          convert_block(logits, block);
          differentiate(factors, c, block);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            if (!are_all && (c + j >= classes || (x.binary && c + j == 0))) continue;
            write(out, block, j);
            out += output.steps.channel;
          }
        });
      } else if (exists) {
        const A zeros[V][1] = {};
#pragma unroll 1
        for (int64_t c = 0; c < call.g.logits; ++c, out += output.steps.channel) write(out, zeros, 0);
      }
    });
  }
};

// The same of two classes without weights and the like: what both terms of edges give is the gradient of the pixels'
// own cross-entropy. Those of the classes differ by their sign, and need nothing from forward but the sides.
template <typename T, typename A>
__device__ __forceinline__ void differentiate_pairs(const Call<T, A, false>& call, const Upstream<A>& upstream,
                                                    const GradientOutput<T>& output, const Tile& tile,
                                                    NearPixels<A>& near) {
  constexpr int V = pixels_of(Layout::kPairs);
  const A ce = upstream.of_sum(Row::kCrossEntropy);
  const int count = call.edges.words ? near.template list<true>(call, tile) : 0;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < count; n += kThreads) {
    const int p = near.places[n];
    const Place at = tile.place(p);
    const int bits = call.label_bits(tile.base + static_cast<int>(at.pixel));
    if (bits == kIgnoredBits) continue;
    near.factor[p] = ce + gather_three<true>(call, upstream, tile, at, bits & kClassBits, A(0), A(0)).same;
  }
  __syncthreads();
  for_each_run<V>(tile, [&](int p, bool exists) {
    if (!exists) return;
    const int pixel = tile.pixel(p);
    T* out = output.grad + tile.image * output.steps.image + pixel;
    int bits[V];
    load_wide(call.label_bits() + tile.base + pixel, bits);
    const uint32_t is_near = count > 0 ? near.bits[p / 32] >> (p % 32) : 0;
    for_each_class_block<V, 2>(call.image(tile.image), pixel, 2, [&](int, const auto& logits, auto) {
      A x[V][2];
      convert_block(logits, x);
      T gradients[2][V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const bool is_first = (bits[v] & kClassBits) == 0;
        const A above = is_first ? x[v][1] - x[v][0] : x[v][0] - x[v][1];  // the other class, above y
        const A below = exp_negative(-std::abs(above));
        const A scale = ratio(is_near >> v & 1 ? near.factor[p + v] : ce, A(1) + below);
        const A value = kept(above > A(0) ? scale : scale * below, bits[v] != kIgnoredBits ? ~0u : 0);
        gradients[0][v] = static_cast<T>(is_first ? A(0) - value : value);
        gradients[1][v] = static_cast<T>(is_first ? value : A(0) - value);
      }
      store<true>(out, gradients[0]);
      store<true>(out + output.steps.channel, gradients[1]);
    });
  });
}

template <typename T, typename A, Layout kLayout, bool kPlain>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && kPlain ? 2 : 1)
    gradient_kernel(const Call<T, A, false> call, const Upstream<A> upstream, const GradientOutput<T> output) {
  __shared__ NearPixels<A> near;
  const Tile tile(call.g, call.tiles);
  if constexpr (kLayout == Layout::kPairs && kPlain) return differentiate_pairs(call, upstream, output, tile, near);
  const A total = kPlain ? A(0) : call.smoothed_weight(tile.image), ce = upstream.of_sum(Row::kCrossEntropy);
  const GradientTile<T, A, kLayout, kPlain> gradient = {call, upstream, output, near, tile.image, total, ce};
  if (call.edges.words) {
    find_near<kPlain>(call, upstream, tile, near, [&](int i, int16_t y) { return gradient.of_cross_entropy(i, y); });
  }
  gradient.run(tile);
  if (call.edges.words) patch_near<kPlain>(call, upstream, tile, near, output);
}

// The gradient of logits at the labels' resolution.
template <typename T, typename A>
void run_backward(const Call<T, A, false>& call, const Upstream<A>& upstream, const GradientOutput<T>& output,
                  const Tensor& logits, const Tensor& grad, cudaStream_t stream) {
  const Layout of_logits = layout_of(call.g, call.steps, logits), of_grad = layout_of(call.g, output.steps, grad);
  const bool weighted = call.weight || call.pixel_weight || call.false_shares || call.label_smoothing != A(0) ||
                        std::any_of(upstream.map, upstream.map + Row::kTerms, [](const A* map) { return map; });
  const bool plain = !weighted && (call.is_plain() || !call.edges.words);
  with_layout(of_logits == of_grad ? of_logits : Layout::kSingles, [&](auto layout) {
    constexpr Layout kLayout = decltype(layout)::value;
    const auto kernel = plain ? gradient_kernel<T, A, kLayout, true> : gradient_kernel<T, A, kLayout, false>;
    launch(stream, call.tiles.count, kernel, call, upstream, output);
  });
}

}  // namespace

Tensor cuda::backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved,
                      const Options& options) {
  const Tensor& logits = inputs.logits;
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Geometry g = clipped_geometry(logits, saved.label, options);
  const cudaStream_t stream = current_stream(device);
  Tensor grad = torch::stable::empty_like(logits);
  by_type(logits, [&](auto t, auto a) {
    using T = decltype(t);
    using A = decltype(a);
    const Upstream<A> upstream(gradients);
    const GradientOutput<T> output = {static_cast<T*>(grad.mutable_data_ptr()), Steps(grad)};
    const auto run = [&](auto call, const auto& differentiate) {
      const int64_t all = call.false_edges.words ? g.batch * g.pixels : 0;
      Tensor shares = torch::stable::new_empty(logits, {all}, kScalarType<A>);
      if (all > 0) {
        gather_false_edges(call, upstream, static_cast<A*>(shares.mutable_data_ptr()), stream);
        call.false_shares = static_cast<const A*>(shares.const_data_ptr());
      }
      differentiate(call);
    };
    if (is_upsampled(g, logits)) {
      run(Call<T, A, true>(g, inputs, saved, options),
          [&](const auto& call) { upsampled_backward(call, upstream, output, logits, stream); });
    } else {
      run(Call<T, A, false>(g, inputs, saved, options),
          [&](const auto& call) { run_backward(call, upstream, output, logits, grad, stream); });
    }
  });
  return grad;
}

}  // namespace edgeloss
