// The region term on the CPU. Forward averages probabilities and labels, a band of pixels after another, and forms the
// term of each class of each image and its derivatives by the averages; backward turns these into the gradient of the
// logits. A class that an image does not have costs nothing in forward: its term is 0.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "../cpu/parallel.h"
#include "../cpu/vectorize.h"
#include "../kernels.h"
#include "../labels.h"
#include "math.h"

namespace edgeloss {
namespace {

// What both passes know of a call.
struct RegionCall {
  Geometry g;
  RegionGrid grid;
  Labels labels;
  int64_t ignore_index;

  RegionCall(const Tensor& logits, const Tensor& target, int64_t ignored)
      : g(geometry_of(logits, std::vector<int64_t>(logits.dim() - 2, 0))),
        grid(g.depth, g.height, g.width, g.is_volume),
        labels(labels_of(target)),
        ignore_index(ignored) {}

  // The class of a channel: one logit is that of class 1.
  int64_t class_of_channel(int64_t c) const { return g.logits == 1 ? 1 : c; }
  // Of the averages: the pixels outside the image count as 0.
  double share_of_pixel() const { return 1.0 / static_cast<double>(kPool * kPool * (g.is_volume ? kPool : 1)); }
  // One logit stands for two classes, with the same term each.
  double classes_of_channel() const { return g.logits == 1 ? 2.0 : 1.0; }
  int64_t bands() const { return grid.size[0] * grid.size[1]; }

  // The classes of a row of an image, -1 where pixels do not count.
  void read_labels(int64_t image, int64_t row, int16_t* label) const {
    const Target target = {labels, ignore_index, g.classes};
    labels.by_type([&, first = image * g.pixels + row * g.width](const auto* data) {
      for (int64_t i = 0; i < g.width; ++i) {
        const int64_t k = static_cast<int64_t>(data[first + i]);
        label[i] = target.is_class(k) ? static_cast<int16_t>(k) : kIgnored;
      }
    });
  }

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

  // The classes of its pixels, row by row.
  void read_band(int64_t image, int64_t band, int16_t* label) const {
    for_each_row_of_band(band, [&](int64_t row) {
      read_labels(image, row, label);
      if ((g.is_volume && !has_average(0, row / g.height)) || !has_average(1, row % g.height)) {
        std::fill_n(label, g.width, kIgnored);
      } else if (!has_average(2, g.width - 1)) {
        label[g.width - 1] = kIgnored;
      }
      label += g.width;
    });
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

// Adds the probabilities of a row, and where its labels are class k.
template <typename A>
void add_row(const A* x, const int16_t* label, int64_t n, int16_t k, A* probability, A* is_class) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      A p, complement;
      probabilities_of_pair(x[i], p, complement);
      probability[i] += label[i] == kIgnored ? A(0) : p;
      is_class[i] += label[i] == k ? A(1) : A(0);
    }
  });
}

// gradient = scale · p (1 - p) on the valid pixels of a row.
template <typename A>
void row_gradient(const A* x, const int16_t* label, int64_t n, const A* scale, A* gradient) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      A p, complement;
      probabilities_of_pair(x[i], p, complement);
      gradient[i] = label[i] == kIgnored ? A(0) : scale[i] * p * complement;
    }
  });
}

// averages[j] = share · Σ of the kPool values around kPool · j.
template <typename A>
void average_row(const A* values, int64_t n, A share, int64_t count, A* averages) {
  for (int64_t j = 0; j < count; ++j) {
    const int64_t first = std::max<int64_t>(0, j * kPool - kPool / 2), end = std::min(n, j * kPool + kPool / 2 + 1);
    A sum = 0;
    for (int64_t i = first; i < end; ++i) sum += values[i];
    averages[j] = share * sum;
  }
}

