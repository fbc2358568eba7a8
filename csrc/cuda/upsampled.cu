// The whole loss on CUDA: backward of logits of lower resolution than the labels.
#include <torch/csrc/stable/ops.h>

#include <cstdint>

#include "gradient.h"

namespace edgeloss {
namespace {

// Where edge pixels share their gradient out, for the kernel below, which comes by every pixel several times.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads, 1) near_edge_kernel(const Call<T, A, true> call, uint8_t* near) {
  __shared__ uint32_t words[kTileWords];
  const Tile tile(call.g, call.tiles);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kTileWords) words[thread] = near_edges<false>(call.g, tile, call.tiles, call.edges, thread);
  __syncthreads();
  for (int p = thread; p < kTilePixels; p += kThreads) {
    if (tile.exists(p)) near[tile.base + tile.pixel(p)] = words[p / 32] >> (p % 32) & 1;
  }
}

// The gradient of logits that are upsampled: each thread takes kTaken classes of kCells low-resolution pixels, the
// cells, below each other, and gathers from the pixels that are mixed from them. Their logits are mixed in two steps,
// those of a row from the same three columns.
//
// First that of the cross-entropy; then, of the cells near edge pixels, the whole in place of what stands there, by
// threads that take less, since they need more registers. near: as near_edge_kernel leaves it.
template <typename T, typename A, bool kEdges>
struct UpsampledBackward {
  static constexpr int kTaken = sizeof(A) == 4 ? 4 : 1;  // classes
  static constexpr int kCells = kEdges ? 1 : 4;

  Call<T, A, true> call;
  Upstream<A> upstream;
  const uint8_t* near;
  GradientOutput<T> output;

  EDGELOSS_INLINE int64_t parts() const { return (call.g.logits + kTaken - 1) / kTaken; }
  EDGELOSS_INLINE int64_t strips() const { return (call.along_y.low + kCells - 1) / kCells; }
  EDGELOSS_INLINE int64_t items() const {
    return call.g.batch * parts() * call.along_z.low * strips() * call.along_x.low;
  }
};

