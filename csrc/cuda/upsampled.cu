// The whole loss on CUDA: backward of logits of lower resolution than the labels.
//
// First a record of every pixel: each of its classes gets a factor times an exponential, and two of them more. Then
// each block takes some classes of a box of low-resolution pixels. A thread goes down a column of the pixels that are
// mixed from these, forms each exponential once, and adds it to the two low-resolution rows around; a row that is
// complete is added up along the columns. So only the pixels between two boxes come twice.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "low_resolution.h"
#include "near.h"
#include "strips.h"
#include "vectors.h"

namespace edgeloss {
namespace {

// The gradient of a pixel, but for two of its classes: factor · e^(x(c) - m). The exponents are at most `most`: only
// that of a likely class k is larger, which would cancel with its share.
template <typename A>
struct alignas(4 * sizeof(A)) PixelRecord {
  static constexpr int kNone = 0x7fff;  // no class is as high
  static constexpr unsigned kOthers = 0x80000000;

  A m = 0, factor = 0, most = 0;
  unsigned packed = kNone << 16 | kNone;

  __device__ void set(int y, int k, bool has_others) {
    packed = static_cast<unsigned>(y | (k < 0 ? kNone : k) << 16) | (has_others ? kOthers : 0);
  }
  __device__ int y() const { return static_cast<int>(packed & kNone); }
  __device__ int k() const { return static_cast<int>(packed >> 16 & kNone); }
  __device__ bool is_valid() const { return y() != kNone; }
  // Classes other than y and k have shares, too, for which backward looks around again: rare.
  __device__ bool has_others() const { return packed & kOthers; }
};

// What classes y and k get more.
template <typename A>
struct alignas(2 * sizeof(A)) PixelShares {
  A of_y, of_k;
};

// The shares of a pixel with several other classes around: those of one of them, and the sum of the rest.
template <bool kLogMeans, typename C, typename A>
__device__ A gather_several(const C& call, const Upstream<A>& upstream, const Place& at, int16_t y, A m, A r,
                            EdgeShares<A>& shares) {
  PixelGradient<A> around;
  A own = 0, rest = 0;
  int first = -1;
  around.template add_edges<kLogMeans>(
      call, upstream, at, y, call.image(at.image), m, r, [](int) { return true; },
      [&](int k, A value) {
        if (first < 0) first = k;
        (k == first ? own : rest) += value;
      });
  shares.likely = around.likely >= 0;
  shares.k = shares.likely ? around.likely : first;
  shares.other = shares.likely ? around.likely_sum : own;
  return shares.likely ? rest + own : rest;
}

// kPlain: windows are 3 × 3 pixels, the power is 0, there is no decay, and pixels have no weights.
template <typename T, typename A, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1) records_kernel(const Call<T, A, true> call, const Upstream<A> upstream,
                                                              PixelRecord<A>* records, PixelShares<A>* shares_of) {
  __shared__ uint16_t places[kTilePixels];
  __shared__ uint32_t bits[kTileWords];
  const Tile tile(call.g, call.tiles);
  const A total = call.smoothed_weight(tile.image);
  const int count = list_places(places, [&](int w) {
    return bits[w] = call.edges.words ? near_edges<kPlain>(call.g, tile, call.tiles, call.edges, w) : 0;
  });
#pragma unroll 1
  for (int p = static_cast<int>(threadIdx.x); p < kTilePixels; p += kThreads) {
    if (!tile.exists(p) || (bits[p / 32] >> (p % 32) & 1)) continue;
    const int i = tile.base + tile.pixel(p);
    const int16_t y = call.class_at(i);
    PixelRecord<A> record;
    if (y >= 0) {
      const PixelGradient<A> all(call, upstream, tile.image, i, y, total);
      record.m = call.max_at(i);
      record.factor = ratio(all.alpha, A(1) + call.r[i]);
      record.set(y, -1, false);
      shares_of[i] = {-all.at_y, A(0)};
    }
    records[i] = record;
  }
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < count; n += kThreads) {
    const Place at = tile.place(places[n]);
    const int i = tile.base + static_cast<int>(at.pixel);
    const int16_t y = call.class_at(i);
    PixelRecord<A> record;
    if (y >= 0) {
      const A m = call.max_at(i), r = call.r[i];
      EdgeShares<A> shares = gather<kPlain>(call, upstream, tile, at, y, m, r);
      PixelGradient<A> all(call, upstream, tile.image, i, y, total);
      if (shares.several) all.alpha -= gather_several<kPlain>(call, upstream, at, y, m, r, shares);
      const NearFactor<A> factor(all.alpha, shares, r);
      record.m = m;
      record.factor = factor.value;
      record.set(y, shares.k, shares.several);
      if (shares.likely && !factor.is_far) record.most = log_positive(r);
      if (factor.is_far) {
        const auto others = sum_others<A>(call.image(tile.image), at.pixel, call.g.classes, shares.k);
        record.m = others.max;
        record.factor = factor.scale * exp_negative(others.max - m) - shares.other / others.sum;
      }
      const A added = shares.likely ? factor.scale - record.factor * exp_negative(record.most) : A(0);
      shares_of[i] = {-all.at_y - shares.same, shares.other + added};
    }
    records[i] = record;
  }
}

