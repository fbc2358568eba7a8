// The wide windows of wide.h.
#include "wide.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "edge_pixels.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr double kMostExponent = 600;  // of weights: their products with terms and with each other stay within double

// Adds to sum[x] the numbers [x, x + length) of n + length - 1 ones, each of N values. A window lies in two blocks of
// its length: it is the end of the first and the beginning of the second one.
template <int64_t N>
EDGELOSS_INLINE void add_windows(const double* number, int64_t n, int64_t length, double* part, double* sum) {
  const int64_t all = n + length - 1;
  for (int64_t begin = 0; begin < n; begin += length) {  // part: the sums from each place to the end of its block
    const int64_t end = std::min(begin + length, all);
    double total[N] = {};
    for (int64_t x = end - 1; x >= begin; --x) {
      for (int64_t i = 0; i < N; ++i) part[x * N + i] = total[i] += number[x * N + i];
    }
  }
  for (int64_t begin = 0; begin < all; begin += length) {
    const int64_t end = std::min(begin + length, all);
    double total[N] = {};
    for (int64_t last = begin; last < end; ++last) {
      for (int64_t i = 0; i < N; ++i) total[i] += number[last * N + i];
      const int64_t x = last - length + 1;
      if (x < 0) continue;
      for (int64_t i = 0; i < N; ++i) sum[x * N + i] += x == begin ? total[i] : part[x * N + i] + total[i];
    }
  }
}

// The rows that the windows of a chunk reach, among all (z, y) with z in [begin[0], end[0]) and y in [begin[1],
// end[1]). Of others that lie between them nothing may be known yet.
struct Reach {
  const Geometry& g;
  int64_t slice[2], y[2];  // of the chunk's first row and of its last
  int64_t begin[2], end[2];

  Reach(const Geometry& g, const Chunk& chunk) : g(g) {
    const int64_t rows[2] = {chunk.first_row, chunk.last_row - 1};
    for (int i = 0; i < 2; ++i) {
      slice[i] = quotient(rows[i], g.height);
      y[i] = rows[i] - slice[i] * g.height;
    }
    const bool in_one = slice[0] == slice[1];
    begin[0] = std::max<int64_t>(0, slice[0] - g.radius[0]);
    end[0] = std::min(g.depth, slice[1] + g.radius[0] + 1);
    begin[1] = in_one ? std::max<int64_t>(0, y[0] - g.radius[1]) : 0;
    end[1] = in_one ? std::min(g.height, y[1] + g.radius[1] + 1) : g.height;
  }

  int64_t count() const { return (end[0] - begin[0]) * (end[1] - begin[1]); }
  // Calls body(row) for each of them.
  template <typename F>
  void for_each(const F& body) const {
    for (int64_t z = begin[0]; z < end[0]; ++z) {
      for (int64_t at = begin[1]; at < end[1]; ++at) {
        if (is_seen(z, at)) body(z * g.height + at);
      }
    }
  }
  // The place of a row among all.
  int64_t place(int64_t row) const {
    const int64_t z = quotient(row, g.height);
    return (z - begin[0]) * (end[1] - begin[1]) + row - z * g.height - begin[1];
  }

 private:
  bool is_seen(int64_t z, int64_t at) const {
    for (int64_t own = std::max(slice[0], z - g.radius[0]); own <= std::min(slice[1], z + g.radius[0]); ++own) {
      const int64_t first = own == slice[0] ? y[0] : 0, last = own == slice[1] ? y[1] : g.height - 1;
      if (at >= first - g.radius[1] && at <= last + g.radius[1]) return true;
    }
    return false;
  }
};

// N numbers for each pixel of rows, and their sums over the windows of a pixel without itself.
template <int64_t N>
class Rows {
 public:
  explicit Rows(const Reach& reach)
      : g_(reach.g),
        reach_(reach),
        number_(reach.count() * g_.width * N),
        padded_((g_.width + 2 * g_.radius[2]) * N),
        part_(padded_.size()),
        sum_(g_.width * N) {}

