// The whole loss on CUDA, backward.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>

#include "dense.h"
#include "gather.h"
#include "passes.h"

namespace edgeloss {
namespace {

// A pixel's gradient as the loops over classes need it: factor · e^(x(c) - m), less at_y for class y. With an edge
// pixel of class k around it is of_k · e^(x(k) - m) + share for that class.
template <typename A>
struct Factors {
  A m = 0, factor = 0, at_y = 0, uniform = 0, of_k = 0, share = 0;
  int y = kIgnored, k = kNoClass;

  // all: the factors of the cross-entropy; `around` what edge pixels give, of which k is kNoClass where there are none.
  __device__ void set(const PixelGradient<A>& all, A new_m, A r, int16_t new_y, const A& same, const A& other,
                      int16_t around) {
    const bool has_other = around != kNoClass, likely = around < kNoClass;
    const A scale = ratio(all.alpha + same - (has_other && !likely ? other : A(0)), A(1) + r);
    m = new_m;
    // ∂O = -π p(k) e^(x(c) - m) / r for the other classes where k is likely.
    factor = likely ? scale - ratio(other, r) : scale;
    of_k = scale;
    share = has_other ? other : A(0);
    at_y = all.at_y + same;
    uniform = all.uniform;
    y = new_y;
    k = class_of(around);
  }

  template <bool kShares>
  __device__ A of(int c, A logit) const {
    const A e = exp_negative(logit - m);
    A value = factor * e;
    if constexpr (kShares) value = c == k ? of_k * e + share : value;
    return c == y ? value - at_y : value;
  }
};

// The whole gradient of a tile, exactly 0 on invalid pixels, for any logits. kWeighted: the pixels' factors may differ,
// by weights, label smoothing, gradients of maps, or false edges.
template <typename T, typename A, Layout kLayout, bool kWeighted>
struct GradientTile {
  static constexpr int V = pixels_of(kLayout);

  const Call<T, A, false>& call;
  const Upstream<A>& upstream;
  const EdgeShares<A>& shares;
  const GradientOutput<T>& output;
  const uint32_t* near;  // the bits of the tile's pixels near edge pixels; not read without edges
  int64_t image;
  A total;  // the image's smoothed_weight()
  A ce;     // what arrives at the cross-entropy of each pixel that is not weighted

  // What the pixels of a run have in common.
  struct Run {
    bool is_plain = true, any = false;  // whether all of them count, away from edges; whether any of them does
    unsigned written = 0;               // bits of those that gather_edges has written
  };

  __device__ __forceinline__ Run find_factors(int p, int64_t i, Factors<A> (&factors)[V]) const {
    Run run;
    int16_t y[V];
    T m[V];
    A r[V];
    load<false>(call.label + i, y);
    load<false>(call.m + i, m);
    load<false>(call.r + i, r);
    const uint32_t is_near = call.edges.words ? near[p / 32] >> (p % 32) : 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      y[v] = class_of(y[v]);
      const bool counts = y[v] >= 0, looks_around = counts && (is_near >> v & 1);
      const int16_t k = looks_around ? shares.k[i + v] : kNoClass;
      PixelGradient<A> all;
      all.alpha = all.at_y = ce;
      if constexpr (kWeighted) all = PixelGradient<A>(call, upstream, image, i + v, y[v], total);
      factors[v].set(all, static_cast<A>(m[v]), r[v], y[v], looks_around ? shares.same[i + v] : A(0),
                     looks_around ? shares.other[i + v] : A(0), k);
      if (k == kIsWritten) run.written |= 1u << v;
      run.is_plain &= counts && k == kNoClass;
      run.any |= counts && k != kIsWritten;
    }
    return run;
  }

