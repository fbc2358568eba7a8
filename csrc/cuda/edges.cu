// The edge terms on CUDA, forward: a block lists the edge pixels of its tile, and takes 32 of them at a time.
#include <cmath>
#include <cstdint>

#include "passes.h"

namespace edgeloss {
namespace {

constexpr int kLanes = 8, kCenters = kThreads / kLanes;  // threads of an edge pixel, and edge pixels of a block

// Sums over a window, each side's own: with power 1 of w p and w (1 - p), with power 0 of w t and w; and the least d.
enum : int { kMean, kComplement, kOtherMean, kOtherComplement, kSums };

// kLogMeans: the power is 0, whose means need no other way.
template <typename T, typename A, bool kUpsampled, bool kLogMeans>
struct Windows {
  const Call<T, A, kUpsampled>& call;
  const Tile& tile;
  A (*parts)[kThreads];  // [kSums], shared: those of the threads

  __device__ Place place(int p) const { return {tile.image, tile.row(p), tile.column(p), tile.base, tile.pixel(p)}; }

  // Calls body(pixel, its class) for the neighbors that this thread takes, every eighth of the window.
  template <typename F>
  __device__ __forceinline__ void for_each_own_neighbor(const Place& at, const F& body) const {
    const Geometry& g = call.g;
    const int nx = 2 * static_cast<int>(g.radius[2]) + 1, ny = 2 * static_cast<int>(g.radius[1]) + 1;
    const int nz = 2 * static_cast<int>(g.radius[0]) + 1, center = nx * ny * nz / 2;
    const int row = static_cast<int>(at.row), height = static_cast<int>(g.height);
    const int z = g.depth == 1 ? 0 : row / height, y = row - z * height;
    for (int k = static_cast<int>(threadIdx.x) / kCenters; k < nx * ny * nz - 1; k += kLanes) {
      const int j = k < center ? k : k + 1, line = j / nx, slice = line / ny;
      const int64_t dx = at.column + (j - line * nx) - g.radius[2], dy = y + (line - slice * ny) - g.radius[1];
      const int64_t dz = z + slice - g.radius[0];
      if (dx < 0 || dx >= g.width || dy < 0 || dy >= g.height || dz < 0 || dz >= g.depth) continue;
      const int64_t n = (dz * g.height + dy) * g.width + dx;
      const int16_t neighbor = call.class_at(at.base + n);
      if (neighbor >= 0) body(n, neighbor);
    }
  }

  // The least d of both sides, for all threads of an edge pixel.
  __device__ void find_nearest(bool exists, const Place& at, int16_t k, A (&nearest)[2]) const {
    nearest[0] = nearest[1] = INFINITY;
    if (exists) {
      for_each_own_neighbor(at, [&](int64_t n, int16_t neighbor) {
        const A d = call.field[at.base + n];
        nearest[0] = neighbor == k && d < nearest[0] ? d : nearest[0];
        nearest[1] = neighbor != k && d < nearest[1] ? d : nearest[1];
      });
    }
    for (int side = 0; side < 2; ++side) parts[side][threadIdx.x] = nearest[side];
    __syncthreads();
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int side = 0; side < 2; ++side) {
        const A d = parts[side][lane * kCenters + threadIdx.x % kCenters];
        nearest[side] = d < nearest[side] ? d : nearest[side];
      }
    }
    __syncthreads();
  }

  // This thread's part of the sums.
  __device__ void add_means(const Place& at, int16_t k, const A (&nearest)[2], A (&sums)[kSums]) const {
    const auto x = call.image(at.image);
    for_each_own_neighbor(at, [&](int64_t n, int16_t neighbor) {
      const int64_t i = at.base + n;
      const bool same = neighbor == k;
      const A log_w = call.log_weight(same ? nearest[0] : nearest[1], i);
      const A w = log_w == A(0) ? A(1) : exp_negative(log_w);
      A mean, complement;
      if constexpr (kLogMeans) {
        mean = term(x, n, call.g.classes, k, same, call.max_at(i), call.r[i]);
        complement = A(1);
      } else {
        A p, rest;
        probabilities(x.at(n, k), call.max_at(i), call.r[i], p, rest);
        mean = same ? p : rest;
        complement = same ? rest : p;
      }
      // Selected, since an index would put the sums into memory.
      sums[kMean] += same ? w * mean : A(0);
      sums[kComplement] += same ? w * complement : A(0);
      sums[kOtherMean] += same ? A(0) : w * mean;
      sums[kOtherComplement] += same ? A(0) : w * complement;
    });
  }

