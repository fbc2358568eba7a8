// The labels of the loss on CUDA, before the logits: what forward keeps of each pixel, the edge pixels, and counts.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../options.h"
#include "labels.h"

namespace edgeloss {
namespace {

// The lowest and the highest class of a window; ignored ones, -1, are the highest number without a sign.
struct ClassRange {
  static constexpr bool kSkipsSelf = false;
  struct Bytes {
    uint16_t low;
    int16_t high;
  };
  unsigned low = UINT16_MAX;
  int high = kIgnored;

  __device__ ClassRange() {}
  __device__ explicit ClassRange(Bytes bytes) : low(bytes.low), high(bytes.high) {}
  __device__ Bytes bytes() const { return {static_cast<uint16_t>(low), static_cast<int16_t>(high)}; }
  __device__ void merge(int k) {
    low = std::min(low, static_cast<unsigned>(k) & UINT16_MAX);
    high = std::max(high, k);
  }
  __device__ void merge(const ClassRange& other) {
    low = std::min(low, other.low);
    high = std::max(high, other.high);
  }
  __device__ bool has_other(int k) const { return k >= 0 && (static_cast<int>(low) < k || high > k); }
};

// The edge pixels of each class. A block counts in shared memory first, since atomics would queue at the few addresses
// of `total`; classes beyond its threads are counted there at once. Integers, so that the order does not matter.
struct ClassCounts {
  unsigned long long* total;  // [C], or null: not wanted
  int* of_block;              // [kThreads], shared

  __device__ void start() const {
    if (!total) return;
    of_block[threadIdx.x] = 0;
    __syncthreads();
  }
  __device__ void add(int16_t k) const {
    if (!total) return;
    if (k < kThreads) {
      atomicAdd(of_block + k, 1);
    } else {
      atomicAdd(total + k, 1ULL);
    }
  }
  __device__ void finish() const {
    if (!total) return;
    __syncthreads();
    const int count = of_block[threadIdx.x];
    if (count > 0) atomicAdd(total + threadIdx.x, static_cast<unsigned long long>(count));
  }
};

enum : int { kEdgeMark = 1, kValidMark = 2, kWrongMark = 4 };

// One bit of 32 marks, in a word.
__device__ uint32_t marked(const uint32_t* marks, int bit) {
  uint32_t word = 0;
  for (int n = 0; n < 8; ++n) word |= ((marks[n] >> bit & 0x01010101u) * 0x01020408u >> 24) << (4 * n);
  return word;
}

// kEdges: mark edge pixels too.
template <typename Label, bool kEdges>
__global__ void __launch_bounds__(kThreads, 3)
    label_kernel(const Geometry g, const Tiles tiles, const Label* labels, const Target target, const LabelOutputs out,
                 double* partial) {
  __shared__ uint32_t packed_marks[kTilePixels / 4];
  __shared__ uint32_t words[3][kTileWords];
  __shared__ int of_block[kThreads];
  uint8_t* marks = reinterpret_cast<uint8_t*>(packed_marks);
  const Tile tile(g, tiles);
  const ClassCounts counts = {out.edge_counts ? out.edge_counts + g.table(tile.image) : nullptr, of_block};
  counts.start();
  ClassRange range[4];
  if constexpr (kEdges) {
    const auto read = [&](int n) {
      const Label label = labels[tile.base + n];
      return target.is_class(label) ? static_cast<int>(label) : kIgnored;
    };
    merge_windows(g, tile, read, range);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int p = static_cast<int>(threadIdx.x) + k * kThreads;
    marks[p] = 0;
    if (!tile.exists(p)) continue;
    const int i = tile.base + tile.pixel(p);
    const Label label = labels[i];
    const bool valid = target.is_class(label);
    const int16_t own = valid ? static_cast<int16_t>(label) : kIgnored;
    const bool edge = range[k].has_other(own);
    marks[p] = static_cast<uint8_t>((edge ? kEdgeMark : 0) | (valid                          ? kValidMark
                                                              : label == target.ignore_index ? 0
                                                                                             : kWrongMark));
    out.label[i] = packed_label(own, edge);
    if (out.edge_mask) out.edge_mask[i] = edge;
    if (edge) counts.add(own);
  }
  counts.finish();
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), kind = thread / kTileWords, w = thread % kTileWords;
  if (kind < 3) words[kind][w] = marked(packed_marks + 8 * w, kind);
  if (kEdges && kind == 0) out.edges.write(tile, tiles, w, words[0][w]);
  __syncthreads();
  if (w != 0 || kind >= 3) return;
  int sum = 0;
  for (int n = 0; n < kTileWords; ++n) sum += count_bits(words[kind][n]);
  const int row = kind == 0 ? Row::kEdges : kind == 1 ? Row::kValid : Row::kWrong;
  partial[row * tiles.count + blockIdx.x] = sum;
}

// Which pixels off the true edges the prediction has an edge at.
__global__ void __launch_bounds__(kThreads, 3)
    false_edge_kernel(const Geometry g, const Tiles tiles, const int16_t* label, const int16_t* predicted, Bits out) {
  __shared__ uint32_t packed_marks[kTilePixels / 4];
  uint8_t* marks = reinterpret_cast<uint8_t*>(packed_marks);
  const Tile tile(g, tiles);
  ClassRange range[4];
  merge_windows(g, tile, [&](int n) { return predicted[tile.base + n]; }, range);
  for (int k = 0; k < 4; ++k) {
    const int p = static_cast<int>(threadIdx.x) + k * kThreads;
    const int i = tile.exists(p) ? tile.base + tile.pixel(p) : 0;
    marks[p] = tile.exists(p) && !is_edge(label[i]) && range[k].has_other(predicted[i]);
  }
  __syncthreads();
  if (threadIdx.x < kTileWords) {
    out.write(tile, tiles, threadIdx.x, marked(packed_marks + 8 * threadIdx.x, 0));
  }
}

}  // namespace

void find_labels(const Geometry& g, const Tiles& tiles, const Target& target, const LabelOutputs& out, double* partial,
                 cudaStream_t stream) {
  target.labels.by_type([&](const auto* labels) {
    using Label = std::remove_const_t<std::remove_pointer_t<decltype(labels)>>;
    const auto kernel = out.edges.words ? label_kernel<Label, true> : label_kernel<Label, false>;
    launch(stream, tiles.count, kernel, g, tiles, labels, target, out, partial);
  });
}

void mark_false_edges(const Geometry& g, const Tiles& tiles, const int16_t* label, const int16_t* predicted,
                      const Bits& out, cudaStream_t stream) {
  launch(stream, tiles.count, false_edge_kernel, g, tiles, label, predicted, out);
}

}  // namespace edgeloss
