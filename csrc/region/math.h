// The region term of one class of an image, from the averages of its probabilities and labels: edgeloss/region.py has
// the formulas.
//
// Scatter matrices are sums of products over the windows of an image, so the products of two rows at each shift serve
// all pairs of offsets that have this shift. The gradient likewise: what an average gets from the regions that it is
// part of is a filter over its surroundings, the same one wherever all of these regions exist.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../cpu/lanes.h"
#include "../math.h"
#include "grid.h"

namespace edgeloss {

constexpr int64_t kShifts = 2 * kSide - 1;  // of two averages of a region along an axis
constexpr double kNoise = 5e-4;             // on the diagonals of the scatter matrices
constexpr int64_t kDoubles = 8;             // of a vector

// A map of averages, with the part of each row that is not 0. Vectors may read a little behind its end.
struct Averages {
  struct Range {
    int64_t begin, end;
  };
  std::vector<double> values;
  std::vector<Range> rows;

  explicit Averages(const RegionGrid& g) : values(g.averages + kDoubles + kSide), rows(g.size[0] * g.size[1]) {}
  void find_rows(const RegionGrid& g) {
    for (size_t number = 0; number < rows.size(); ++number) {
      const double* row = values.data() + number * g.size[2];
      Range& range = rows[number];
      range = {0, g.size[2]};
      while (range.begin < range.end && row[range.begin] == 0.0) ++range.begin;
      while (range.begin < range.end && row[range.end - 1] == 0.0) --range.end;
    }
  }
};

// ------------------------------------------------------------------------------------------------- the scatter
// matrices

// Σ of a(x + i) b(x + j) over the windows x of a row, for the offsets i and j along it; b is 0 outside a range.
struct RowProducts {
  double at[kSide][kSide];

  EDGELOSS_INLINE RowProducts(const double* a, const double* b, int64_t width, const Averages::Range& range) {
    // What is common to all offsets: a from kSide - 1 to width - kSide.
    constexpr int64_t kEnds = kSide - 1;
    const int64_t begin = std::min(kEnds, width), end = std::max(begin, width - kEnds);
    const int64_t first = std::max(begin, range.begin - kEnds), n = std::min(end, range.end + kEnds) - first;
    double core[kShifts];
    sum_core(a + first, b + first, n, core);
    for (int64_t i = 0; i < kSide; ++i) {
      const int64_t last = i + width - kSide;
      for (int64_t j = 0; j < kSide; ++j) {
        double sum = core[j - i + kEnds];
        for (int64_t x = i; x <= std::min(begin - 1, last); ++x) sum += a[x] * b[x + j - i];
        for (int64_t x = std::max(end, i); x <= last; ++x) sum += a[x] * b[x + j - i];
        at[i][j] = sum;
      }
    }
  }

