// The loops of statistics.h.
#include "statistics.h"

#include "vectorize.h"

namespace edgeloss {
namespace {

// Calls body(the first class, how many) for blocks of classes of nearly the same size.
template <typename F>
EDGELOSS_INLINE void for_each_class_block(int64_t classes, const F& body) {
  const int64_t blocks = (classes + kClassBlock - 1) / kClassBlock;
  int64_t first = 0;
  for (int64_t block = 1; block <= blocks; ++block) {
    const int64_t last = classes * block / blocks;
    switch (last - first) {
      case 8:
        body(first, std::integral_constant<int, 8>());
        break;
      case 7:
        body(first, std::integral_constant<int, 7>());
        break;
      case 6:
        body(first, std::integral_constant<int, 6>());
        break;
      case 5:
        body(first, std::integral_constant<int, 5>());
        break;
      case 4:
        body(first, std::integral_constant<int, 4>());
        break;
      default:  // a single class
        body(first, std::integral_constant<int, 1>());
    }
    first = last;
  }
}

// What is known of a tile's pixels from the classes so far: x_y is the logit of y.
template <typename A>
struct RunningTile {
  A *m, *r, *lost, *x_y;
};

// Adds N classes from `first` on; Starts: the first ones.
template <bool Starts, int N, typename A>
EDGELOSS_INLINE void add_classes(const Tile<A>& tile, int64_t first, const int32_t* y, const RunningTile<A>& sums) {
  const int64_t n = tile.n, ld = tile.ld;
  const A* x = tile.x + first * ld;
  A *m = sums.m, *r = sums.r, *lost = sums.lost, *x_y = sums.x_y;
  for (int c = 0; c < N; ++c) prefetch_ahead(tile, first + c);
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    A logit[N], own = Starts ? A(0) : x_y[j];
    for (int c = 0; c < N; ++c) {
      logit[c] = x[c * ld + j];
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

template <typename A>
EDGELOSS_INLINE void statistics_of_many(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll) {
  A lost[kTile], x_y[kTile];
  const RunningTile<A> sums = {m, r, lost, x_y};
  for_each_class_block(tile.classes, [&](int64_t first, auto count) EDGELOSS_LOOP {
    constexpr int kCount = decltype(count)::value;
    first == 0 ? add_classes<true, kCount>(tile, first, y, sums) : add_classes<false, kCount>(tile, first, y, sums);
  });
  const int64_t n = tile.n;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const A value = log1p_positive(r[j]) - (x_y[j] - m[j]);
    nll[j] = y[j] < 0 ? A(0) : value;
  }
}

// The same for C classes, few enough to hold a pixel's logits in registers.
template <int C, typename A>
EDGELOSS_INLINE void statistics_of(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll) {
  const int64_t n = tile.n, ld = tile.ld;
  const A* x = tile.x;
  EDGELOSS_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    A logit[C], x_y = 0;
    for (int c = 0; c < C; ++c) logit[c] = x[c * ld + j];
    RunningSoftmax<A> softmax;
    if constexpr (C == 2) {
      softmax_of_pair(logit[0], logit[1], softmax.m, softmax.r);
    } else {
      softmax.start(logit);
    }
    for (int c = 0; c < C; ++c) {
      const A below = logit[c] - softmax.m;
      x_y = y[j] == c ? below : x_y;
    }
    m[j] = softmax.m;
    r[j] = softmax.r;
    const A value = (C == 2 ? log1p_of_unit(softmax.r) : log1p_positive(softmax.r)) - x_y;
    nll[j] = y[j] < 0 ? A(0) : value;
  }
}

}  // namespace

template <typename A>
void tile_statistics(const Tile<A>& tile, const int32_t* y, A* m, A* r, A* nll) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    if (tile.classes == 2) return statistics_of<2>(tile, y, m, r, nll);
    if (tile.classes == 3) return statistics_of<3>(tile, y, m, r, nll);
    if (tile.classes == 4) return statistics_of<4>(tile, y, m, r, nll);
    statistics_of_many(tile, y, m, r, nll);
  });
}

template <typename A>
void exponentials(A* v, int64_t n) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) v[j] = exp_negative(v[j]);
  });
}

template void tile_statistics(const Tile<float>&, const int32_t*, float*, float*, float*);
template void tile_statistics(const Tile<double>&, const int32_t*, double*, double*, double*);
template void exponentials(float*, int64_t);
template void exponentials(double*, int64_t);

}  // namespace edgeloss
