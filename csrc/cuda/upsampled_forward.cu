// The cross-entropy of logits of lower resolution than the labels.
//
// A thread takes up to four pixels below each other that are mixed from the same two low-resolution rows, so that each
// of these is mixed along x once for all four.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cross_entropy.h"
#include "low_resolution.h"

namespace edgeloss {
namespace {

constexpr int kRows = 4;  // pixels of a thread at a time

// Columns of the pixels between two low-resolution rows, in parts of four rows: an item each.
struct Intervals {
  int count;  // of a slice: those between two low-resolution rows, one before the first and one after the last of them
  int parts;  // of an interval; the last one has all rows that are left
  int64_t items;
  Divisor by_parts, by_count, by_depth;

  template <typename C>
  explicit Intervals(const C& call)
      : count(static_cast<int>(call.along_y.low) + 1),
        parts(static_cast<int>(std::max<int64_t>(call.g.height / (kRows * call.along_y.low), 1))),
        items(call.g.batch * call.g.depth * count * parts * call.g.width),
        by_parts(parts),
        by_count(count),
        by_depth(std::max<int64_t>(call.g.depth, 1)) {}
};

// Pixels of a column that are mixed from the same low-resolution rows.
template <typename T, typename A, bool kVolume, Terms kTerms>
struct Run {
  const Call<T, A, true>& call;
  const LowImage<T, A, kVolume>& low;
  int image, first, length;  // first: in the batch
  LowColumn<A, kVolume> top, bottom;
  A weight[kRows];  // of the bottom row; 0.5 where there is no pixel
  Pixel<A, kTerms, false> pixel[kRows];

  __device__ int place(int v) const { return first + v * static_cast<int>(call.g.width); }

  // All classes.
  __device__ __forceinline__ void read() {
    bool is_read = false;
#pragma unroll
    for (int v = 0; v < kRows; ++v) {  // no branch, so that no read waits for another
      const int y = v < length ? call.class_at(place(v)) : kIgnored, logit = y - (call.g.logits == 1);
      const A own = blend(low.read(std::max(logit, 0), top), low.read(std::max(logit, 0), bottom), weight[v]);
      pixel[v].y = y;
      pixel[v].own = logit < 0 ? A(0) : own;
      is_read |= y >= 0;
    }
    if (!is_read) return;
    const int classes = static_cast<int>(call.g.classes);
    int c = 0;
#pragma unroll 1
    for (; c + kBlock <= classes; c += kBlock) add<kBlock, true>(c);
    constexpr int kRest = 4;  // fewer at a time, so that few of them are none
#pragma unroll 1
    for (; c < classes; c += kRest) add<kRest, false>(c);
  }

  // N classes from c on. kAll: there are as many.
  template <int N, bool kAll>
  __device__ __forceinline__ void add(int c) {
    A of_top[N], of_bottom[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int logit = c + j - (!kAll && call.g.logits == 1);
      if (kAll || (logit >= 0 && logit < call.g.logits)) {
        of_top[j] = low.read(logit, top);
        of_bottom[j] = low.read(logit, bottom);
      } else {
        of_top[j] = of_bottom[j] = logit < 0 ? A(0) : A(-INFINITY);
      }
    }
#pragma unroll
    for (int v = 0; v < kRows; ++v) {
      if (v >= length) continue;
      A x[N];
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = blend(of_top[j], of_bottom[j], weight[v]);
      pixel[v].add(call, image, c, x);
    }
  }

  __device__ __forceinline__ void write(const CrossEntropyOutputs<A>& out, CrossEntropySums<A, kTerms>& sums) const {
#pragma unroll
    for (int v = 0; v < kRows; ++v) {
      if (v >= length) continue;
      const int i = place(v);
      A log_p;
      const A ce = sums.add(pixel[v], call, out, image, i, log_p);
      call.m[i] = pixel[v].softmax.m;
      call.r[i] = pixel[v].softmax.r;
      if (out.of_pixels.log_p) out.of_pixels.log_p[i] = log_p;
      if (out.ce) out.ce[i] = ce;
    }
  }

