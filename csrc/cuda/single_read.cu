// The loss on CUDA by a single read of the logits: those of float32 and few classes, and of images, with the edge terms
// that have a quicker way, all pixels weighing the same.
//
// With power 0 both terms of an edge pixel are means of logarithms over its neighbors. So their sum over the edge
// pixels is one over the neighbors, too: pixel n adds -log p_n(y_n), and -log(1 - p_n(k)) for the other classes k of
// the edge pixels around it, each times a number that depends on the labels alone. A thread has the logits of a pixel
// in registers, for its terms and for its gradient. Before, labels.cu has counted what the terms are divided by.
//
// Forward forms the gradient as it is where 1 arrives at the loss. Backward calls the same kernel, which returns at
// once where that is so, and forms it again where it is not: the device decides, and nothing waits for it. Between them
// forward keeps the gradient, the packed labels and the bits of the edge pixels.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <optional>

#include "near.h"
#include "passes.h"

namespace edgeloss {
namespace {

using FloatCall = Call<float, float, false>;

// The tile's pixels that have an edge pixel around them, or are one.
struct NearEdges {
  uint32_t bits[kTileWords];
  uint16_t places[kTilePixels];
};

// The edge pixels around a pixel.
struct EdgesAround {
  static constexpr int kNone = -1, kSeveral = -2;
  float same = 0, others = 0;  // Σ of share(), of those of the pixel's class and of others
  int k = kNone;               // the class of the others
};

// The labels around the pixels of a tile.
struct Surroundings {
  const FloatCall& call;
  const Tile& tile;

  __device__ __forceinline__ int bits_at(int row, int column) const {
    const bool exists = static_cast<unsigned>(row) < static_cast<unsigned>(tile.rows) &&
                        static_cast<unsigned>(column) < static_cast<unsigned>(tile.columns);
    return exists ? call.label_bits(tile.base + row * tile.columns + column) : kIgnoredBits;
  }

  // What the mean over one side of an edge pixel of class k gives each pixel there, which has some.
  __device__ __forceinline__ float share(int row, int column, int k, bool is_other) const {
    int same = -1, valid = -1;  // but for itself
    const bool exists[3] = {column > 0, true, column < tile.columns - 1};
#pragma unroll
    for (int dy = -1; dy <= 1; ++dy) {
      const bool is_row = static_cast<unsigned>(row + dy) < static_cast<unsigned>(tile.rows);
      const uint16_t* label = call.label_bits() + (tile.base + (row + dy) * tile.columns + column);
#pragma unroll
      for (int dx = -1; dx <= 1; ++dx) {
        const int bits = is_row && exists[dx + 1] ? label[dx] : kIgnoredBits;
        same += (bits & kClassBits) == k;
        valid += bits != kIgnoredBits;
      }
    }
    return ratio(1.0f, static_cast<float>(is_other ? valid - same : same));
  }

  // Calls body(class, row, column) for the edge pixels around place p.
  template <typename F>
  __device__ __forceinline__ void for_each_edge_pixel(int p, const F& body) const {
#pragma unroll 1
    for (int n = 0; n < 9; ++n) {
      const int row = tile.row(p) + n / 3 - 1, column = tile.column(p) + n % 3 - 1, bits = bits_at(row, column);
      if (n != 4 && is_edge_of_bits(bits)) body(bits & kClassBits, row, column);
    }
  }

  // Those of place p, of class y.
  __device__ __forceinline__ EdgesAround find(int p, int y) const {
    EdgesAround edges;
    int lowest = kClassBits, highest = EdgesAround::kNone;
    for_each_edge_pixel(p, [&](int k, int row, int column) {
      const bool is_other = k != y;
      const float part = share(row, column, k, is_other);
      edges.same += is_other ? 0.0f : part;
      edges.others += is_other ? part : 0.0f;
      lowest = is_other ? std::min(lowest, k) : lowest;
      highest = is_other ? std::max(highest, k) : highest;
    });
    edges.k = lowest < highest ? EdgesAround::kSeveral : highest;
    return edges;
  }