template <typename T, typename A>
struct UpsampledBackward {
  Call<T, A, true> call;
  Upstream<A> upstream;
  Strips strips;
  const PixelRecord<A>* records;
  const PixelShares<A>* shares_of;
  GradientOutput<T> output;
};

// What the threads of a block share. A thread takes K classes, in vectors of 16 bytes; more of them would not leave
// enough registers.
template <typename A, bool kPlain>
struct Columns {
  static constexpr int kVectors = kPlain ? 3 : 2, V = 16 / sizeof(A), K = kVectors * V;
  // Of low-resolution row i in sums[i % 2], by columns: an odd number of vectors each, so that neighbors lie in
  // different banks.
  alignas(16) A sums[2][kThreads][(kVectors | 1) * V];
  A weight[2][kThreads];    // of a column, for the second of the two that it is mixed from, and for the first
  int first[kThreads + 2];  // column of each interval, from that before the first low-resolution pixel on
  int row[Strips::kRows + 2 * Strips::kMost];  // the same of the rows of each strip

  __device__ const int* rows(const Strips& strips, int strip) const { return row + strip * (strips.down + 2); }

  // The threads of the block call it together.
  template <typename C>
  __device__ void describe(const C& call, const Strips& strips, const BoxOfStrip& box, int strip, int lane) {
    const int thread = static_cast<int>(threadIdx.x), width = strips.width();
#pragma unroll 1
    for (int n = thread; n <= box.end_x - box.first_x + 1; n += kThreads) {
      first[n] = call.along_x.begin(box.first_x - 1 + n);
    }
#pragma unroll 1
    for (int n = lane; n < strips.down + 2; n += width) {
      row[strip * (strips.down + 2) + n] = call.along_y.begin(std::min(box.first_y - 1 + n, box.end_y));
    }
    __syncthreads();
    if (thread >= width) return;
    const int column = std::min(first[0] + thread, static_cast<int>(call.along_x.high) - 1);
    const bool is_before = call.along_x.position(column) < A(0);
    const A w = call.along_x.at(column).weight;
    weight[0][thread] = is_before ? A(1) : w;
    weight[1][thread] = !kPlain && strips.is_wide ? A(1) : is_before ? A(0) : A(1) - w;
  }
};

// A thread's column of a strip, with what its pixels give the low-resolution rows above and below them.
//
// kPlain: an image, not a volume, with a thread for each column, the power is 0, and there is no label smoothing.
template <typename T, typename A, bool kPlain>
struct Column {
  static constexpr int V = Columns<A, kPlain>::V, K = Columns<A, kPlain>::K, kVectors = Columns<A, kPlain>::kVectors;

  const UpsampledBackward<T, A>& work;
  Columns<A, kPlain>& shared;
  const Call<T, A, true>& call = work.call;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & (work.strips.width() - 1);
  const int strip = thread >> work.strips.log_width;
  const BoxOfStrip box = work.strips.box(blockIdx.x, strip);
  const int first_logit = box.chunk * K, count = std::min(int{K}, static_cast<int>(call.g.logits) - first_logit);
  const int first_class = first_logit + (call.g.logits == 1);
  const LowImage<T, A, !kPlain> low = LowImage<T, A, !kPlain>(call, box.image, first_logit);

