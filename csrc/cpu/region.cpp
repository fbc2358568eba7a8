// All comes from sums of products of z and r = z - q, in double: float would lose the noise next to those of a large
// image. With the centered regions Z and R, QQᵀ = ZZᵀ - ZRᵀ - RZᵀ + RRᵀ and QRᵀ = ZRᵀ - RRᵀ, and where the prediction
// is good, nothing cancels. Members of regions that are as far apart have the same products, but for those in the first
// and the last rows and columns of a map, which are not in all regions: so blocks of rows are multiplied by those at
// each shift from them, and groups of columns likewise. Most rows have no label of a class: what they give to the sums
// of z is known.
#include "region.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "../math.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kReach = kSide - 1;        // from an average to the farthest one of its regions, along an axis
constexpr int64_t kShifts = 2 * kReach + 1;  // places of an average relative to another one of its region
constexpr int64_t kGroups = kShifts;         // at most, of places that are the same members of regions
constexpr int64_t kPadded = 8;               // as kShifts, in whole vectors
constexpr int64_t kPadding = 24;             // numbers that are read around a map

template <size_t kHeight, size_t kWidth = kHeight>
using Matrix = std::array<std::array<double, kWidth>, kHeight>;

struct Axis {
  int64_t size, side;  // of a map and of a region, in averages

  int64_t regions() const { return size - side + 1; }
  // The members of regions that average i is.
  int64_t first_member(int64_t i) const { return std::max<int64_t>(0, i - regions() + 1); }
  int64_t last_member(int64_t i) const { return std::min(i, side - 1); }
  // Whether average i is all members.
  bool is_inner(int64_t i) const { return i >= side - 1 && i < regions(); }
  // Calls body(begin, end, number) for each group of averages that are the same members: that of the inner ones, whose
  // number is side - 1, and single ones.
  template <typename F>
  EDGELOSS_INLINE void for_each_group(const F& body) const {
    for (int64_t i = 0, end, group = 0; i < size; i = end, ++group)
      body(i, end = is_inner(i) ? regions() : i + 1, group);
  }
  template <typename F>
  EDGELOSS_INLINE void for_each_single(const F& body) const {
    for_each_group([&](int64_t i, int64_t, int64_t group) EDGELOSS_LOOP {
      if (!is_inner(i)) body(i, group);
    });
  }
};

// Rows that are the same rows of regions.
struct Block {
  int64_t plane, row, planes, rows;
};

// Maps of an image. A region has kDepth planes: one in images, which have one plane, and kSide in volumes.
template <int64_t kDepth>
struct Grid {
  static constexpr int64_t kRegionRows = kDepth * kSide, d = kRegionRows * kSide;
  static constexpr int64_t kPlaneShifts = 2 * kDepth - 1, kRowShifts = kPlaneShifts * kShifts;  // as kShifts
  static constexpr double kPixels = kPool * kPool * (kDepth > 1 ? kPool : 1);                   // of an average
  static constexpr double a = kNoise * kPixels * kPixels;  // of sums in place of averages

  Axis depth, height, width;

  int64_t averages() const { return depth.size * height.size * width.size; }
  double regions() const { return static_cast<double>(depth.regions() * height.regions() * width.regions()); }
  // The row at a shift from another one, of so many planes and rows, or -1.
  static int64_t shifted(int64_t plane, int64_t row, int64_t shift, int64_t planes, int64_t rows) {
    plane += shift / kShifts - (kDepth - 1);
    row += shift % kShifts - kReach;
    return plane >= 0 && plane < planes && row >= 0 && row < rows ? plane * rows + row : -1;
  }
  // Calls body(k, l) for the rows k of regions that the rows of a block are, with the row l of regions at a shift.
  template <typename F>
  void for_each_pair(const Block& block, int64_t shift, const F& body) const {
    const int64_t by_planes = shift / kShifts - (kDepth - 1), by_rows = shift % kShifts - kReach;
    for (int64_t z = depth.first_member(block.plane); z <= depth.last_member(block.plane); ++z) {
      for (int64_t y = height.first_member(block.row); y <= height.last_member(block.row); ++y) {
        const int64_t other_z = z + by_planes, other_y = y + by_rows;
        if (other_z < 0 || other_z >= kDepth || other_y < 0 || other_y >= kSide) continue;
        body(z * kSide + y, other_z * kSide + other_y);
      }
    }
  }
  // Calls body(i, group) for the members i of a row, and the groups of columns that are i.
  template <typename F>
  void for_each_member(const F& body) const {
    width.for_each_group([&](int64_t x, int64_t, int64_t group) {
      for (int64_t i = width.first_member(x); i <= width.last_member(x); ++i) body(i, group);
    });
  }
  template <typename F>
  void for_each_block(const F& body) const {
    depth.for_each_group([&](int64_t plane, int64_t end_plane, int64_t) {
      height.for_each_group(
          [&](int64_t row, int64_t end_row, int64_t) { body(Block{plane, row, end_plane - plane, end_row - row}); });
    });
  }
};

