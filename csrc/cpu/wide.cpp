// The wide windows of wide.h.
#include "wide.h"

#include <algorithm>
#include <cmath>

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

// All rows that the windows of a chunk reach: (z, y) with z in [begin[0], end[0]) and y in [begin[1], end[1]).
struct Reach {
  const Geometry& g;
  int64_t begin[2], end[2];

  Reach(const Geometry& g, const Chunk& chunk) : g(g) {
    const int64_t first = quotient(chunk.first_row, g.height), last = quotient(chunk.last_row - 1, g.height);
    const bool in_one = first == last;  // slice
    begin[0] = std::max<int64_t>(0, first - g.radius[0]);
    end[0] = std::min(g.depth, last + g.radius[0] + 1);
    begin[1] = in_one ? std::max<int64_t>(0, chunk.first_row - first * g.height - g.radius[1]) : 0;
    end[1] = in_one ? std::min(g.height, chunk.last_row - first * g.height + g.radius[1]) : g.height;
  }

  int64_t count() const { return (end[0] - begin[0]) * (end[1] - begin[1]); }
  // Calls body(row) for each of them.
  template <typename F>
  void for_each(const F& body) const {
    for (int64_t z = begin[0]; z < end[0]; ++z) {
      for (int64_t y = begin[1]; y < end[1]; ++y) body(z * g.height + y);
    }
  }
  // The place of a row among them.
  int64_t place(int64_t row) const {
    const int64_t z = quotient(row, g.height);
    return (z - begin[0]) * (end[1] - begin[1]) + row - z * g.height - begin[1];
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

  void include(int64_t row) {
    for_each(row, [&](int64_t, int64_t pixel) {
      ++count;
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

// Whether the sums over rows take less time than the windows of so many edge pixels: roughly, in nanoseconds.
bool is_less_work(const Geometry& g, const Chunk& chunk, int64_t edges, int64_t classes) {
  const auto side = [&](int axis, int64_t length) {
    return static_cast<double>(std::min(2 * g.radius[axis] + 1, length));
  };
  const double rows_of_window = side(0, g.depth) * side(1, g.height);
  const double rows = static_cast<double>(chunk.last_row - chunk.first_row);
  const double of_rows = 2 * static_cast<double>(Reach(g, chunk).count()) + rows * (rows_of_window / 4 + 6);
  return static_cast<double>(classes * g.width) * of_rows <
         static_cast<double>(edges) * rows_of_window * side(2, g.width);
}

// Whether that may be, before the edge pixels are looked at.
template <typename A>
bool may_be_wide(const Call<A>& call, const Chunk& chunk) {
  return call.power() == A(0) && is_less_work(call.g, chunk, (chunk.last_row - chunk.first_row) * call.g.width, 1);
}

// t of n pixels of a row in the windows of edge pixels of class k: log p(k) or log(1 - p(k)).
template <typename A>
void find_terms(const Call<A>& call, int64_t image, int64_t first, int16_t k, A* t) {
  const int64_t n = call.g.width, base = image * call.g.pixels;
  for (int64_t x = 0; x < n; ++x) t[x] = -call.nll[base + first + x];
  if (call.g.classes == 2) return;  // 1 - p(k) is the probability of the other class
  int32_t pixel[kTile];
  int16_t classes[kTile];
  A logs[kTile];
  std::fill_n(classes, kTile, k);
  for (int64_t x = 0; x < n;) {
    int64_t count = 0;
    for (; x < n && count < kTile; ++x) {
      const int16_t label = call.label[base + first + x];
      if (label >= 0 && label != k) pixel[count++] = static_cast<int32_t>(first + x);
    }
    logs_of_others(call, image, pixel, classes, count, logs);
    for (int64_t i = 0; i < count; ++i) t[pixel[i] - first] = logs[i];
  }
}

// The weights of a row's pixels relative to a distance; those that no edge pixel sees may be anything.
template <typename A>
void find_weights(const Call<A>& call, int64_t first, double nearest, double* weight) {
  const double inverse_decay = call.lane_options.inverse_decay;
  for (int64_t x = 0; x < call.g.width; ++x) {
    weight[x] = call.has_decay() ? std::exp((nearest - call.field[first + x]) * inverse_decay) : 1.0;
  }
}

}  // namespace

template <typename A>
bool sum_wide_windows(const Call<A>& call, const Chunk& chunk, WideSums& sums) {
  const Geometry& g = call.g;
  if (!call.nll || !may_be_wide(call, chunk)) return false;
  EdgePixels<A> edges(call, chunk.image);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) edges.include(row);
  if (!is_less_work(g, chunk, edges.count, edges.classes)) return false;
  const Reach reach(g, chunk);
  Rows<4> rows(reach);
  const int64_t base = chunk.image * g.pixels, n = g.width;
  const int64_t first = call.list.row_first[chunk.image * g.depth * g.height + chunk.first_row];
  sums.sides.resize(edges.count);
  sums.nearest = INFINITY;
  for (int64_t row = chunk.first_row; call.has_decay() && row < chunk.last_row; ++row) {
    edges.for_each(row, [&](int64_t, int64_t pixel) {
      sums.nearest = std::min(sums.nearest, static_cast<double>(call.field[base + pixel]));
    });
  }
  std::vector<double> weight(reach.count() * n);
  reach.for_each(
      [&](int64_t row) { find_weights(call, base + row * n, sums.nearest, weight.data() + reach.place(row) * n); });
  std::vector<A> t(n);
  for (int16_t k = 0; k < g.classes; ++k) {
    if (!edges.has_class[k]) continue;
    reach.for_each([&](int64_t row) {
      find_terms(call, chunk.image, row * n, k, t.data());
      const double* w = weight.data() + reach.place(row) * n;
      const int16_t* label = call.label + base + row * n;
      double* number = rows.row(row);
      for (int64_t x = 0; x < n; ++x, number += 4) {
        const bool same = label[x] == k, other = label[x] >= 0 && !same;
        number[0] = same ? w[x] * t[x] : 0;
        number[1] = same ? w[x] : 0;
        number[2] = other ? w[x] * t[x] : 0;
        number[3] = other ? w[x] : 0;
      }
    });
    for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
      const double* sum = nullptr;
      edges.for_each(row, [&](int64_t place, int64_t pixel) {
        if (edges.label(pixel) != k) return;
        if (!sum) sum = rows.sum_windows(row);
        const double* total = sum + (pixel - row * n) * 4;
        sums.sides[place - base - first] = {total[0], total[1], total[2], total[3]};
      });
    }
  }
  return true;
}

template <typename A>
bool gather_wide_windows(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, Gathered<A>& gathered) {
  const Geometry& g = call.g;
  if (!may_be_wide(call, chunk)) return false;
  const Reach reach(g, chunk);
  EdgePixels<A> edges(call, chunk.image);
  reach.for_each([&](int64_t row) { edges.include(row); });
  const double around = static_cast<double>(reach.count());
  const double share = static_cast<double>(chunk.last_row - chunk.first_row) / around;  // of the windows, in the chunk
  const int64_t seen = static_cast<int64_t>(share * static_cast<double>(edges.count));
  if (!is_less_work(g, chunk, seen, edges.classes)) return false;
  const int64_t base = chunk.image * g.pixels, n = g.width;
  const double inverse_decay = call.lane_options.inverse_decay;
  double least = INFINITY, most = -INFINITY;
  Side<A> sides[2];
  const auto extend = [&](int64_t place, int64_t) {
    call.recall(place, 1, sides);
    for (const Side<A>& side : sides) {
      if (side.inverse == A(0)) continue;
      least = std::min(least, static_cast<double>(side.nearest));
      most = std::max(most, static_cast<double>(side.nearest));
    }
  };
  if (call.has_decay()) reach.for_each([&](int64_t row) { edges.for_each(row, extend); });
  if (call.has_decay() && !((most - least) * inverse_decay < kMostExponent)) return false;

  Rows<2> rows(reach);
  std::vector<double> weight((chunk.last_row - chunk.first_row) * n);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    find_weights(call, base + row * n, least, weight.data() + (row - chunk.first_row) * n);
  }
  gathered.approach(0, (chunk.last_row - chunk.first_row) * n - 1);
  for (int16_t k = 0; k < g.classes; ++k) {
    if (!edges.has_class[k]) continue;
    rows.clear();
    reach.for_each([&](int64_t row) {
      edges.for_each(row, [&](int64_t place, int64_t pixel) {
        if (edges.label(pixel) != k) return;
        call.recall(place, 1, sides);
        for (int side = 0; side < 2; ++side) {
          const Side<A>& own = sides[side];
          if (own.inverse == A(0)) continue;
          const double scale = call.has_decay() ? std::exp((own.nearest - least) * inverse_decay) : 1.0;
          const A arrives = upstream.at(Row::kSameSide + side, base + pixel, call.edge_weight_of(base + pixel));
          rows.row(row)[2 * (pixel - row * n) + side] = scale * own.inverse * arrives;
        }
      });
    });
    for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
      const double* sum = rows.sum_windows(row);
      const int64_t start = (row - chunk.first_row) * n;
      for (int64_t x = 0; x < n; ++x) {
        const int16_t label = call.label[base + row * n + x];
        const double total = label < 0 ? 0.0 : sum[2 * x + (label != k)];
        if (total == 0) continue;  // no edge pixel sees it, so its weight may be anything
        const A value = static_cast<A>(weight[start + x] * total);
        const int64_t p = start + x;
        if (label == k || g.classes == 2) {
          gathered.same[p] += value;
        } else if (gathered.k[p] < 0) {
          gathered.k[p] = k;
          gathered.other[p] = value;
        } else {
          gathered.more.push_back({p, k, value});
        }
      }
      gathered.add_up(g.classes);
    }
  }
  return true;
}

#define EDGELOSS_INSTANTIATE(A)                                            \
  template bool sum_wide_windows(const Call<A>&, const Chunk&, WideSums&); \
  template bool gather_wide_windows(const Call<A>&, const Upstream<A>&, const Chunk&, Gathered<A>&);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