  LowColumn<A, !kPlain> at = {};  // of the turn, in row 0
  bool exists = false;
  int pixels = 0;  // the first in the column, in the batch
  A scale = 0;     // of all that the column gives

  A top[K] = {}, bottom[K] = {};  // logits of the two low-resolution rows
  A of_top[K] = {}, of_bottom[K] = {};

  // Goes to a slice, and to a window of columns.
  __device__ __forceinline__ void enter(int slice, int first, int end) {
    exists = first + lane < end;
    const int column = std::min(first + lane, end - 1);
    const Taps<A> along_x = call.along_x.at(column), along_z = call.along_z.at(slice);
    at = low.column(along_x, along_z);
    pixels = static_cast<int>(box.image * call.g.pixels + slice * call.g.height * call.g.width + column);
    scale = kPlain ? A(1) : (work.strips.is_wide ? along_x.weight_of(box.first_x) : A(1)) * along_z.weight_of(box.z);
  }

  // Logits of a low-resolution row.
  __device__ __forceinline__ void read(int row, A (&mixed)[K]) const {
    const LowColumn<A, !kPlain> line = low.row(at, std::clamp(row, 0, static_cast<int>(call.along_y.low) - 1));
#pragma unroll
    for (int quad = 0; quad < K; quad += V) {
      if (quad >= count) continue;
#pragma unroll
      for (int j = quad; j < quad + V; ++j) mixed[j] = low.read(std::min(j, count - 1), line);
    }
  }

  // Adds to class j of a pixel in interval f.
  __device__ __forceinline__ void add_single(int f, int j, A value, const A (&weight)[2]) {
    shared.sums[f & 1][thread][j] += value * weight[0];
    shared.sums[(f + 1) & 1][thread][j] += value * weight[1];
  }
  __device__ __forceinline__ bool has(int c) const {
    return static_cast<unsigned>(c - first_class) < static_cast<unsigned>(count);
  }
  __device__ __forceinline__ void find_weights(int f, A w, A (&weight)[2]) const {
    weight[0] = f < 0 ? A(0) : scale * (A(1) - w);
    weight[1] = f < 0 ? scale : scale * w;
  }

  // Adds pixel i in interval f, but for what is rare. kMixed: w, the weight of the bottom row, is not 0.
  template <bool kMixed>
  __device__ __forceinline__ bool add(int f, int i, A w) {
    const PixelRecord<A> record = work.records[i];
    if (!record.is_valid()) return false;
    A weight[2];
    find_weights(f, w, weight);
    const A factor[2] = {record.factor * weight[0], record.factor * weight[1]};
    A uniform = 0;
    if constexpr (!kPlain) {
      uniform = PixelGradient<A>(call, work.upstream, box.image, i, static_cast<int16_t>(record.y()), A(0)).uniform;
    }
#pragma unroll
    for (int quad = 0; quad < K; quad += V) {
      if (quad >= count) continue;
#pragma unroll
      for (int j = quad; j < quad + V; ++j) {
        const A e = exp_negative(smaller((kMixed ? blend(top[j], bottom[j], w) : top[j]) - record.m, record.most));
        of_top[j] += e * factor[0];
        of_bottom[j] += e * factor[1];
        if constexpr (!kPlain) {
          if (uniform == A(0) || j >= count) continue;
          const A less = uniform * call.weight_of(box.image, first_class + j);
          of_top[j] -= less * weight[0];
          of_bottom[j] -= less * weight[1];
        }
      }
    }
    if (has(record.y()) || has(record.k())) {
      const PixelShares<A> shares = work.shares_of[i];
      if (has(record.y())) add_single(f, record.y() - first_class, shares.of_y, weight);
      if (has(record.k())) add_single(f, record.k() - first_class, shares.of_k, weight);
    }
    return record.has_others();
  }

