// All comes from sums of products of z and r = z - q. With the centered regions Z and R,
//
//     Q Qᵀ = Z Zᵀ - Z Rᵀ - R Zᵀ + R Rᵀ        Q Rᵀ = Z Rᵀ - R Rᵀ
//
// and where the prediction is good, nothing cancels. Sums are in double: float would lose the noise next to those of a
// large image. They are formed by displacement: the products of a row and another one are the same for all rows of
// regions that are as far apart, but that the first and the last rows of a map are not in all of them.
#include "region.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "../cpu/vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kShifts = 2 * kSide - 1;  // places of an average relative to another one of its region, along an axis
constexpr int64_t kPadding = 8;             // numbers of the longest vector

template <int64_t kHeight, int64_t kWidth = kHeight>
using Matrix = std::array<std::array<double, kWidth>, kHeight>;

struct Axis {
  int64_t size, side;  // of a map and of a region, in averages

  int64_t regions() const { return size - side + 1; }
  // Whether average i is member k of some region.
  bool has_member(int64_t i, int64_t k) const { return i >= k && i - k < regions(); }
  // The end of the averages that are, from i on, the same members.
  int64_t end_of_same(int64_t i) const { return i >= side - 1 && i < regions() ? regions() : i + 1; }
};

// Maps of an image. A region has kDepth planes: 1 of images, which have one plane, else kSide.
template <int64_t kDepth>
struct Grid {
  static constexpr int64_t kRegionRows = kDepth * kSide;
  static constexpr int64_t d = kRegionRows * kSide;
  static constexpr int64_t kRowShifts = (2 * kDepth - 1) * kShifts;          // as kShifts, of rows
  static constexpr double kUnit = kPool * kPool * (kDepth > 1 ? kPool : 1);  // pixels of an average
  using Square = Matrix<d>;

  Axis depth, height, width;

  int64_t averages() const { return depth.size * height.size * width.size; }
  int64_t regions() const { return depth.regions() * height.regions() * width.regions(); }
  // Whether a row of the map is row k of some region.
  bool has_row(int64_t plane, int64_t row, int64_t k) const {
    return depth.has_member(plane, k / kSide) && height.has_member(row, k % kSide);
  }
  // The index of the row at a shift from another one, of the map and of a region, or -1.
  int64_t shifted(int64_t plane, int64_t row, int64_t shift) const {
    return shifted(plane, row, shift, depth.size, height.size);
  }
  static int64_t shifted_in_region(int64_t k, int64_t shift) {
    return shifted(k / kSide, k % kSide, shift, kDepth, kSide);
  }
  static int64_t shifted(int64_t plane, int64_t row, int64_t shift, int64_t planes, int64_t rows) {
    plane += shift / kShifts - (kDepth - 1);
    row += shift % kShifts - (kSide - 1);
    return plane >= 0 && plane < planes && row >= 0 && row < rows ? plane * rows + row : -1;
  }
  // Calls body(plane, row, planes, rows) for blocks of rows that are the same rows of regions.
  template <typename F>
  void for_each_block(int64_t most_planes, int64_t most_rows, const F& body) const {
    for (int64_t plane = 0, planes; plane < depth.size; plane += planes) {
      planes = std::min(most_planes, depth.end_of_same(plane) - plane);
      for (int64_t row = 0, rows; row < height.size; row += rows) {
        rows = std::min(most_rows, height.end_of_same(row) - row);
        body(plane, row, planes, rows);
      }
    }
  }
};

template <int64_t kBytes>
struct VectorOf {
  typedef double type __attribute__((vector_size(kBytes)));
};

// By reference: how vectors are passed by value depends on the processor.
template <typename V>
__attribute__((always_inline)) inline void load(const double* from, V& v) {
  std::memcpy(&v, from, sizeof(v));
}

// ------------------------------------------------------------------------------------------------- sums of products

// A map less one of its averages, so that sums have more digits, and the mean of each member of the regions.
template <typename G>
struct Map {
  std::vector<double> memory;  // some before the first average and behind the last one are read, but not used
  const double* values;
  std::array<double, G::d> mean = {};