template <int64_t kBytes>
struct VectorOf {
  typedef double type __attribute__((vector_size(kBytes)));
};

template <typename Vector>
EDGELOSS_INLINE void load(const double* from, Vector& to) {
  std::memcpy(&to, from, sizeof(to));
}

// Columns [begin, end) of a row.
struct Span {
  int64_t begin, end;
};

// A map less a number, which leaves sums more digits, and the mean of each member of the regions.
template <typename G>
struct Map {
  const G& grid;
  double* values;           // numbers around them, kPadding on either side, are read but not used
  std::vector<Span> spans;  // of each row: outside of it the row is 0
  std::array<double, G::d> mean = {};

  template <typename A>
  Map(const G& grid, const A* given, A less, double* memory)
      : grid(grid), values(memory + kPadding), spans(grid.depth.size * grid.height.size) {
    const int64_t width = grid.width.size;
    std::fill_n(memory, kPadding, 0.0);
    std::fill_n(values + grid.averages(), kPadding, 0.0);
    std::vector<double> sums(width);  // of the columns of a block
    grid.for_each_block([&](const Block& block) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t n = 0; n < block.planes * block.rows; ++n) {
        const int64_t i = (block.plane + n / block.rows) * grid.height.size + block.row + n % block.rows;
        vectorized([=, from = given + i * width, to = values + i * width, sums = sums.data()]() EDGELOSS_LOOP {
          EDGELOSS_INDEPENDENT
          for (int64_t x = 0; x < width; ++x) {
            to[x] = static_cast<double>(from[x]) - static_cast<double>(less);
            sums[x] += to[x];
          }
        });
        Span& span = spans[i] = {0, width};
        while (span.begin < span.end && row(i)[span.begin] == 0) ++span.begin;
        while (span.begin < span.end && row(i)[span.end - 1] == 0) --span.end;
      }
      std::array<double, kSide> sum = {};
      for (int64_t x = 0; x < grid.width.regions(); ++x) {
        for (int64_t i = 0; i < kSide; ++i) sum[i] += sums[x + i];
      }
      grid.for_each_pair(block, G::kRowShifts / 2, [&](int64_t k, int64_t) {
        for (int64_t i = 0; i < kSide; ++i) mean[k * kSide + i] += sum[i];
      });
    });
    for (double& each : mean) each /= grid.regions();
  }

  const double* row(int64_t i) const { return values + i * grid.width.size; }
};

// Numbers by group of columns, and by the shift from them to others.
using ByColumn = std::array<std::array<double, kPadded>, kGroups>;

// Calls body(span, rows of kRows maps a, row of b) for the rows of a block of b that are not 0.
template <int64_t kRows, typename G, typename F>
EDGELOSS_INLINE void for_each_row(const double* const* a, const Map<G>& b, const Block& block, const F& body) {
  const int64_t height = b.grid.height.size, first = block.plane * height + block.row;
  for (int64_t plane = 0; plane < block.planes; ++plane) {
    for (int64_t below = plane * height; below < plane * height + block.rows; ++below) {
      const Span span = b.spans[first + below];
      if (span.begin == span.end) continue;
      const double* of_a[kRows];
      for (int64_t n = 0; n < kRows; ++n) of_a[n] = a[n] + below * b.grid.width.size;
      body(span, of_a, b.row(first + below));
    }
  }
}