// Finds the classes of each image, [batch, logits], and its number of valid pixels.
void find_classes(const RegionCall& call, uint8_t* has_class, double* valid) {
  const Geometry& g = call.g;
  on_each_thread(g.batch, 1, [&](Tasks& tasks) {
    std::vector<int16_t> label(g.width);
    for (int64_t b, end; tasks.take(b, end);) {
      std::vector<int64_t> count(g.classes + 1);  // the first of pixels that are not valid
      for (int64_t row = 0; row < g.depth * g.height; ++row) {
        call.read_labels(b, row, label.data());
        for (int64_t i = 0; i < g.width; ++i) ++count[label[i] + 1];
      }
      valid[b] = static_cast<double>(g.pixels - count[0]);
      for (int64_t c = 0; c < g.logits; ++c) {
        has_class[b * g.logits + c] = call.grid.regions > 0 && count[call.class_of_channel(c) + 1] > 0;
      }
    }
  });
}

// The averages of the classes that an image has, [batch, logits, averages]: of probabilities and of labels.
template <typename A>
void find_averages(const RegionCall& call, const Tensor& logits, const uint8_t* has_class, A* q, A* y) {
  const Geometry& g = call.g;
  const Steps steps(logits);
  on_each_thread(g.batch * call.bands(), 1, [&](Tasks& tasks) {
    RowReader<A> reader(g.width);
    std::vector<int16_t> label(call.rows_of_band() * g.width);
    std::vector<A> probability(g.width), is_class(g.width);
    for (int64_t task, end; tasks.take(task, end);) {
      const int64_t b = task / call.bands(), band = task % call.bands();
      const Stored<A> x = stored<A>(logits, steps, b, false);
      call.read_band(b, band, label.data());
      for (int64_t c = 0; c < g.logits; ++c) {
        if (!has_class[b * g.logits + c]) continue;
        std::fill(probability.begin(), probability.end(), A(0));
        std::fill(is_class.begin(), is_class.end(), A(0));
        const int16_t k = static_cast<int16_t>(call.class_of_channel(c));
        const int16_t* of_row = label.data();
        call.for_each_row_of_band(band, [&](int64_t row) {
          const A* from = reader.read(x, row * g.width, c, g.width);
          add_row(from, of_row, g.width, k, probability.data(), is_class.data());
          of_row += g.width;
        });
        const int64_t at = (b * g.logits + c) * call.grid.averages + band * call.grid.size[2];
        const A share = static_cast<A>(call.share_of_pixel());
        average_row(probability.data(), g.width, share, call.grid.size[2], q + at);
        average_row(is_class.data(), g.width, share, call.grid.size[2], y + at);
      }
    }
  });
}