  double* row(int64_t row) { return number_.data() + reach_.place(row) * g_.width * N; }
  void clear() { std::fill(number_.begin(), number_.end(), 0.0); }

  // N sums for each pixel of a row.
  const double* sum_windows(int64_t row) {
    const int64_t reach = g_.radius[2], n = g_.width * N;
    std::fill(sum_.begin(), sum_.end(), 0.0);
    std::fill(padded_.begin(), padded_.end(), 0.0);
    double* const column = padded_.data() + reach * N;
    for_each_row(g_, row, g_.radius, [&](int64_t first) {
      const int64_t other = quotient(first, g_.width);
      if (other != row) vectorized<float>([=, from = this->row(other)]() EDGELOSS_LOOP { add(from, n, column); });
    });
    add_row(-reach, reach);
    std::copy_n(this->row(row), n, column);
    if (reach > 0) {
      add_row(-reach, -1);
      add_row(1, reach);
    }
    return sum_.data();
  }

 private:
  static EDGELOSS_INLINE void add(const double* row, int64_t n, double* column) {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) column[i] += row[i];
  }
  // Adds the numbers at the places [first, last] from each pixel on.
  void add_row(int64_t first, int64_t last) {
    vectorized<float>([=, from = padded_.data() + (g_.radius[2] + first) * N, n = g_.width, part = part_.data(),
                       sum = sum_.data()]() EDGELOSS_LOOP { add_windows<N>(from, n, last - first + 1, part, sum); });
  }

  const Geometry& g_;
  const Reach& reach_;
  std::vector<double> number_, padded_, part_, sum_;
};

// The edge pixels of some rows of an image, and their classes.
template <typename A>
struct EdgePixels {
  const Call<A>& call;
  int64_t image;
  std::vector<uint8_t> has_class;
  int64_t count = 0, classes = 0;

  EdgePixels(const Call<A>& call, int64_t image) : call(call), image(image), has_class(call.g.classes) {}

  void add_to_count(int64_t row) {
    const int64_t in_list = image * call.g.depth * call.g.height + row;
    count += call.list.row_end[in_list] - call.list.row_first[in_list];
  }
  void add_classes(int64_t row) {
    for_each(row, [&](int64_t, int64_t pixel) {
      classes += !has_class[label(pixel)];
      has_class[label(pixel)] = 1;
    });
  }
  int16_t label(int64_t pixel) const { return call.label[image * call.g.pixels + pixel]; }
  // Calls body(place in the list, pixel) for those of a row.
  template <typename F>
  void for_each(int64_t row, const F& body) const {
    const int64_t base = image * call.g.pixels, rows = image * call.g.depth * call.g.height;
    for (int64_t e = call.list.row_first[rows + row]; e < call.list.row_end[rows + row]; ++e) {
      body(base + e, call.list.pixel[base + e]);
    }
  }
};

// What a neighbor in a window takes, forward and backward, where windows are taken by themselves: roughly, as measured
// on one processor, in nanoseconds.
template <typename A>
double time_of_neighbor(const Call<A>& call) {
  const bool is_pair = call.g.classes == 2;
  if (call.power() != A(0)) return call.power() == A(1) ? 10 : 24;
  if (call.has_decay()) return is_pair ? 7 : 12;
  return is_pair ? 0.7 : 9.5;
}

// Whether the sums over rows take less time than the windows of so many edge pixels.
template <typename A>
bool is_less_work(const Call<A>& call, const Chunk& chunk, int64_t edges, int64_t classes) {
  const Geometry& g = call.g;
  const auto side = [&](int axis, int64_t length) {
    return static_cast<double>(std::min(2 * g.radius[axis] + 1, length));
  };
  const double rows_of_window = side(0, g.depth) * side(1, g.height), of_term = call.power() == A(0) ? 13 : 30;
  const double rows = static_cast<double>(chunk.last_row - chunk.first_row);
  const double of_rows = of_term * static_cast<double>(Reach(g, chunk).count()) + rows * (rows_of_window + 17);
  return static_cast<double>(classes * g.width) * of_rows <
         time_of_neighbor(call) * static_cast<double>(edges) * rows_of_window * side(2, g.width);
}

