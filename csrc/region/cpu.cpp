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
#include "rows.h"

namespace edgeloss {
namespace {

// Reads the classes of a row of an image, -1 where pixels do not count.
struct LabelReader {
  const Geometry& g;
  Labels labels;
  int64_t ignore_index;

  void read(int64_t image, int64_t row, int32_t* label) const {
    labels.by_type([&](const auto* data) {
      using T = std::decay_t<decltype(*data)>;
      using K = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;  // so that the loop vectorizes
      const bool fits = ignore_index == static_cast<K>(ignore_index);
      const K ignored = fits ? static_cast<K>(ignore_index) : K(kIgnored), classes = static_cast<K>(g.classes);
      vectorized([=, from = data + image * g.pixels + row * g.width, n = g.width]() EDGELOSS_LOOP {
        for (int64_t i = 0; i < n; ++i) {
          const K k = static_cast<K>(from[i]);
          const bool is_class = (k != ignored) & (k >= 0) & (k < classes);
          label[i] = is_class ? static_cast<int32_t>(k) : int32_t(kIgnored);
        }
      });
    });
  }
};

// Exponents beyond do not change a sum of probabilities, and a product of kPool numbers 1 + e^x stays within A.
template <typename A>
constexpr A kMostExponent = std::is_same_v<A, double> ? A(230) : A(29);

// Adds the probabilities 1 / (1 + e^-x) of a row to fractions, which saves divisions.
template <typename A>
void add_probabilities(const A* x, const int32_t* label, int64_t n, A* numerator, A* denominator) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const A inverse = A(1) + exp_bounded(smaller(-x[i], kMostExponent<A>)), whole = denominator[i];
      const A next = numerator[i] * inverse + whole;
      numerator[i] = label[i] == kIgnored ? numerator[i] : next;
      denominator[i] = label[i] == kIgnored ? whole : whole * inverse;
    }
  });
}

// Adds the fractions to sums, and sets them to 0.
template <typename A>
void take_fractions(A* numerator, A* denominator, int64_t n, A* sum) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      sum[i] += numerator[i] / denominator[i];
      numerator[i] = 0;
      denominator[i] = 1;
    }
  });
}

void count_class(const int32_t* label, int64_t n, int32_t k, int32_t* count) {
  vectorized([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) count[i] += label[i] == k;
  });
}

// sums[j] = factor · Σ of the kPool values around kPool · j.
template <typename Sum, typename T>
void sum_groups(const T* values, int64_t n, T factor, int64_t count, Sum* sums) {
  static_assert(kPool == 3);
  vectorized([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 1; j < count - 1; ++j) {
      sums[j] = static_cast<Sum>(factor * (values[3 * j - 1] + values[3 * j] + values[3 * j + 1]));
    }
  });
  for (const int64_t j : {int64_t(0), count - 1}) {
    T sum = 0;
    for (int64_t i = std::max<int64_t>(0, 3 * j - 1); i <= std::min(n - 1, 3 * j + 1); ++i) sum += values[i];
    sums[j] = static_cast<Sum>(factor * sum);
  }
}

// Finds the classes of each image, [batch, logits], and its valid pixels of each class, [batch, classes].
void find_classes(const RegionCall& call, const LabelReader& labels, uint8_t* has_class, double* counts) {
  const Geometry& g = call.g;
  on_each_thread(g.batch, 1, [&](Tasks& tasks) {
    std::vector<int32_t> label(g.width);
    for (int64_t b, end; tasks.take(b, end);) {
      std::vector<int64_t> count(g.classes + 1);  // the first of pixels that are not valid
      for (int64_t row = 0; row < g.depth * g.height; ++row) {
        labels.read(b, row, label.data());
        for (int64_t i = 0, start = 0; i < g.width; start = i) {
          while (i < g.width && label[i] == label[start]) ++i;
          count[label[start] + 1] += i - start;
        }
      }
      std::copy(count.begin() + 1, count.end(), counts + b * g.classes);
      for (int64_t c = 0; c < g.logits; ++c) {
        has_class[b * g.logits + c] = call.grid.regions > 0 && count[call.class_of_channel(c) + 1] > 0;
      }
    }
  });
}

