// The gradient of a pixel. For both backward passes.
#pragma once

#include <cstdint>

#include "../upstream.h"
#include "call.h"

namespace edgeloss {

// Where a pixel's gradient goes.
template <typename T>
struct GradientOutput {
  T* grad;
  Steps steps;

  template <typename A>
  __device__ void store(bool binary, int64_t image, int64_t pixel, int64_t c, A value) const {
    if (binary && c == 0) return;  // there is no such logit
    const int64_t channel = binary ? 0 : c;
    grad[image * steps.image + channel * steps.channel + pixel * steps.pixel] = static_cast<T>(value);
  }
};

// The gradient of a pixel, alpha · p(c) - at_y · [c = y] - uniform · weight(c) for the cross-entropy; edge pixels
// around change alpha and at_y, and give something to single classes.
template <typename A>
struct PixelGradient {
  A alpha = 0, at_y = 0, uniform = 0;
  A same = 0;        // Σ π of edge pixels of the own class: adds to alpha and at_y
  int likely = -1;   // the class k ≠ y with p(k) > 1/2 that edge pixels want less of
  A likely_sum = 0;  // Σ π · slope for it

  __device__ PixelGradient() {}
  // total: the image's smoothed_weight().
  template <typename C>
  __device__ PixelGradient(const C& call, const Upstream<A>& upstream, int64_t image, int64_t i, int16_t y, A total) {
    if (y < 0) return;
    const A ce = upstream.at(Row::kCrossEntropy, i, call.pixel_weight_of(i));
    uniform = ce * (call.label_smoothing / static_cast<A>(call.g.classes));
    at_y = ce * (A(1) - call.label_smoothing) * call.weight_of(image, y);
    alpha = at_y + uniform * total;
    if (call.false_shares) {  // ∂S = π (p(c) - δ_cy)
      alpha += call.false_shares[i];
      at_y += call.false_shares[i];
    }
  }

  // Adds what the edge pixels around give, of those whose class is wanted(k). Calls give(k, Σ π · slope) for a class k
  // that is neither y nor likely, any number of times. kLogMeans: the power is 0, whose sides are always plain means.
  template <bool kLogMeans, typename C, typename X, typename W, typename F>
  __device__ __forceinline__ void add_edges(const C& call, const Upstream<A>& upstream, const Place& at, int16_t y,
                                            const X& x, A m, A r, const W& wanted, const F& give) {
    const Geometry& g = call.g;
    for_each_neighbor(g, at.row, at.column, [&](int64_t n) {
      const int64_t center = at.base + n, i = at.base + at.pixel;
      const int16_t packed = call.label[center], k = class_of(packed);
      if (!is_edge(packed) || !wanted(k)) return;
      const int side = k != y;
      const A x_k = x.at(at.pixel, k);
      A p, complement;
      probabilities(x_k, m, r, p, complement);
      A pi;
      if constexpr (kLogMeans) {
        const Side<A> mean = call.load_plain(side, center);
        pi = plain_share(mean.inverse, call.log_weight(mean.nearest, i));
      } else {
        const Side<A> mean = call.load(side, center);
        pi = share(mean, call.power, side ? complement : p, call.log_weight(mean.nearest, i),
                   [&] { return term(x, at.pixel, g.classes, k, side == 0, m, r); });
      }
      const A value = upstream.at(Row::kSameSide + side, center, call.edge_weight_of(at.image, center, k)) * pi;
      if (side == 0) {
        same += value;
      } else if (is_likely(x_k, m, r)) {
        likely = k;
        likely_sum += value * other_slope(p, complement, true);
      } else {
        give(k, value * other_slope(p, complement, false));
      }
    });
  }
};

// The same, ready to be read off class by class.
template <typename A>
struct ClassGradient {
  A m, scale, factor, at_y, uniform, likely_sum;
  int likely;
  bool is_far;  // the others of `likely` are
  LogSumExp<A> others;

  template <typename X>
  __device__ ClassGradient(const PixelGradient<A>& pixel_gradient, const X& x, int64_t pixel, int64_t classes, A m, A r)
      : m(m),
        scale((pixel_gradient.alpha + pixel_gradient.same) / (A(1) + r)),
        at_y(pixel_gradient.at_y + pixel_gradient.same),
        uniform(pixel_gradient.uniform),
        likely_sum(pixel_gradient.likely_sum),
        likely(pixel_gradient.likely) {
    // ∂O = -π p(k) e^(x(c) - m) / r for the other classes where k is likely; 1 / r may be too large, and r underflow.
    is_far = likely >= 0 && !is_near(r);
    factor = likely >= 0 && !is_far ? scale - likely_sum / r : scale;
    if (is_far) others = sum_others<A>(x, pixel, classes, likely);
  }

  // logit: x(c); weight: that of class c, read with label smoothing only.
  template <typename W>
  __device__ A of(int64_t c, int16_t y, A logit, const W& weight) const {
    A value = (c == likely ? scale : factor) * exp_negative(logit - m) - (c == y ? at_y : A(0));
    if (c == likely) value += likely_sum;
    if (is_far && c != likely) value -= likely_sum / others.sum * exp_negative(logit - others.max);
    if (uniform != A(0)) value -= uniform * weight(c);
    return value;
  }
};

// The gradient of logits to be upsampled.
template <typename T, typename A>
void upsampled_backward(const Call<T, A, true>& call, const Upstream<A>& upstream, const GradientOutput<T>& output,
                        const Tensor& logits, cudaStream_t stream);

}  // namespace edgeloss
