// The edge terms on CUDA, forward: a block lists the edge pixels of its tile. The threads of each add up its window,
// and then those of a side make the side's term of that.
#include <cmath>
#include <cstdint>

#include "passes.h"

namespace edgeloss {
namespace {

// Sums over a side of a window: with power 1 of w p and w (1 - p), with power 0 of w t and w.
enum : int { kMean, kComplement, kSums };

// The sums of kLanes threads next to each other: those of one side for every other thread.
template <int kLanes, typename A>
__device__ __forceinline__ void join(const A (&sums)[2][kSums], int side, A (&all)[kSums]) {
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    const A given = side ? sums[0][s] : sums[1][s];
    all[s] = (side ? sums[1][s] : sums[0][s]) + __shfl_xor_sync(kAllLanes, given, 1);
#pragma unroll
    for (int step = 2; step < kLanes; step *= 2) all[s] += __shfl_xor_sync(kAllLanes, all[s], step);
  }
}

// Of each warp of a block: the sums of the terms of both sides, and of their weights.
using WarpSums = double[3][kThreads / kWarp];

// The terms of this thread's side, which are added to the sums of the tile.
template <typename A>
struct SideTerms {
  const EdgeOutputs<A>& out;
  int side;
  double terms = 0, weights = 0;

  __device__ SideTerms(const EdgeOutputs<A>& out, int side) : out(out), side(side) {}

  // Of pixel i, which has the weight v.
  __device__ __forceinline__ void add(int i, A v, A value) {
    terms += static_cast<double>(v) * value;
    weights += v;
    if (out.same) (side ? out.other : out.same)[i] = value;
  }
  // The sums of a warp, which takes part in it as a whole.
  __device__ __forceinline__ void join(WarpSums& sums) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int step = kWarp / 2; step > 1; step /= 2) {  // the sides stay apart
      terms += __shfl_xor_sync(kAllLanes, terms, step);
      weights += __shfl_xor_sync(kAllLanes, weights, step);
    }
    if (thread % kWarp < 2) sums[side][thread / kWarp] = terms;
    if (thread % kWarp == 0) sums[2][thread / kWarp] = weights;
  }
  // Writes the sums of the tile, those of the first warps of the block. All threads of the block take part in it.
  __device__ __forceinline__ void write(const WarpSums& sums, const Tiles& tiles, int warps) const {
    __syncthreads();
#pragma unroll 1
    for (int s = static_cast<int>(threadIdx.x); s < 3; s += kThreads) {
      double sum = 0;
#pragma unroll 1
      for (int w = 0; w < warps; ++w) sum += sums[s][w];
      const int row = s == 0 ? Row::kSameSide : s == 1 ? Row::kOtherSide : Row::kEdgeWeight;
      out.partial[row * tiles.count + blockIdx.x] = sum;
    }
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

// --------------------------------------------------------------------------------------------- windows of 3 × 3 pixels

// Half of an edge pixel's window, the corners of one row and what is not next to them, so that of most edges both
// halves have pixels on the other side; with power 0 and without decay. kPair: of two classes, of which one's p is the
// other's 1 - p.
template <typename T, typename A, bool kUpsampled, bool kPair>
struct HalfWindow {
  const Call<T, A, kUpsampled>& call;
  const A* log_p;
  const Tile& tile;
  int step;  // -1: the row above, and the pixels on the left and below; 1: their opposites

  // Neighbor n < 4.
  __device__ __forceinline__ int neighbor(int pixel, int n) const {
    return pixel + step * (n == 0 ? 1 : n == 1 ? -tile.columns : tile.columns + 5 - 2 * n);
  }

  // Of a pixel of class k.
  __device__ __forceinline__ void add_terms(int row, int column, int k, A (&sums)[2][kSums]) const {
    const int pixel = row * tile.columns + column;
    const auto is_row = [&](int r) { return static_cast<unsigned>(r) < static_cast<unsigned>(tile.rows); };
    const auto is_column = [&](int c) { return static_cast<unsigned>(c) < static_cast<unsigned>(tile.columns); };
    const bool has_corners = is_row(row + step), has_next = is_column(column + step);
    const bool has[4] = {has_next, is_row(row - step), has_corners && has_next,
                         has_corners && is_column(column - step)};
    unsigned sames = 0, others = 0;  // bits of these neighbors
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int i = tile.base + neighbor(pixel, n), bits = has[n] ? call.label_bits(i) : kIgnoredBits;
      const bool same = (bits & kClassBits) == k, other = !same && bits != kIgnoredBits;
      const A own = same || (kPair && other) ? log_p[i] : A(0);
      sums[0][kMean] += same ? own : A(0);
      if constexpr (kPair) sums[1][kMean] += same ? A(0) : own;
      sames |= same ? 1u << n : 0;
      others |= other ? 1u << n : 0;
    }
    sums[0][kComplement] = static_cast<A>(count_bits(sames));
    sums[1][kComplement] = static_cast<A>(count_bits(others));
    if constexpr (!kPair) {  // few, each by a logarithm
      const auto x = call.image(tile.image);
#pragma unroll 1
      for (; others != 0; others &= others - 1) {
        const int n = neighbor(pixel, lowest_bit(others)), i = tile.base + n;
        sums[1][kMean] += other_term(x, n, call.g.classes, k, call.max_at(i), call.r[i]);
      }
    }
  }
};