 private:
  static EDGELOSS_INLINE void sum_core(const double* a, const double* b, int64_t n, double (&sums)[kShifts]) {
    using Vec = VectorOf<double, kDoubles>;
    constexpr VectorOf<int64_t, kDoubles> kLanes = {0, 1, 2, 3, 4, 5, 6, 7};
    Vec total[kShifts] = {};
    for (int64_t x = 0; x < n; x += kDoubles) {
      Vec of_a, of_b;
      load(a + x, of_a);
      if (n - x < kDoubles) of_a = kLanes < n - x ? of_a : Vec{};
      for (int64_t shift = 0; shift < kShifts; ++shift) {
        load(b + x + shift - (kSide - 1), of_b);
        total[shift] += of_a * of_b;
      }
    }
    for (int64_t shift = 0; shift < kShifts; ++shift) {
      sums[shift] = 0;
      for (int64_t lane = 0; lane < kDoubles; ++lane) sums[shift] += total[shift][lane];
    }
  }
};

// scatter[i][j] = Σ a(x + i) b(x + j) over all windows x, d × d with the given step from row to row; of a = b the upper
// triangle of blocks alone, which `mirror` completes.
EDGELOSS_INLINE void add_scatter(const RegionGrid& g, const Averages& a, const Averages& b, double* scatter,
                                 int64_t step) {
  const bool is_symmetric = &a == &b;
  const int64_t reach[2] = {g.side[0] - 1, g.side[1] - 1};
  const auto add = [&](int64_t dz, int64_t dy, const int64_t (&z_range)[2], const int64_t (&y_range)[2],
                       const double (&products)[kSide][kSide]) EDGELOSS_LOOP {
    for (int64_t i_z = std::max(z_range[0], -dz); i_z <= std::min(z_range[1], reach[0] - dz); ++i_z) {
      for (int64_t i_y = std::max(y_range[0], -dy); i_y <= std::min(y_range[1], reach[1] - dy); ++i_y) {
        double* block = scatter + g.offset(i_z, i_y, 0) * step + g.offset(i_z + dz, i_y + dy, 0);
        for (int64_t i = 0; i < kSide; ++i) {
          for (int64_t j = 0; j < kSide; ++j) block[i * step + j] += products[i][j];
        }
      }
    }
  };
  const int64_t all_z[2] = {0, reach[0]}, all_y[2] = {0, reach[1]};
  for (int64_t dz = is_symmetric ? 0 : -reach[0]; dz <= reach[0]; ++dz) {
    for (int64_t dy = is_symmetric && dz == 0 ? 0 : -reach[1]; dy <= reach[1]; ++dy) {
      double inner[kSide][kSide] = {};  // of the rows that are part of windows at every offset
      for (int64_t z = std::max<int64_t>(0, -dz); z < g.size[0] - std::max<int64_t>(0, dz); ++z) {
        for (int64_t y = std::max<int64_t>(0, -dy); y < g.size[1] - std::max<int64_t>(0, dy); ++y) {
          const Averages::Range& range = b.rows[(z + dz) * g.size[1] + y + dy];
          if (range.begin == range.end) continue;
          const RowProducts products(a.values.data() + g.row(z, y), b.values.data() + g.row(z + dz, y + dy), g.size[2],
                                     range);
          const int64_t z_range[2] = {g.first(0, z), g.last(0, z)}, y_range[2] = {g.first(1, y), g.last(1, y)};
          if (z_range[1] - z_range[0] < reach[0] || y_range[1] - y_range[0] < reach[1]) {
            add(dz, dy, z_range, y_range, products.at);
            continue;
          }
          for (int64_t i = 0; i < kSide; ++i) {
            for (int64_t j = 0; j < kSide; ++j) inner[i][j] += products.at[i][j];
          }
        }
      }
      add(dz, dy, all_z, all_y, inner);
    }
  }
}

// means[i] = the mean of a(x + i) over all windows x.
EDGELOSS_INLINE void find_means(const RegionGrid& g, const Averages& a, double* means) {
  g.for_each_row([&](int64_t z, int64_t y) EDGELOSS_LOOP {
    const double* row = a.values.data() + g.row(z, y);
    for (int64_t i = 0; i < kSide; ++i) {
      double sum = 0;
      for (int64_t x = i; x < i + g.windows[2]; ++x) sum += row[x];
      for (int64_t i_z = g.first(0, z); i_z <= g.last(0, z); ++i_z) {
        for (int64_t i_y = g.first(1, y); i_y <= g.last(1, y); ++i_y) means[g.offset(i_z, i_y, i)] += sum;
      }
    }
  });
  for (int64_t i = 0; i < g.offsets; ++i) means[i] /= static_cast<double>(g.regions);
}

// ------------------------------------------------------------------------------------------------------ linear algebra

// Replaces the lower triangle of a symmetric matrix [n, n] by its Cholesky factor.
inline void factorize(double* m, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double* row = m + i * n;
    for (int64_t j = 0; j <= i; ++j) {
      const double* other = m + j * n;
      double sum = row[j];
      for (int64_t k = 0; k < j; ++k) sum -= row[k] * other[k];
      row[j] = i == j ? std::sqrt(sum) : sum / other[j];
    }
  }
}

