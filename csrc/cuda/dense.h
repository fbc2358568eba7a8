// All classes of a pixel, in blocks: loops over logits, and how pixels side by side are read and written together.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "call.h"

namespace edgeloss {

// How the logits lie in memory.
enum class Layout {
  kVectors,  // a class's pixels side by side, four of a row in a vector
  kSingles,  // anyhow: one pixel at a time
  kStaged,   // a pixel's classes side by side: neighboring threads copy neighboring classes, through shared memory
};

constexpr int pixels_of(Layout layout) { return layout == Layout::kVectors ? 4 : 1; }  // of a thread at a time

// Classes of a block: their reads do not wait for each other.
template <typename A>
constexpr int kBlock = sizeof(A) == 4 ? kClasses : 4;

// Whether a tensor's rows can be read in vectors of four.
inline bool has_vectors(const Geometry& g, const Steps& steps, const Tensor& x) {
  const int64_t bytes = std::min<int64_t>(16, 4 * static_cast<int64_t>(x.element_size()));
  return g.width % 4 == 0 && steps.pixel == 1 && steps.channel % 4 == 0 && steps.image % 4 == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % bytes == 0;
}

inline Layout layout_of(const Geometry& g, const Steps& steps, const Tensor& x) {
  if (g.logits > 1 && steps.channel == 1 && steps.pixel != 1) return Layout::kStaged;
  return has_vectors(g, steps, x) ? Layout::kVectors : Layout::kSingles;
}

// Calls body(std::integral_constant of the layout).
template <typename F>
void with_layout(Layout layout, const F& body) {
  if (layout == Layout::kVectors) body(std::integral_constant<Layout, Layout::kVectors>());
  if (layout == Layout::kSingles) body(std::integral_constant<Layout, Layout::kSingles>());
  if (layout == Layout::kStaged) body(std::integral_constant<Layout, Layout::kStaged>());
}

// ------------------------------------------------------------------------------------------------------------ vectors

template <int kBytes>
struct alignas(kBytes) Words {
  uint32_t word[kBytes / 4];
};

// V numbers side by side. kOnce: nothing reads them soon, so that they may leave the cache.
template <bool kOnce, int V, typename T>
__device__ __forceinline__ void load(const T* from, T (&x)[V]) {
  if constexpr (V == 1) {
    x[0] = *from;
  } else {
    constexpr int kBytes = sizeof(x) < 16 ? sizeof(x) : 16;
    using Vector = Words<kBytes>;
    Vector vectors[sizeof(x) / kBytes];
#pragma unroll
    for (int n = 0; n < static_cast<int>(sizeof(x) / kBytes); ++n) {
#ifdef __CUDA_ARCH__
      if constexpr (kOnce && kBytes == 16) {
        const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from) + n);
        vectors[n] = {{v.x, v.y, v.z, v.w}};
      } else if constexpr (kOnce && kBytes == 8) {
        const uint2 v = __ldcs(reinterpret_cast<const uint2*>(from) + n);
        vectors[n] = {{v.x, v.y}};
      } else {
        vectors[n] = reinterpret_cast<const Vector*>(from)[n];
      }
#else
      std::memcpy(&vectors[n], from + n * kBytes / sizeof(T), kBytes);
#endif
    }
    std::memcpy(x, vectors, sizeof(x));
  }
}

// The same numbers in another type.
template <int V, typename T, typename A>
__device__ __forceinline__ void convert(const T (&from)[V], A (&to)[V]) {
  if constexpr (V == 4 && std::is_same_v<T, torch::headeronly::BFloat16>) {  // a half of a word at a time
    uint32_t words[2], wide[4];
    std::memcpy(words, from, sizeof(words));
#pragma unroll
    for (int v = 0; v < 4; ++v) wide[v] = v % 2 == 0 ? words[v / 2] << 16 : words[v / 2] & 0xffff0000u;
    std::memcpy(to, wide, sizeof(wide));
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = static_cast<A>(from[v]);
  }
}

