// The cross-entropy of a pixel, from its logits block by block. For both kinds of logits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "call.h"
#include "passes.h"

namespace edgeloss {

// What label smoothing and the prediction need of a pixel.
template <typename A>
struct Extras {
  A below = 0, weights = 0;  // Σ weight(c) · (x(c) - m) and Σ weight(c), over the classes so far
  int predicted = 0;         // the first class that reaches the max

  // before, m: the max without and with the block.
  template <int N, typename C>
  __device__ __forceinline__ void add(const C& call, int image, int c, const A (&x)[N], A before, A m) {
    if (m > before) {
#pragma unroll
      for (int j = N - 1; j >= 0; --j) predicted = x[j] == m ? c + j : predicted;
    }
    if (call.label_smoothing == A(0)) return;
    if (weights > A(0) && m > before) below += weights * (before - m);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (c + j >= call.g.classes) continue;
      const A w = call.weight_of(image, c + j);
      below += x[j] == m ? A(0) : w * (x[j] - m);
      weights += w;
    }
  }
};

template <typename A>
struct CrossEntropyOutputs {
  A* ce;  // [B, P] or null
  PixelTerms<A> of_pixels;
  double* partial;  // [Row::kCount, tiles]
};

// What is wanted of the cross-entropy: its sum alone; the terms of pixels, too; and all of it, with weights, label
// smoothing and the prediction. Calls do not pay for what they do not want.
enum class Terms { kSum, kPixels, kAll };

template <typename C, typename A>
Terms terms_of(const C& call, const CrossEntropyOutputs<A>& out) {
  if (call.weight || call.pixel_weight || call.label_smoothing != A(0) || out.of_pixels.predicted) return Terms::kAll;
  return out.ce || out.of_pixels.log_p ? Terms::kPixels : Terms::kSum;
}

// Calls body(std::integral_constant of the terms).
template <typename F>
void with_terms(Terms terms, const F& body) {
  if (terms == Terms::kSum) body(std::integral_constant<Terms, Terms::kSum>());
  if (terms == Terms::kPixels) body(std::integral_constant<Terms, Terms::kPixels>());
  if (terms == Terms::kAll) body(std::integral_constant<Terms, Terms::kAll>());
}

// A pixel whose logits are read. kPair: of two classes, read at once.
template <typename A, Terms kTerms, bool kPair>
struct Pixel {
  int y = kIgnored;
  A own = 0;  // its logit of class y
  RunningSoftmax<A> softmax;
  Extras<A> extras;

  template <typename C, int N>
  __device__ __forceinline__ void add(const C& call, int image, int c, const A (&x)[N]) {
    const A before = softmax.m;
    if constexpr (kPair) {
      softmax_of_pair(x[0], x[1], softmax.m, softmax.r);
      own = y == 0 ? x[0] : x[1];
    } else {
      softmax.add(x);
    }
    if constexpr (kTerms == Terms::kAll) extras.add(call, image, c, x, before, softmax.m);
  }
};

// The cross-entropy of a thread's pixels, and of its block.
template <typename A, Terms kTerms>
struct CrossEntropySums {
  A ce = 0;  // where all weigh the same: their sum, or what that has besides `logs`
  SumOfLogs<A> logs;
  double weighted[2] = {};  // of CE and weight

  // Adds a pixel.
  template <bool kPair>
  __device__ __forceinline__ void add(const Pixel<A, kTerms, kPair>& pixel) {
    if (pixel.y < 0) return;
    ce += pixel.softmax.m - pixel.own;
    logs.add(pixel.softmax.r);
  }

  // The same of pixel i, whose CE it returns: 0 where it does not count, for any logits. log_p: of its class.
  template <bool kPair, typename C>
  __device__ __forceinline__ A add(const Pixel<A, kTerms, kPair>& pixel, const C& call,
                                   const CrossEntropyOutputs<A>& out, int image, int i, A& log_p) {
    const A r = pixel.softmax.r, log_sum = kPair ? log1p_of_unit(r) : log1p_positive(r);
    log_p = (pixel.own - pixel.softmax.m) - log_sum;
    const bool counts = pixel.y >= 0;
    if constexpr (kTerms == Terms::kAll) {
      if (out.of_pixels.predicted) {
        out.of_pixels.predicted[i] = counts ? static_cast<int16_t>(pixel.extras.predicted) : kIgnored;
      }
      if (!counts) return A(0);
      const A v = call.pixel_weight_of(i), w = call.weight_of(image, pixel.y), smoothing = call.label_smoothing;
      A value = w * (A(0) - log_p);
      if (smoothing != A(0)) {
        const A all = pixel.extras.weights * log_sum - pixel.extras.below;
        value = (A(1) - smoothing) * value + smoothing / static_cast<A>(call.g.classes) * all;
      }
      weighted[0] += static_cast<double>(v) * value;
      weighted[1] += static_cast<double>(v) * w;
      return value;
    } else {
      if (!counts) return A(0);
      ce -= log_p;
      return A(0) - log_p;
    }
  }

  // Writes the sums of the block, whose threads call it together.
  __device__ __forceinline__ void write(const CrossEntropyOutputs<A>& out, const Tiles& tiles) {
    double sums[kTerms == Terms::kAll ? 2 : 1] = {weighted[0]};
    if constexpr (kTerms == Terms::kAll) sums[1] = weighted[1];
    if constexpr (kTerms != Terms::kAll) sums[0] = ce + logs.value();
    block_sum(sums);
    if (threadIdx.x != 0) return;
    out.partial[Row::kCrossEntropy * tiles.count + blockIdx.x] = sums[0];
    if constexpr (kTerms == Terms::kAll) out.partial[Row::kWeight * tiles.count + blockIdx.x] = sums[1];
  }
};

// The cross-entropy of logits to be upsampled.
template <typename T, typename A>
void upsampled_cross_entropy(const Call<T, A, true>& call, const CrossEntropyOutputs<A>& out, cudaStream_t stream);

}  // namespace edgeloss