// The terms t of the pixels of rows: log p(k) or log(1 - p(k)) for edge pixels of class k.
template <typename A>
class Terms {
 public:
  Terms(const Call<A>& call, int64_t image) : call_(call), image_(image), row_(call.g.width) {}

  // Those of a row, whose first pixel is given; of ignored pixels anything.
  const A* find(int64_t first, int16_t k) {
    const Geometry& g = call_.g;
    const int16_t* label = call_.label + image_ * g.pixels;
    find_own(first);
    if (g.classes == 2) return row_.data();  // 1 - p(k) is the probability of the other class
    int32_t pixel[kTile];
    int16_t classes[kTile];
    A logs[kTile];
    std::fill_n(classes, kTile, k);
    for (int64_t x = 0; x < g.width;) {
      int64_t count = 0;
      for (; x < g.width && count < kTile; ++x) {
        const int16_t own = label[first + x];
        if (own >= 0 && own != k) pixel[count++] = static_cast<int32_t>(first + x);
      }
      logs_of_others(call_, image_, pixel, classes, count, logs);
      for (int64_t i = 0; i < count; ++i) row_[pixel[i] - first] = logs[i];
    }
    return row_.data();
  }

 private:
  // log p of the pixels' own classes.
  void find_own(int64_t first) {
    const int64_t base = image_ * call_.g.pixels;
    const Reader<A> logits = call_.reader(image_);
    for (int64_t x = 0; x < call_.g.width; ++x) {
      const int64_t pixel = first + x;
      const int16_t own = call_.label[base + pixel];
      if (own < 0) {
        row_[x] = 0;
      } else if (call_.nll) {
        row_[x] = -call_.nll[base + pixel];
      } else if (call_.m) {
        row_[x] = log_p(logits.at(pixel, own), call_.m[base + pixel], call_.r[base + pixel]);
      } else {
        A m, r;
        softmax_of_pair(logits.at(pixel, 0), logits.at(pixel, 1), m, r);
        row_[x] = log_p(logits.at(pixel, own), m, r);
      }
    }
  }

  const Call<A>& call_;
  int64_t image_;
  std::vector<A> row_;
};

// log w of a row's pixels relative to a distance.
template <typename A>
void find_log_weights(const Call<A>& call, int64_t first, double nearest, double* log_w) {
  const double inverse_decay = call.lane_options.inverse_decay;
  for (int64_t x = 0; x < call.g.width; ++x) {
    log_w[x] = call.has_decay() ? (nearest - call.field[first + x]) * inverse_decay : 0.0;
  }
}

// What neighbors add to the sums of a side. Of powers w e^(q t - offset) and, while there is no offset, w (e^(q t) -
// 1), of which the mean has all its digits where it is next to 0.
struct WideSum {
  double sum, less_1, weights;
};

// A side from its sums.
template <typename A>
WideSide<A> finish_side(const Call<A>& call, const WideSum& of, double offset, double nearest) {
  const double q = call.power();
  WideSide<A> found = {A(0), Side<A>(), true};
  found.side.nearest = static_cast<A>(nearest);
  // Weights of 0 may have underflowed.
  if (call.has_decay() && !(of.weights > 1e-30 && of.weights < 1e30)) found.is_held = false;
  if (of.weights == 0) return found;
  if (q == 0) {
    found.value = static_cast<A>(negative_mean(of.sum, of.weights));
    found.side.inverse = static_cast<A>(1 / of.weights);
    return found;
  }
  const double less_1 = of.less_1 / of.weights, least = std::exp(-kMostExponent);
  const double log_mean = offset == 0 && less_1 > -0.5 ? std::log1p(less_1) : offset + std::log(of.sum / of.weights);
  found.value = static_cast<A>(std::max(0.0, -log_mean / q));
  if (q == 1) {
    found.is_held &= of.sum > std::numeric_limits<A>::min() / std::numeric_limits<A>::epsilon();
    found.side.inverse = static_cast<A>(1 / of.sum);
  } else {
    found.is_held &= of.sum > least;
    found.side.first = static_cast<A>(log_mean / q);
    // With what rounding took from `first`, which shares are sensitive to.
    found.side.log_sum = static_cast<A>(std::log(of.weights) + (log_mean - q * found.side.first));
  }
  return found;
}