// Σ a(x) b(x + shift) over the inner columns x and the rows of a block of b, with those of kRows maps a.
template <int64_t kRows, int64_t kBytes, typename G>
EDGELOSS_INLINE void multiply_inner(const double* const* a, const Map<G>& b, const Block& block, ByColumn* result) {
  constexpr int64_t kNumbers = kBytes / sizeof(double);
  using Vector = typename VectorOf<kBytes>::type;
  double ones[2 * kNumbers] = {};
  std::fill_n(ones, kNumbers, 1.0);
  Vector sums[kRows][kShifts] = {};
  for_each_row<kRows>(a, b, block,
                      [&, inner = b.grid.width.regions()](const Span& span, const double* const* of_a,
                                                          const double* of_b) EDGELOSS_LOOP {
                        const auto add = [&](int64_t x, const Vector& factor) EDGELOSS_LOOP {
                          Vector own[kRows], other;
                          for (int64_t n = 0; n < kRows; ++n) {
                            load(of_a[n] + x, own[n]);
                            own[n] *= factor;
                          }
                          for (int64_t s = 0; s < kShifts; ++s) {
                            load(of_b + x + s - kReach, other);
                            for (int64_t n = 0; n < kRows; ++n) sums[n][s] += own[n] * other;
                          }
                        };
                        const int64_t end = std::min(inner, span.end + kReach);
                        int64_t x = std::max(kReach, span.begin - kReach);
                        for (; x + kNumbers <= end; x += kNumbers) add(x, Vector{} + 1.0);
                        if (x >= end) return;
                        Vector rest;
                        load(ones + kNumbers - (end - x), rest);
                        add(x, rest);
                      });
  for (int64_t n = 0; n < kRows; ++n) {
    for (int64_t s = 0; s < kShifts; ++s) {
      double sum = 0;
      for (int64_t i = 0; i < kNumbers; ++i) sum += sums[n][s][i];
      result[n][kReach][s] = sum;
    }
  }
}

// The same of each other column.
template <int64_t kRows, int64_t kBytes, typename G>
EDGELOSS_INLINE void multiply_single(const double* const* a, const Map<G>& b, const Block& block, ByColumn* result) {
  constexpr int64_t kNumbers = kBytes / sizeof(double), kVectors = (kShifts + kNumbers - 1) / kNumbers;
  using Vector = typename VectorOf<kBytes>::type;
  b.grid.width.for_each_single([&](int64_t x, int64_t group) EDGELOSS_LOOP {
    Vector sums[kRows][kVectors] = {}, other;
    for_each_row<kRows>(a, b, block, [&](const Span&, const double* const* of_a, const double* of_b) EDGELOSS_LOOP {
      for (int64_t v = 0; v < kVectors; ++v) {
        load(of_b + x - kReach + v * kNumbers, other);
        for (int64_t n = 0; n < kRows; ++n) sums[n][v] += of_a[n][x] * other;
      }
    });
    for (int64_t n = 0; n < kRows; ++n) std::memcpy(result[n][group].data(), sums[n], sizeof(sums[n]));
  });
}

