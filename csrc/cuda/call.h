// The whole loss on CUDA.
//
// One thread takes a pixel, neighboring threads neighboring pixels, so that what they read of a class lies side by
// side in contiguous logits; those of channels_last pass through shared memory. Forward: (1) labels, the two numbers of
// math.h and the cross-entropy, from one look at each logit; (2) with decay, the edge mask and the distances near it;
// (3) the edge mask, of the prediction's false edges too where they count, and the edge terms; (4) the sums. Backward
// looks at each logit once more for the cross-entropy; then the pixels around edge pixels gather their shares and write
// their gradient again. Logits of lower resolution are interpolated where they are read, and gather their gradient from
// the pixels around. No two threads of a kernel write to one place, and sums are added in a fixed order, so every run
// gives the same bits.
//
// The state between them takes 19 bytes a pixel in float: label (2), edge mask (1), m and r (8), and one number a side
// (8). Powers other than 1 take 8 more, and decay 12. Few classes could do without m and r, as forming them again would
// cost no more than reading them.
#pragma once

#include <cstdint>

#include "../kernels.h"
#include "../labels.h"
#include "../math.h"
#include "../upsample.h"
#include "device.h"

namespace edgeloss {

constexpr int kClasses = 8;  // logits of a pixel on their way at a time
// The 1 of __launch_bounds__(kThreads, 1) keeps the compiler from spilling registers to let more threads run at a time.

struct Place {
  int64_t image, row, column;
  int64_t base, pixel;  // of the image in the batch, of the pixel in the image
};

__device__ __forceinline__ Place place_of(const Geometry& g, int64_t i) {
  const int64_t image = quotient(i, g.pixels), pixel = i - image * g.pixels, row = quotient(pixel, g.width);
  return {image, row, pixel - row * g.width, image * g.pixels, pixel};
}

// What a pixel is mixed from: `first` of class 0, and the steps to the others; weights are those of the steps' ends.
template <typename T, typename A>
struct Mixture {
  const T* first;
  int64_t dz, dy, dx;
  A z, y, x;

  __device__ A at(int64_t offset) const { return mix(column(first + offset), column(first + offset + dx), x); }
  __device__ A column(const T* at) const {
    const A nearer = mix(static_cast<A>(at[0]), static_cast<A>(at[dy]), y);
    if (z == A(0)) return nearer;
    return mix(nearer, mix(static_cast<A>(at[dz]), static_cast<A>(at[dz + dy]), y), z);
  }
};

// Logits of one image at the labels' resolution, each interpolated where it is read.
template <typename T, typename A>
struct UpsampledLogits {
  Logits<T, A> low;
  Axis<A> along_z, along_y, along_x;
  bool binary;

  __device__ Mixture<T, A> mixture(const Taps<A>& z, const Taps<A>& y, const Taps<A>& x) const {
    const int64_t column = low.pixel_step, row = along_x.low * column, slice = along_y.low * row;
    return {low.data + z.first * slice + y.first * row + x.first * column,
            (z.second - z.first) * slice,
            (y.second - y.first) * row,
            (x.second - x.first) * column,
            z.weight,
            y.weight,
            x.weight};
  }
  __device__ Mixture<T, A> mixture(int64_t pixel) const {
    const int64_t row = quotient(pixel, along_x.high), z = quotient(row, along_y.high);
    return mixture(along_z.at(z), along_y.at(row - z * along_y.high), along_x.at(pixel - row * along_x.high));
  }
  __device__ A at(int64_t pixel, int64_t c) const {
    if (binary && c == 0) return A(0);
    return mixture(pixel).at(binary ? 0 : c * low.class_step);
  }
};

// Arguments, and the state that forward leaves to backward.
template <typename T, typename A, bool kUpsampled>
struct Call {
  Geometry g;
  const T* x;
  Steps steps;
  Axis<A> along_z, along_y, along_x;
  const A* weight;             // [C] or null
  const A* pixel_weight;       // [B, P] or null
  const A* edge_class_weight;  // [C] or null
  A label_smoothing, power, inverse_decay;
  SidePacking packing;
  int16_t* label;      // [B, P]
  int16_t* predicted;  // [B, P], in forward, or null: false edges are not wanted
  uint8_t* edge;       // [B, P]
  A *m, *r;            // [B, P] each; on valid pixels only
  A* sides;            // [packing.count(), 2, B, P]; on E only
  const A* field;      // [B, P]; read near E only
  // [C], in forward, or null: not wanted.
  unsigned long long* edge_counts;

