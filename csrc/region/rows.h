// What both passes of the region term read, and the gradient that it adds to that of the other terms.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "../cpu/vectorize.h"
#include "../tensors.h"
#include "../upstream.h"
#include "grid.h"

namespace edgeloss {

// What both passes know of a call.
struct RegionCall {
  Geometry g;
  RegionGrid grid;

  explicit RegionCall(const Geometry& geometry) : g(geometry), grid(g.depth, g.height, g.width, g.is_volume) {}
  explicit RegionCall(const Tensor& logits)
      : RegionCall(geometry_of(logits, std::vector<int64_t>(logits.dim() - 2, 0))) {}

  // The class of a channel: one logit is that of class 1.
  int64_t class_of_channel(int64_t c) const { return g.logits == 1 ? 1 : c; }
  // Of the averages: the pixels outside the image count as 0.
  double share_of_pixel() const { return 1.0 / static_cast<double>(kPool * kPool * (g.is_volume ? kPool : 1)); }
  int64_t bands() const { return grid.size[0] * grid.size[1]; }

  // The pixels that no average has, the last ones along an axis whose size kPool divides, belong to the last band all
  // the same, and do not count there.
  bool has_average(int axis, int64_t at) const { return at < grid.size[axis] * kPool - kPool / 2; }

  // The rows of pixels that are averaged into a row of averages: calls body(number of the row in the image).
  template <typename F>
  void for_each_row_of_band(int64_t band, const F& body) const {
    const int64_t z = band / grid.size[1], y = band % grid.size[1];
    const auto first = [](int64_t at) { return std::max<int64_t>(0, at * kPool - kPool / 2); };
    const auto end = [this](int axis, int64_t at, int64_t size) {
      return at + 1 == grid.size[axis] ? size : at * kPool + kPool / 2 + 1;
    };
    for (int64_t v = g.is_volume ? first(z) : 0; v < (g.is_volume ? end(0, z, g.depth) : 1); ++v) {
      for (int64_t u = first(y); u < end(1, y, g.height); ++u) body(v * g.height + u);
    }
  }

  // Marks the pixels of a row that no average has as ignored.
  void leave_out(int64_t row, int32_t* label) const {
    if ((g.is_volume && !has_average(0, row / g.height)) || !has_average(1, row % g.height)) {
      std::fill_n(label, g.width, int32_t(kIgnored));
    } else if (g.width > 0 && !has_average(2, g.width - 1)) {
      label[g.width - 1] = kIgnored;
    }
  }
  // The band of a row of pixels.
  int64_t band_of(int64_t row) const {
    const auto average = [this](int axis, int64_t at) {
      return std::min((at + kPool / 2) / kPool, grid.size[axis] - 1);
    };
    return (g.is_volume ? average(0, row / g.height) * grid.size[1] : 0) + average(1, row % g.height);
  }
  // The most rows of a band.
  int64_t rows_of_band() const { return (kPool + 1) * (g.is_volume ? kPool + 1 : 1); }
};

// Reads rows of logits, of any type and layout, as numbers side by side.
template <typename A>
class RowReader {
 public:
  explicit RowReader(int64_t width) : row_(width) {}

  const A* read(const Stored<A>& x, int64_t first, int64_t c, int64_t n) {
    A* to = row_.data();
    const int64_t start = c * x.class_step + first * x.pixel_step, step = x.pixel_step;
    const A* in_place = nullptr;
    x.by_type([&](const auto* data) {
      using T = std::decay_t<decltype(*data)>;
      if constexpr (std::is_same_v<T, A>) {
        if (step == 1) in_place = data + start;
      }
      if (!in_place) {
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(data[start + i * step]);
      }
    });
    return in_place ? in_place : to;
  }

 private:
  std::vector<A> row_;
};

// gradient += scale · p (1 - p) on the valid pixels of a row.
template <typename A>
void add_row_gradient(const A* x, const int32_t* label, int64_t n, const A* scale, A* gradient) {
  constexpr A kMost = std::is_same_v<A, double> ? A(700) : A(87);
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const A e = exp_bounded(smaller(-x[i], kMost)), p = A(1) / (A(1) + e);
      gradient[i] += label[i] == kIgnored ? A(0) : scale[i] * (e * p * p);
    }
  });
}