// A Bᵀ of the centered regions of two maps.
template <typename G>
Matrix<G::d> scatter(const Map<G>& a, const Map<G>& b) {
  const G& grid = a.grid;
  const bool is_symmetric = &a == &b;
  Matrix<G::d> result = {};
  grid.for_each_block([&](const Block& block) {
    const auto add = [&](int64_t first, auto rows) {
      constexpr int64_t kRows = decltype(rows)::value;
      const double* of_a[kRows];
      bool exists[kRows];
      std::array<ByColumn, kRows> found;
      for (int64_t n = 0; n < kRows; ++n) {
        const int64_t row = G::shifted(block.plane, block.row, first + n, grid.depth.size, grid.height.size);
        exists[n] = row >= 0;
        of_a[n] = a.row(std::max<int64_t>(row, 0));
      }
      vectorized_by_size<float, 64>([=, b = &b, of_a = of_a + 0, found = found.data()](auto bytes) EDGELOSS_LOOP {
        constexpr int64_t kBytes = decltype(bytes)::value;
        constexpr int64_t kTogether = kBytes < 64 ? 1 : kRows;  // as many as there are registers for
        for (int64_t n = 0; n < kRows && b->grid.width.regions() > kReach; n += kTogether) {
          multiply_inner<kTogether, kBytes>(of_a + n, *b, block, found + n);
        }
        multiply_single<kRows, kBytes>(of_a, *b, block, found);
      });
      for (int64_t n = 0; n < kRows; ++n) {
        if (!exists[n]) continue;
        Matrix<kSide> sums = {};  // by members of a row
        grid.for_each_member([&](int64_t i, int64_t group) {
          for (int64_t j = 0; j < kSide; ++j) sums[i][j] += found[n][group][j - i + kReach];
        });
        grid.for_each_pair(block, first + n, [&](int64_t l, int64_t k) {
          for (int64_t i = 0; i < kSide; ++i) {
            for (int64_t j = 0; j < kSide; ++j) result[k * kSide + i][l * kSide + j] += sums[i][j];
          }
        });
      }
    };
    constexpr int64_t kMiddle = G::kRowShifts / 2;
    if (is_symmetric) add(kMiddle, std::integral_constant<int64_t, kSide>());
    for (int64_t first = is_symmetric ? kMiddle + kSide : 0; first < G::kRowShifts; first += kShifts) {
      add(first, std::integral_constant<int64_t, kShifts>());
    }
  });
  for (int64_t k = 0; k < G::d; ++k) {
    for (int64_t l = 0; l < G::d; ++l) {
      result[k][l] -= grid.regions() * a.mean[k] * b.mean[l];
      if (is_symmetric && l / kSide < k / kSide) result[l][k] = result[k][l];
    }
  }
  return result;
}

// The slopes of a row of averages: a constant by group of columns, and factors of the averages at each shift of rows.
template <typename G>
struct Filter {
  std::array<double, kGroups> constant;
  std::array<ByColumn, G::kRowShifts> of_z, of_r;
};

// The filters of rows where the slope by member k of each region is row k of of_z Z + of_r R; the slope by an average
// is the sum of those of the members that it is.
template <typename G>
class Filters {
 public:
  Filters(const Map<G>& z, const Map<G>& r, const Matrix<G::d>& of_z, const Matrix<G::d>& of_r)
      : grid_(z.grid), of_z_(of_z), of_r_(of_r), filters_(new Filter<G>[kGroups]), of_row_(grid_.height.size) {
    for (int64_t i = 0; i < G::d; ++i) {
      for (int64_t j = 0; j < G::d; ++j) of_means_[i] += of_z[i][j] * z.mean[j] + of_r[i][j] * r.mean[j];
    }
  }

  // Those of each row of planes that are the same planes of regions.
  const Filter<G>* const* of_planes(int64_t first) {
    std::fill_n(reinterpret_cast<double*>(filters_.get()), kGroups * sizeof(Filter<G>) / sizeof(double), 0.0);
    grid_.height.for_each_group([&](int64_t row, int64_t end, int64_t group) {
      const Block block = {first, row, 1, end - row};
      Filter<G>& filter = filters_[group];
      std::fill(of_row_.begin() + row, of_row_.begin() + end, &filter);
      for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
        grid_.for_each_pair(block, shift, [&](int64_t k, int64_t l) {
          grid_.for_each_member([&](int64_t i, int64_t group) {
            double *by_z = &filter.of_z[shift][group][kReach - i], *by_r = &filter.of_r[shift][group][kReach - i];
            for (int64_t j = 0; j < kSide; ++j) {
              by_z[j] += of_z_[k * kSide + i][l * kSide + j];
              by_r[j] += of_r_[k * kSide + i][l * kSide + j];
            }
            if (k == l) filter.constant[group] -= of_means_[k * kSide + i];
          });
        });
      }
    });
    return of_row_.data();
  }

 private:
  const G& grid_;
  const Matrix<G::d>&of_z_, &of_r_;
  std::array<double, G::d> of_means_ = {};
  std::unique_ptr<Filter<G>[]> filters_;  // by group of rows
  std::vector<const Filter<G>*> of_row_;
};

