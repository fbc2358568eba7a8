// The labels of the loss on CUDA, before the logits: what forward keeps of each pixel, the edge pixels, and counts.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../options.h"
#include "labels.h"
#include "vectors.h"

namespace edgeloss {
namespace {

// Which bits the classes of a window have set, and which they have not: 16 each. Where one is both, they differ.
// Ignored pixels have none.
struct ClassBits {
  static constexpr bool kSkipsSelf = false;
  using Bytes = uint32_t;
  uint32_t bits = 0;

  __device__ ClassBits() {}
  __device__ explicit ClassBits(Bytes bits) : bits(bits) {}
  __device__ static ClassBits of(uint32_t k) { return ClassBits(k | ~k << 16); }
  __device__ Bytes bytes() const { return bits; }
  __device__ void merge(const ClassBits& other) { bits |= other.bits; }
  __device__ bool differ() const { return (bits & bits >> 16) != 0; }

  // Of a single pixel, with what its window has together. No class has the bit that would be missing from its upper
  // half.
  __device__ bool has_class() const { return bits >> 31 != 0; }
  __device__ int16_t packed(bool edge) const {
    return bits == 0 ? kIgnored : static_cast<int16_t>((bits & UINT16_MAX) | (edge ? kEdgeMark : 0));
  }
};

// Reads labels as classes, and counts the wrong ones.
template <typename Label>
struct Reader {
  using Wide = std::conditional_t<sizeof(Label) < 4, int32_t, int64_t>;
  using Unsigned = std::make_unsigned_t<Wide>;
  const Label* labels;  // of the tile's image
  Wide ignored;         // a number that is no label where ignore_index is none
  Unsigned classes;
  int wrong = 0;

  __device__ Reader(const Label* labels, const Target& target)
      : labels(labels),
        ignored(static_cast<Wide>(target.ignore_index)),
        classes(static_cast<Unsigned>(target.classes)) {
    if (ignored != target.ignore_index) ignored = INT32_MIN;
  }

  __device__ ClassBits at(int pixel) { return of(labels[pixel], false); }
  __device__ __forceinline__ ClassBits of(Wide label, bool counts) {
    const bool is_class = static_cast<Unsigned>(label) < classes, is_ignored = label == ignored;
    wrong += counts && !is_class && !is_ignored;
    return is_class && !is_ignored ? ClassBits::of(static_cast<uint32_t>(label)) : ClassBits();
  }
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

// The bits of four pixels of each thread, as words of 32, and writes them.
__device__ __forceinline__ uint32_t joined(unsigned four) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t word = four << (4 * (thread % 8));
#pragma unroll
  for (int step = 1; step < 8; step *= 2) word |= __shfl_xor_sync(kAllLanes, word, step);
  return word;
}

enum class Window { kNone, kThree, kAny };  // no edges; an image and radius 1; any other

// The tile with a pixel more on each side; four columns, so that rows are vectors of four.
struct Border {
  static constexpr int kMost = 34 * 40;  // pixels, of the three shapes of a tile
  int stride;