  template <typename A>
  Map(const G& grid, const A* given) : memory(grid.averages() + 3 * kPadding), values(&memory[kPadding]) {
    vectorized([=, to = &memory[kPadding], n = grid.averages(), some = given[grid.averages() / 2]]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(given[i]) - some;
    });
    grid.for_each_block(1, 1, [&](int64_t plane, int64_t row, int64_t, int64_t) {
      for (int64_t i = 0; i < kSide; ++i) {
        const double* from = values + (plane * grid.height.size + row) * grid.width.size + i;
        const double part = sum(from, grid.width.regions()) / static_cast<double>(grid.regions());
        for (int64_t k = 0; k < G::kRegionRows; ++k) {
          if (grid.has_row(plane, row, k)) mean[k * kSide + i] += part;
        }
      }
    });
  }
  Map(const Map&) = delete;

  static double sum(const double* from, int64_t n) {
    return vectorized_by_size<float, 64>([=](auto bytes) EDGELOSS_LOOP {
      using V = typename VectorOf<decltype(bytes)::value>::type;
      constexpr int64_t kNumbers = sizeof(V) / sizeof(double);
      V sums = {}, next;
      int64_t i = 0;
      for (; i + kNumbers <= n; i += kNumbers) {
        load(from + i, next);
        sums += next;
      }
      double total = 0;
      for (int64_t j = 0; j < kNumbers; ++j) total += sums[j];
      for (; i < n; ++i) total += from[i];
      return total;
    });
  }
};

// The sums over the regions along some rows of member i of a times member j of b, for all i and j of a row.
template <typename G>
Matrix<kSide> products(const G& grid, const double* a, const double* b, int64_t planes, int64_t rows) {
  return vectorized_by_size<float, 64>([=, height = grid.height.size, width = grid.width.size,
                                        regions = grid.width.regions()](auto bytes) EDGELOSS_LOOP {
    using V = typename VectorOf<decltype(bytes)::value>::type;
    constexpr int64_t kNumbers = sizeof(V) / sizeof(double);
    const int64_t end = regions / kNumbers * kNumbers;
    V sums[kSide][kSide] = {}, rest;
    for (int64_t j = 0; j < kNumbers; ++j) rest[j] = end + j < regions ? 1.0 : 0.0;
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t first = (plane * height + row) * width;
        const auto add = [&](int64_t region, const V& factor) EDGELOSS_LOOP {
          V of_a[kSide], of_b;
          for (int64_t i = 0; i < kSide; ++i) {
            load(a + first + region + i, of_a[i]);
            of_a[i] *= factor;
          }
          for (int64_t j = 0; j < kSide; ++j) {
            load(b + first + region + j, of_b);
            for (int64_t i = 0; i < kSide; ++i) sums[i][j] += of_a[i] * of_b;
          }
        };
        for (int64_t region = 0; region < end; region += kNumbers) add(region, V{} + 1.0);
        add(end, rest);
      }
    }
    Matrix<kSide> result = {};
    for (int64_t i = 0; i < kSide * kSide; ++i) {
      for (int64_t j = 0; j < kNumbers; ++j) result[i / kSide][i % kSide] += sums[i / kSide][i % kSide][j];
    }
    return result;
  });
}

// A Bᵀ of the centered regions of two maps, with labels of 0 and 1.
template <typename G>
typename G::Square scatter(const G& grid, const Map<G>& a, const Map<G>& b) {
  const bool is_symmetric = &a == &b;
  const double n = static_cast<double>(grid.regions());
  typename G::Square result = {};
  // Blocks that stay in cache.
  grid.for_each_block(8, 16, [&](int64_t plane, int64_t row, int64_t planes, int64_t rows) {
    const double* first = a.values + (plane * grid.height.size + row) * grid.width.size;
    for (int64_t shift = is_symmetric ? G::kRowShifts / 2 : 0; shift < G::kRowShifts; ++shift) {
      const int64_t other = grid.shifted(plane, row, shift);
      if (other < 0) continue;
      const Matrix<kSide> sums = products(grid, first, b.values + other * grid.width.size, planes, rows);
      for (int64_t k = 0; k < G::kRegionRows; ++k) {
        const int64_t l = G::shifted_in_region(k, shift);
        if (l < 0 || !grid.has_row(plane, row, k)) continue;
        for (int64_t i = 0; i < kSide * kSide; ++i) {
          result[k * kSide + i / kSide][l * kSide + i % kSide] += sums[i / kSide][i % kSide];
        }
      }
    }
  });
  for (int64_t k = 0; k < G::d; ++k) {
    for (int64_t l = 0; l < G::d; ++l) {
      const bool is_mirrored = is_symmetric && l / kSide < k / kSide;
      result[k][l] = is_mirrored ? result[l][k] : (result[k][l] - n * a.mean[k] * b.mean[l]) / (G::kUnit * G::kUnit);
    }
  }
  return result;
}

// ------------------------------------------------------------------------------------------------------------ slopes

// The slope by an average: a sum of the averages around it, by row and place in the row, and a constant.
template <typename G>
struct Stencil {
  double of_z[G::kRowShifts][kPadding] = {}, of_r[G::kRowShifts][kPadding] = {}, constant = 0;
};