// Writes the slopes of a plane at the inner columns from x on, as many as go into the registers. Each row that is read
// adds to the sums of all rows in reach of it.
template <int64_t kBytes, typename G, typename A>
EDGELOSS_INLINE void write_inner(const Map<G>& z, const Map<G>& r, const Filter<G>* const* filters, int64_t plane,
                                 int64_t x, A* slope) {
  constexpr int64_t kNumbers = kBytes / sizeof(double), kVectors = 2, kStrip = kVectors * kNumbers;
  using Vector = typename VectorOf<kBytes>::type;
  const G& grid = z.grid;
  const int64_t height = grid.height.size, count = std::min(kStrip, grid.width.regions() - x);
  const Filter<G>* of[kShifts];
  Vector sums[kShifts][kVectors];
  const auto start = [&](int64_t m, int64_t y) EDGELOSS_LOOP {
    of[m] = filters[std::clamp<int64_t>(y, 0, height - 1)];
    for (int64_t v = 0; v < kVectors; ++v) sums[m][v] = Vector{} + of[m]->constant[kReach];
  };
  for (int64_t m = 0; m < kShifts; ++m) start(m, m - kReach);
  for (int64_t y = 0; y < height + kReach; ++y) {
    for (int64_t shift = 0; shift < G::kRowShifts && y < height; shift += kShifts) {
      const int64_t row = G::shifted(plane, y, shift + kReach, grid.depth.size, height);
      if (row < 0) continue;
      const auto add = [&](const double* from, auto factors) EDGELOSS_LOOP {
        for (int64_t s = 0; s < kShifts; ++s) {
          Vector numbers[kVectors];
          for (int64_t v = 0; v < kVectors; ++v) load(from + s - kReach + v * kNumbers, numbers[v]);
          for (int64_t m = 0; m < kShifts; ++m) {
            const double factor = (of[m]->*factors)[shift + kShifts - 1 - m][kReach][s];
            for (int64_t v = 0; v < kVectors; ++v) sums[m][v] += factor * numbers[v];
          }
        }
      };
      add(r.row(row) + x, &Filter<G>::of_r);
      const Span span = z.spans[row];
      if (span.begin < x + kStrip + kReach && x - kReach < span.end) add(z.row(row) + x, &Filter<G>::of_z);
    }
    if (y >= kReach) {
      A* to = slope + (plane * height + y - kReach) * grid.width.size + x;
      double numbers[kStrip];
      std::memcpy(numbers, sums[0], sizeof(numbers));
      if (count == kStrip) {
        for (int64_t v = 0; v < kStrip; ++v) to[v] = static_cast<A>(numbers[v]);
      } else {
        for (int64_t v = 0; v < count; ++v) to[v] = static_cast<A>(numbers[v]);
      }
    }
    for (int64_t m = 0; m + 1 < kShifts; ++m) {
      of[m] = of[m + 1];
      for (int64_t v = 0; v < kVectors; ++v) sums[m][v] = sums[m + 1][v];
    }
    start(kShifts - 1, y + kReach + 1);
  }
}

// The slopes of a row at its other columns.
template <int64_t kBytes, typename G, typename A>
EDGELOSS_INLINE void write_single(const Map<G>& z, const Map<G>& r, const Filter<G>& filter, int64_t plane, int64_t y,
                                  A* slope) {
  constexpr int64_t kNumbers = kBytes / sizeof(double), kVectors = (kShifts + kNumbers - 1) / kNumbers;
  using Vector = typename VectorOf<kBytes>::type;
  const G& grid = z.grid;
  grid.width.for_each_single([&](int64_t x, int64_t group) EDGELOSS_LOOP {
    Vector sums[kVectors] = {};
    for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
      const int64_t row = G::shifted(plane, y, shift, grid.depth.size, grid.height.size);
      if (row < 0) continue;
      for (int64_t v = 0; v < kVectors; ++v) {
        const int64_t at = v * kNumbers;
        Vector factors, numbers;
        load(&filter.of_z[shift][group][at], factors);
        load(z.row(row) + x - kReach + at, numbers);
        sums[v] += factors * numbers;
        load(&filter.of_r[shift][group][at], factors);
        load(r.row(row) + x - kReach + at, numbers);
        sums[v] += factors * numbers;
      }
    }
    double sum = filter.constant[group];
    for (int64_t s = 0; s < kShifts; ++s) sum += sums[s / kNumbers][s % kNumbers];
    slope[(plane * grid.height.size + y) * grid.width.size + x] = static_cast<A>(sum);
  });
}