// Adds the gradient of the region term to that of the logits, a few rows of an image at a time.
template <typename A>
class RegionGradient {
 public:
  RegionGradient(const Geometry& g, const Tensor& logits, const Tensor& gradient, const RegionState& state)
      : call_(g),
        logits_(logits),
        gradient_(gradient),
        steps_(logits),
        out_steps_(gradient),
        slope_(static_cast<const A*>(state.slope.const_data_ptr())),
        has_class_(static_cast<const uint8_t*>(state.classes.const_data_ptr())),
        upstream_(static_cast<const double*>(state.upstream.const_data_ptr())) {}

  // What a thread works in.
  struct Space {
    RowReader<A> reader;
    std::vector<int32_t> label;
    std::vector<A> scale, sum;
  };
  Space space() const {
    const int64_t width = call_.g.width;
    return {RowReader<A>(width), {}, std::vector<A>(width), std::vector<A>(width)};
  }

  // Of the rows [first, last) of an image; read_labels(row, label) gives the classes of a row, -1 where ignored.
  template <typename F>
  void add(int64_t image, int64_t first, int64_t last, const F& read_labels, Space& space) const {
    const Geometry& g = call_.g;
    const Stored<A> x = stored<A>(logits_, steps_, image, false);
    const Stored<A, void*> out = stored_output<A>(gradient_, out_steps_, image);
    space.label.resize((last - first) * g.width);
    for (int64_t row = first; row < last; ++row) {
      int32_t* const label = space.label.data() + (row - first) * g.width;
      read_labels(row, label);
      call_.leave_out(row, label);
    }
    for (int64_t c = 0; c < g.logits; ++c) {
      const int64_t channel = image * g.logits + c;
      if (!has_class_[channel]) continue;
      for (int64_t row = first, band = -1; row < last; ++row) {
        if (call_.band_of(row) != band) {
          band = call_.band_of(row);
          spread(slope_ + channel * call_.grid.averages + band * call_.grid.size[2], static_cast<A>(upstream_[image]),
                 space.scale.data());
        }
        const A* logits = space.reader.read(x, row * g.width, c, g.width);
        add_to(out, c, row, logits, space.label.data() + (row - first) * g.width, space);
      }
    }
  }

 private:
  const RegionCall call_;
  const Tensor &logits_, &gradient_;
  const Steps steps_, out_steps_;
  const A* slope_;
  const uint8_t* has_class_;
  const double* upstream_;

  // Gives each pixel of a row what its average has.
  void spread(const A* slope, A factor, A* scale) const {
    const int64_t width = call_.g.width;
    for (int64_t j = 0, i = 0; j < call_.grid.size[2]; ++j) {
      const A value = factor * slope[j];
      for (const int64_t end = std::min(width, kPool * j + kPool / 2 + 1); i < end; ++i) scale[i] = value;
    }
  }

  void add_to(const Stored<A, void*>& out, int64_t c, int64_t row, const A* logits, const int32_t* label,
              Space& space) const {
    const int64_t n = call_.g.width, start = c * out.class_step + row * n * out.pixel_step;
    out.by_type([&, step = out.pixel_step](auto* data) {
      using T = std::decay_t<decltype(*data)>;
      if constexpr (std::is_same_v<T, A>) {
        if (step == 1) return add_row_gradient(logits, label, n, space.scale.data(), data + start);
      }
      std::fill_n(space.sum.begin(), n, A(0));
      add_row_gradient(logits, label, n, space.scale.data(), space.sum.data());
      for (int64_t i = 0; i < n; ++i) {
        T& pixel = data[start + i * step];
        pixel = static_cast<T>(static_cast<A>(pixel) + space.sum[i]);
      }
    });
  }
};

}  // namespace edgeloss
