// One build serves every x86-64: functions marked so are compiled for each of these, and the loader picks. A header's
// functions may go unused in one of the files that include it. With EDGELOSS_NO_CLONES they are compiled once, for what
// the compiler's options say.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(EDGELOSS_NO_CLONES)
#define EDGELOSS_VECTORIZED __attribute__((unused, target_clones("avx512f", "avx2", "default")))
#else
#define EDGELOSS_VECTORIZED __attribute__((unused))
#endif