template <bool kOnce, int V, typename T>
__device__ __forceinline__ void store(T* to, const T (&x)[V]) {
  if constexpr (V == 1) {
    *to = x[0];
  } else {
    constexpr int kBytes = sizeof(x) < 16 ? sizeof(x) : 16;
    using Vector = Words<kBytes>;
    Vector vectors[sizeof(x) / kBytes];
    std::memcpy(vectors, x, sizeof(x));
#pragma unroll
    for (int n = 0; n < static_cast<int>(sizeof(x) / kBytes); ++n) {
#ifdef __CUDA_ARCH__
      const auto& word = vectors[n].word;
      if constexpr (kOnce && kBytes == 16) {
        __stcs(reinterpret_cast<uint4*>(to) + n, make_uint4(word[0], word[1], word[2], word[3]));
      } else if constexpr (kOnce && kBytes == 8) {
        __stcs(reinterpret_cast<uint2*>(to) + n, make_uint2(word[0], word[1]));
      } else {
        reinterpret_cast<Vector*>(to)[n] = vectors[n];
      }
#else
      std::memcpy(to + n * kBytes / sizeof(T), &vectors[n], kBytes);
#endif
    }
  }
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

// Calls body(c, x) for blocks of N classes of V pixels: x[v][j] is class c + j of pixel v, -inf where there is none.
template <int V, int N, typename T, typename A, typename F>
__device__ __forceinline__ void for_each_class_block(const Logits<T, A>& x, int64_t pixel, int classes, const F& body) {
  const T* at = x.data + pixel * x.pixel_step;
  int c = 0;
  for (; c + N <= classes; c += N) {
    T raw[N][V];
#pragma unroll
    for (int j = 0; j < N; ++j, at += x.class_step) load<true>(at, raw[j]);
    A block[V][N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      A wide[V];
      convert(raw[j], wide);
#pragma unroll
      for (int v = 0; v < V; ++v) block[v][j] = wide[v];
    }
    body(c, block);
  }
  constexpr int kRest = 4;  // fewer at a time, so that few of them are none
  for (; c < classes; c += kRest) {
    A block[V][kRest];
#pragma unroll
    for (int j = 0; j < kRest; ++j) {
      const bool exists = c + j < classes, is_zero = x.binary && j == 0;
      T raw[V] = {};
      if (exists && !is_zero) {
        load<true>(at, raw);
        at += x.class_step;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) block[v][j] = !exists ? A(-INFINITY) : is_zero ? A(0) : static_cast<A>(raw[v]);
    }
    body(c, block);
  }
}

template <int V, int N, typename T, typename A, typename F>
__device__ __forceinline__ void for_each_class_block(const UpsampledLogits<T, A>& x, int64_t pixel, int classes,
                                                     const F& body) {
  static_assert(V == 1);
  const Mixture<T, A> mixture = x.mixture(pixel);
  for (int c = 0; c < classes; c += N) {
    A block[1][N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const bool exists = c + j < classes, is_zero = x.binary && c + j == 0;
      block[0][j] = !exists   ? A(-INFINITY)
                    : is_zero ? A(0)
                              : mixture.at(x.binary ? 0 : static_cast<int64_t>(c + j) * x.low.class_step);
    }
    body(c, block);
  }
}

// The same where the classes of a pixel lie side by side: then neighboring threads copy neighboring classes, through
// shared memory. Each on its own would touch a line of memory for every number, and write a part of it at a time.
//
// The threads of a block call it together, with null for a pixel that is not read or not written. Where it writes, body
// leaves in the block what shall be written.
template <bool kWrites, typename T, typename A, typename F>
__device__ __forceinline__ void for_each_staged_block(const T* from, T* to, int classes, const F& body) {
  __shared__ A values[kClasses][kThreads + 4];  // + 4: eight classes of four pixels lie in different banks
  __shared__ const T* read[kThreads];
  __shared__ T* written[kThreads];
  const int own = static_cast<int>(threadIdx.x), j = own % kClasses, first = own / kClasses;
  __syncthreads();  // the last call has ended everywhere
  read[own] = from;
  if constexpr (kWrites) written[own] = to;
  for (int c = 0; c < classes; c += kClasses) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kClasses; ++k) {
      const int pixel = first + k * (kThreads / kClasses);
      values[j][pixel] = read[pixel] && c + j < classes ? static_cast<A>(read[pixel][c + j]) : A(-INFINITY);
    }
    __syncthreads();
    A block[1][kClasses];
#pragma unroll
    for (int k = 0; k < kClasses; ++k) block[0][k] = values[k][own];
    body(c, block);
    if constexpr (kWrites) {
#pragma unroll
      for (int k = 0; k < kClasses; ++k) values[k][own] = block[0][k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kClasses; ++k) {
        const int pixel = first + k * (kThreads / kClasses);
        if (written[pixel] && c + j < classes) written[pixel][c + j] = static_cast<T>(values[j][pixel]);
      }
    }
  }
}

}  // namespace edgeloss
