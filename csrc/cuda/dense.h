// All classes of a pixel, in blocks: loops over logits, and how pixels side by side are read and written together.
#pragma once

#include <cstdint>
#include <type_traits>

#include "call.h"
#include "vectors.h"

namespace edgeloss {

// How the logits lie in memory.
enum class Layout {
  kVectors,  // a class's pixels side by side, four of a row in a vector
  kSingles,  // anyhow: one pixel at a time
  kStaged,   // a pixel's classes side by side: neighboring threads copy neighboring classes, through shared memory
  kPairs,    // as kVectors, of two classes
};

constexpr int pixels_of(Layout layout) {  // of a thread at a time
  return layout == Layout::kVectors || layout == Layout::kPairs ? 4 : 1;
}

// Classes of a block: their reads do not wait for each other.
template <typename A>
constexpr int kBlock = sizeof(A) == 4 ? kClasses : 4;

// Whether a tensor's rows can be read in vectors of four, and its classes be found by a step of 32 bits, in bytes.
inline bool has_vectors(const Geometry& g, const Steps& steps, const Tensor& x) {
  return g.width % 4 == 0 && steps.pixel == 1 && steps.channel % 4 == 0 && steps.image % 4 == 0 &&
         steps.channel <= INT32_MAX / static_cast<int64_t>(x.element_size()) &&
         is_aligned(x.const_data_ptr(), static_cast<int64_t>(x.element_size()));
}

inline Layout layout_of(const Geometry& g, const Steps& steps, const Tensor& x) {
  if (g.logits > 1 && steps.channel == 1 && steps.pixel != 1) return Layout::kStaged;
  if (!has_vectors(g, steps, x)) return Layout::kSingles;
  return g.logits == 2 ? Layout::kPairs : Layout::kVectors;
}

// Calls body(std::integral_constant of the layout).
template <typename F>
void with_layout(Layout layout, const F& body) {
  if (layout == Layout::kVectors) body(std::integral_constant<Layout, Layout::kVectors>());
  if (layout == Layout::kPairs) body(std::integral_constant<Layout, Layout::kPairs>());
  if (layout == Layout::kSingles) body(std::integral_constant<Layout, Layout::kSingles>());
  if (layout == Layout::kStaged) body(std::integral_constant<Layout, Layout::kStaged>());
}

// -------------------------------------------------------------------------------------------------------------- pixels

// Calls body(place in the tile, whether it exists) for this thread's pixels, V side by side at a time.
template <int V, typename F>
__device__ __forceinline__ void for_each_run(const Tile& tile, const F& body) {
#pragma unroll 1
  for (int k = 0; k < kTilePixels / (V * kThreads); ++k) {
    const int p = V * (static_cast<int>(threadIdx.x) + k * kThreads);
    body(p, tile.exists(p));
  }
}

// Calls body(c, x, are_all) for blocks of N classes of V pixels, all classes if N is 2: x[j][v] is class c + j of pixel
// v, -inf where there is none. are_all, a std::bool_constant: all of them are classes.
template <int V, int N, typename T, typename A, typename F>
__device__ __forceinline__ void for_each_class_block(const Logits<T, A>& x, int64_t pixel, int classes, const F& body) {
  const T* at = x.data + pixel * x.pixel_step;
  const auto take = [&](int c) {
    T block[N][V];
#pragma unroll
    for (int j = 0; j < N; ++j, at += x.class_step) load<true>(at, block[j]);
    body(c, block, std::true_type());
  };
  if constexpr (N == 2) {
    take(0);
  } else {
    int c = 0;
    for (; c + N <= classes; c += N) take(c);
    constexpr int kRest = 4;  // fewer at a time, so that few of them are none
    T zeros[V], none[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      zeros[v] = static_cast<T>(0.0f);
      none[v] = static_cast<T>(-INFINITY);
    }
    for (; c < classes; c += kRest) {
      T block[kRest][V];
#pragma unroll
      for (int j = 0; j < kRest; ++j) {
        const bool exists = c + j < classes, is_zero = x.binary && j == 0;
#pragma unroll
        for (int v = 0; v < V; ++v) block[j][v] = is_zero ? zeros[v] : none[v];
        if (!exists || is_zero) continue;
        load<true>(at, block[j]);
        at += x.class_step;
      }
      body(c, block, std::false_type());
    }
  }
}

// The same numbers by pixels, in the type to compute in.
template <int V, int N, typename T, typename A>
__device__ __forceinline__ void convert_block(const T (&from)[N][V], A (&to)[V][N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A wide[V];
    convert(from[j], wide);
#pragma unroll
    for (int v = 0; v < V; ++v) to[v][j] = wide[v];
  }
}

// The same where the classes of a pixel lie side by side: then neighboring threads copy neighboring classes, through
// shared memory. Each on its own would touch a line of memory for every number, and write a part of it at a time.
//
// The threads of a block call it together, with null for a pixel that is not read or not written. Where it writes, body
// leaves in the block what shall be written.
template <bool kWrites, typename T, typename A, typename F>
__device__ __forceinline__ void for_each_staged_block(const T* from, T* to, int classes, const F& body) {
  constexpr int N = kBlock<A>;
  __shared__ A values[N][kThreads + 4];  // + 4: neighboring classes of neighboring pixels lie in different banks
  __shared__ const T* read[kThreads];
  __shared__ T* written[kThreads];
  const int own = static_cast<int>(threadIdx.x), j = own % N, first = own / N;
  __syncthreads();  // the last call has ended everywhere
  read[own] = from;
  if constexpr (kWrites) written[own] = to;
  for (int c = 0; c < classes; c += N) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int pixel = first + k * (kThreads / N);
      values[j][pixel] = read[pixel] && c + j < classes ? static_cast<A>(read[pixel][c + j]) : A(-INFINITY);
    }
    __syncthreads();
    A block[1][N];
#pragma unroll
    for (int k = 0; k < N; ++k) block[0][k] = values[k][own];
    body(c, block, std::false_type());
    if constexpr (kWrites) {
#pragma unroll
      for (int k = 0; k < N; ++k) values[k][own] = block[0][k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int pixel = first + k * (kThreads / N);
        if (written[pixel] && c + j < classes) written[pixel][c + j] = static_cast<T>(values[j][pixel]);
      }
    }
  }
}

}  // namespace edgeloss