  // The shares of the pixel's other classes.
  __device__ __forceinline__ void add_others(int f, int i, A w) {
    const PixelRecord<A> record = work.records[i];
    if (!record.has_others()) return;
    A weight[2];
    find_weights(f, w, weight);
    const auto y = static_cast<int16_t>(record.y());
    PixelGradient<A> around;
    around.template add_edges<kPlain>(
        call, work.upstream, place_of(call.g, i), y, call.image(box.image), call.max_at(i), call.r[i],
        [&](int k) { return k != y && k != record.k() && has(k); },
        [&](int k, A value) { add_single(f, k - first_class, value, weight); });
  }

  // The pixels of the column in interval f, from a row on. Returns whether there are no logits at hand any more.
  __device__ __forceinline__ bool add_interval(int f, int row, int end) {
    const int width = static_cast<int>(call.g.width);
    bool is_rare = false;
    int at_row = row;
    A w = 0;
#pragma unroll 1
    for (; at_row < end && (w = call.along_y.weight(f, at_row)) == A(0); ++at_row) {
      is_rare |= add<false>(f, pixels + at_row * width, w);
    }
#pragma unroll 1
    for (; at_row < end; ++at_row) {
      is_rare |= add<true>(f, pixels + at_row * width, call.along_y.weight(f, at_row));
    }
    if (!is_rare) return false;
    // So that what it needs does not take the registers of all others.
    flush(f, of_top);
    flush(f + 1, of_bottom);
#pragma unroll 1
    for (at_row = row; at_row < end; ++at_row) {
      add_others(f, pixels + at_row * width, call.along_y.weight(f, at_row));
    }
    return true;
  }

  // The same with their logits. has_bottom: `bottom` is the low-resolution row above them; then, the one below them.
  __device__ __forceinline__ void add_rows(int f, int row, int end, bool& has_bottom) {
#pragma unroll 1
    for (int line = has_bottom ? f + 1 : f; line <= f + 1; ++line) {
#pragma unroll
      for (int j = 0; j < K; ++j) top[j] = bottom[j];
      read(line, bottom);
    }
    has_bottom = !(exists && add_interval(f, row, end));
  }

  // Adds what registers hold to the sums of a low-resolution row.
  __device__ __forceinline__ void flush(int row, A (&added)[K]) {
    A* own = shared.sums[row & 1][thread];
#pragma unroll
    for (int j = 0; j < K; j += V) {
      if (j >= count) continue;
      A sum[V];
      load<false>(own + j, sum);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        sum[v] += added[j + v];
        added[j + v] = 0;
      }
      store<false>(own + j, sum);
    }
  }
  __device__ __forceinline__ void clear(int row) {
    const A zeros[V] = {};
#pragma unroll
    for (int j = 0; j < K; j += V) store<false>(shared.sums[row & 1][thread] + j, zeros);
  }

  // Writes the gradient of low-resolution row f, whose sums are complete.
  __device__ __forceinline__ void write(int f) const {
    const auto* columns = shared.sums[f & 1] + (thread - lane);
    const int64_t line = (static_cast<int64_t>(box.z) * call.along_y.low + f) * call.along_x.low + box.first_x;
    const Steps& steps = work.output.steps;
    T* const first = work.output.grad + box.image * steps.image + first_logit * steps.channel + line * steps.pixel;
#pragma unroll 1
    for (int t = lane; t < kVectors * (box.end_x - box.first_x); t += work.strips.width()) {
      const int cell = t / kVectors, j = t % kVectors * V;
      if (j >= count) continue;
      A sum[V] = {};
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        int n = shared.first[cell + side] - shared.first[0], end = shared.first[cell + side + 1] - shared.first[0];
        if (!kPlain && work.strips.is_wide) {  // all columns are of this pixel, and weighted
          n = 0;
          end = side ? work.strips.width() : 0;
        }
#pragma unroll 1
        for (; n < end; ++n) {
          A part[V];
          load<false>(columns[n] + j, part);
#pragma unroll
          for (int v = 0; v < V; ++v) sum[v] += shared.weight[side][n] * part[v];
        }
      }
      T* to = first + cell * steps.pixel + j * steps.channel;
#pragma unroll
      for (int v = 0; v < V; ++v, to += steps.channel) {
        if (j + v < count) *to = static_cast<T>(sum[v]);
      }
    }
  }

  __device__ __forceinline__ void run() {
    shared.describe(call, work.strips, box, strip, lane);
    clear(0);
    clear(1);
    __syncthreads();
    const int first = shared.first[0], end = shared.first[box.end_x - box.first_x + 1];
    bool has_bottom = false;
    if constexpr (kPlain) enter(0, first, end);
#pragma unroll 1
    for (int f = box.first_y - 1, step = 0; step <= work.strips.down; ++f, ++step) {
      const int row = shared.rows(work.strips, strip)[step], end_row = shared.rows(work.strips, strip)[step + 1];
      if constexpr (kPlain) {
        if (row < end_row) add_rows(f, row, end_row, has_bottom);
      } else {
        // Else a thread takes several columns: of several slices, or where a low-resolution pixel has more than
        // threads.
        const int first_slice = call.along_z.begin(box.z - 1), end_slice = call.along_z.begin(box.z + 1);
        const bool is_single = end_slice - first_slice == 1 && !work.strips.is_wide;
#pragma unroll 1
        for (int slice = first_slice; slice < end_slice && row < end_row; ++slice) {
#pragma unroll 1
          for (int column = first; column < end; column += work.strips.width()) {
            has_bottom &= is_single;
            if (!has_bottom) enter(slice, column, end);
            add_rows(f, row, end_row, has_bottom);
          }
        }
      }
      flush(f, of_top);
#pragma unroll
      for (int j = 0; j < K; ++j) of_top[j] = of_bottom[j];
#pragma unroll
      for (int j = 0; j < K; ++j) of_bottom[j] = 0;
      __syncthreads();
      if (f >= box.first_y && f < box.end_y) write(f);
      __syncthreads();
      clear(f);
    }
  }
};