template <typename T, typename A, bool kEdges>
__global__ void __launch_bounds__(kThreads, 1) upsampled_backward_kernel(const UpsampledBackward<T, A, kEdges> work) {
  constexpr int kTaken = work.kTaken, kCells = work.kCells;
  const Call<T, A, true>& call = work.call;
  const Geometry& g = call.g;
  const A of_all = call.smoothed_weight(0);
  const int64_t width = call.along_x.low, height = call.along_y.low, depth = call.along_z.low;
  const int64_t strips = work.strips(), parts = work.parts();
  for_each_item(work.items(), [&](int64_t item) {
    const int64_t line = quotient(item, width), cell_x = item - line * width;
    const int64_t slice = quotient(line, strips), first_cell = (line - slice * strips) * kCells;
    const int64_t last_cell = first_cell + kCells < height ? first_cell + kCells : height;
    const int64_t group = quotient(slice, depth), cell_z = slice - group * depth;
    const int image = static_cast<int>(quotient(group, parts));
    const int64_t first_logit = (group - image * parts) * kTaken;
    const int64_t first_class = first_logit + (g.logits == 1), base = image * g.pixels;
    int64_t last_z, last_y, last_x, unused;
    const int64_t first_z = call.along_z.support(cell_z, last_z), first_x = call.along_x.support(cell_x, last_x);
    const int64_t first_y = call.along_y.support(first_cell, unused);
    call.along_y.support(last_cell - 1, last_y);
    if constexpr (kEdges) {
      bool any = false;
      for (int64_t z = first_z; z < last_z; ++z) {
        for (int64_t y = first_y; y < last_y; ++y) {
          const uint8_t* row = work.near + base + (z * g.height + y) * g.width;
          for (int64_t at_x = first_x; at_x < last_x; ++at_x) any |= row[at_x] != 0;
        }
      }
      if (!any) return;
    }
    // Where images have tables of their own there are two classes.
    const A total = g.tables == 1 ? of_all : call.weight_of(image, 0) + call.weight_of(image, 1);
    const auto x = call.image(image);
    const int64_t step = x.low.pixel_step;
    A sum[kCells][kTaken] = {};
    for (int64_t z = first_z; z < last_z; ++z) {
      const Taps<A> taps_z = call.along_z.at(z);
      const A slice_weight = taps_z.weight_of(cell_z);
      if (slice_weight == A(0)) continue;
      for (int64_t y = first_y; y < last_y; ++y) {
        const Taps<A> taps_y = call.along_y.at(y);
        if (taps_y.second < first_cell || taps_y.first >= last_cell) continue;
        A row_weight[kCells];
#pragma unroll
        for (int k = 0; k < kCells; ++k) row_weight[k] = slice_weight * taps_y.weight_of(first_cell + k);
        const Mixture<T, A> mixture = x.mixture(taps_z, taps_y, {cell_x, cell_x, A(0)});
        A column[3][kTaken];  // that before the cells, their own, the next
#pragma unroll
        for (int j = 0; j < kTaken; ++j) {
          const T* own = mixture.first + (first_logit + j) * x.low.class_step;
          const bool exists = first_logit + j < g.logits;
          column[0][j] = exists && cell_x > 0 ? mixture.column(own - step) : A(0);
          column[1][j] = exists ? mixture.column(own) : A(0);
          column[2][j] = exists && cell_x < width - 1 ? mixture.column(own + step) : A(0);
        }
        for (int64_t at_x = first_x; at_x < last_x; ++at_x) {
          const Taps<A> taps_x = call.along_x.at(at_x);
          const A column_weight = taps_x.weight_of(cell_x);
          const int64_t row = z * g.height + y, pixel = row * g.width + at_x, i = base + pixel;
          const int16_t label = call.class_at(i);
          if (column_weight == A(0) || label < 0) continue;
          const A m = call.max_at(i), r = call.r[i];
          PixelGradient<A> all(call, work.upstream, image, i, label, total);
          A shares[kTaken] = {};
          if (kEdges && work.near[i]) {
            const Place at = {image, row, at_x, base, pixel};
            all.template add_edges<false>(
                call, work.upstream, at, label, x, m, r, [](int) { return true; },
                [&](int k, A value) {
                  all.alpha -= value;
#pragma unroll
                  for (int j = 0; j < kTaken; ++j) shares[j] += first_class + j == k ? value : A(0);
                });
          }
          const ClassGradient<A> gradient(all, x, pixel, g.classes, m, r);
          const bool is_right = taps_x.first == cell_x;
#pragma unroll
          for (int j = 0; j < kTaken; ++j) {
            if (first_logit + j >= g.logits) continue;
            const A logit =
                mix(is_right ? column[1][j] : column[0][j], is_right ? column[2][j] : column[1][j], taps_x.weight);
            const A value =
                gradient.of(first_class + j, label, logit, [&](int64_t c) { return call.weight_of(image, c); });
            const A weighted = column_weight * (value + shares[j]);
#pragma unroll
            for (int k = 0; k < kCells; ++k) sum[k][j] += row_weight[k] * weighted;
          }
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kCells; ++k) {
#pragma unroll
      for (int j = 0; j < kTaken; ++j) {
        if (first_cell + k >= last_cell || first_logit + j >= g.logits) continue;
        const int64_t cell = (cell_z * height + first_cell + k) * width + cell_x;
        work.output.store(x.binary, image, cell, first_class + j, sum[k][j]);
      }
    }
  });
}

}  // namespace

template <typename T, typename A>
void upsampled_backward(const Call<T, A, true>& call, const Upstream<A>& upstream, const GradientOutput<T>& output,
                        const Tensor& logits, cudaStream_t stream) {
  const UpsampledBackward<T, A, false> cross_entropy = {call, upstream, nullptr, output};
  launch(stream, blocks_for(cross_entropy.items()), upsampled_backward_kernel<T, A, false>, cross_entropy);
  if (!call.edges.words) return;
  const int64_t all = call.g.batch * call.g.pixels;
  Tensor near = torch::stable::new_empty(logits, {all}, ScalarType::Byte);
  uint8_t* is_near = static_cast<uint8_t*>(near.mutable_data_ptr());
  launch(stream, call.tiles.count, near_edge_kernel<T, A>, call, is_near);
  const UpsampledBackward<T, A, true> edges = {call, upstream, is_near, output};
  launch(stream, blocks_for(edges.items()), upsampled_backward_kernel<T, A, true>, edges);
}

#define EDGELOSS_INSTANTIATE(T, A)                                                                        \
  template void upsampled_backward(const Call<T, A, true>&, const Upstream<A>&, const GradientOutput<T>&, \
                                   const Tensor&, cudaStream_t);
EDGELOSS_INSTANTIATE(double, double)
EDGELOSS_INSTANTIATE(float, float)
EDGELOSS_INSTANTIATE(torch::headeronly::Half, float)
EDGELOSS_INSTANTIATE(torch::headeronly::BFloat16, float)

}  // namespace edgeloss
