// The edge terms on CUDA, forward: a block lists the edge pixels of its tile. Eight threads add up the window of each,
// and then two make the terms of its sides of that.
#include <cmath>
#include <cstdint>

#include "passes.h"

namespace edgeloss {
namespace {

constexpr int kLanes = 8;                 // threads of an edge pixel's window
constexpr int kCenters = kThreads / 2;    // edge pixels of a block, in turns
constexpr int kTurn = kThreads / kLanes;  // and their windows

// Sums over a side of a window: with power 1 of w p and w (1 - p), with power 0 of w t and w.
enum : int { kMean, kComplement, kSums };

// kPlain: the windows are 3 × 3 pixels, the power is 0, and there is no decay.
template <typename T, typename A, bool kUpsampled, bool kPlain>
struct Windows {
  const Call<T, A, kUpsampled>& call;
  const Tile& tile;
  int lane;  // of those of an edge pixel

  // Calls body(pixel, its class) for the neighbors that this thread takes, every eighth of the window.
  template <typename F>
  __device__ __forceinline__ void for_each_own_neighbor(const Place& at, const F& body) const {
    const auto visit = [&](int n) {
      const int bits = call.label_bits(tile.base + n);
      if (bits != kIgnoredBits) body(n, bits & kClassBits);
    };
    if constexpr (kPlain) {
      const int j = lane < 4 ? lane : lane + 1, line = j * 11 / 32;  // j / 3
      const int row = static_cast<int>(at.row) + line - 1, column = static_cast<int>(at.column) + j - line * 3 - 1;
      if (row >= 0 && row < tile.rows && column >= 0 && column < tile.columns) visit(row * tile.columns + column);
    } else {
      const Geometry& g = call.g;
      const int nx = 2 * static_cast<int>(g.radius[2]) + 1, ny = 2 * static_cast<int>(g.radius[1]) + 1;
      const int nz = 2 * static_cast<int>(g.radius[0]) + 1, center = nx * ny * nz / 2;
      const int row = static_cast<int>(at.row), height = static_cast<int>(g.height);
      const int z = g.depth == 1 ? 0 : row / height, y = row - z * height;
      for (int k = lane; k < nx * ny * nz - 1; k += kLanes) {
        const int j = k < center ? k : k + 1, line = j / nx, slice = line / ny;
        const int64_t dx = at.column + (j - line * nx) - g.radius[2], dy = y + (line - slice * ny) - g.radius[1];
        const int64_t dz = z + slice - g.radius[0];
        if (dx < 0 || dx >= g.width || dy < 0 || dy >= g.height || dz < 0 || dz >= g.depth) continue;
        visit(static_cast<int>((dz * g.height + dy) * g.width + dx));
      }
    }
  }

  // The least d of both sides, for all threads of an edge pixel.
  __device__ void find_nearest(bool exists, const Place& at, int k, A (&nearest)[2]) const {
    nearest[0] = nearest[1] = INFINITY;
    const auto lower = [](A& least, A d) { least = d < least ? d : least; };
    if (exists) {
      for_each_own_neighbor(
          at, [&](int n, int neighbor) { lower(neighbor == k ? nearest[0] : nearest[1], call.field[tile.base + n]); });
    }
    for (int step = 1; step < kLanes; step *= 2) {
      for (int side = 0; side < 2; ++side) lower(nearest[side], __shfl_xor_sync(kAllLanes, nearest[side], step));
    }
  }

  // This thread's part of the sums of both sides.
  __device__ __forceinline__ void add_means(const Place& at, int k, const A (&nearest)[2], A (&sums)[2][kSums]) const {
    const auto x = call.image(at.image);
    for_each_own_neighbor(at, [&](int n, int neighbor) {
      const int64_t i = tile.base + n;
      const bool same = neighbor == k;
      A w = 1, mean, complement;
      if constexpr (!kPlain) {
        const A log_w = call.log_weight(same ? nearest[0] : nearest[1], i);
        w = log_w == A(0) ? A(1) : exp_negative(log_w);
      }
      if (kPlain || call.power == A(0)) {
        mean = term(x, n, call.g.classes, k, same, call.max_at(i), call.r[i]);
        complement = A(1);
      } else {
        A p, rest;
        probabilities(x.at(n, k), call.max_at(i), call.r[i], p, rest);
        mean = same ? p : rest;
        complement = same ? rest : p;
      }
      // Selected, since an index would put the sums into memory.
      sums[0][kMean] += same ? w * mean : A(0);
      sums[0][kComplement] += same ? w * complement : A(0);
      sums[1][kMean] += same ? A(0) : w * mean;
      sums[1][kComplement] += same ? A(0) : w * complement;
    });
  }

  // The sums of all threads of the edge pixel: those of one side for every other thread.
  __device__ __forceinline__ void join(const A (&sums)[2][kSums], A (&all)[kSums]) const {
    const int side = lane % 2;
    for (int s = 0; s < kSums; ++s) {
      const A given = side ? sums[0][s] : sums[1][s];
      all[s] = (side ? sums[1][s] : sums[0][s]) + __shfl_xor_sync(kAllLanes, given, 1);
      for (int step = 2; step < kLanes; step *= 2) all[s] += __shfl_xor_sync(kAllLanes, all[s], step);
    }
  }