  static constexpr int kBlock = kClasses * static_cast<int>(sizeof(float)) / static_cast<int>(sizeof(A));
};

template <typename T, typename A, bool kVolume, Terms kTerms>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && !kVolume && kTerms != Terms::kAll ? 2 : 1)
    upsampled_cross_entropy_kernel(const Call<T, A, true> call, const Intervals intervals,
                                   const CrossEntropyOutputs<A> out) {
  const Axis<A>& along_y = call.along_y;
  const int width = static_cast<int>(call.g.width), height = static_cast<int>(call.g.height);
  CrossEntropySums<A, kTerms> sums;
  for_each_item(intervals.items, [&](int64_t item) {
    const auto line = static_cast<int>(quotient(item, width)), in_slices = intervals.by_parts.quotient(line);
    const int column = static_cast<int>(item - static_cast<int64_t>(line) * width);
    const int slice = intervals.by_count.quotient(in_slices), f = in_slices - slice * intervals.count - 1;
    const int image = intervals.by_depth.quotient(slice), z = slice - image * static_cast<int>(call.g.depth);
    const int part = line - in_slices * intervals.parts;
    int row = along_y.begin(f) + kRows * part;
    const int end = part + 1 < intervals.parts ? std::min(row + kRows, height) : height;
    const LowImage<T, A, kVolume> low(call, image, 0);
    const LowColumn<A, kVolume> at = low.column(call.along_x.at(column), call.along_z.at(z));
    const auto is_inside = [&](int at_row) {
      return at_row < end && (f + 1 >= along_y.low || along_y.position(at_row) < static_cast<A>(f + 1));
    };
#pragma unroll 1
    while (is_inside(row)) {
      const Taps<A> along = along_y.at(row);
      Run<T, A, kVolume, kTerms> run = {call,
                                        low,
                                        image,
                                        (slice * height + row) * width + column,
                                        1,
                                        low.row(at, static_cast<int>(along.first)),
                                        low.row(at, static_cast<int>(along.second)),
                                        {along.blending()},
                                        {}};
#pragma unroll
      for (int v = 1; v < kRows; ++v) {
        const A w = along_y.weight(f, row + v);
        if (run.length < v || !is_inside(row + v) || (w == A(0)) != (along.weight == A(0))) continue;
        run.weight[v] = w == A(0) ? A(0.5) : w;
        run.length = v + 1;
      }
      run.read();
      run.write(out, sums);
      row += run.length;
    }
  });
  sums.write(out, call.tiles);
}

}  // namespace

template <typename T, typename A>
void upsampled_cross_entropy(const Call<T, A, true>& call, const CrossEntropyOutputs<A>& out, cudaStream_t stream) {
  const Intervals intervals(call);
  const auto run = [&](auto is_volume) {
    constexpr bool kVolume = decltype(is_volume)::value;
    LowImage<T, A, kVolume>::check(call);  // here already, so that no forward pass is without its backward pass
    const auto kernel = terms_of(call, out) == Terms::kAll
                            ? upsampled_cross_entropy_kernel<T, A, kVolume, Terms::kAll>
                            : upsampled_cross_entropy_kernel<T, A, kVolume, Terms::kPixels>;
    launch(stream, call.tiles.count, kernel, call, intervals, out);
  };
  if (call.g.is_volume) {
    run(std::true_type());
  } else {
    run(std::false_type());
  }
}

#define EDGELOSS_INSTANTIATE(T, A) \
  template void upsampled_cross_entropy(const Call<T, A, true>&, const CrossEntropyOutputs<A>&, cudaStream_t);
EDGELOSS_INSTANTIATE(double, double)
EDGELOSS_INSTANTIATE(float, float)
EDGELOSS_INSTANTIATE(torch::headeronly::Half, float)
EDGELOSS_INSTANTIATE(torch::headeronly::BFloat16, float)

}  // namespace edgeloss