  // Calls body(k, Σ of share()) for the other classes than y of the edge pixels around place p, in order.
  template <typename F>
  __device__ __forceinline__ void for_each_other_class(const EdgesAround& edges, int p, int y, const F& body) const {
    int k = edges.k;
    if (k == EdgesAround::kNone) return;
    float sum = edges.others;
    const bool several = k == EdgesAround::kSeveral;
    if (several) k = -1;
#pragma unroll 1
    do {
      if (several) {  // rare: the next of them
        int next = INT_MAX;
        for_each_edge_pixel(
            p, [&](int other, int, int) { next = other > k && other != y ? std::min(next, other) : next; });
        if (next == INT_MAX) return;
        k = next;
        sum = 0;
        for_each_edge_pixel(p, [&](int other, int row, int column) {
          if (other == k) sum += share(row, column, k, true);
        });
      }
      body(k, sum);
    } while (several);
  }
};

// Adds e = e^(x - m) to a sum, or 1 to `tops` where x is m: by three instructions, where the compiler takes five.
__device__ __forceinline__ void add_below(float x, float m, float e, float& sum, float& tops) {
#ifdef __CUDA_ARCH__
  asm("{\n.reg .pred is_top;\nsetp.eq.f32 is_top, %2, %3;\n@is_top add.f32 %1, %1, 0f3F800000;\n"
      "@!is_top add.f32 %0, %0, %4;\n}"
      : "+f"(sum), "+f"(tops)
      : "f"(x), "f"(m), "f"(e));
#else
  sum += x == m ? 0.0f : e;
  tops += x == m ? 1.0f : 0.0f;
#endif
}

// A number for each class of a pixel, of kMost at most, in registers.
template <int kMost>
struct Classes {
  float values[kMost];

  // Calls body(c, value) for the classes in order, and for those that fill up the last four.
  template <typename F>
  __device__ __forceinline__ void for_each(int classes, const F& body) {
    constexpr int kGroup = 4;
#pragma unroll
    for (int first = 0; first < kMost; first += kGroup) {
      if (first >= classes) continue;  // all threads at once
#pragma unroll
      for (int c = first; c < first + kGroup; ++c) body(c, values[c]);
    }
  }
};

// m and r of a pixel, and e^(x(c) - m).
template <int kMost>
struct Softmax {
  float m = -INFINITY, r = 0;
  Classes<kMost> e;

  __device__ __forceinline__ Softmax(const Logits<float, float>& x, int pixel, int classes) {
    const float* from = x.data + pixel;
    e.for_each(classes, [&](int c, float& logit) {
      logit = c < classes ? *from : -INFINITY;
      from += x.class_step;
    });
    e.for_each(classes, [&](int, float& logit) { m = larger(m, logit); });
    float tops = -1;  // an integer by itself, so that r keeps all digits of a small sum
    e.for_each(classes, [&](int, float& logit) {
      const float power = exp_negative(logit - m);
      add_below(logit, m, power, r, tops);
      logit = power;
    });
    r += tops;
  }
};

// The terms and the gradient of a tile's pixels.
template <int kMost, bool kGradient>
struct SingleRead {
  const FloatCall& call;
  const Tile& tile;
  const Surroundings around;
  const double* factors;
  const GradientOutput<float>& output;
  const Logits<float, float> x;
  const int classes;
  float sums[Row::kFalseEdge] = {};  // of the terms

  __device__ SingleRead(const FloatCall& call, const Tile& tile, const double* factors,
                        const GradientOutput<float>& output)
      : call(call),
        tile(tile),
        around{call, tile},
        factors(factors),
        output(output),
        x(call.image(tile.image)),
        classes(static_cast<int>(call.g.classes)) {}

  __device__ __forceinline__ float factor_of(int term) const { return static_cast<float>(factors[term]); }
  __device__ __forceinline__ void store(int pixel, int c, float value) const {
    output.store(false, tile.image, pixel, c, value);
  }