// v := L⁻¹ v for the lower triangle L of [n, n] at m, whose rows are `step` apart.
inline void solve_lower(const double* m, int64_t n, int64_t step, double* v) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < i; ++k) v[i] -= m[i * step + k] * v[k];
    v[i] /= m[i * step + i];
  }
}

// v := L⁻ᵀ v.
inline void solve_upper(const double* m, int64_t n, int64_t step, double* v) {
  for (int64_t i = n; i-- > 0;) {
    v[i] /= m[i * step + i];
    for (int64_t k = 0; k < i; ++k) v[k] -= m[i * step + k] * v[i];
  }
}

// --------------------------------------------------------------------------------------------------------- the
// gradient

// The derivative of the term by an average q, as weights of the averages q and y around it, and a constant: of the
// regions that have the average at the offsets from `first` to `last` along each axis.
struct RegionFilter {
  double q[kShifts * kShifts * kShifts], y[kShifts * kShifts * kShifts], constant;

  static EDGELOSS_INLINE int64_t index(int64_t dz, int64_t dy, int64_t dx) {
    return ((dz + kSide - 1) * kShifts + dy + kSide - 1) * kShifts + dx + kSide - 1;
  }
};

// What the term of a class is, and what its derivative needs.
class RegionTerm {
 public:
  RegionTerm(const RegionGrid& grid, const Averages& probability, const Averages& label)
      : g(grid), q(probability), y(label), d(grid.offsets), means(2 * d), joint(4 * d * d) {}

  // The term, 0 where the labels are explained.
  EDGELOSS_INLINE double value() {
    find_means(g, q, means.data());
    find_means(g, y, means.data() + d);
    double* const of_q = joint.data();
    add_scatter(g, q, q, of_q, 2 * d);
    add_scatter(g, q, y, of_q + d, 2 * d);
    add_scatter(g, y, y, of_q + d * 2 * d + d, 2 * d);
    const double regions = static_cast<double>(g.regions);
    for (int64_t i = 0; i < 2 * d; ++i) {
      for (int64_t j = i; j < 2 * d; ++j) {
        const double centered = joint[i * 2 * d + j] - regions * means[i] * means[j];
        joint[j * 2 * d + i] = centered + (i == j ? kNoise : 0.0);
      }
    }
    factorize(joint.data(), 2 * d);
    double log_det = 0;
    for (int64_t i = d; i < 2 * d; ++i) log_det += 2 * std::log(joint[i * 2 * d + i]);
    return log_det / static_cast<double>(2 * d) - std::log(kNoise) / 2;
  }

  // After value(): its derivatives by q, times a factor, [averages].
  template <typename A>
  EDGELOSS_INLINE void gradient(double factor, A* slope) {
    find_weights(factor / static_cast<double>(d));
    std::vector<int32_t> known(kRanges * kRanges * kRanges, -1);
    std::vector<RegionFilter> filters;
    const int64_t width = g.size[2];
    g.for_each_row([&](int64_t z, int64_t row) EDGELOSS_LOOP {
      for (int64_t x = 0, end; x < width; x = end) {
        end = x + 1;
        if (g.first(2, x) == 0 && g.last(2, x) == kSide - 1) end = std::max(end, g.windows[2]);
        int32_t& filter = known[(range(0, z) * kRanges + range(1, row)) * kRanges + range(2, x)];
        if (filter < 0) {
          filter = static_cast<int32_t>(filters.size());
          filters.push_back(filter_at(z, row, x));
        }
        apply(filters[filter], z, row, x, end, slope + g.row(z, row));
      }
    });
  }

 private:
  static constexpr int64_t kRanges = kSide * kSide;
  const RegionGrid& g;
  const Averages &q, &y;
  int64_t d;
  std::vector<double> means;       // of q at each offset, then of y
  std::vector<double> joint;       // [2d, 2d], its scatter, then the Cholesky factor
  std::vector<double> of_q, of_y;  // ∂ by q(x + i) = Σ_j of_q[i][j] (q - mean)(x + j) - of_y[i][j] (y - mean)(x + j)