// Forward, class by class.
template <typename A>
class WideForward {
 public:
  WideForward(const Call<A>& call, const Chunk& chunk, const EdgePixels<A>& edges)
      : call_(call),
        chunk_(chunk),
        edges_(edges),
        reach_(call.g, chunk),
        terms_(call, chunk.image),
        weight_(reach_.count() * call.g.width) {
    const int64_t base = chunk.image * call.g.pixels;
    for (int64_t row = chunk.first_row; call.has_decay() && row < chunk.last_row; ++row) {
      edges.for_each(row, [&](int64_t, int64_t pixel) {
        nearest_ = std::min(nearest_, static_cast<double>(call.field[base + pixel]));
      });
    }
    reach_.for_each(
        [&](int64_t row) { find_log_weights(call, base + row * call.g.width, nearest_, weight_.data() + at(row)); });
    for (double& w : weight_) w = call.has_decay() ? std::exp(w) : 1.0;
  }

  // N: numbers of a pixel, two or three for each side. False if that of a neighbor is infinite.
  template <int64_t N>
  bool sum(int16_t k, Rows<N>& rows, WideSides<A>& sides) {
    const int64_t n = call_.g.width, base = chunk_.image * call_.g.pixels;
    if (N == 6 && !find_exponents(k)) return false;
    reach_.for_each([&](int64_t row) {
      const double* w = weight_.data() + at(row);
      const int16_t* label = call_.label + base + row * n;
      double* number = rows.row(row);
      if constexpr (N == 6) {
        const double* exponent = exponent_.data() + at(row);
        for (int64_t x = 0; x < n; ++x, number += N) {
          const double less_1 = offset_ == 0 ? std::expm1(exponent[x]) : 0;
          set<3>({w[x] * std::exp(exponent[x] - offset_), w[x] * less_1, w[x]}, label[x], k, number);
        }
      } else {
        const A* t = terms_.find(row * n, k);
        for (int64_t x = 0; x < n; ++x, number += N) set<2>({w[x] * t[x], w[x]}, label[x], k, number);
      }
    });
    const int64_t first = call_.list.row_first[chunk_.image * call_.g.depth * call_.g.height + chunk_.first_row] + base;
    for (int64_t row = chunk_.first_row; row < chunk_.last_row; ++row) {
      const double* sum = nullptr;
      edges_.for_each(row, [&](int64_t place, int64_t pixel) {
        if (edges_.label(pixel) != k) return;
        if (!sum) sum = rows.sum_windows(row);
        for (int side = 0; side < 2; ++side) {
          const double* of = sum + (pixel - row * n) * N + side * N / 2;
          const WideSum sums = {of[0], N == 6 ? of[1] : 0, of[N / 2 - 1]};
          sides[place - first][side] = finish_side(call_, sums, offset_, nearest_);
        }
      });
    }
    return true;
  }

 private:
  int64_t at(int64_t row) const { return reach_.place(row) * call_.g.width; }

  // Sets q t, and what exponentials are relative to.
  bool find_exponents(int16_t k) {
    const int64_t n = call_.g.width, base = chunk_.image * call_.g.pixels;
    double most = -INFINITY;
    exponent_.resize(weight_.size());
    reach_.for_each([&](int64_t row) {
      const A* t = terms_.find(row * n, k);
      double* to = exponent_.data() + at(row);
      for (int64_t x = 0; x < n; ++x) {
        to[x] = static_cast<double>(call_.power()) * t[x];
        if (call_.label[base + row * n + x] >= 0) most = std::max(most, to[x]);
      }
    });
    offset_ = call_.power() < A(0) ? std::max(0.0, most - kMostExponent) : 0.0;
    return most < INFINITY;
  }
  // Sets the numbers of a neighbor: those of its side of an edge pixel of class k, and 0 on the other.
  template <int Count>
  static EDGELOSS_INLINE void set(const std::array<double, Count>& of, int16_t label, int16_t k, double* number) {
    const bool same = label == k, other = label >= 0 && !same;
    for (int i = 0; i < Count; ++i) {
      number[i] = same ? of[i] : 0;
      number[Count + i] = other ? of[i] : 0;
    }
  }

