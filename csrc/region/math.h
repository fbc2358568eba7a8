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

// The ends of a row: its first two and last two averages, in lanes. A row of three has one of them twice; the second
// lane of it does not count.
constexpr int64_t kEnds = kSide - 1;
constexpr int64_t kLanes = 2 * kEnds;
using EndVector = VectorOf<double, kLanes>;

EDGELOSS_INLINE int64_t place_of_lane(int64_t lane, int64_t width) {
  return lane < kEnds ? lane : std::max(width, kSide) - kLanes + lane;
}
EDGELOSS_INLINE bool counts(int64_t lane, int64_t width) { return width > kSide || lane != kEnds; }

// A map of averages, with the part of each row that is not 0. Vectors may read a little behind its end.
struct Averages {
  struct Range {
    int64_t begin, end;
  };
  std::vector<double> values;
  std::vector<Range> rows;
  std::vector<double> ends;  // [rows, kShifts, kLanes]: at each shift from the ends, 0 outside

  explicit Averages(const RegionGrid& g)
      : values(g.averages + kDoubles + kSide),
        rows(g.size[0] * g.size[1]),
        ends(g.size[0] * g.size[1] * kShifts * kLanes) {}

  // After `values` have been set.
  void find_rows(const RegionGrid& g) {
    const int64_t width = g.size[2];
    for (size_t number = 0; number < rows.size(); ++number) {
      const double* row = values.data() + number * width;
      Range& range = rows[number];
      range = {0, width};
      while (range.begin < range.end && row[range.begin] == 0.0) ++range.begin;
      while (range.begin < range.end && row[range.end - 1] == 0.0) --range.end;
      double* at = ends.data() + number * kShifts * kLanes;
      for (int64_t shift = -kEnds; shift <= kEnds; ++shift) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const int64_t x = place_of_lane(lane, width) + shift;
          *at++ = counts(lane, width) && x >= 0 && x < width ? row[x] : 0.0;
        }
      }
    }
  }
  EDGELOSS_INLINE const double* ends_of(int64_t row, int64_t shift) const {
    return ends.data() + (row * kShifts + shift + kEnds) * kLanes;
  }
};

// Calls body(first, last) for the runs of averages along an axis that are part of regions at the same offsets.
template <typename F>
EDGELOSS_INLINE void for_each_run(const RegionGrid& g, int axis, const F& body) {
  for (int64_t at = 0, next; at < g.size[axis]; at = next) {
    next = at + 1;
    while (next < g.size[axis] && g.first(axis, next) == g.first(axis, at) && g.last(axis, next) == g.last(axis, at)) {
      ++next;
    }
    body(at, next - 1);
  }
}

// ------------------------------------------------------------------------------------------------ the scatter matrices

// Σ of a(x) b(x + shift) over some rows, for each shift: over what is between the ends, and of each end.
class ShiftSums {
 public:
  EDGELOSS_INLINE ShiftSums() {
    for (int64_t shift = 0; shift < kShifts; ++shift) {
      between_[shift] = Vec{};
      ends_[shift] = EndVector{};
    }
  }

  EDGELOSS_INLINE void add(const RegionGrid& g, const Averages& a, int64_t row_a, const Averages& b, int64_t row_b) {
    const Averages::Range& range = b.rows[row_b];
    if (range.begin == range.end) return;
    const int64_t width = g.size[2], begin = std::max(kEnds, range.begin - kEnds);
    const int64_t n = std::min(width - kEnds, range.end + kEnds) - begin;
    const double *from_a = a.values.data() + row_a * width + begin, *from_b = b.values.data() + row_b * width + begin;
    constexpr VectorOf<int64_t, kDoubles> kNumbers = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int64_t x = 0; x < n; x += kDoubles) {
      Vec of_a, of_b;
      load(from_a + x, of_a);
      if (n - x < kDoubles) of_a = kNumbers < n - x ? of_a : Vec{};
      for (int64_t shift = 0; shift < kShifts; ++shift) {
        load(from_b + x + shift - kEnds, of_b);
        between_[shift] += of_a * of_b;
      }
    }
    EndVector of_a, of_b;
    load(a.ends_of(row_a, 0), of_a);
    for (int64_t shift = 0; shift < kShifts; ++shift) {
      load(b.ends_of(row_b, shift - kEnds), of_b);
      ends_[shift] += of_a * of_b;
    }
  }

  // Σ a(x + i) b(x + j) over the windows x of the rows.
  EDGELOSS_INLINE double of_offsets(const RegionGrid& g, int64_t i, int64_t j) const {
    const int64_t shift = j - i + kEnds;
    double sum = 0;
    for (int64_t lane = 0; lane < kDoubles; ++lane) sum += between_[shift][lane];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t x = place_of_lane(lane, g.size[2]);
      if (i <= x && x < i + g.windows[2]) sum += ends_[shift][lane];
    }
    return sum;
  }

 private:
  using Vec = VectorOf<double, kDoubles>;
  Vec between_[kShifts];
  EndVector ends_[kShifts];
};

