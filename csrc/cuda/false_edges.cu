// The term of false edges on CUDA, forward and backward: the same side's at pixels that are edges of the prediction
// alone, from what the pixels around have by themselves.
#include <cmath>
#include <cstdint>

#include "passes.h"

namespace edgeloss {
namespace {

// Σ of a number over the valid pixels of a window but its own, and how many they are.
template <typename A>
struct WindowSum {
  static constexpr bool kSkipsSelf = true;
  struct Bytes {
    A sum, count;
  };
  A sum = 0, count = 0;

  __device__ WindowSum() {}
  __device__ WindowSum(A sum, A count) : sum(sum), count(count) {}
  __device__ explicit WindowSum(Bytes bytes) : sum(bytes.sum), count(bytes.count) {}
  __device__ Bytes bytes() const { return {sum, count}; }
  __device__ void merge(const WindowSum& other) {
    sum += other.sum;
    count += other.count;
  }
};

// With another power than 0: the term of a false edge, and its side.
template <typename A>
__device__ A power_mean(const Geometry& g, const Place& at, const A* log_p, const int16_t* label, A power,
                        Side<A>& side) {
  const auto for_each_term = [&](const auto& body) {
    for_each_neighbor(g, at.row, at.column, [&](int64_t n) {
      if (class_of(label[at.base + n]) >= 0) body(log_p[at.base + n], A(0));
    });
  };
  const A value = negative_log_mean(for_each_term, power, side);
  if (power == A(1)) {
    A sum = 0;
    for_each_term([&](A t, A) { sum += exp_negative(t); });
    side.inverse = is_exact(sum) ? A(1) / sum : A(0);
  }
  return value;
}

// The false edges of a tile, with their terms.
template <typename T, typename A, bool kUpsampled>
__global__ void __launch_bounds__(kThreads, 1)
    false_terms_kernel(const Call<T, A, kUpsampled> call, const PixelTerms<A> pixels, const EdgeOutputs<A> out) {
  __shared__ uint16_t places[kTilePixels];
  const Geometry& g = call.g;
  const Tile tile(g, call.tiles);
  const int count = list_places(places, [&](int w) { return call.false_edges.of_tile(tile, call.tiles, w); });
  WindowSum<A> around[4];
  if (call.power == A(0) && count > 0) {
    const auto read = [&](int n) {
      const int64_t i = tile.base + n;
      return call.class_at(i) < 0 ? WindowSum<A>() : WindowSum<A>(pixels.log_p[i], A(1));
    };
    merge_windows(g, tile, read, around);
  }
  double sum[1] = {0};
  for (int k = 0; k < 4; ++k) {
    const int p = static_cast<int>(threadIdx.x) + k * kThreads;
    if (!tile.exists(p)) continue;
    const int64_t i = tile.base + tile.pixel(p);
    A value = 0;
    if (count > 0 && call.false_edges.has(tile, call.tiles, tile.row(p), tile.column(p))) {
      Side<A> side;
      if (call.power == A(0)) {
        value = negative_mean(around[k].sum, around[k].count);
        side.inverse = A(1) / around[k].count;
      } else {
        const Place at = {tile.image, tile.row(p), tile.column(p), tile.base, tile.pixel(p)};
        value = power_mean(g, at, pixels.log_p, call.label, call.power, side);
      }
      call.store(0, i, side);
      sum[0] += static_cast<double>(call.pixel_weight_of(i)) * value;
    }
    if (out.false_edge) out.false_edge[i] = value;
  }
  if (count > 0) block_sum(sum);
  if (threadIdx.x == 0) out.partial[Row::kFalseEdge * call.tiles.count + blockIdx.x] = sum[0];
}

// What the false edges around give the pixels of a tile.
template <typename T, typename A, bool kUpsampled>
__global__ void __launch_bounds__(kThreads, 1)
    false_shares_kernel(const Call<T, A, kUpsampled> call, const Upstream<A> upstream, A* shares) {
  const Geometry& g = call.g;
  const Tile tile(g, call.tiles);
  const auto arrives = [&](int64_t i) { return upstream.at(Row::kFalseEdge, i, call.pixel_weight_of(i)); };
  WindowSum<A> around[4];
  if (call.power == A(0)) {
    const auto read = [&](int n) {
      if (!call.false_edges.has(tile, call.tiles, n / tile.columns, n % tile.columns)) return WindowSum<A>();
      return WindowSum<A>(arrives(tile.base + n) * call.load(0, tile.base + n).inverse, A(1));
    };
    merge_windows(g, tile, read, around);
  }
  const auto x = call.image(tile.image);
  for (int k = 0; k < 4; ++k) {
    const int p = static_cast<int>(threadIdx.x) + k * kThreads;
    if (!tile.exists(p)) continue;
    const int64_t pixel = tile.pixel(p), i = tile.base + pixel;
    const int16_t y = call.class_at(i);
    A sum = around[k].sum;
    if (call.power != A(0) && y >= 0) {
      const A t = log_p(x.at(pixel, y), call.max_at(i), call.r[i]), e_t = exp_negative(t);
      for_each_neighbor(g, tile.row(p), tile.column(p), [&](int64_t n) {
        const int row = static_cast<int>(quotient(n, g.width)), column = static_cast<int>(n - row * g.width);
        if (!call.false_edges.has(tile, call.tiles, row, column)) return;
        sum += arrives(tile.base + n) * share(call.load(0, tile.base + n), call.power, e_t, A(0), [&] { return t; });
      });
    }
    shares[i] = y >= 0 ? sum : A(0);
  }
}

}  // namespace

template <typename T, typename A, bool kUpsampled>
void find_false_edges(const Call<T, A, kUpsampled>& call, const PixelTerms<A>& pixels, const EdgeOutputs<A>& out,
                      cudaStream_t stream) {
  mark_false_edges(call.g, call.tiles, call.label, pixels.predicted, call.false_edges, stream);
  launch(stream, call.tiles.count, false_terms_kernel<T, A, kUpsampled>, call, pixels, out);
}

template <typename T, typename A, bool kUpsampled>
void gather_false_edges(const Call<T, A, kUpsampled>& call, const Upstream<A>& upstream, A* shares,
                        cudaStream_t stream) {
  launch(stream, call.tiles.count, false_shares_kernel<T, A, kUpsampled>, call, upstream, shares);
}

#define EDGELOSS_INSTANTIATE(T, A, kUpsampled)                                                               \
  template void find_false_edges(const Call<T, A, kUpsampled>&, const PixelTerms<A>&, const EdgeOutputs<A>&, \
                                 cudaStream_t);                                                              \
  template void gather_false_edges(const Call<T, A, kUpsampled>&, const Upstream<A>&, A*, cudaStream_t);
#define EDGELOSS_INSTANTIATE_BOTH(T, A) EDGELOSS_INSTANTIATE(T, A, false) EDGELOSS_INSTANTIATE(T, A, true)
EDGELOSS_INSTANTIATE_BOTH(double, double)
EDGELOSS_INSTANTIATE_BOTH(float, float)
EDGELOSS_INSTANTIATE_BOTH(torch::headeronly::Half, float)
EDGELOSS_INSTANTIATE_BOTH(torch::headeronly::BFloat16, float)

}  // namespace edgeloss
