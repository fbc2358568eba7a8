// The loops of interpolate.h.
#include "interpolate.h"

#include <algorithm>

#include "vectorize.h"

namespace edgeloss {

template <typename A>
Upsample<A>::Upsample(const Axis<A>& z, const Axis<A>& y, const Axis<A>& x)
    : along_z(z), along_y(y), along_x(x), weight(x.high), begin(x.low + 1) {
  for (int64_t i = 0; i < x.high; ++i) {
    const Taps<A> taps = x.at(i);
    weight[i] = taps.weight;
    ++begin[taps.first + 1];
  }
  for (int64_t k = 0; k < x.low; ++k) begin[k + 1] += begin[k];
}

template <typename A>
RowTaps<A> Upsample<A>::row_taps(int64_t z, int64_t y) const {
  const Taps<A> in_z = along_z.at(z), in_y = along_y.at(y);
  const int64_t first = in_z.first * along_y.low, second = in_z.second * along_y.low;
  return {
      {first + in_y.first, first + in_y.second, second + in_y.first, second + in_y.second}, in_z.weight, in_y.weight};
}

template <typename A>
void UpsampledRow<A>::start(const Stored<A>& x, int64_t image, int64_t z, int64_t y) {
  taps_ = up_.row_taps(z, y);
  const int64_t low = up_.along_x.low, high = up_.along_x.high, low_y = up_.along_y.low;
  for (int which = 0; which < 4; ++which) {
    const int64_t row = taps_.row[which], number = image * up_.along_z.low * low_y + row;
    const int64_t slot = row / low_y % 2 * 2 + row % low_y % 2;  // the rows of a row are in different ones
    A* wide = memory_.data() + slot * logits_ * high;
    of_[which] = wide;
    if (held_[slot] == number) continue;
    held_[slot] = number;
    x.by_type([&](const auto* data) {
      for (int64_t c = 0; c < logits_; ++c, wide += high) {
        const auto* from = data + c * x.class_step + row * low * x.pixel_step;
        for (int64_t k = 0; k < low; ++k) {
          const A first = static_cast<A>(from[k * x.pixel_step]);
          const A second = k + 1 < low ? static_cast<A>(from[(k + 1) * x.pixel_step]) : first;
          for (int64_t i = up_.begin[k]; i < up_.begin[k + 1]; ++i) wide[i] = mix(first, second, up_.weight[i]);
        }
      }
    });
  }
}

template <typename A>
void UpsampledRow<A>::read(bool binary, int64_t first, int64_t n, A* tile, int64_t ld) const {
  vectorized<A>([=, taps = taps_, logits = logits_, step = up_.along_x.high, a = of_[0] + first, b = of_[1] + first,
                 c = of_[2] + first, d = of_[3] + first]() EDGELOSS_LOOP {
    for (int64_t of = 0; of < logits; ++of) {
      A* out = tile + (of + binary) * ld;
      const int64_t at = of * step;
      if (taps.slice_weight == A(0)) {
        EDGELOSS_INDEPENDENT
        for (int64_t j = 0; j < n; ++j) out[j] = mix(a[at + j], b[at + j], taps.row_weight);
      } else {
        EDGELOSS_INDEPENDENT
        for (int64_t j = 0; j < n; ++j) out[j] = taps.mixed(a[at + j], b[at + j], c[at + j], d[at + j]);
      }
    }
  });
}

template <typename A>
void Upsample<A>::adjoint(const A* wide, int64_t logits, A* low) const {
  for (int64_t c = 0; c < logits; ++c, wide += along_x.high, low += along_x.low) {
    A own = 0, next = 0;
    for (int64_t k = 0; k < along_x.low; ++k, own = next, next = 0) {
      for (int64_t i = begin[k]; i < begin[k + 1]; ++i) {
        own += (A(1) - weight[i]) * wide[i];
        next += weight[i] * wide[i];
      }
      low[k] = own;
    }
  }
}

template struct Upsample<float>;
template struct Upsample<double>;
template class UpsampledRow<float>;
template class UpsampledRow<double>;

}  // namespace edgeloss