  const Call<A>& call_;
  const Chunk& chunk_;
  const EdgePixels<A>& edges_;
  const Reach reach_;
  Terms<A> terms_;
  std::vector<double> weight_, exponent_;
  double nearest_ = INFINITY, offset_ = 0;
};

// Backward, class by class. A neighbor gets what an edge pixel gives, e^(E - most), times e^(F + most), where E is of
// the edge pixel and F of the neighbor. `most` is the largest E: where the product matters, both keep all their digits.
template <typename A>
class WideBackward {
 public:
  WideBackward(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, const EdgePixels<A>& edges)
      : call_(call), upstream_(upstream), chunk_(chunk), edges_(edges), reach_(call.g, chunk), rows_(reach_) {}

  // Finds the largest E. False where they are too far apart, or a mean could only be computed by logarithms.
  bool find_range() {
    double least = INFINITY;
    bool is_held = true;
    for_each_side([&](int64_t place, int64_t, int, const Side<A>& side) {
      is_held &= !call_.packing.is_plain || call_.power() == A(0) || call_.is_of_means(place);
      if (call_.packing.is_plain && side.inverse == A(0)) return;
      const double exponent = exponent_of(side);
      least = std::min(least, exponent);
      most_ = std::max(most_, exponent);
    });
    return is_held && !(most_ - least >= kMostExponent);
  }

  void gather(Gathered<A>& gathered) {
    const Geometry& g = call_.g;
    const int64_t count = (chunk_.last_row - chunk_.first_row) * g.width;
    factor_.resize(count);
    for (int64_t row = chunk_.first_row; row < chunk_.last_row; ++row) {
      find_log_weights(call_, chunk_.image * g.pixels + row * g.width, 0.0, factor_.data() + place(row));
    }
    for (double& f : factor_) f = call_.power() == A(0) ? std::exp(f + most_) : f + most_;
    gathered.approach(0, count - 1);
    Terms<A> terms(call_, chunk_.image);
    for (int16_t k = 0; k < g.classes; ++k) {
      if (!edges_.has_class[k]) continue;
      give(k);
      for (int64_t row = chunk_.first_row; row < chunk_.last_row; ++row) take(row, k, terms, gathered);
    }
  }

 private:
  // Calls body(place in the list, pixel, side, its state) for both sides of all edge pixels.
  template <typename F>
  void for_each_side(const F& body) const {
    reach_.for_each([&](int64_t row) {
      edges_.for_each(row, [&](int64_t place, int64_t pixel) {
        Side<A> sides[2];
        call_.recall(place, 1, sides);
        for (int side = 0; side < 2; ++side) body(place, pixel, side, sides[side]);
      });
    });
  }
  double exponent_of(const Side<A>& side) const {
    const double of_weight =
        call_.has_decay() ? side.nearest * static_cast<double>(call_.lane_options.inverse_decay) : 0;
    if (call_.packing.is_plain) return of_weight;
    return of_weight - static_cast<double>(call_.power()) * side.first - side.log_sum;
  }
  int64_t place(int64_t row) const { return (row - chunk_.first_row) * call_.g.width; }