// The term of each class of each image, [batch, logits]; its derivatives take the place of the averages q.
template <typename A>
void find_terms(const RegionCall& call, const uint8_t* has_class, A* q, const A* y, double* terms) {
  on_each_thread(call.g.batch * call.g.logits, 1, [&](Tasks& tasks) {
    Averages probability(call.grid), label(call.grid);
    for (int64_t task, end; tasks.take(task, end);) {
      terms[task] = 0;
      if (!has_class[task]) continue;
      const int64_t n = call.grid.averages;
      std::copy_n(q + task * n, n, probability.values.begin());
      std::copy_n(y + task * n, n, label.values.begin());
      probability.find_rows(call.grid);
      label.find_rows(call.grid);
      const double factor = call.classes_of_channel() * call.share_of_pixel();
      RegionTerm term(call.grid, probability, label);
      vectorized([&term, factor, task, terms, slope = q + task * n]() EDGELOSS_LOOP {
        terms[task] = term.value();
        term.gradient(factor, slope);
      });
      terms[task] *= call.classes_of_channel();
    }
  });
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> cpu::region(const Tensor& logits, const Tensor& target,
                                                       int64_t ignore_index) {
  const RegionCall call(logits, target, ignore_index);
  const Geometry& g = call.g;
  return by_arithmetic(logits, [&](auto a) -> std::tuple<Tensor, Tensor, Tensor, Tensor> {
    using A = decltype(a);
    const int64_t channels = g.batch * g.logits;
    Tensor value = new_tensor(logits, {g.batch}, ScalarType::Double);
    Tensor valid = new_tensor(logits, {g.batch}, ScalarType::Double);
    Tensor slope = new_tensor(logits, {channels * call.grid.averages}, kScalarType<A>);
    Tensor classes = new_tensor(logits, {channels}, ScalarType::Byte);
    uint8_t* const has_class = static_cast<uint8_t*>(classes.mutable_data_ptr());
    A* const averages = static_cast<A*>(slope.mutable_data_ptr());
    find_classes(call, has_class, static_cast<double*>(valid.mutable_data_ptr()));
    std::vector<double> terms(channels);
    {
      const Tensor of_labels = new_tensor(logits, {channels * call.grid.averages}, kScalarType<A>);
      A* const label = static_cast<A*>(of_labels.mutable_data_ptr());
      find_averages(call, logits, has_class, averages, label);
      find_terms(call, has_class, averages, label, terms.data());
    }
    double* const of_image = static_cast<double*>(value.mutable_data_ptr());
    for (int64_t b = 0; b < g.batch; ++b) {
      of_image[b] = 0;
      for (int64_t c = 0; c < g.logits; ++c) of_image[b] += terms[b * g.logits + c];
    }
    return {value, valid, slope, classes};
  });
}

Tensor cpu::region_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& target, const Tensor& slope,
                            const Tensor& classes, int64_t ignore_index) {
  const RegionCall call(logits, target, ignore_index);
  const Geometry& g = call.g;
  const double* const upstream = static_cast<const double*>(grad_value.const_data_ptr());
  const uint8_t* const has_class = static_cast<const uint8_t*>(classes.const_data_ptr());
  Tensor gradient = torch::stable::empty_like(logits);
  by_arithmetic(logits, [&](auto a) {
    using A = decltype(a);
    const Steps steps(logits), out_steps(gradient);
    const A* const slopes = static_cast<const A*>(slope.const_data_ptr());
    on_each_thread(g.batch * call.bands(), 1, [&](Tasks& tasks) {
      RowReader<A> reader(g.width);
      std::vector<int16_t> label(call.rows_of_band() * g.width);
      std::vector<A> scale(g.width), row_values(g.width);
      for (int64_t task, end; tasks.take(task, end);) {
        const int64_t b = task / call.bands(), band = task % call.bands();
        const Stored<A> x = stored<A>(logits, steps, b, false);
        const Stored<A, void*> out = stored_output<A>(gradient, out_steps, b);
        call.read_band(b, band, label.data());
        for (int64_t c = 0; c < g.logits; ++c) {
          const int64_t channel = b * g.logits + c;
          const A* of_band = slopes + channel * call.grid.averages + band * call.grid.size[2];
          for (int64_t i = 0; i < g.width && has_class[channel]; ++i) {
            scale[i] = static_cast<A>(upstream[b]) * of_band[std::min((i + kPool / 2) / kPool, call.grid.size[2] - 1)];
          }
          std::fill(row_values.begin(), row_values.end(), A(0));
          const int16_t* of_row = label.data();
          call.for_each_row_of_band(band, [&](int64_t row) {
            if (has_class[channel]) {
              const A* from = reader.read(x, row * g.width, c, g.width);
              row_gradient(from, of_row, g.width, scale.data(), row_values.data());
            }
            out.by_type([&, values = row_values.data()](auto* data) {
              using T = std::decay_t<decltype(*data)>;
              T* pixel = data + c * out.class_step + row * g.width * out.pixel_step;
              for (int64_t i = 0; i < g.width; ++i) pixel[i * out.pixel_step] = static_cast<T>(values[i]);
            });
            of_row += g.width;
          });
        }
      }
    });
  });
  return gradient;
}

}  // namespace edgeloss
