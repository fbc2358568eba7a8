// Numbers side by side in memory, read and written together.
#pragma once

#include <torch/headeronly/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../math.h"

namespace edgeloss {

// Whether vectors of four numbers of `size` bytes each begin at `data`.
inline bool is_aligned(const void* data, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) % std::min<int64_t>(16, 4 * size) == 0;
}

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

// The same of numbers of 16 bits without a sign, each in a word of its own.
template <int V>
__device__ __forceinline__ void load_wide(const uint16_t* from, int (&x)[V]) {
  if constexpr (V == 4) {
    uint16_t four[4];
    load<false>(from, four);
    uint32_t words[2];
    std::memcpy(words, four, sizeof(words));
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = static_cast<int>(v % 2 == 0 ? words[v / 2] & 0xffff : words[v / 2] >> 16);
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = from[v];
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

// Compares V numbers each: `top` becomes the larger ones, and x the others, nan where x was.
template <int V, typename T>
__device__ __forceinline__ void compare(T (&top)[V], T (&x)[V]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr bool kTwo = V % 2 == 0 && sizeof(T) == 2;  // at a time
#else
  constexpr bool kTwo = false;
#endif
  if constexpr (kTwo) {
    uint32_t tops[V / 2], others[V / 2];
    std::memcpy(tops, top, sizeof(tops));
    std::memcpy(others, x, sizeof(others));
#pragma unroll
    for (int w = 0; w < V / 2; ++w) {
      const uint32_t a = tops[w], b = others[w];
      if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) {
        asm("max.bf16x2 %0, %1, %2;" : "=r"(tops[w]) : "r"(a), "r"(b));
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(others[w]) : "r"(a), "r"(b));
      } else {
        asm("max.f16x2 %0, %1, %2;" : "=r"(tops[w]) : "r"(a), "r"(b));
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(others[w]) : "r"(a), "r"(b));
      }
    }
    std::memcpy(top, tops, sizeof(tops));
    std::memcpy(x, others, sizeof(others));
  } else {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const A a = static_cast<A>(top[v]), b = static_cast<A>(x[v]);
      top[v] = static_cast<T>(larger(a, b));
      x[v] = static_cast<T>(smaller_or_nan(a, b));
    }
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

}  // namespace edgeloss
