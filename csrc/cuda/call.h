// The whole loss on CUDA: what forward and backward share.
//
// A block takes a tile of 1024 pixels (tiles.h). Forward: (1) labels.cu packs the labels and finds the edge pixels and,
// from the labels alone, the counts; (2) forward.cu reads each logit once, for the two numbers of math.h and the
// cross-entropy; (3) with decay, the distances near edge pixels; (4) edges.cu lists the edge pixels of a tile, and two
// or eight threads share the window of each. False edges are sums over windows of the cross-entropy (false_edges.cu).
// Backward: backward.cu lists the pixels near edge pixels, which gather their shares (near.h), then reads each logit
// once more and writes each element of the gradient once. Logits of lower resolution are interpolated where they are
// read (upsampled_forward.cu); in backward, blocks take boxes of them and add up what the pixels around give
// (upsampled.cu). In some cases one kernel takes the place of these after labels.cu, and reads each logit once
// (single_read.cu). No two threads of
// a kernel write to one place, and the sums of the tiles are added in a fixed order, so every run gives the same bits.
//
// The state between them takes 19 bytes a pixel in float: label (2), bits of the edge pixels (1), r and m (8, of which
// half precision leaves 2 untouched), and one number a side (8), which is touched at edge pixels only. Powers other
// than 0 and 1 take 8 more, and decay 12.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../kernels.h"
#include "../labels.h"
#include "../math.h"
#include "../upsample.h"
#include "device.h"
#include "tiles.h"

namespace edgeloss {

constexpr int kClasses = 8;  // logits of a pixel on their way at a time

__device__ __forceinline__ Place place_of(const Geometry& g, int64_t i) {
  const int64_t image = quotient(i, g.pixels), pixel = i - image * g.pixels, row = quotient(pixel, g.width);
  return {image, row, pixel - row * g.width, image * g.pixels, pixel};
}

// What a pixel is mixed from: `first` of class 0, and the steps to the others; weights are those of the steps' ends, as
// blend() takes them. A row at a time, so that kernels that go down a column mix each row once.
template <typename T, typename A>
struct Mixture {
  const T* first;
  int64_t dz, dy, dx;
  A z, y, x;

  __device__ A at(int64_t offset) const { return blend(row(first + offset), row(first + offset + dy), y); }
  __device__ A row(const T* at) const {
    const A nearer = blend(static_cast<A>(at[0]), static_cast<A>(at[dx]), x);
    if (dz == 0) return nearer;
    return blend(nearer, blend(static_cast<A>(at[dz]), static_cast<A>(at[dz + dx]), x), z);
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
            z.blending(),
            y.blending(),
            x.blending()};
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
  using Max = std::conditional_t<kUpsampled, A, T>;  // of m: where nothing is mixed, it is one of the logits

  Geometry g;
  Tiles tiles;
  int64_t total;  // pixels of the batch
  const T* x;
  Steps steps;
  Axis<A> along_z, along_y, along_x;
  const A* weight;             // [tables, C] or null
  const A* pixel_weight;       // [B, P] or null
  const A* edge_class_weight;  // [tables, C] or null
  A label_smoothing, power, inverse_decay;
  SidePacking packing;
  int16_t* label;           // [B, P], packed
  Bits edges, false_edges;  // null: not wanted
  A* r;                     // [B, P], on valid pixels only
  Max* m;                   // as r
  A* sides;                 // [packing.count(), 2, B, P]; on E only
  const A* field;           // [B, P]; read near E only
  const A* false_shares;    // [B, P], in backward: what a pixel's false edges give it; or null

  Call(const Geometry& g, const Inputs& inputs, const SavedState& saved, const Options& options)
      : g(g),
        tiles(g),
        total(g.batch * g.pixels),
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
        edges{options.edges ? static_cast<uint32_t*>(saved.edge_list.mutable_data_ptr()) : nullptr},
        false_edges{options.edges && options.false_edges ? edges.words + tiles.words * tiles.rows * g.batch : nullptr},
        r(static_cast<A*>(saved.stats.mutable_data_ptr())),
        m(reinterpret_cast<Max*>(r + g.batch * g.pixels)),
        sides(static_cast<A*>(saved.sides.mutable_data_ptr())),
        field(static_cast<const A*>(saved.field.const_data_ptr())),
        false_shares(nullptr) {}