  // The term of a side from its sums, and its mean, to be kept.
  __device__ __forceinline__ A value(const Place& at, int16_t k, int side, A mean, A complement, A nearest) const {
    Side<A> kept;
    kept.nearest = nearest;
    A term;
    if (kPlain || call.power == A(0)) {
      term = negative_mean(mean, complement);
      kept.inverse = complement > A(0) ? ratio(A(1), complement) : A(0);
    } else if (call.packing.is_plain && is_exact(mean)) {
      term = negative_log(mean / (mean + complement), complement / (mean + complement));
      kept.inverse = A(1) / mean;
    } else {
      term = call.mean_by_logarithms(at, k, side, kept);
    }
    if constexpr (kPlain) {
      call.sides[side * call.count() + tile.base + at.pixel] = kept.inverse;
    } else {
      call.store(side, tile.base + at.pixel, kept);
    }
    return term;
  }
};

// Zeros where no edge pixel writes.
template <typename A>
__device__ void clear_maps(const Tile& tile, const EdgeOutputs<A>& out) {
#pragma unroll 1
  for (int p = static_cast<int>(threadIdx.x); p < kTilePixels && out.same; p += kThreads) {
    if (tile.exists(p)) out.same[tile.base + tile.pixel(p)] = out.other[tile.base + tile.pixel(p)] = A(0);
  }
  __syncthreads();
}

template <typename T, typename A, bool kUpsampled, bool kPlain>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && kPlain ? (kUpsampled ? 3 : 4) : 1)
    edge_terms_kernel(const Call<T, A, kUpsampled> call, const EdgeOutputs<A> out) {
  __shared__ uint16_t places[kTilePixels];
  __shared__ A parts[kCenters][2][kSums], least[kCenters][2];
  const Tile tile(call.g, call.tiles);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, side = thread % 2;
  const Windows<T, A, kUpsampled, kPlain> windows = {call, tile, lane};
  clear_maps(tile, out);
  const int count = list_places(places, [&](int w) { return call.edges.of_tile(tile, call.tiles, w); });
  double terms = 0, weights = 0;  // of the thread's side
#pragma unroll 1
  for (int start = 0; start < count; start += kCenters) {
    const int end = std::min(start + kCenters, count);
#pragma unroll 1
    for (int first = start + thread / kWarp * (kWarp / kLanes); first < end; first += kTurn) {
      const int e = first + thread % kWarp / kLanes;
      const bool exists = e < count;
      const Place at = tile.place(places[exists ? e : first]);
      const int k = call.label_bits(tile.base + static_cast<int>(at.pixel)) & kClassBits;
      A nearest[2] = {0, 0}, own[2][kSums] = {}, all[kSums];
      if (!kPlain && call.packing.has_decay) windows.find_nearest(exists, at, k, nearest);
      if (kPlain || (exists && call.packing.is_plain)) windows.add_means(at, k, nearest, own);
      windows.join(own, all);
      if (exists && lane < 2) {
        for (int s = 0; s < kSums; ++s) parts[e - start][side][s] = all[s];
        if constexpr (!kPlain) least[e - start][side] = side ? nearest[1] : nearest[0];
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int n = thread; n < 2 * (end - start); n += kThreads) {
      const Place at = tile.place(places[start + n / 2]);
      const int i = tile.base + static_cast<int>(at.pixel);
      const auto k = static_cast<int16_t>(call.label_bits(i) & kClassBits);
      const auto& sums = parts[n / 2][side];
      const A value = windows.value(at, k, side, sums[kMean], sums[kComplement], kPlain ? A(0) : least[n / 2][side]);
      const A v = call.edge_weight_of(tile.image, i, k);
      terms += static_cast<double>(v) * value;
      weights += v;
      if (out.same) (side ? out.other : out.same)[i] = value;
    }
    __syncthreads();
  }
  double sums[3] = {side ? 0 : terms, side ? terms : 0, side ? 0 : weights};
  if (count > 0) block_sum(sums);
#pragma unroll 1
  for (int s = thread; s < 3; s += kThreads) {
    const int row = s == 0 ? Row::kSameSide : s == 1 ? Row::kOtherSide : Row::kEdgeWeight;
    out.partial[row * call.tiles.count + blockIdx.x] = s == 0 ? sums[0] : s == 1 ? sums[1] : sums[2];
  }
}

}  // namespace

template <typename T, typename A, bool kUpsampled>
void find_edge_terms(const Call<T, A, kUpsampled>& call, const EdgeOutputs<A>& out, cudaStream_t stream) {
  const auto kernel =
      call.is_plain() ? edge_terms_kernel<T, A, kUpsampled, true> : edge_terms_kernel<T, A, kUpsampled, false>;
  launch(stream, call.tiles.count, kernel, call, out);
}

#define EDGELOSS_INSTANTIATE(T, A)                                                              \
  template void find_edge_terms(const Call<T, A, false>&, const EdgeOutputs<A>&, cudaStream_t); \
  template void find_edge_terms(const Call<T, A, true>&, const EdgeOutputs<A>&, cudaStream_t);
EDGELOSS_INSTANTIATE(double, double)
EDGELOSS_INSTANTIATE(float, float)
EDGELOSS_INSTANTIATE(torch::headeronly::Half, float)
EDGELOSS_INSTANTIATE(torch::headeronly::BFloat16, float)

}  // namespace edgeloss