// The slopes by the members of a region, of_z Z + of_r R, and what they are of.
template <typename G>
struct Slopes {
  const G& grid;
  const Map<G>&z, &r;
  typename G::Square of_z = {}, of_r = {};

  Stencil<G> stencil(int64_t plane, int64_t row, int64_t column) const {
    Stencil<G> result;
    for (int64_t k = 0; k < G::d; ++k) {
      if (!grid.has_row(plane, row, k / kSide) || !grid.width.has_member(column, k % kSide)) continue;
      for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
        const int64_t other = G::shifted_in_region(k / kSide, shift);
        for (int64_t l = other * kSide; other >= 0 && l < (other + 1) * kSide; ++l) {
          result.of_z[shift][l % kSide - k % kSide + kSide - 1] += of_z[k][l];
          result.of_r[shift][l % kSide - k % kSide + kSide - 1] += of_r[k][l];
          result.constant -= of_z[k][l] * z.mean[l] + of_r[k][l] * r.mean[l];
        }
      }
    }
    return result;
  }

  template <typename A>
  void write(A* slope) const {
    const int64_t last = grid.width.size - 1;
    std::vector<double> sums(grid.width.size + kPadding);
    grid.for_each_block(grid.depth.size, grid.height.size, [&](int64_t z0, int64_t y0, int64_t planes, int64_t rows) {
      const Stencil<G> ends[] = {stencil(z0, y0, 0), stencil(z0, y0, 1), stencil(z0, y0, last - 1),
                                 stencil(z0, y0, last)};
      const Stencil<G> between = stencil(z0, y0, kSide - 1);
      for (int64_t plane = z0; plane < z0 + planes; ++plane) {
        for (int64_t row = y0; row < y0 + rows; ++row) {
          write_row(plane, row, ends, between, sums.data(), slope + (plane * grid.height.size + row) * grid.width.size);
        }
      }
    });
  }

  template <typename A>
  void write_row(int64_t plane, int64_t row, const Stencil<G>* ends, const Stencil<G>& between, double* sums,
                 A* slope) const {
    vectorized_by_size<float, 64>([=, this, &between, width = grid.width](auto bytes) EDGELOSS_LOOP {
      using V = typename VectorOf<decltype(bytes)::value>::type;
      constexpr int64_t kNumbers = sizeof(V) / sizeof(double), kEnds = 2 * (kSide - 1);
      const int64_t columns[kEnds] = {0, 1, width.size - 2, width.size - 1};
      V of_end[kEnds][kPadding / kNumbers] = {}, factor, next;
      std::fill(sums, sums + width.size, between.constant);
      for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
        const int64_t other = grid.shifted(plane, row, shift);
        if (other < 0) continue;
        const double *from_z = z.values + other * width.size - (kSide - 1),
                     *from_r = r.values + other * width.size - (kSide - 1);
        for (int64_t i = kSide - 1; i < width.regions(); i += kNumbers) {
          V sum, part = {};
          load(sums + i, sum);
          for (int64_t j = 0; j < kShifts; ++j) {
            load(from_z + i + j, next);
            sum += between.of_z[shift][j] * next;
            load(from_r + i + j, next);
            part += between.of_r[shift][j] * next;
          }
          sum += part;
          std::memcpy(sums + i, &sum, sizeof(sum));
        }
        for (int64_t i = 0; i < kEnds; ++i) {
          for (int64_t j = 0; j < kPadding; j += kNumbers) {
            load(ends[i].of_z[shift] + j, factor);
            load(from_z + columns[i] + j, next);
            of_end[i][j / kNumbers] += factor * next;
            load(ends[i].of_r[shift] + j, factor);
            load(from_r + columns[i] + j, next);
            of_end[i][j / kNumbers] += factor * next;
          }
        }
      }
      for (int64_t i = 0; i < kEnds; ++i) {
        sums[columns[i]] = ends[i].constant;
        for (int64_t j = 0; j < kPadding; ++j) sums[columns[i]] += of_end[i][j / kNumbers][j % kNumbers];
      }
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < width.size; ++i) slope[i] = static_cast<A>(sums[i]);
    });
  }
};

// ---------------------------------------------------------------------------------------------------------- the term

// The Cholesky factor in place of the lower triangle; nan where there is none.
template <size_t N>
void factorize(Matrix<N>& m) {
  for (size_t i = 0; i < N; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double s = m[i][j];
      for (size_t k = 0; k < j; ++k) s -= m[i][k] * m[j][k];
      m[i][j] = i == j ? std::sqrt(s) : s / m[j][j];
    }
  }
}