template <typename G, typename A>
void write_slopes(const Map<G>& z, const Map<G>& r, const Matrix<G::d>& of_z, const Matrix<G::d>& of_r, A* slope) {
  Filters<G> filters(z, r, of_z, of_r);
  z.grid.depth.for_each_group([&](int64_t first, int64_t end, int64_t) {
    const Filter<G>* const* of_row = filters.of_planes(first);
    vectorized_by_size<float, 64>([=, z = &z, r = &r](auto bytes) EDGELOSS_LOOP {
      constexpr int64_t kBytes = decltype(bytes)::value, kStep = 2 * kBytes / sizeof(double);
      const G& grid = z->grid;
      for (int64_t plane = first; plane < end; ++plane) {
        for (int64_t x = kReach; x < grid.width.regions(); x += kStep) {
          write_inner<kBytes>(*z, *r, of_row, plane, x, slope);
        }
        for (int64_t y = 0; y < grid.height.size; ++y) write_single<kBytes>(*z, *r, *of_row[y], plane, y, slope);
      }
    });
  });
}

// Puts the Cholesky factor in place of the lower triangle, nan where there is none, and returns h of the Schur
// complement of the last d rows.
template <typename G, size_t N>
double factorize(Matrix<N>& matrix) {
  vectorized([m = matrix.data()]() EDGELOSS_LOOP {
    for (size_t k = 0; k < N; ++k) {
      std::array<double, N> column = {};
      m[k][k] = std::sqrt(m[k][k]);
      for (size_t i = k + 1; i < N; ++i) column[i] = m[i][k] /= m[k][k];
      for (size_t i = k + 1; i < N; ++i) {
        EDGELOSS_INDEPENDENT
        for (size_t j = k + 1; j <= i; ++j) m[i][j] -= column[i] * column[j];
      }
    }
  });
  double product = 1;  // of less than 28 numbers below 10^10
  for (size_t i = N - G::d; i < N; ++i) product *= matrix[i][i] / std::sqrt(G::a);
  return std::log(product);
}

// h of factor ZZᵀ + aI.
template <typename G>
double entropy(Matrix<G::d> zz, double factor) {
  for (int64_t i = 0; i < G::d; ++i) {
    for (int64_t j = 0; j < G::d; ++j) zz[i][j] = zz[i][j] * factor + (i == j ? G::a : 0);
  }
  return factorize<G>(zz);
}

// With V = (V_q, V_r), the last rows of the inverse of the Cholesky factor of J, dU = ½ tr(VᵀV dJ). As dR = -dQ, that
// is with D = V_q - V_r the product of dQ and DᵀV_q Q + DᵀV_r R = DᵀV_q Z - DᵀD R, and of dQ and |D|² times the
// derivative of half of a_q, of_noise (Z - R). All is multiplied by `scale`.
template <size_t d, size_t N>
void slopes_of_members(const Matrix<N>& factor, double of_noise, double scale, Matrix<d>& of_z, Matrix<d>& of_r) {
  vectorized([=, factor = factor.data(), z = of_z.data(), r = of_r.data()]() EDGELOSS_LOOP {
    std::fill_n(z, d, std::array<double, d>{});
    std::fill_n(r, d, std::array<double, d>{});
    double squares = 0, v[N][d] = {};  // Vᵀ
    for (size_t k = 0; k < d; ++k) v[d + k][k] = 1;
    for (size_t j = N; j-- > 0;) {
      for (size_t k = 0; k < d; ++k) v[j][k] /= factor[j][j];
      for (size_t i = 0; i < j; ++i) {
        for (size_t k = 0; k < d; ++k) v[i][k] -= v[j][k] * factor[j][i];
      }
    }
    for (size_t k = 0; k < d; ++k) {
      std::array<double, d> difference, of_q;
      for (size_t i = 0; i < d; ++i) {
        of_q[i] = v[i][k];
        difference[i] = v[i][k] - v[d + i][k];
        squares += difference[i] * difference[i];
      }
      for (size_t i = 0; i < d; ++i) {
        const double of_row = difference[i] * scale;
        for (size_t j = 0; j < d; ++j) {
          z[i][j] += of_row * of_q[j];
          r[i][j] -= of_row * difference[j];
        }
      }
    }
    for (size_t i = 0; i < d; ++i) {
      z[i][i] += of_noise * squares * scale;
      r[i][i] -= of_noise * squares * scale;
    }
  });
}

