// The loops of statistics.h.
#include "softmax.h"

#include "vectorize.h"

namespace edgeloss {
namespace {

// Calls body(the number as a constant) for a number of 1 to kClassBlock.
template <int N = kClassBlock, typename F>
EDGELOSS_INLINE void with_constant(int64_t number, const F& body) {
  if (N == 1 || number == N) return body(std::integral_constant<int, N>());
  if constexpr (N > 1) with_constant<N - 1>(number, body);
}

// Calls body(the first class, how many) for blocks of classes of nearly the same size.
template <typename F>
EDGELOSS_INLINE void for_each_class_block(int64_t classes, const F& body) {
  const int64_t blocks = (classes + kClassBlock - 1) / kClassBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = classes * block / blocks, last = classes * (block + 1) / blocks;
    with_constant(last - first, [&](auto count) EDGELOSS_LOOP { body(first, count); });
  }
}

// What is known of a tile's pixels from the classes so far: x_y is the logit of y. buffer: where the tile is copied to.
template <typename A>
struct RunningTile {
  A *m, *r, *lost, *x_y, *buffer;
  int64_t buffer_ld;
};

// Adds N classes from `first` on; Starts: the first ones.
template <bool Starts, bool Copies, int N, typename A>
EDGELOSS_INLINE void add_classes(const Tile<A>& tile, int64_t first, const int32_t* y, const RunningTile<A>& sums) {
  const int64_t n = tile.n, ld = tile.ld;
  const A* x = tile.x + first * ld;
  A *m = sums.m, *r = sums.r, *lost = sums.lost, *x_y = sums.x_y;
  A* copy = Copies ? sums.buffer + first * sums.buffer_ld : nullptr;
  for (int c = 0; c < N; ++c) prefetch_ahead(tile, first + c);
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    A logit[N], own = Starts ? A(0) : x_y[j];
    for (int c = 0; c < N; ++c) {
      logit[c] = x[c * ld + j];
      if constexpr (Copies) copy[c * sums.buffer_ld + j] = logit[c];
      own = y[j] == static_cast<int32_t>(first) + c ? logit[c] : own;
    }
    RunningSoftmax<A> softmax;
    if constexpr (Starts) {
      softmax.start(logit);
    } else {
      softmax = {m[j], r[j], lost[j]};
      softmax.add(logit);
    }
    m[j] = softmax.m;
    r[j] = softmax.r;
    lost[j] = softmax.lost;
    x_y[j] = own;
  }
}

template <bool Copies, typename A>
EDGELOSS_INLINE void statistics_of_many(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll, A* buffer,
                                        int64_t buffer_ld) {
  A lost[kTile], x_y[kTile];
  const RunningTile<A> sums = {m, r, lost, x_y, buffer, buffer_ld};
  for_each_class_block(tile.classes, [&](int64_t first, auto count) EDGELOSS_LOOP {
    constexpr int kCount = decltype(count)::value;
    if (first == 0) return add_classes<true, Copies, kCount>(tile, first, y, sums);
    if constexpr (2 * kCount >= kClassBlock)
      add_classes<false, Copies, kCount>(tile, first, y, sums);  // none has fewer
  });
  const int64_t n = tile.n;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A value = log1p_positive(r[j]) - (x_y[j] - m[j]);
    nll[j] = y[j] < 0 ? A(0) : value;
  }
}

template <typename A>
EDGELOSS_INLINE void statistics_of_two(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll) {
  const int64_t n = tile.n;
  const A *first = tile.x, *second = tile.x + tile.ld;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A x_0 = first[j], x_1 = second[j], x_y = y[j] == 1 ? x_1 : x_0;
    softmax_of_pair(x_0, x_1, m[j], r[j]);
    const A value = log1p_positive(r[j]) - (x_y - m[j]);
    nll[j] = y[j] < 0 ? A(0) : value;
  }
}

}  // namespace

template <typename A>
void tile_statistics(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll, A* buffer, int64_t buffer_ld) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    if (tile.classes == 2) return statistics_of_two(tile, y, m, r, nll);
    if (buffer) return statistics_of_many<true>(tile, y, m, r, nll, buffer, buffer_ld);
    statistics_of_many<false>(tile, y, m, r, nll, buffer, buffer_ld);
  });
}

template <typename A>
void exponentials(A* v, int64_t n) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) v[j] = exp_negative(v[j]);
  });
}

template void tile_statistics(const Tile<float>&, const int32_t*, float*, float*, float*, float*, int64_t);
template void tile_statistics(const Tile<double>&, const int32_t*, double*, double*, double*, double*, int64_t);
template void exponentials(float*, int64_t);
template void exponentials(double*, int64_t);

}  // namespace edgeloss