  // Sets what edge pixels of class k give.
  void give(int16_t k) {
    const int64_t base = chunk_.image * call_.g.pixels, n = call_.g.width;
    rows_.clear();
    for_each_side([&](int64_t, int64_t pixel, int side, const Side<A>& own) {
      if (edges_.label(pixel) != k || (call_.packing.is_plain && own.inverse == A(0))) return;
      const int64_t row = quotient(pixel, n);
      const double inverse = call_.packing.is_plain ? own.inverse : 1.0;
      const A arrives = upstream_.at(Row::kSameSide + side, base + pixel, call_.edge_weight_of(base + pixel));
      rows_.row(row)[2 * (pixel - row * n) + side] = std::exp(exponent_of(own) - most_) * inverse * arrives;
    });
  }

  // Adds what a row's pixels get.
  void take(int64_t row, int16_t k, Terms<A>& terms, Gathered<A>& gathered) {
    const int64_t n = call_.g.width;
    const double q = call_.power();
    const double* sum = rows_.sum_windows(row);
    const int16_t* label = call_.label + chunk_.image * call_.g.pixels + row * n;
    const A* t = q == 0 ? nullptr : terms.find(row * n, k);
    for (int64_t x = 0; x < n; ++x) {
      const double total = label[x] < 0 ? 0.0 : sum[2 * x + (label[x] != k)];
      if (total == 0) continue;  // no edge pixel sees it, so its weight may be anything
      const int64_t p = place(row) + x;
      const A value = static_cast<A>((t ? std::exp(factor_[p] + q * t[x]) : factor_[p]) * total);
      if (label[x] == k || call_.g.classes == 2) {
        gathered.same[p] += value;
      } else if (gathered.k[p] < 0) {
        gathered.k[p] = k;
        gathered.other[p] = value;
      } else {
        gathered.more.push_back({p, k, value});
      }
    }
    gathered.add_up(call_.g.classes);
  }

  const Call<A>& call_;
  const Upstream<A>& upstream_;
  const Chunk& chunk_;
  const EdgePixels<A>& edges_;
  const Reach reach_;
  Rows<2> rows_;
  std::vector<double> factor_;  // e^(F + most), of powers the part of the exponent without t
  double most_ = -INFINITY;
};

}  // namespace

template <typename A>
bool sum_wide_windows(const Call<A>& call, const Chunk& chunk, WideSides<A>& sides) {
  EdgePixels<A> edges(call, chunk.image);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) edges.add_to_count(row);
  if (!is_less_work(call, chunk, edges.count, 1)) return false;  // mostly, before their classes are looked at
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) edges.add_classes(row);
  if (!is_less_work(call, chunk, edges.count, edges.classes)) return false;
  sides.resize(edges.count);
  WideForward<A> forward(call, chunk, edges);
  const Reach reach(call.g, chunk);
  const auto sum = [&](auto rows) {
    for (int16_t k = 0; k < call.g.classes; ++k) {
      if (edges.has_class[k] && !forward.sum(k, rows, sides)) return false;
    }
    return true;
  };
  return call.power() == A(0) ? sum(Rows<4>(reach)) : sum(Rows<6>(reach));
}

template <typename A>
bool gather_wide_windows(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, Gathered<A>& gathered) {
  const Reach reach(call.g, chunk);
  EdgePixels<A> edges(call, chunk.image);
  reach.for_each([&](int64_t row) { edges.add_to_count(row); });
  const double around = static_cast<double>(reach.count());
  const double share = static_cast<double>(chunk.last_row - chunk.first_row) / around;  // of the windows, in the chunk
  const int64_t seen = static_cast<int64_t>(share * static_cast<double>(edges.count));
  if (!is_less_work(call, chunk, seen, 1)) return false;
  reach.for_each([&](int64_t row) { edges.add_classes(row); });
  if (!is_less_work(call, chunk, seen, edges.classes)) return false;
  WideBackward<A> backward(call, upstream, chunk, edges);
  if (!backward.find_range()) return false;
  backward.gather(gathered);
  return true;
}

#define EDGELOSS_INSTANTIATE(A)                                                \
  template bool sum_wide_windows(const Call<A>&, const Chunk&, WideSides<A>&); \
  template bool gather_wide_windows(const Call<A>&, const Upstream<A>&, const Chunk&, Gathered<A>&);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
