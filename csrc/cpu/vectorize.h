// One build serves every x86-64: loops in float are compiled for each of the targets below, and the processor decides
// which of them runs. With EDGELOSS_NO_CLONES they are compiled once, for what the compiler's options say.
//
// Loops in double are compiled once: their exponentials and logarithms are calls, which do not vectorize.
#pragma once

#include <cstdint>
#include <type_traits>

// Before a loop whose iterations are independent of each other, although its pointers may be equal.
#if defined(__clang__)
#define EDGELOSS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EDGELOSS_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define EDGELOSS_LOOP __attribute__((always_inline))

namespace edgeloss {

template <int64_t N>
using VectorBytes = std::integral_constant<int64_t, N>;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(EDGELOSS_NO_CLONES)

// What AVX2 alone leaves out, the fused multiply-add, comes with every processor that has it: x86-64-v3 names both, and
// compilers know the name from GCC 12 on.
#if __GNUC__ >= 12
#define EDGELOSS_AVX2 "arch=x86-64-v3"
#else
#define EDGELOSS_AVX2 "avx2"
#endif

enum class Vectors { kSse2, kAvx2, kAvx512 };

inline Vectors widest_vectors() {
  static const Vectors widest = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return Vectors::kAvx512;
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_avx2 ? Vectors::kAvx2 : Vectors::kSse2;
  }();
  return widest;
}

template <typename F>
__attribute__((target("avx512f"), noinline)) auto run_avx512(F loop) {
  return loop();
}
template <typename F>
__attribute__((target(EDGELOSS_AVX2), noinline)) auto run_avx2(F loop) {
  return loop();
}

// Returns loop(), a lambda that captures by value and is marked EDGELOSS_LOOP; in float compiled for each target.
template <typename A = float, typename F>
auto vectorized(const F& loop) {
  if constexpr (std::is_same_v<A, double>) {
    return loop();
  } else {
    if (widest_vectors() == Vectors::kAvx512) return run_avx512(loop);
    if (widest_vectors() == Vectors::kAvx2) return run_avx2(loop);
    return loop();
  }
}

// The same of a loop over vectors: loop(bytes), a constant, the size of a vector, which is kMost with AVX-512.
template <typename A = float, int64_t kMost = 32, typename F>
auto vectorized_by_size(const F& loop) {
  const auto with = [=](auto bytes) { return [=]() EDGELOSS_LOOP { return loop(bytes); }; };
  if constexpr (std::is_same_v<A, double>) {
    return loop(VectorBytes<16>());
  } else {
    if (widest_vectors() == Vectors::kAvx512) return run_avx512(with(VectorBytes<kMost>()));
    if (widest_vectors() == Vectors::kAvx2) return run_avx2(with(VectorBytes<32>()));
    return loop(VectorBytes<16>());
  }
}

#else

template <typename A = float, typename F>
auto vectorized(const F& loop) {
  return loop();
}
template <typename A = float, int64_t kMost = 32, typename F>
auto vectorized_by_size(const F& loop) {
#if defined(__AVX512F__)
  return loop(VectorBytes<kMost>());
#elif defined(__AVX2__)
  return loop(VectorBytes<32>());
#else
  return loop(VectorBytes<16>());
#endif
}

#endif

}  // namespace edgeloss