  // Whether the edge terms are those that have a quicker way.
  bool is_plain() const { return is_three(g) && power == A(0) && !packing.has_decay; }

  __device__ int64_t count() const { return total; }
  __device__ A max_at(int64_t i) const { return static_cast<A>(m[i]); }
  __device__ const uint16_t* label_bits() const { return reinterpret_cast<const uint16_t*>(label); }
  __device__ int label_bits(int i) const { return label_bits()[i]; }
  __device__ int16_t class_at(int64_t i) const { return class_of(label[i]); }
  __device__ auto image(int64_t b) const {
    const Logits<T, A> logits = {x + b * steps.image, g.logits == 1 ? 0 : steps.channel, steps.pixel, g.logits == 1};
    if constexpr (kUpsampled) {
      return UpsampledLogits<T, A>{logits, along_z, along_y, along_x, logits.binary};
    } else {
      return logits;
    }
  }
  // Of class c, in an image.
  __device__ A weight_of(int64_t image, int64_t c) const { return weight ? weight[g.table(image) + c] : A(1); }
  __device__ A pixel_weight_of(int64_t i) const { return pixel_weight ? pixel_weight[i] : A(1); }
  __device__ A edge_class_weight_of(int64_t image, int64_t y) const {
    return edge_class_weight ? edge_class_weight[g.table(image) + y] : A(1);
  }
  __device__ A edge_weight_of(int64_t image, int64_t i, int64_t y) const {
    // One branch for both: the product with a weight of 1 takes registers that upsampled_gradient_kernel has not.
    return edge_class_weight ? pixel_weight_of(i) * edge_class_weight[g.table(image) + y] : pixel_weight_of(i);
  }
  __device__ A smoothed_weight(int64_t image) const {  // Σ weight(c), where it is needed
    A sum = 0;
    for (int64_t c = 0; c < g.classes && label_smoothing != A(0); ++c) sum += weight_of(image, c);
    return sum;
  }
  // log w of pixel i, as an edge pixel sees it.
  __device__ A log_weight(A nearest, int64_t i) const {
    return packing.has_decay ? (nearest - field[i]) * inverse_decay : A(0);
  }

  // The mean of one side of an edge pixel of class k by logarithms, with what backward needs of it.
  __device__ A mean_by_logarithms(const Place& at, int16_t k, int side, Side<A>& mean) const {
    const auto logits = image(at.image);
    const bool is_true = is_edge(label[at.base + at.pixel]);  // those that a false edge sees weigh the same
    return negative_log_mean(
        [&](const auto& body) {
          for_each_neighbor(g, at.row, at.column, [&](int64_t n) {
            const int64_t i = at.base + n;
            const int16_t y = class_at(i);
            if (y < 0 || (y != k) != side) return;
            body(term(logits, n, g.classes, k, side == 0, max_at(i), r[i]),
                 is_true ? log_weight(mean.nearest, i) : A(0));
          });
        },
        power, mean);
  }

  __device__ void store(int side, int64_t i, const Side<A>& mean) const {
    packing.keep(mean, [&](int64_t number) -> A& { return sides[(2 * number + side) * count() + i]; });
  }
  __device__ Side<A> load_plain(int side, int64_t i) const {
    Side<A> mean;
    packing.recall(mean, [&](int64_t number) { return sides[(2 * number + side) * count() + i]; });
    return mean;
  }
  __device__ Side<A> load(int side, int64_t i) const {
    Side<A> mean = load_plain(side, i);
    // What only logarithms could represent has no number of its own: rare enough to be computed again.
    if (packing.is_plain && !(mean.inverse > A(0))) mean_by_logarithms(place_of(g, i), class_at(i), side, mean);
    return mean;
  }
};

}  // namespace edgeloss