template <typename T, typename A, bool kUpsampled, bool kPair>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 ? 4 : 1)
    three_terms_kernel(const Call<T, A, kUpsampled> call, const A* log_p, const EdgeOutputs<A> out) {
  __shared__ uint16_t places[kTilePixels];
  __shared__ WarpSums sums;
  const Tile tile(call.g, call.tiles);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, side = thread % 2;
  const HalfWindow<T, A, kUpsampled, kPair> window = {call, log_p, tile, side ? 1 : -1};
  clear_maps(tile, out);
  const int count = list_places(places, [&](int w) { return call.edges.of_tile(tile, call.tiles, w); });
  A* sides = call.sides + (side ? call.count() : 0);
  SideTerms<A> terms(out, side);
  const int end = 2 * count;
  int first = thread - lane;  // the same for a warp
  if (first < end) {
#pragma unroll 1
    do {
      const bool exists = first + lane < end;
      const int place = places[exists ? (first + lane) / 2 : first / 2], i = tile.base + tile.pixel(place);
      const int k = call.label_bits(i) & kClassBits;
      A own[2][kSums] = {}, all[kSums];
      window.add_terms(tile.row(place), tile.column(place), k, own);
      join<2>(own, side, all);
      if (exists) {
        sides[i] = all[kComplement] > A(0) ? ratio(A(1), all[kComplement]) : A(0);
        terms.add(i, call.edge_weight_of(tile.image, i, k), negative_mean(all[kMean], all[kComplement]));
      }
      first += kThreads;
    } while (first < end);
    terms.join(sums);
  }
  terms.write(sums, call.tiles, std::min((end + kWarp - 1) / kWarp, kThreads / kWarp));
}

// --------------------------------------------------------------------------------------------------------- any windows

constexpr int kLanes = 8;                 // threads of an edge pixel's window
constexpr int kCenters = kThreads / 2;    // edge pixels of a block, in turns
constexpr int kTurn = kThreads / kLanes;  // and their windows

template <typename T, typename A, bool kUpsampled>
struct Windows {
  const Call<T, A, kUpsampled>& call;
  const A* log_p;
  const Tile& tile;
  int lane;  // of those of an edge pixel