  Call(const Geometry& g, const Inputs& inputs, const SavedState& saved, const Options& options)
      : g(g),
        x(static_cast<const T*>(inputs.logits.const_data_ptr())),
        steps(inputs.logits),
        along_z(geometry_of(inputs.logits, {0, 0, 0}).depth, g.depth),
        along_y(geometry_of(inputs.logits, {0, 0, 0}).height, g.height),
        along_x(geometry_of(inputs.logits, {0, 0, 0}).width, g.width),
        weight(data_or_null<A>(inputs.weight)),
        pixel_weight(data_or_null<A>(inputs.pixel_weight)),
        edge_class_weight(data_or_null<A>(inputs.edge_class_weight)),
        label_smoothing(static_cast<A>(options.label_smoothing)),
        power(static_cast<A>(options.power)),
        inverse_decay(options.has_decay() ? static_cast<A>(1 / options.decay) : A(0)),
        packing(options),
        label(static_cast<int16_t*>(saved.label.mutable_data_ptr())),
        predicted(nullptr),
        edge(options.edges ? static_cast<uint8_t*>(saved.flags.mutable_data_ptr()) : nullptr),
        m(static_cast<A*>(saved.stats.mutable_data_ptr())),
        r(m + g.batch * g.pixels),
        sides(static_cast<A*>(saved.sides.mutable_data_ptr())),
        field(static_cast<const A*>(saved.field.const_data_ptr())),
        edge_counts(nullptr) {}

  __device__ int64_t count() const { return g.batch * g.pixels; }
  __device__ auto image(int64_t b) const {
    const Logits<T, A> logits = {x + b * steps.image, steps.channel, steps.pixel, g.logits == 1};
    if constexpr (kUpsampled) {
      return UpsampledLogits<T, A>{logits, along_z, along_y, along_x, logits.binary};
    } else {
      return logits;
    }
  }
  __device__ A weight_of(int64_t c) const { return weight ? weight[c] : A(1); }
  __device__ A pixel_weight_of(int64_t i) const { return pixel_weight ? pixel_weight[i] : A(1); }
  __device__ A edge_weight_of(int64_t i, int16_t y) const {
    return edge_class_weight ? pixel_weight_of(i) * edge_class_weight[y] : pixel_weight_of(i);
  }
  __device__ A smoothed_weight() const {  // Σ weight(c), where it is needed
    A sum = 0;
    for (int64_t c = 0; c < g.classes && label_smoothing != A(0); ++c) sum += weight_of(c);
    return sum;
  }
  // log w of pixel i, as an edge pixel sees it; those that a false one sees weigh the same.
  __device__ A log_weight(int64_t center, A nearest, int64_t i) const {
    return packing.has_decay && edge[center] == kEdge ? (nearest - field[i]) * inverse_decay : A(0);
  }

  // The mean of one side of an edge pixel of class k by logarithms, with what backward needs of it.
  __device__ A mean_by_logarithms(const Place& at, int16_t k, int side, Side<A>& mean) const {
    const auto logits = image(at.image);
    return negative_log_mean(
        [&](const auto& body) {
          for_each_neighbor(g, at.row, at.column, [&](int64_t n) {
            const int64_t i = at.base + n;
            if (label[i] < 0 || (label[i] != k) != side) return;
            body(term(logits, n, g.classes, k, side == 0, m[i], r[i]), log_weight(at.base + at.pixel, mean.nearest, i));
          });
        },
        power, mean);
  }