  // What the other sides of weight `weight` give the gradient of a pixel for their class k.
  __device__ __forceinline__ float gradient_of_other(int pixel, int k, float weight, float m, float r) const {
    const float x_k = x.at(pixel, k);
    float p, complement;
    probabilities(x_k, m, r, p, complement);
    return factor_of(Row::kOtherSide) * weight * other_slope(p, complement, is_likely(x_k, m, r));
  }

  // Adds the terms of the edge pixels around place p. nll: -log p of its class y.
  __device__ __forceinline__ void add_edges(const EdgesAround& edges, int p, int pixel, int y,
                                            const Softmax<kMost>& softmax, float nll, PixelGradient<float>& gradient) {
    const float m = softmax.m, r = softmax.r, same = edges.same * call.edge_class_weight_of(tile.image, y);
    if (edges.same > 0.0f) sums[Row::kSameSide] += same * nll;
    gradient.same = factor_of(Row::kSameSide) * same;
    around.for_each_other_class(edges, p, y, [&](int k, float shares) {
      const float weight = shares * call.edge_class_weight_of(tile.image, k);
      const float t = other_term(x, pixel, classes, k, m, r);
      sums[Row::kOtherSide] -= t > 0.0f ? 0.0f : weight * t;  // rounding may not make the loss negative
      if constexpr (kGradient) {
        const float share = gradient_of_other(pixel, k, weight, m, r);
        const bool likely = is_likely(x.at(pixel, k), m, r);
        gradient.likely = likely ? k : gradient.likely;
        gradient.likely_sum += likely ? share : 0.0f;
        gradient.alpha -= likely ? 0.0f : share;
      }
    });
  }

  // Writes the gradient, but for what single classes have of their own.
  __device__ __forceinline__ void write(int pixel, int y, Softmax<kMost>& softmax,
                                        const PixelGradient<float>& parts) const {
    EdgeShares<float> shares;
    shares.same = parts.same;
    shares.other = parts.likely_sum;
    shares.likely = parts.likely >= 0;
    const float factor = NearFactor<float>(parts.alpha, shares, softmax.r).value, at_y = parts.at_y + parts.same;
    float* to = output.grad + tile.image * output.steps.image + pixel;
    softmax.e.for_each(classes, [&](int c, float& power) {
      const float value = factor * power;
      if (c < classes) *to = c == y ? value - at_y : value;
      to += output.steps.channel;
    });
  }

  // Writes these classes, once the others are there.
  __device__ __forceinline__ void patch(const EdgesAround& edges, int p, int pixel, int y, float m, float r,
                                        const PixelGradient<float>& parts) const {
    const ClassGradient<float> gradient(parts, x, pixel, classes, m, r);
    const auto value_of = [&](int c) {
      return gradient.of(c, static_cast<int16_t>(y), x.at(pixel, c), [](int64_t) { return 0.0f; });
    };
    if (gradient.is_far) {  // rare
#pragma unroll 1
      for (int c = 0; c < classes; ++c) store(pixel, c, value_of(c));
    }
    around.for_each_other_class(edges, p, y, [&](int k, float shares) {
      const float weight = shares * call.edge_class_weight_of(tile.image, k);
      store(pixel, k, value_of(k) + (k == gradient.likely ? 0.0f : gradient_of_other(pixel, k, weight, m, r)));
    });
  }