  __device__ explicit Border(const Tile& tile) : stride((1 << tile.log_width) + 8) {}
  __device__ int at(int row, int column) const { return (row + 1) * stride + column + 4; }  // of the tile
};

// What the windows of a thread's pixels have together, four of a row, and their own; of 3 × 3 pixels.
template <bool kVectors, typename Label>
__device__ __forceinline__ void find_three(const Tile& tile, Reader<Label>& reader, ClassBits (&own)[4],
                                           ClassBits (&window)[4]) {
  alignas(16) __shared__ uint32_t bits[Border::kMost];
  const Border border(tile);
  const int thread = static_cast<int>(threadIdx.x), log_runs = tile.log_width - 2,
            height = kTilePixels >> tile.log_width;
#pragma unroll 1
  for (int n = thread; n < (height + 2) << log_runs; n += kThreads) {
    const int row = (n >> log_runs) - 1, column = (n & ((1 << log_runs) - 1)) * 4;
    const int image_row = tile.first_row + row, image_column = tile.first_column + column;
    const int left = image_row >= 0 && image_row < tile.rows ? tile.columns - image_column : 0;
    const Label* at = reader.labels + (image_row * tile.columns + image_column);
    const bool counts = row >= 0 && row < height;
    uint32_t four[4] = {};
    if constexpr (kVectors) {
      if (left > 0) {
        Label label[4];
        load<false>(at, label);
#pragma unroll
        for (int v = 0; v < 4; ++v) four[v] = reader.of(label[v], counts).bits;
      }
    } else {
#pragma unroll 1
      for (int v = 0; v < 4 && v < left; ++v) {
        const uint32_t one = reader.of(at[v], counts).bits;
#pragma unroll
        for (int other = 0; other < 4; ++other) four[other] = v == other ? one : four[other];
      }
    }
    store<false>(bits + border.at(row, column), four);
  }
#pragma unroll 1
  for (int n = thread; n < 2 * (height + 2); n += kThreads) {  // the columns on both sides
    const int row = n / 2 - 1, column = n % 2 == 0 ? -1 : 1 << tile.log_width;
    const int image_row = tile.first_row + row, image_column = tile.first_column + column;
    const bool exists = image_row >= 0 && image_row < tile.rows && image_column >= 0 && image_column < tile.columns;
    bits[border.at(row, column)] = exists ? reader.at(image_row * tile.columns + image_column).bits : 0;
  }
  __syncthreads();
  const int p = 4 * thread, row = p >> tile.log_width, column = p & ((1 << tile.log_width) - 1);
  uint32_t merged[6] = {};  // of three rows
#pragma unroll
  for (int dy = -1; dy <= 1; ++dy) {
    const uint32_t* at = bits + border.at(row + dy, column);
    uint32_t four[4];
    load<false>(at, four);
    merged[0] |= at[-1];
    merged[5] |= at[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      merged[v + 1] |= four[v];
      if (dy == 0) own[v].bits = four[v];
    }
  }
#pragma unroll
  for (int v = 0; v < 4; ++v) window[v].bits = merged[v] | merged[v + 1] | merged[v + 2];
}

// A thread takes four pixels of a row. kWindow: how it looks for edges. kPlain: it can read and write the four
// together, and neither a mask nor counts are wanted.
template <typename Label, Window kWindow, bool kPlain>
__global__ void __launch_bounds__(kThreads, 4)
    label_kernel(const Geometry g, const Tiles tiles, const Label* labels, const Target target, const LabelOutputs out,
                 double* partial) {
  __shared__ int of_block[kThreads];
  __shared__ int of_warps[kThreads / kWarp];
  const Tile tile(g, tiles);
  const ClassCounts counts = {out.edge_counts ? out.edge_counts + g.table(tile.image) : nullptr, of_block};
  if constexpr (!kPlain) counts.start();
  Reader<Label> reader(labels + tile.base, target);
  ClassBits own[4], window[4];
  const int thread = static_cast<int>(threadIdx.x), p = 4 * thread;
  const int pixel = tile.pixel(p), left = tile.row(p) < tile.rows ? tile.columns - tile.column(p) : 0;
  if constexpr (kWindow == Window::kThree) {
    find_three<kPlain>(tile, reader, own, window);
  } else {
    if constexpr (kWindow == Window::kAny) {
      __shared__ uint32_t merged[kTilePixels];
      ClassBits apart[4];  // every 256th pixel
      merge_windows(g, tile, [&](int n) { return reader.at(n); }, apart);
      for (int k = 0; k < 4; ++k) merged[thread + k * kThreads] = apart[k].bits;
      __syncthreads();
      for (int v = 0; v < 4; ++v) window[v].bits = merged[p + v];
    }
    for (int v = 0; v < 4 && v < left; ++v) own[v] = reader.of(reader.labels[pixel + v], true);
  }
  unsigned edges = 0, valid = 0;
  int16_t packed[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const bool edge = kWindow != Window::kNone && own[v].has_class() && window[v].differ();
    edges |= static_cast<unsigned>(edge) << v;
    valid += own[v].has_class();
    packed[v] = own[v].packed(edge);
  }
  if constexpr (kPlain) {
    if (left > 0) store<false>(out.label + tile.base + pixel, packed);
  } else {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      if (v >= left) continue;
      const int i = tile.base + pixel + v;
      const bool edge = is_edge(packed[v]);
      out.label[i] = packed[v];
      if (out.edge_mask) out.edge_mask[i] = edge;
      if (out.edge_counts && edge) counts.add(class_of(packed[v]));
    }
    counts.finish();
  }
  if constexpr (kWindow != Window::kNone) {
    const uint32_t word = joined(edges);
    if (thread % 8 == 0) out.edges.write(tile, tiles, thread / 8, word);
  }
  // Three counts in one number: 10 bits are enough for a warp's.
  int sum = count_bits(edges) | static_cast<int>(valid) << 10 | reader.wrong << 20;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (thread % kWarp == 0) of_warps[thread / kWarp] = sum;
  __syncthreads();
#pragma unroll 1
  for (int kind = thread; kind < 3; kind += kThreads) {  // a warp of eight
    int count = 0;
    for (const int of_warp : of_warps) count += of_warp >> (10 * kind) & 1023;
    const auto write = [&](int row) { partial[row * tiles.count + blockIdx.x] = count; };
    write(kind == 0 ? Row::kEdges : kind == 1 ? Row::kValid : Row::kWrong);
    if (kind < 2) write(kind == 0 ? Row::kEdgeWeight : Row::kWeight);  // of pixels that all weigh 1
  }
}

// Which pixels off the true edges the prediction has an edge at.
__global__ void __launch_bounds__(kThreads, 3)
    false_edge_kernel(const Geometry g, const Tiles tiles, const int16_t* label, const int16_t* predicted, Bits out) {
  __shared__ uint8_t marks[kTilePixels];
  const Tile tile(g, tiles);
  ClassBits window[4];
  const auto read = [&](int n) {
    const int16_t k = predicted[tile.base + n];
    return k < 0 ? ClassBits() : ClassBits::of(static_cast<uint32_t>(k));
  };
  merge_windows(g, tile, read, window);
  for (int k = 0; k < 4; ++k) {
    const int p = static_cast<int>(threadIdx.x) + k * kThreads;
    const int i = tile.exists(p) ? tile.base + tile.pixel(p) : 0;
    marks[p] = tile.exists(p) && !is_edge(label[i]) && predicted[i] >= 0 && window[k].differ();
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  unsigned four = 0;
  for (int v = 0; v < 4; ++v) four |= static_cast<unsigned>(marks[4 * thread + v]) << v;
  const uint32_t word = joined(four);
  if (thread % 8 == 0) out.write(tile, tiles, thread / 8, word);
}

}  // namespace

void find_labels(const Geometry& g, const Tiles& tiles, const Target& target, const LabelOutputs& out, double* partial,
                 cudaStream_t stream) {
  target.labels.by_type([&](const auto* labels) {
    using Label = std::remove_const_t<std::remove_pointer_t<decltype(labels)>>;
    const bool is_plain = g.width % 4 == 0 && is_aligned(labels, sizeof(Label)) && !out.edge_mask && !out.edge_counts;
    const auto kernel = !out.edges.words ? label_kernel<Label, Window::kNone, false>
                        : !is_three(g)   ? label_kernel<Label, Window::kAny, false>
                        : is_plain       ? label_kernel<Label, Window::kThree, true>
                                         : label_kernel<Label, Window::kThree, false>;
    launch(stream, tiles.count, kernel, g, tiles, labels, target, out, partial);
  });
}

void mark_false_edges(const Geometry& g, const Tiles& tiles, const int16_t* label, const int16_t* predicted,
                      const Bits& out, cudaStream_t stream) {
  launch(stream, tiles.count, false_edge_kernel, g, tiles, label, predicted, out);
}

}  // namespace edgeloss