  // The term of a side from its sums, and its mean, to be kept.
  __device__ A value(const Place& at, int16_t k, int side, A mean, A complement, A nearest) const {
    Side<A> kept;
    kept.nearest = nearest;
    A term;
    if constexpr (kLogMeans) {
      term = negative_mean(mean, complement);
      kept.inverse = complement > A(0) ? A(1) / complement : A(0);
    } else if (call.packing.is_plain && is_exact(mean)) {
      term = negative_log(mean / (mean + complement), complement / (mean + complement));
      kept.inverse = A(1) / mean;
    } else {
      term = call.mean_by_logarithms(at, k, side, kept);
    }
    call.store(side, at.base + at.pixel, kept);
    return term;
  }
};

// Zeros where no edge pixel writes.
template <typename A>
__device__ void clear_maps(const Tile& tile, const EdgeOutputs<A>& out) {
  if (!out.same) return;
  for (int p = static_cast<int>(threadIdx.x); p < kTilePixels; p += kThreads) {
    if (tile.exists(p)) out.same[tile.base + tile.pixel(p)] = out.other[tile.base + tile.pixel(p)] = A(0);
  }
  __syncthreads();
}

template <typename T, typename A, bool kUpsampled, bool kLogMeans>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && !kUpsampled && kLogMeans ? 3 : 1)
    edge_terms_kernel(const Call<T, A, kUpsampled> call, const EdgeOutputs<A> out) {
  __shared__ uint16_t places[kTilePixels];
  __shared__ A parts[kSums][kThreads];
  const Tile tile(call.g, call.tiles);
  const Windows<T, A, kUpsampled, kLogMeans> windows = {call, tile, parts};
  clear_maps(tile, out);
  const int count = list_places(places, [&](int w) { return call.edges.of_tile(tile, call.tiles, w); });
  const int thread = static_cast<int>(threadIdx.x);
  double sums[3] = {0, 0, 0};  // of S, O and edge weight
  for (int first = 0; first < count; first += kCenters) {
    const int e = first + thread % kCenters;
    const bool exists = e < count;
    const Place at = windows.place(places[exists ? e : first]);
    const int64_t i = at.base + at.pixel;
    const int16_t k = call.class_at(i);
    A nearest[2] = {0, 0}, own[kSums] = {};
    if (call.packing.has_decay) windows.find_nearest(exists, at, k, nearest);
    if (exists && call.packing.is_plain) windows.add_means(at, k, nearest, own);
    for (int s = 0; s < kSums; ++s) parts[s][thread] = own[s];
    __syncthreads();
    if (exists && thread < 2 * kCenters) {  // a thread for each side
      const int side = thread / kCenters;
      A mean = 0, complement = 0;
      for (int lane = 0; lane < kLanes; ++lane) {
        mean += parts[2 * side][lane * kCenters + thread % kCenters];
        complement += parts[2 * side + 1][lane * kCenters + thread % kCenters];
      }
      const A value = windows.value(at, k, side, mean, complement, side ? nearest[1] : nearest[0]);
      const double v = call.edge_weight_of(at.image, i, k);
      sums[0] += side ? 0 : v * value;
      sums[1] += side ? v * value : 0;
      sums[2] += side ? 0 : v;
      if (out.same) (side ? out.other : out.same)[i] = value;
    }
    __syncthreads();
  }
  if (count > 0) block_sum(sums);
  if (thread != 0) return;
  constexpr int kRows[3] = {Row::kSameSide, Row::kOtherSide, Row::kEdgeWeight};
  for (int s = 0; s < 3; ++s) out.partial[kRows[s] * call.tiles.count + blockIdx.x] = sums[s];
}

}  // namespace

template <typename T, typename A, bool kUpsampled>
void find_edge_terms(const Call<T, A, kUpsampled>& call, const EdgeOutputs<A>& out, cudaStream_t stream) {
  const auto kernel =
      call.power == A(0) ? edge_terms_kernel<T, A, kUpsampled, true> : edge_terms_kernel<T, A, kUpsampled, false>;
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