  // In place of the logits of a block of classes.
  template <bool kPlain, int N>
  __device__ __forceinline__ void differentiate(const Factors<A> (&factors)[V], int c, A (&block)[V][N]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        A value = factors[v].template of<!kPlain>(c + j, block[v][j]);
        if constexpr (kWeighted) {
          const bool is_class = c + j < call.g.classes;
          if (factors[v].uniform != A(0) && is_class) value -= factors[v].uniform * call.weight_of(image, c + j);
        }
        block[v][j] = kPlain || factors[v].y >= 0 ? value : A(0);
      }
    }
  }

  // Writes class c of V pixels from `to` on, but for those that are written.
  template <int N>
  __device__ __forceinline__ void write(T* to, const A (&block)[V][N], int j, unsigned written) const {
    T value[V];
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = static_cast<T>(block[v][j]);
    if (written == 0) {
      store<true>(to, value);
      return;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (!(written >> v & 1)) to[v] = value[v];
    }
  }

  template <bool kPlain>
  __device__ __forceinline__ void run(const Logits<T, A>& x, int pixel, T* out, const Factors<A> (&factors)[V],
                                      unsigned written) const {
    const int classes = static_cast<int>(call.g.classes);
    for_each_class_block<V, V == 1 ? kBlock<A> : 4>(x, pixel, classes, [&](int c, auto& block) {
      differentiate<kPlain>(factors, c, block);
#pragma unroll
      for (int j = 0; j < static_cast<int>(sizeof(block[0]) / sizeof(A)); ++j) {
        if (c + j >= classes || (x.binary && c + j == 0)) continue;
        write(out, block, j, kPlain ? 0 : written);
        out += output.steps.channel;
      }
    });
  }

  __device__ __forceinline__ void run(const Tile& tile) const {
    const auto x = call.image(tile.image);
    const int classes = static_cast<int>(call.g.classes);
    for_each_run<V>(tile, [&](int p, bool exists) {
      const int pixel = exists ? tile.pixel(p) : 0;
      T* out = output.grad + tile.image * output.steps.image + pixel * output.steps.pixel;
      Factors<A> factors[V];
      Run all;
      if (exists) all = find_factors(p, tile.base + pixel, factors);
      if constexpr (kLayout == Layout::kStaged) {
        for_each_staged_block<true, T, A>(all.any ? x.data + pixel * x.pixel_step : nullptr,
                                          exists && all.written == 0 ? out : nullptr, classes,
                                          [&](int c, auto& block) { differentiate<false>(factors, c, block); });
      } else if (all.any && all.is_plain) {
        run<true>(x, pixel, out, factors, 0);
      } else if (all.any) {
        run<false>(x, pixel, out, factors, all.written);
      } else if (exists) {
        const A zeros[V][1] = {};
        for (int64_t c = 0; c < call.g.logits; ++c, out += output.steps.channel) write(out, zeros, 0, all.written);
      }
    });
  }
};

template <typename T, typename A, Layout kLayout, bool kWeighted>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 8 ? 1
                                            : kWeighted    ? 2
                                                           : 3)
    gradient_kernel(const Call<T, A, false> call, const Upstream<A> upstream, const EdgeShares<A> shares,
                    const GradientOutput<T> output) {
  __shared__ uint32_t near[kTileWords];
  const Tile tile(call.g, call.tiles);
  if (call.edges.words) {
    const int w = static_cast<int>(threadIdx.x);
    if (w < kTileWords) near[w] = near_edges(call.g, tile, call.tiles, call.edges, w);
    __syncthreads();
  }
  const A total = kWeighted ? call.smoothed_weight(tile.image) : A(0), ce = upstream.of_sum(Row::kCrossEntropy);
  const GradientTile<T, A, kLayout, kWeighted> gradient = {call, upstream, shares, output, near, tile.image, total, ce};
  gradient.run(tile);
}

// The gradient of logits at the labels' resolution.
template <typename T, typename A>
void run_backward(const Call<T, A, false>& call, const Upstream<A>& upstream, const GradientOutput<T>& output,
                  const Tensor& logits, const Tensor& grad, cudaStream_t stream) {
  const int64_t near = call.edges.words ? call.g.batch * call.g.pixels : 0;
  Tensor sums = torch::stable::new_empty(logits, {2 * near}, kScalarType<A>);
  Tensor classes = torch::stable::new_empty(logits, {near}, ScalarType::Short);
  A* same = static_cast<A*>(sums.mutable_data_ptr());
  const EdgeShares<A> shares = {same, same + near, static_cast<int16_t*>(classes.mutable_data_ptr())};
  if (near > 0) gather_edges(call, upstream, shares, output, stream);
  const Layout of_logits = layout_of(call.g, call.steps, logits), of_grad = layout_of(call.g, output.steps, grad);
  with_layout(of_logits == of_grad ? of_logits : Layout::kSingles, [&](auto layout) {
    constexpr Layout kLayout = decltype(layout)::value;
    const bool weighted = call.weight || call.pixel_weight || upstream.map[Row::kCrossEntropy] || call.false_shares ||
                          call.label_smoothing != A(0);
    const auto kernel = weighted ? gradient_kernel<T, A, kLayout, true> : gradient_kernel<T, A, kLayout, false>;
    launch(stream, call.tiles.count, kernel, call, upstream, shares, output);
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