  // Takes place p; kNear: it has edge pixels around it.
  template <bool kNear>
  __device__ __forceinline__ void take(int p) {
    const int pixel = tile.pixel(p), bits = call.label_bits(tile.base + pixel), y = bits & kClassBits;
    if (bits == kIgnoredBits) {
#pragma unroll 1
      for (int c = 0; c < classes && kGradient; ++c) store(pixel, c, 0.0f);
      return;
    }
    EdgesAround edges;
    if constexpr (kNear) edges = around.find(p, y);
    const float own = x.at(pixel, y);
    Softmax<kMost> softmax(x, pixel, classes);
    const float nll = log1p_positive(softmax.r) - (own - softmax.m);
    sums[Row::kCrossEntropy] += nll;
    PixelGradient<float> gradient;
    gradient.alpha = gradient.at_y = factor_of(Row::kCrossEntropy);
    if constexpr (kNear) add_edges(edges, p, pixel, y, softmax, nll, gradient);
    if constexpr (kGradient) write(pixel, y, softmax, gradient);
    if constexpr (kGradient && kNear) patch(edges, p, pixel, y, softmax.m, softmax.r, gradient);
  }
};

// factors: those of the terms in the loss, times what arrives at it; `assumed`, or null, those of the gradient that is
// there already. partial: [Row::kFalseEdge, tiles], or null.
template <int kMost, bool kGradient>
__global__ void __launch_bounds__(kThreads, kMost > 20 ? 2 : 3)
    single_read_kernel(const FloatCall call, const double* factors, const double* assumed,
                       const GradientOutput<float> output, double* partial) {
  __shared__ NearEdges near;
  bool is_done = assumed != nullptr;
  for (int term = 0; term < Row::kFalseEdge && is_done; ++term) is_done = factors[term] == assumed[term];
  if (is_done) return;
  const Tile tile(call.g, call.tiles);
  SingleRead<kMost, kGradient> read(call, tile, factors, output);
  int count = 0;
  if (call.edges.words) {
    count = list_places(
        near.places, [&](int w) { return near.bits[w] = near_edges<true>(call.g, tile, call.tiles, call.edges, w); });
  }
#pragma unroll 1
  for (int p = static_cast<int>(threadIdx.x); p < kTilePixels; p += kThreads) {
    const bool is_near = count > 0 && (near.bits[p / 32] >> (p % 32) & 1);
    if (tile.exists(p) && !is_near) read.template take<false>(p);
  }
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < count; n += kThreads) read.template take<true>(near.places[n]);
  if (!partial) return;
  double sums[Row::kFalseEdge];
  for (int term = 0; term < Row::kFalseEdge; ++term) sums[term] = read.sums[term];
  block_sum(sums);
  if (threadIdx.x != 0) return;
  for (int term = 0; term < Row::kFalseEdge; ++term) partial[term * call.tiles.count + blockIdx.x] = sums[term];
}

template <bool kGradient>
auto kernel_for(int64_t classes) {
  return classes <= 8    ? single_read_kernel<8, kGradient>
         : classes <= 20 ? single_read_kernel<20, kGradient>
                         : single_read_kernel<kMostClassesOfSingleRead, kGradient>;
}

}  // namespace

void cuda::single_read(const Inputs& inputs, const LabelState& labels, const TermFactors& factors,
                       const std::optional<Tensor>& gradient, const std::optional<Tensor>& sums,
                       const Options& options) {
  const Tensor& logits = inputs.logits;
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const cudaStream_t stream = current_stream(device);
  const Tensor none = new_tensor(logits, {0}, ScalarType::Float);
  const SavedState saved = {labels.label, none, none, labels.edge_list, none, none};
  const FloatCall call(clipped_geometry(logits, labels.label, options), inputs, saved, options);
  const GradientOutput<float> output = {gradient ? static_cast<float*>(gradient->mutable_data_ptr()) : nullptr,
                                        Steps(gradient ? *gradient : logits)};
  Tensor parts = new_tensor(logits, {sums ? Row::kFalseEdge * call.tiles.count : 0}, ScalarType::Double);
  double* partial = sums ? static_cast<double*>(parts.mutable_data_ptr()) : nullptr;
  launch(stream, call.tiles.count, gradient ? kernel_for<true>(call.g.classes) : kernel_for<false>(call.g.classes),
         call, static_cast<const double*>(factors.needed.const_data_ptr()), data_or_null<double>(factors.assumed),
         output, partial);
  if (sums) add_up_terms(partial, call.tiles.count, static_cast<double*>(sums->mutable_data_ptr()), stream);
}

}  // namespace edgeloss