// The averages of the classes that an image has, [batch, logits, averages]: of probabilities, and of labels as numbers
// of pixels.
template <typename A>
void find_averages(const RegionCall& call, const LabelReader& labels, const Tensor& logits, const uint8_t* has_class,
                   A* q, uint8_t* y) {
  const Geometry& g = call.g;
  const Steps steps(logits);
  on_each_thread(g.batch * call.bands(), 1, [&](Tasks& tasks) {
    RowReader<A> reader(g.width);
    std::vector<int32_t> label(call.rows_of_band() * g.width), count(g.width);
    std::vector<A> sum(g.width), numerator(g.width), denominator(g.width, A(1));
    for (int64_t task, end; tasks.take(task, end);) {
      const int64_t b = task / call.bands(), band = task % call.bands();
      const Stored<A> x = stored<A>(logits, steps, b, false);
      int32_t* to = label.data();
      call.for_each_row_of_band(band, [&](int64_t row) {
        labels.read(b, row, to);
        call.leave_out(row, to);
        to += g.width;
      });
      for (int64_t c = 0; c < g.logits; ++c) {
        if (!has_class[b * g.logits + c]) continue;
        std::fill(sum.begin(), sum.end(), A(0));
        std::fill(count.begin(), count.end(), 0);
        int64_t rows = 0;
        call.for_each_row_of_band(band, [&](int64_t row) {
          const int32_t* of_row = label.data() + rows * g.width;
          add_probabilities(reader.read(x, row * g.width, c, g.width), of_row, g.width, numerator.data(),
                            denominator.data());
          count_class(of_row, g.width, static_cast<int32_t>(call.class_of_channel(c)), count.data());
          if (++rows % kPool == 0) take_fractions(numerator.data(), denominator.data(), g.width, sum.data());
        });
        take_fractions(numerator.data(), denominator.data(), g.width, sum.data());
        const int64_t n = call.grid.size[2], at = (b * g.logits + c) * call.grid.averages + band * n;
        sum_groups(sum.data(), g.width, static_cast<A>(call.share_of_pixel()), n, q + at);
        sum_groups(count.data(), g.width, 1, n, y + at);
      }
    }
  });
}

// The term of each class of each image, [batch, logits]; its derivatives take the place of the averages q.
template <typename A>
void find_terms(const RegionCall& call, const uint8_t* has_class, A* q, const uint8_t* y, double* terms) {
  on_each_thread(call.g.batch * call.g.logits, 1, [&](Tasks& tasks) {
    Averages probability(call.grid), label(call.grid);
    for (int64_t task, end; tasks.take(task, end);) {
      terms[task] = 0;
      if (!has_class[task]) continue;
      const int64_t n = call.grid.averages;
      std::copy_n(q + task * n, n, probability.values.begin());
      std::transform(y + task * n, y + (task + 1) * n, label.values.begin(),
                     [share = call.share_of_pixel()](uint8_t pixels) { return share * pixels; });
      probability.find_rows(call.grid);
      label.find_rows(call.grid);
      const double factor = call.share_of_pixel();
      RegionTerm term(call.grid, probability, label);
      vectorized([&term, factor, task, terms, slope = q + task * n]() EDGELOSS_LOOP {
        terms[task] = term.value();
        term.gradient(factor, slope);
      });
    }
  });
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> cpu::region(const Tensor& logits, const Tensor& target,
                                                       int64_t ignore_index) {
  const RegionCall call(logits);
  const Geometry& g = call.g;
  const LabelReader labels = {g, labels_of(target), ignore_index};
  return by_arithmetic(logits, [&](auto a) -> std::tuple<Tensor, Tensor, Tensor, Tensor> {
    using A = decltype(a);
    const int64_t channels = g.batch * g.logits;
    Tensor value = new_tensor(logits, {g.batch}, ScalarType::Double);
    Tensor counts = new_tensor(logits, {g.batch, g.classes}, ScalarType::Double);
    Tensor slope = new_tensor(logits, {channels * call.grid.averages}, kScalarType<A>);
    Tensor classes = new_tensor(logits, {channels}, ScalarType::Byte);
    uint8_t* const has_class = static_cast<uint8_t*>(classes.mutable_data_ptr());
    A* const averages = static_cast<A*>(slope.mutable_data_ptr());
    find_classes(call, labels, has_class, static_cast<double*>(counts.mutable_data_ptr()));
    std::vector<double> terms(channels);
    {
      const Tensor of_labels = new_tensor(logits, {channels * call.grid.averages}, ScalarType::Byte);
      uint8_t* const label = static_cast<uint8_t*>(of_labels.mutable_data_ptr());
      find_averages(call, labels, logits, has_class, averages, label);
      find_terms(call, has_class, averages, label, terms.data());
    }
    double* const of_image = static_cast<double*>(value.mutable_data_ptr());
    for (int64_t b = 0; b < g.batch; ++b) {
      of_image[b] = 0;
      for (int64_t c = 0; c < g.logits; ++c) of_image[b] += terms[b * g.logits + c];
    }
    return {value, counts, slope, classes};
  });
}

void cpu::region_backward(const Tensor& gradient, const Tensor& grad_value, const Tensor& logits, const Tensor& target,
                          const Tensor& slope, const Tensor& classes, int64_t ignore_index) {
  Geometry g = geometry_of(logits, std::vector<int64_t>(logits.dim() - 2, 0));
  const LabelReader labels = {g, labels_of(target), ignore_index};
  by_arithmetic(logits, [&](auto a) {
    const RegionGradient<decltype(a)> region(g, logits, gradient, {grad_value, slope, classes});
    for_each_chunk(Chunks(g), [&](int64_t, const Chunk& chunk) {
      auto space = region.space();
      const auto read = [&](int64_t row, int32_t* label) { labels.read(chunk.image, row, label); };
      region.add(chunk.image, chunk.first_row, chunk.last_row, read, space);
    });
  });
}

}  // namespace edgeloss