template <typename T, typename A, bool kPlain>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && kPlain ? 2 : 1)
    upsampled_gradient_kernel(const UpsampledBackward<T, A> work) {
  __shared__ Columns<A, kPlain> shared;
  Column<T, A, kPlain> column = {work, shared};
  column.run();
}

}  // namespace

template <typename T, typename A>
void upsampled_backward(const Call<T, A, true>& call, const Upstream<A>& upstream, const GradientOutput<T>& output,
                        const Tensor& logits, cudaStream_t stream) {
  const int64_t all = call.g.batch * call.g.pixels;
  if (all == 0) return;
  Tensor memory = torch::stable::new_empty(logits, {6 * all}, kScalarType<A>);
  auto* records = static_cast<PixelRecord<A>*>(memory.mutable_data_ptr());
  auto* shares_of = reinterpret_cast<PixelShares<A>*>(records + all);
  const bool same_weights =
      !call.pixel_weight && std::none_of(upstream.map, upstream.map + Row::kTerms, [](const A* map) { return map; });
  const auto find_records = call.is_plain() && same_weights ? records_kernel<T, A, true> : records_kernel<T, A, false>;
  launch(stream, call.tiles.count, find_records, call, upstream, records, shares_of);
  const auto run = [&](auto plain) {
    constexpr bool kPlain = decltype(plain)::value;
    LowImage<T, A, !kPlain>::check(call);
    const Strips strips(call, Columns<A, kPlain>::K);
    const UpsampledBackward<T, A> work = {call, upstream, strips, records, shares_of, output};
    launch(stream, strips.blocks, upsampled_gradient_kernel<T, A, kPlain>, work);
  };
  const bool is_wide = Strips(call, Columns<A, true>::K).is_wide;
  if (!call.g.is_volume && !is_wide && call.label_smoothing == A(0) && call.power == A(0)) {
    run(std::true_type());
  } else {
    run(std::false_type());
  }
}

#define EDGELOSS_INSTANTIATE(T, A)                                                                        \
  template void upsampled_backward(const Call<T, A, true>&, const Upstream<A>&, const GradientOutput<T>&, \
                                   const Tensor&, cudaStream_t);
EDGELOSS_INSTANTIATE(double, double)
EDGELOSS_INSTANTIATE(float, float)
EDGELOSS_INSTANTIATE(torch::headeronly::Half, float)
EDGELOSS_INSTANTIATE(torch::headeronly::BFloat16, float)

}  // namespace edgeloss
