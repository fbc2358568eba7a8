// One build serves every x86-64: functions marked so are compiled for each of these, and the loader picks. A header's
// functions may go unused in one of the files that include it. With EDGELOSS_NO_CLONES they are compiled once, for what
// the compiler's options say.
#pragma once

// What AVX2 alone leaves out, the fused multiply-add, comes with every processor that has it: x86-64-v3 names both, and
// compilers know the name from GCC 12 on.
#if defined(__GNUC__) && __GNUC__ >= 12
#define EDGELOSS_AVX2 "arch=x86-64-v3"
#else
#define EDGELOSS_AVX2 "avx2"
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(EDGELOSS_NO_CLONES)
#define EDGELOSS_VECTORIZED __attribute__((unused, target_clones("avx512f", EDGELOSS_AVX2, "default")))
#else
#define EDGELOSS_VECTORIZED __attribute__((unused))
#endif
