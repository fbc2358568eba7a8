// What edge pixels give the pixels around them, for the gradient: a block lists the pixels of its tile that are near
// edge pixels, and each of its threads takes one of them after another.
#include <climits>
#include <cstdint>

#include "gather.h"

namespace edgeloss {
namespace {

constexpr int kClassesAround = 4;  // other classes of edge pixels around a pixel, collected at a time

// Sums for the lowest classes of those that come.
template <typename A>
struct Shares {
  int k[kClassesAround];  // ascending, INT_MAX where there is none
  A sum[kClassesAround];
  bool more = false;  // there were others

  __device__ Shares() {
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) k[s] = INT_MAX;
  }
  __device__ A at(int c) const {
    A value = 0;
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) value = k[s] == c ? sum[s] : value;
    return value;
  }
  __device__ int highest() const { return k[kClassesAround - 1]; }
  __device__ void add(int c, A value) {
    bool known = false;
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) {
      if (k[s] != c) continue;
      sum[s] += value;
      known = true;
    }
    if (known) return;
    // Insert it, and carry on what it displaces.
#pragma unroll
    for (int s = 0; s < kClassesAround; ++s) {
      if (c > k[s]) continue;
      const int displaced = k[s];
      const A displaced_sum = sum[s];
      k[s] = c;
      sum[s] = value;
      c = displaced;
      value = displaced_sum;
    }
    more |= c != INT_MAX;
  }
};

// A pixel near edge pixels. kLogMeans: the power is 0.
template <typename T, typename A, bool kLogMeans>
struct NearPixel {
  const Call<T, A, false>& call;
  const Upstream<A>& upstream;
  Place at;
  int16_t y;
  A m, r;

  // Writes the gradient of all classes: more other classes than fit at a time take several rounds, each for those above
  // the last.
  __device__ void write(const GradientOutput<T>& output) const {
    const auto x = call.image(at.image);
    const int classes = static_cast<int>(call.g.classes);
    PixelGradient<A> all(call, upstream, at.image, at.base + at.pixel, y, call.smoothed_weight(at.image));
    int floor = -1;
    bool is_first = true, more = false;
    do {
      Shares<A> shares;  // Σ π · slope for the others
      all.template add_edges<kLogMeans>(
          call, upstream, at, y, x, m, r, [&](int k) { return is_first || !(k == y || k == all.likely || k <= floor); },
          [&](int k, A value) {
            if (is_first) all.alpha -= value;
            shares.add(k, value);
          });
      const ClassGradient<A> gradient(all, x, at.pixel, classes, m, r);
      for (int c = 0; c < classes; ++c) {
        const A share = shares.at(c), logit = x.at(at.pixel, c);
        if (!is_first && (share == A(0) || c <= floor)) continue;
        const A value = gradient.of(c, y, logit, [&](int64_t k) { return call.weight_of(at.image, k); }) + share;
        output.store(x.binary, at.image, at.pixel, c, value);
      }
      floor = shares.highest();
      more = shares.more;
      is_first = false;
    } while (more);
  }
};

template <typename T, typename A, bool kLogMeans>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && kLogMeans ? 2 : 1)
    gather_kernel(const Call<T, A, false> call, const Upstream<A> upstream, const EdgeShares<A> out,
                  const GradientOutput<T> output) {
  __shared__ uint16_t places[kTilePixels];
  const Tile tile(call.g, call.tiles);
  const int count = list_places(places, [&](int w) { return near_edges(call.g, tile, call.tiles, call.edges, w); });
  const auto x = call.image(tile.image);
  for (int n = static_cast<int>(threadIdx.x); n < count; n += kThreads) {
    const int p = places[n];
    if (!tile.exists(p)) continue;
    const Place at = {tile.image, tile.row(p), tile.column(p), tile.base, tile.pixel(p)};
    const int64_t i = at.base + at.pixel;
    const int16_t y = call.class_at(i);
    if (y < 0) continue;
    const NearPixel<T, A, kLogMeans> near = {call, upstream, at, y, call.max_at(i), call.r[i]};
    PixelGradient<A> around;  // what edge pixels give
    int other = kNoClass;
    A sum = 0;
    bool several = false;
    around.template add_edges<kLogMeans>(
        call, upstream, at, y, x, near.m, near.r, [](int) { return true; },
        [&](int k, A value) {
          several |= other != kNoClass && other != k;
          other = k;
          sum += value;
        });
    const bool has_likely = around.likely >= 0;
    if (several || (has_likely && (other != kNoClass || !is_near(near.r)))) {
      near.write(output);
      out.k[i] = kIsWritten;
      continue;
    }
    out.same[i] = around.same;
    out.other[i] = has_likely ? around.likely_sum : sum;
    out.k[i] = static_cast<int16_t>(has_likely ? -2 - around.likely : other);
  }
}

}  // namespace

template <typename T, typename A>
void gather_edges(const Call<T, A, false>& call, const Upstream<A>& upstream, const EdgeShares<A>& out,
                  const GradientOutput<T>& output, cudaStream_t stream) {
  const auto kernel = call.power == A(0) ? gather_kernel<T, A, true> : gather_kernel<T, A, false>;
  launch(stream, call.tiles.count, kernel, call, upstream, out, output);
}

#define EDGELOSS_INSTANTIATE(T, A)                                                               \
  template void gather_edges(const Call<T, A, false>&, const Upstream<A>&, const EdgeShares<A>&, \
                             const GradientOutput<T>&, cudaStream_t);
EDGELOSS_INSTANTIATE(double, double)
EDGELOSS_INSTANTIATE(float, float)
EDGELOSS_INSTANTIATE(torch::headeronly::Half, float)
EDGELOSS_INSTANTIATE(torch::headeronly::BFloat16, float)

}  // namespace edgeloss