// h of the Schur complement of the last d rows, from a Cholesky factor.
template <int64_t d, size_t N>
double entropy(const Matrix<N>& factor) {
  double h = -0.5 * d * std::log(kNoise);
  for (size_t i = N - d; i < N; ++i) h += std::log(factor[i][i]);
  return h;
}

// The second half of the rows of the inverse of a Cholesky factor.
template <size_t N>
Matrix<N / 2, N> half_of_inverse(const Matrix<N>& factor) {
  Matrix<N / 2, N> rows = {};
  for (size_t i = 0; i < N / 2; ++i) {
    rows[i][N / 2 + i] = 1;
    for (size_t j = N / 2 + i + 1; j-- > 0;) {
      rows[i][j] /= factor[j][j];
      for (size_t k = 0; k < j; ++k) rows[i][k] -= rows[i][j] * factor[j][k];
    }
  }
  return rows;
}

template <int64_t kDepth, typename A>
bool term(const RegionSize& size, const A* of_labels, const A* of_rest, double* value, A* slope) {
  using G = Grid<kDepth>;
  constexpr int64_t d = G::d;
  const G grid{{size.depth, kDepth}, {size.height, kSide}, {size.width, kSide}};
  *value = 0;
  if (slope) std::fill_n(slope, grid.averages(), A(0));
  if (std::min({grid.depth.regions(), grid.height.regions(), grid.width.regions()}) < 1) return false;
  const Map<G> z(grid, of_labels);
  const typename G::Square zz = scatter(grid, z, z);
  typename G::Square once = zz, twice = zz;
  for (int64_t i = 0; i < d; ++i) {
    for (double& number : twice[i]) number *= 2;
    once[i][i] += kNoise;
    twice[i][i] += kNoise;
  }
  factorize(once);
  factorize(twice);
  const double known = entropy<d>(once), range = 2 * known - entropy<d>(twice);  // H, H - f
  if (!(range > kLeastKnown)) return false;

  const Map<G> r(grid, of_rest);
  const typename G::Square zr = scatter(grid, z, r), rr = scatter(grid, r, r);
  double contrast = 0, excess = 0;  // tr ZZᵀ and tr QQᵀ - tr ZZᵀ
  for (int64_t i = 0; i < d; ++i) {
    contrast += zz[i][i];
    excess += rr[i][i] - 2 * zr[i][i];
  }
  const double noise = kNoise * (1 + std::max(0.0, excess / contrast));
  Matrix<2 * d> joint;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      joint[i][j] = zz[i][j] - zr[i][j] - zr[j][i] + rr[i][j] + (i == j ? noise : 0);
      joint[d + i][j] = zr[j][i] - rr[i][j] - (i == j ? noise : 0);
      joint[d + i][d + j] = rr[i][j] + (i == j ? kNoise + noise : 0);
    }
  }
  factorize(joint);
  *value = 1 + (entropy<d>(joint) - known) / range;
  if (!slope) return true;

  // dU = ½ tr(VᵀV dJ), with V = (V_q, V_r) the last rows of the inverse factor of J. Since dR = -dQ, that is with
  // D = V_q - V_r the product of dQ and DᵀV_q Q + DᵀV_r R = DᵀV_q Z - DᵀD R, and of a_q a |D|² / tr ZZᵀ (Z - R).
  const Matrix<d, 2 * d> v = half_of_inverse(joint);
  typename G::Square difference;
  double of_noise = 0;
  for (int64_t k = 0; k < d; ++k) {
    for (int64_t i = 0; i < d; ++i) {
      difference[k][i] = v[k][i] - v[k][d + i];
      of_noise += excess > 0 ? difference[k][i] * difference[k][i] * kNoise / contrast : 0;
    }
  }
  Slopes<G> slopes{grid, z, r};
  const double unit = G::kUnit * G::kUnit * range;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      double of_z = i == j ? of_noise : 0, of_r = -of_z;
      for (int64_t k = 0; k < d; ++k) {
        of_z += difference[k][i] * v[k][j];
        of_r -= difference[k][i] * difference[k][j];
      }
      slopes.of_z[i][j] = of_z / unit;
      slopes.of_r[i][j] = of_r / unit;
    }
  }
  slopes.write(slope);
  return true;
}

}  // namespace

template <typename A>
bool region_term(const RegionSize& size, const A* z, const A* r, double* value, A* slope) {
  return size.is_volume ? term<kSide>(size, z, r, value, slope) : term<1>(size, z, r, value, slope);
}
template bool region_term(const RegionSize&, const float*, const float*, double*, float*);
template bool region_term(const RegionSize&, const double*, const double*, double*, double*);

}  // namespace edgeloss