  // Calls body(pixel, its class) for the neighbors that this thread takes, every eighth of the window.
  template <typename F>
  __device__ __forceinline__ void for_each_own_neighbor(const Place& at, const F& body) const {
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
      const int n = static_cast<int>((dz * g.height + dy) * g.width + dx), bits = call.label_bits(tile.base + n);
      if (bits != kIgnoredBits) body(n, bits & kClassBits);
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
      const A log_w = call.log_weight(same ? nearest[0] : nearest[1], i);
      const A w = log_w == A(0) ? A(1) : exp_negative(log_w);
      A mean, complement;
      if (call.power == A(0)) {
        mean = same ? log_p[i] : other_term(x, n, call.g.classes, k, call.max_at(i), call.r[i]);
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

  // The term of a side from its sums, and its mean, to be kept.
  __device__ __forceinline__ A value(const Place& at, int16_t k, int side, A mean, A complement, A nearest) const {
    Side<A> kept;
    kept.nearest = nearest;
    A term;
    if (call.power == A(0)) {
      term = negative_mean(mean, complement);
      kept.inverse = complement > A(0) ? ratio(A(1), complement) : A(0);
    } else if (call.packing.is_plain && is_exact(mean)) {
      term = negative_log(mean / (mean + complement), complement / (mean + complement));
      kept.inverse = A(1) / mean;
    } else {
      term = call.mean_by_logarithms(at, k, side, kept);
    }
    call.store(side, tile.base + at.pixel, kept);
    return term;
  }
};

template <typename T, typename A, bool kUpsampled>
__global__ void __launch_bounds__(kThreads, 1)
    edge_terms_kernel(const Call<T, A, kUpsampled> call, const A* log_p, const EdgeOutputs<A> out) {
  __shared__ uint16_t places[kTilePixels];
  __shared__ WarpSums warps;
  __shared__ A parts[kCenters][2][kSums], least[kCenters][2];
  const Tile tile(call.g, call.tiles);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, side = thread % 2;
  const Windows<T, A, kUpsampled> windows = {call, log_p, tile, lane};
  clear_maps(tile, out);
  const int count = list_places(places, [&](int w) { return call.edges.of_tile(tile, call.tiles, w); });
  SideTerms<A> terms(out, side);
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
      if (call.packing.has_decay) windows.find_nearest(exists, at, k, nearest);
      if (exists && call.packing.is_plain) windows.add_means(at, k, nearest, own);
      join<kLanes>(own, side, all);
      if (exists && lane < 2) {
        for (int s = 0; s < kSums; ++s) parts[e - start][side][s] = all[s];
        least[e - start][side] = side ? nearest[1] : nearest[0];
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int n = thread; n < 2 * (end - start); n += kThreads) {
      const Place at = tile.place(places[start + n / 2]);
      const int i = tile.base + static_cast<int>(at.pixel);
      const auto k = static_cast<int16_t>(call.label_bits(i) & kClassBits);
      const auto& sums = parts[n / 2][side];
      const A value = windows.value(at, k, side, sums[kMean], sums[kComplement], least[n / 2][side]);
      terms.add(i, call.edge_weight_of(tile.image, i, k), value);
    }
    __syncthreads();
  }
  terms.join(warps);
  terms.write(warps, call.tiles, kThreads / kWarp);
}

}  // namespace

template <typename T, typename A, bool kUpsampled>
void find_edge_terms(const Call<T, A, kUpsampled>& call, const PixelTerms<A>& pixels, const EdgeOutputs<A>& out,
                     cudaStream_t stream) {
  const auto kernel = !call.is_plain()      ? edge_terms_kernel<T, A, kUpsampled>
                      : call.g.classes == 2 ? three_terms_kernel<T, A, kUpsampled, true>
                                            : three_terms_kernel<T, A, kUpsampled, false>;
  launch(stream, call.tiles.count, kernel, call, pixels.log_p, out);
}

#define EDGELOSS_INSTANTIATE(T, A, kUpsampled)                                                              \
  template void find_edge_terms(const Call<T, A, kUpsampled>&, const PixelTerms<A>&, const EdgeOutputs<A>&, \
                                cudaStream_t);
#define EDGELOSS_INSTANTIATE_BOTH(T, A) EDGELOSS_INSTANTIATE(T, A, false) EDGELOSS_INSTANTIATE(T, A, true)
EDGELOSS_INSTANTIATE_BOTH(double, double)
EDGELOSS_INSTANTIATE_BOTH(float, float)
EDGELOSS_INSTANTIATE_BOTH(torch::headeronly::Half, float)
EDGELOSS_INSTANTIATE_BOTH(torch::headeronly::BFloat16, float)

}  // namespace edgeloss