  int64_t range(int axis, int64_t at) const { return g.first(axis, at) * kSide + g.last(axis, at); }

  // With G = Σ_qq⁻¹ Σ_qy, the derivative is H (Gᵀ q - y) / d, H = G M⁻¹.
  void find_weights(double factor) {
    const double* const residual = joint.data() + d * 2 * d + d;
    std::vector<double> g_transposed(d * d), h(d);
    for (int64_t j = 0; j < d; ++j) {
      double* row = g_transposed.data() + j * d;
      std::copy_n(joint.data() + (d + j) * 2 * d, d, row);
      solve_upper(joint.data(), d, 2 * d, row);
    }
    of_q.assign(d * d, 0.0);
    of_y.resize(d * d);
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < d; ++j) h[j] = factor * g_transposed[j * d + i];
      solve_lower(residual, d, 2 * d, h.data());
      solve_upper(residual, d, 2 * d, h.data());
      for (int64_t j = 0; j < d; ++j) {
        of_y[i * d + j] = h[j];
        for (int64_t k = 0; k < d; ++k) of_q[i * d + k] += h[j] * g_transposed[j * d + k];
      }
    }
  }

  RegionFilter filter_at(int64_t z, int64_t row, int64_t x) const {
    RegionFilter filter = {};
    for (int64_t i_z = g.first(0, z); i_z <= g.last(0, z); ++i_z) {
      for (int64_t i_y = g.first(1, row); i_y <= g.last(1, row); ++i_y) {
        for (int64_t i_x = g.first(2, x); i_x <= g.last(2, x); ++i_x) {
          const int64_t i = g.offset(i_z, i_y, i_x);
          for (int64_t j = 0; j < d; ++j) {
            const int64_t j_z = j / (g.side[1] * kSide), j_y = j / kSide % g.side[1], j_x = j % kSide;
            const int64_t at = RegionFilter::index(j_z - i_z, j_y - i_y, j_x - i_x);
            filter.q[at] += of_q[i * d + j];
            filter.y[at] -= of_y[i * d + j];
            filter.constant += of_y[i * d + j] * means[d + j] - of_q[i * d + j] * means[j];
          }
        }
      }
    }
    return filter;
  }

  // slope[x] of the averages `begin` to end - 1 of a row, which are part of regions at the same offsets.
  template <typename A>
  EDGELOSS_INLINE void apply(const RegionFilter& filter, int64_t z, int64_t row, int64_t begin, int64_t end,
                             A* slope) const {
    const int64_t left = -g.last(2, begin), right = kSide - 1 - g.first(2, begin);
    for (int64_t x = begin; x < end; x += kDoubles) {
      VectorOf<double, kDoubles> sum = {}, part;
      sum += filter.constant;
      for (int64_t dz = -g.last(0, z); dz <= g.side[0] - 1 - g.first(0, z); ++dz) {
        for (int64_t dy = -g.last(1, row); dy <= g.side[1] - 1 - g.first(1, row); ++dy) {
          const int64_t start = g.row(z + dz, row + dy) + x, at = RegionFilter::index(dz, dy, 0);
          for (int64_t dx = left; dx <= right; ++dx) {
            load(q.values.data() + start + dx, part);
            sum += filter.q[at + dx] * part;
          }
          const Averages::Range& range = y.rows[(z + dz) * g.size[1] + row + dy];
          if (x + kDoubles + right <= range.begin || range.end <= x + left) continue;
          for (int64_t dx = left; dx <= right; ++dx) {
            load(y.values.data() + start + dx, part);
            sum += filter.y[at + dx] * part;
          }
        }
      }
      const int64_t n = std::min(kDoubles, end - x);
      for (int64_t lane = 0; lane < n; ++lane) slope[x + lane] = static_cast<A>(sum[lane]);
    }
  }
};

}  // namespace edgeloss
