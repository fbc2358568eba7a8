// The loops of tiles.h.
#include "tiles.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstdlib>

#include "vectorize.h"

namespace edgeloss {
namespace {

// to[j · to_step] = from[j · from_step], of any types. Such rows are short: what runs them is chosen once a tile.
template <typename From, typename To>
EDGELOSS_INLINE void copy_row(const From* from, int64_t from_step, int64_t n, To* to, int64_t to_step) {
  if (from_step == 1 && to_step == 1) {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) to[j] = static_cast<To>(from[j]);
  } else {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) to[j * to_step] = static_cast<To>(from[j * from_step]);
  }
}

// Copies whole lines of the cache to memory, past the cache.
void stream(const void* from, int64_t bytes, void* to) {
#ifdef __SSE2__
  constexpr int64_t kLine = 64, kPart = sizeof(__m128i);
  if (reinterpret_cast<uintptr_t>(to) % kLine == 0 && bytes % kLine == 0) {
    const auto* parts = static_cast<const __m128i*>(from);
    auto* out = static_cast<__m128i*>(to);
    for (int64_t i = 0; i < bytes / kPart; ++i) _mm_stream_si128(out + i, _mm_loadu_si128(parts + i));
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

template <typename A>
void read_tile(const Stored<A>& x, int64_t classes, int64_t p, int64_t n, A* tile, int64_t ld) {
  x.by_type([&](const auto* data) {
    const auto* first = data + p * x.pixel_step;
    if (x.class_step == 1 && classes > 1 && !x.binary) {
      for (int64_t j = 0; j < n; ++j, first += x.pixel_step) {
        for (int64_t c = 0; c < classes; ++c) tile[c * ld + j] = static_cast<A>(first[c]);
      }
    } else {
      vectorized<A>([=, class_step = x.class_step, step = x.pixel_step, begin = x.binary ? 1 : 0]() EDGELOSS_LOOP {
        for (int64_t c = begin; c < classes; ++c) {
          const auto* row = first + (c - begin) * class_step;
          // The next tile's: rows are too short a piece of memory for the processor to foresee them.
          const auto* next = row + n * step;
          for (int64_t j = 0; j < n && step == 1; j += 64 / static_cast<int64_t>(sizeof(*next)))
            __builtin_prefetch(next + j);
          copy_row(row, step, n, tile + c * ld, 1);
        }
      });
    }
  });
}

template <typename A>
void write_tile(const A* tile, int64_t ld, int64_t count, int64_t n, const Stored<A, void*>& out, int64_t p,
                bool streams) {
  out.by_type([&](auto* data) {
    using T = std::remove_reference_t<decltype(*data)>;
    const bool past_cache = streams && std::is_same_v<T, A> && out.pixel_step == 1;
    vectorized<A>([=, first = data + p * out.pixel_step, class_step = out.class_step, step = out.pixel_step]()
                      EDGELOSS_LOOP {
                        for (int64_t c = 0; c < count; ++c) {
                          const A* row = tile + c * ld;
                          T* to = first + c * class_step;
                          past_cache ? stream(row, n * sizeof(A), to) : copy_row(row, 1, n, to, step);
                        }
                      });
  });
}

void end_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

int64_t read_labels(const Target& target, int64_t first, int64_t n, int16_t* label) {
  const int64_t classes = target.classes, ignore_index = target.ignore_index;
  return target.labels.by_type([&](const auto* labels) {
    const auto* from = labels + first;
    // The next tile's: 8 bytes a pixel are more than those of a logit.
    for (int64_t j = 0; j < n; j += 64 / sizeof(*from)) __builtin_prefetch(from + n + j);
    return vectorized([=]() EDGELOSS_LOOP {
      int64_t wrong = 0;
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        const int64_t value = static_cast<int64_t>(from[j]);
        const bool ignored = value == ignore_index, in_range = value >= 0 && value < classes;
        label[j] = static_cast<int16_t>(!ignored && in_range ? value : kIgnored);
        wrong += !ignored && !in_range;
      }
      return wrong;
    });
  });
}

#define EDGELOSS_INSTANTIATE(A)                                                      \
  template void read_tile(const Stored<A>&, int64_t, int64_t, int64_t, A*, int64_t); \
  template void write_tile(const A*, int64_t, int64_t, int64_t, const Stored<A, void*>&, int64_t, bool);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