  __device__ void store(int side, int64_t i, const Side<A>& mean) const {
    packing.keep(mean, [&](int64_t number) -> A& { return sides[(2 * number + side) * count() + i]; });
  }
  __device__ Side<A> load(int side, int64_t i) const {
    Side<A> mean;
    packing.recall(mean, [&](int64_t number) { return sides[(2 * number + side) * count() + i]; });
    // What only logarithms could represent has no number of its own: rare enough to be computed again.
    if (packing.is_plain && !(mean.inverse > A(0))) mean_by_logarithms(place_of(g, i), label[i], side, mean);
    return mean;
  }
};

// Calls body(c, x(c), x(c + 1), ..., n) for blocks of n ≤ kClasses classes: their reads do not wait for each other.
template <typename T, typename A, typename F>
__device__ __forceinline__ void for_each_block(const Logits<T, A>& x, int64_t pixel, int64_t classes, const F& body) {
  A block[kClasses];
  int64_t c = 0;
  for (const T* at = x.data + pixel * x.pixel_step; c + kClasses <= classes; c += kClasses) {
#pragma unroll
    for (int j = 0; j < kClasses; ++j, at += x.class_step) block[j] = static_cast<A>(*at);
    body(c, block, kClasses);
  }
  if (c == classes) return;
  const int rest = static_cast<int>(classes - c);
#pragma unroll
  for (int j = 0; j < kClasses; ++j) {
    if (j < rest) block[j] = x.at(pixel, c + j);
  }
  body(c, block, rest);
}

template <typename T, typename A, typename F>
__device__ __forceinline__ void for_each_block(const UpsampledLogits<T, A>& x, int64_t pixel, int64_t classes,
                                               const F& body) {
  const Mixture<T, A> mixture = x.mixture(pixel);
  for (int64_t c = 0; c < classes; c += kClasses) {
    A block[kClasses];
#pragma unroll
    for (int j = 0; j < kClasses; ++j) {
      const bool exists = c + j < classes;
      block[j] = exists && !(x.binary && j == 0) ? mixture.at(x.binary ? 0 : (c + j) * x.low.class_step) : A(0);
    }
    body(c, block, static_cast<int>(classes - c < kClasses ? classes - c : kClasses));
  }
}

// The same where the classes of a pixel lie side by side: then neighboring threads copy neighboring classes, through
// shared memory. Each on its own would touch a line of memory for every number, and write a part of it at a time.
//
// The threads of a block call it together, with null for a pixel that is not read (0 comes) or not written. Where it
// writes, body leaves in the block what shall be written.
template <bool kWrites, typename T, typename A, typename F>
__device__ __forceinline__ void for_each_staged_block(const T* from, T* to, int64_t classes, const F& body) {
  __shared__ A values[kClasses][kThreads + 4];  // + 4: eight classes of four pixels lie in different banks
  __shared__ const T* read[kThreads];
  __shared__ T* written[kThreads];
  const int own = static_cast<int>(threadIdx.x), j = own % kClasses, first = own / kClasses;
  __syncthreads();  // the last call has ended everywhere
  read[own] = from;
  if constexpr (kWrites) written[own] = to;
  for (int64_t c = 0; c < classes; c += kClasses) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kClasses; ++k) {
      const int pixel = first + k * (kThreads / kClasses);
      values[j][pixel] = read[pixel] && c + j < classes ? static_cast<A>(read[pixel][c + j]) : A(0);
    }
    __syncthreads();
    A block[kClasses];
#pragma unroll
    for (int k = 0; k < kClasses; ++k) block[k] = values[k][own];
    body(c, block, static_cast<int>(classes - c < kClasses ? classes - c : kClasses));
    if constexpr (kWrites) {
#pragma unroll
      for (int k = 0; k < kClasses; ++k) values[k][own] = block[k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kClasses; ++k) {
        const int pixel = first + k * (kThreads / kClasses);
        if (written[pixel] && c + j < classes) written[pixel][c + j] = static_cast<T>(values[j][pixel]);
      }
    }
  }
}

// Whether the classes of a pixel lie side by side.
inline bool is_staged(const Geometry& g, const Steps& steps) { return g.logits > 1 && steps.channel == 1; }

}  // namespace edgeloss