template <int64_t kDepth, typename A>
bool term(const RegionSize& size, const uint8_t* of_labels, const A* of_rest, std::vector<double>& memory,
          double* value, A* slope) {
  using G = Grid<kDepth>;
  constexpr int64_t d = G::d;
  const G grid{{size.depth, kDepth}, {size.height, kSide}, {size.width, kSide}};
  *value = 0;
  if (std::min({grid.depth.regions(), grid.height.regions(), grid.width.regions()}) < 1) return false;
  const int64_t length = grid.averages() + 2 * kPadding;
  memory.resize(std::max<size_t>(memory.size(), 2 * length));
  const Map<G> z(grid, of_labels, uint8_t(0), memory.data());
  const Matrix<G::d> zz = scatter(z, z);
  const double known = entropy<G>(zz, 1), range = 2 * known - entropy<G>(zz, 2);  // H and H - f
  if (!(range > kLeastKnown)) return false;

  const Map<G> r(grid, of_rest, of_rest[grid.averages() / 2], memory.data() + length);
  const Matrix<G::d> rz = scatter(r, z), rr = scatter(r, r);
  double contrast = 0, of_rz = 0, excess = 0;  // tr ZZᵀ, tr RZᵀ, and tr QQᵀ - tr ZZᵀ
  for (int64_t i = 0; i < d; ++i) {
    contrast += zz[i][i];
    of_rz += rz[i][i];
    excess += rr[i][i] - 2 * rz[i][i];
  }
  Matrix<2 * d> joint;  // J, its lower triangle
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      const double a = i == j ? G::a : 0, a_q = a * (1 + std::max(0.0, excess / contrast));
      joint[i][j] = zz[i][j] - rz[i][j] - rz[j][i] + rr[i][j] + a_q;
      joint[d + i][j] = rz[i][j] - rr[i][j] - a_q;
      joint[d + i][d + j] = rr[i][j] + a + a_q;
    }
  }
  const double unexplained = 1 + (factorize<G>(joint) - known) / range;  // nan stays nan
  const bool is_clamped = unexplained < 0;
  const double nu = is_clamped ? 0 : unexplained, along = 1 - of_rz / contrast, least = kLeastContrast;
  const double sigma = along > least ? 1 : along < -least ? -1 : along / least;
  *value = 1 - sigma * (1 - nu);
  if (slope) {
    Matrix<G::d> of_z, of_r;
    slopes_of_members(joint, excess > 0 ? G::a / contrast : 0, is_clamped ? 0 : sigma / range, of_z, of_r);
    if (std::abs(along) < least) {  // dσ = tr(Z dQᵀ) / (least · contrast)
      for (int64_t i = 0; i < d; ++i) of_z[i][i] -= (1 - nu) / (least * contrast);
    }
    write_slopes(z, r, of_z, of_r, slope);
  }
  return true;
}

}  // namespace

template <typename A>
bool region_term(const RegionSize& size, const uint8_t* z, const A* r, std::vector<double>& memory, double* value,
                 A* slope) {
  return size.is_volume ? term<kSide>(size, z, r, memory, value, slope) : term<1>(size, z, r, memory, value, slope);
}
template bool region_term(const RegionSize&, const uint8_t*, const float*, std::vector<double>&, double*, float*);
template bool region_term(const RegionSize&, const uint8_t*, const double*, std::vector<double>&, double*, double*);

}  // namespace edgeloss