// scatter[i][j] = Σ a(x + i) b(x + j) over all windows x, d × d with the given step from row to row; of a = b the
// blocks of the upper triangle alone.
EDGELOSS_INLINE void add_scatter(const RegionGrid& g, const Averages& a, const Averages& b, double* scatter,
                                 int64_t step) {
  const bool is_symmetric = &a == &b;
  const int64_t reach[2] = {g.side[0] - 1, g.side[1] - 1};
  for (int64_t dz = is_symmetric ? 0 : -reach[0]; dz <= reach[0]; ++dz) {
    for (int64_t dy = is_symmetric && dz == 0 ? 0 : -reach[1]; dy <= reach[1]; ++dy) {
      for_each_run(g, 0, [&](int64_t first_z, int64_t last_z) EDGELOSS_LOOP {
        for_each_run(g, 1, [&](int64_t first_y, int64_t last_y) EDGELOSS_LOOP {
          const int64_t low_z = std::max(g.first(0, first_z), -dz),
                        high_z = std::min(g.last(0, first_z), reach[0] - dz);
          const int64_t low_y = std::max(g.first(1, first_y), -dy),
                        high_y = std::min(g.last(1, first_y), reach[1] - dy);
          if (low_z > high_z || low_y > high_y) return;
          ShiftSums sums;
          for (int64_t z = first_z; z <= last_z; ++z) {
            for (int64_t y = first_y; y <= last_y; ++y) {
              sums.add(g, a, z * g.size[1] + y, b, (z + dz) * g.size[1] + y + dy);
            }
          }
          for (int64_t i = 0; i < kSide; ++i) {
            for (int64_t j = 0; j < kSide; ++j) {
              const double sum = sums.of_offsets(g, i, j);
              for (int64_t i_z = low_z; i_z <= high_z; ++i_z) {
                for (int64_t i_y = low_y; i_y <= high_y; ++i_y) {
                  scatter[g.offset(i_z, i_y, i) * step + g.offset(i_z + dz, i_y + dy, j)] += sum;
                }
              }
            }
          }
        });
      });
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

// -------------------------------------------------------------------------------------------------------- the gradient

// The derivative of the term by an average q, as weights of the averages q and y around it, and a constant.
struct RegionFilter {
  double q[kShifts * kShifts * kShifts], y[kShifts * kShifts * kShifts], constant;

  static EDGELOSS_INLINE int64_t index(int64_t dz, int64_t dy, int64_t dx) {
    return ((dz + kEnds) * kShifts + dy + kEnds) * kShifts + dx + kEnds;
  }
};

// What the term of a class is, and what its derivative needs.
class RegionTerm {
 public:
  RegionTerm(const RegionGrid& grid, const Averages& probability, const Averages& label)
      : g(grid), probability_(probability), label_(label), d(grid.offsets), means(2 * d), joint(4 * d * d) {}

  // The term, 0 where the labels are explained.
  EDGELOSS_INLINE double value() {
    find_means(g, probability_, means.data());
    find_means(g, label_, means.data() + d);
    double* const of_q = joint.data();
    add_scatter(g, probability_, probability_, of_q, 2 * d);
    add_scatter(g, probability_, label_, of_q + d, 2 * d);
    add_scatter(g, label_, label_, of_q + d * 2 * d + d, 2 * d);
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
    const int64_t width = g.size[2];
    RegionFilter between, ends[kLanes];
    for_each_run(g, 0, [&](int64_t first_z, int64_t last_z) EDGELOSS_LOOP {
      for_each_run(g, 1, [&](int64_t first_y, int64_t last_y) EDGELOSS_LOOP {
        if (width > kLanes) between = filter_at(first_z, first_y, kEnds);
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          ends[lane] = filter_at(first_z, first_y, place_of_lane(lane, width));
        }
        for (int64_t z = first_z; z <= last_z; ++z) {
          for (int64_t y = first_y; y <= last_y; ++y) {
            A* const row = slope + g.row(z, y);
            apply_between(between, z, y, row);
            apply_to_ends(ends, z, y, row);
          }
        }
      });
    });
  }

 private:
  const RegionGrid& g;
  const Averages &probability_, &label_;  // q and y
  int64_t d;
  std::vector<double> means;       // of q at each offset, then of y
  std::vector<double> joint;       // [2d, 2d], its scatter, then the Cholesky factor
  std::vector<double> of_q, of_y;  // ∂ by q(x + i) = Σ_j of_q[i][j] (q - mean)(x + j) - of_y[i][j] (y - mean)(x + j)

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

  // Calls body(row, index of the weight at shift 0 of it) for the rows of averages around one.
  template <typename F>
  EDGELOSS_INLINE void for_each_row_around(int64_t z, int64_t row, const F& body) const {
    for (int64_t dz = -g.last(0, z); dz <= g.side[0] - 1 - g.first(0, z); ++dz) {
      for (int64_t dy = -g.last(1, row); dy <= g.side[1] - 1 - g.first(1, row); ++dy) {
        body((z + dz) * g.size[1] + row + dy, RegionFilter::index(dz, dy, 0));
      }
    }
  }

  template <typename A>
  EDGELOSS_INLINE void apply_between(const RegionFilter& filter, int64_t z, int64_t row, A* slope) const {
    const int64_t width = g.size[2], end = width - kEnds;
    for (int64_t x = kEnds; x < end; x += kDoubles) {
      VectorOf<double, kDoubles> sum = {}, part;
      sum += filter.constant;
      for_each_row_around(z, row, [&](int64_t number, int64_t at) EDGELOSS_LOOP {
        const int64_t start = number * width + x;
        for (int64_t dx = -kEnds; dx <= kEnds; ++dx) {
          load(probability_.values.data() + start + dx, part);
          sum += filter.q[at + dx] * part;
        }
        const Averages::Range& range = label_.rows[number];
        if (x + kDoubles + kEnds <= range.begin || range.end <= x - kEnds) return;
        for (int64_t dx = -kEnds; dx <= kEnds; ++dx) {
          load(label_.values.data() + start + dx, part);
          sum += filter.y[at + dx] * part;
        }
      });
      const int64_t n = std::min(kDoubles, end - x);
      for (int64_t lane = 0; lane < n; ++lane) slope[x + lane] = static_cast<A>(sum[lane]);
    }
  }

  template <typename A>
  EDGELOSS_INLINE void apply_to_ends(const RegionFilter (&filters)[kLanes], int64_t z, int64_t row, A* slope) const {
    double sum[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] = filters[lane].constant;
    for_each_row_around(z, row, [&](int64_t number, int64_t at) EDGELOSS_LOOP {
      for (int64_t dx = -kEnds; dx <= kEnds; ++dx) {
        const double *q = probability_.ends_of(number, dx), *y = label_.ends_of(number, dx);
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          sum[lane] += filters[lane].q[at + dx] * q[lane] + filters[lane].y[at + dx] * y[lane];
        }
      }
    });
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      if (counts(lane, g.size[2])) slope[place_of_lane(lane, g.size[2])] = static_cast<A>(sum[lane]);
    }
  }
};

}  // namespace edgeloss
