// All comes from sums of products of z and r = z - q. With the centered regions Z and R,
//
//     Q Qᵀ = Z Zᵀ - Z Rᵀ - R Zᵀ + R Rᵀ        Q Rᵀ = Z Rᵀ - R Rᵀ
//
// and where the prediction is good, nothing cancels. Sums are in double: float would lose the noise next to those of a
// large image. They are formed by displacement: rows of regions that are as far apart have the same products, but for
// the first and the last rows of a map, which are not in all of them.
#include "region.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "../cpu/vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kShifts = 2 * kSide - 1;  // places of an average relative to another one of its region, along an axis
constexpr int64_t kPadding = 8;             // numbers that are read around a map; at least kShifts, in whole vectors

template <int64_t kHeight, int64_t kWidth = kHeight>
using Matrix = std::array<std::array<double, kWidth>, kHeight>;

struct Axis {
  int64_t size, side;  // of a map and of a region, in averages

  int64_t regions() const { return size - side + 1; }
  // Whether average i is member k of a region.
  bool has_member(int64_t i, int64_t k) const { return i >= k && i - k < regions(); }
  // The end of those from average i on that are the same members.
  int64_t end_of_same(int64_t i) const { return i >= side - 1 && i < regions() ? regions() : i + 1; }
};

struct Block {
  int64_t plane, row, planes, rows;
};

// Maps of an image. A region has kDepth planes: one in images, which have one plane, and kSide in volumes.
template <int64_t kDepth>
struct Grid {
  static constexpr int64_t kRegionRows = kDepth * kSide, d = kRegionRows * kSide;
  static constexpr int64_t kRowShifts = (2 * kDepth - 1) * kShifts;            // as kShifts, of rows
  static constexpr double kPixels = kPool * kPool * (kDepth > 1 ? kPool : 1);  // of an average
  static constexpr double a = kNoise * kPixels * kPixels;                      // of sums in place of averages
  using Square = Matrix<d>;

  Axis depth, height, width;

  int64_t averages() const { return depth.size * height.size * width.size; }
  double regions() const { return static_cast<double>(depth.regions() * height.regions() * width.regions()); }
  // Whether the rows of a block are row k of regions.
  bool has_row(const Block& block, int64_t k) const {
    return depth.has_member(block.plane, k / kSide) && height.has_member(block.row, k % kSide);
  }
  // The row at a shift from another one, of as many planes and rows, or -1.
  static int64_t shifted(int64_t plane, int64_t row, int64_t shift, int64_t planes, int64_t rows) {
    plane += shift / kShifts - (kDepth - 1);
    row += shift % kShifts - (kSide - 1);
    return plane >= 0 && plane < planes && row >= 0 && row < rows ? plane * rows + row : -1;
  }
  // Calls body(block) for blocks of rows that are the same rows of regions, small enough to stay in cache.
  template <typename F>
  void for_each_block(const F& body) const {
    for (Block block = {}; block.plane < depth.size; block.plane += block.planes) {
      block.planes = std::min(depth.end_of_same(block.plane) - block.plane, int64_t{32});
      for (block.row = 0; block.row < height.size; block.row += block.rows) {
        block.rows = std::min(height.end_of_same(block.row) - block.row, int64_t{32});
        body(block);
      }
    }
  }
};

// ------------------------------------------------------------------------------------------------- sums of products

template <int64_t kBytes>
struct VectorOf {
  typedef double type __attribute__((vector_size(kBytes)));
};

// The sum over the regions along the rows of a block of member i of a times member j of b, for all i and j of a row.
// stride: from a row of b to the next one.
template <typename G>
Matrix<kSide> products(const G& grid, const Block& block, const double* a, const double* b, int64_t stride) {
  return vectorized_by_size([=, height = grid.height.size, width = grid.width](auto bytes) EDGELOSS_LOOP {
    constexpr int64_t kNumbers = decltype(bytes)::value / sizeof(double);
    using Vector = typename VectorOf<decltype(bytes)::value>::type;
    const int64_t regions = width.regions(), end = regions / kNumbers * kNumbers;
    Vector sums[kSide][kSide] = {}, rest;
    for (int64_t j = 0; j < kNumbers; ++j) rest[j] = end + j < regions ? 1.0 : 0.0;
    const auto add = [&](const double* from_a, const double* from_b, const Vector& factor) EDGELOSS_LOOP {
      Vector of_a[kSide], of_b;
#pragma GCC unroll 3
      for (int64_t i = 0; i < kSide; ++i) {
        std::memcpy(&of_a[i], from_a + i, sizeof(Vector));
        of_a[i] *= factor;
      }
#pragma GCC unroll 3
      for (int64_t j = 0; j < kSide; ++j) {
        std::memcpy(&of_b, from_b + j, sizeof(Vector));
#pragma GCC unroll 3
        for (int64_t i = 0; i < kSide; ++i) sums[i][j] += of_a[i] * of_b;
      }
    };
    for (int64_t plane = block.plane; plane < block.plane + block.planes; ++plane) {
      for (int64_t row = block.row; row < block.row + block.rows; ++row) {
        const double *from_a = a + (plane * height + row) * width.size, *from_b = b + (plane * height + row) * stride;
        for (int64_t i = 0; i < end; i += kNumbers) add(from_a + i, from_b + i, Vector{} + 1.0);
        add(from_a + end, from_b + end, rest);
      }
    }
    Matrix<kSide> result = {};
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide * kNumbers; ++j) result[i][j / kNumbers] += sums[i][j / kNumbers][j % kNumbers];
    }
    return result;
  });
}

// A map less one of its averages, which leaves sums more digits, and the mean of each member of the regions.
template <typename G>
struct Map {
  std::vector<double> memory;
  const double* values;
  std::array<double, G::d> mean = {};

  template <typename A>
  Map(const G& grid, const A* given) : memory(grid.averages() + 2 * kPadding), values(&memory[kPadding]) {
    vectorized([=, to = &memory[kPadding], n = grid.averages(), some = given[grid.averages() / 2]]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(given[i]) - some;
    });
    const std::vector<double> ones(grid.width.size + kPadding, 1.0);
    grid.for_each_block([&](const Block& block) {
      const Matrix<kSide> sums = products(grid, block, values, ones.data(), 0);
      for (int64_t k = 0; k < G::d; ++k) {
        if (grid.has_row(block, k / kSide)) mean[k] += sums[k % kSide][0] / grid.regions();
      }
    });
  }
  Map(const Map&) = delete;
};

// A Bᵀ of the centered regions of two maps.
template <typename G>
typename G::Square scatter(const G& grid, const Map<G>& a, const Map<G>& b) {
  const bool is_symmetric = &a == &b;
  const int64_t width = grid.width.size;
  typename G::Square result = {};
  grid.for_each_block([&](const Block& block) {
    const int64_t first = block.plane * grid.height.size + block.row;
    for (int64_t shift = is_symmetric ? G::kRowShifts / 2 : 0; shift < G::kRowShifts; ++shift) {
      const int64_t other = G::shifted(block.plane, block.row, shift, grid.depth.size, grid.height.size);
      if (other < 0) continue;
      const Matrix<kSide> sums = products(grid, block, a.values, b.values + (other - first) * width, width);
      for (int64_t k = 0; k < G::kRegionRows; ++k) {
        const int64_t l = G::shifted(k / kSide, k % kSide, shift, G::kRegionRows / kSide, kSide);
        if (l < 0 || !grid.has_row(block, k)) continue;
        for (int64_t i = 0; i < kSide * kSide; ++i) {
          result[k * kSide + i / kSide][l * kSide + i % kSide] += sums[i / kSide][i % kSide];
        }
      }
    }
  });
  for (int64_t k = 0; k < G::d; ++k) {
    for (int64_t l = 0; l < G::d; ++l) {
      const bool is_mirrored = is_symmetric && l / kSide < k / kSide;
      result[k][l] = is_mirrored ? result[l][k] : result[k][l] - grid.regions() * a.mean[k] * b.mean[l];
    }
  }
  return result;
}

// ------------------------------------------------------------------------------------------------------------ slopes

// The slope by an average is the sum of the averages around it times these factors, by row and place in the row.
template <typename G>
struct Stencil {
  Matrix<G::kRowShifts, kPadding> of_z = {}, of_r = {};
  double constant = 0;
};

// The slopes by the members of a region are of_z Z + of_r R.
template <typename G>
struct Slopes {
  const G grid;
  const Map<G>&z, &r;
  typename G::Square of_z = {}, of_r = {};

  // The columns that differ in which members of regions they are; those between have the stencil of the third one.
  int64_t column(int64_t i) const { return i < kSide ? i : grid.width.size - kShifts + i; }

  Stencil<G> stencil(const Block& block, int64_t column) const {
    Stencil<G> result;
    for (int64_t k = 0; k < G::d; ++k) {
      if (!grid.has_row(block, k / kSide) || !grid.width.has_member(column, k % kSide)) continue;
      for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
        const int64_t row = G::shifted(k / kSide / kSide, k / kSide % kSide, shift, G::kRegionRows / kSide, kSide);
        for (int64_t i = 0; row >= 0 && i < kSide; ++i) {
          const int64_t l = row * kSide + i, place = i - k % kSide + kSide - 1;
          result.of_z[shift][place] += of_z[k][l];
          result.of_r[shift][place] += of_r[k][l];
          result.constant -= of_z[k][l] * z.mean[l] + of_r[k][l] * r.mean[l];
        }
      }
    }
    return result;
  }

  template <typename A>
  void write(A* slope) const {
    std::vector<double> sums(grid.width.size);
    grid.for_each_block([&](const Block& block) {
      Stencil<G> stencils[kShifts];
      for (int64_t i = 0; i < kShifts; ++i) stencils[i] = stencil(block, column(i));
      for (int64_t n = 0; n < block.planes * block.rows; ++n) {
        write_row(block.plane + n / block.rows, block.row + n % block.rows, stencils, sums.data(), slope);
      }
    });
  }

  template <typename A>
  void write_row(int64_t plane, int64_t row, const Stencil<G>* stencils, double* sums, A* slope) const {
    vectorized([=, slopes = this]() EDGELOSS_LOOP {
      const G& grid = slopes->grid;
      const int64_t width = grid.width.size, end = grid.width.regions();
      const Stencil<G>& between = stencils[kSide - 1];
      double parts[kShifts][kPadding] = {};
      std::fill(sums, sums + width, between.constant);
      for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
        const int64_t other = G::shifted(plane, row, shift, grid.depth.size, grid.height.size);
        if (other < 0) continue;
        const double* z = slopes->z.values + other * width - (kSide - 1);
        const double* r = slopes->r.values + other * width - (kSide - 1);
        const auto of_z = between.of_z[shift], of_r = between.of_r[shift];
        EDGELOSS_INDEPENDENT
        for (int64_t i = kSide - 1; i < end; ++i) {
          const double by_z = of_z[0] * z[i] + of_z[1] * z[i + 1] + of_z[2] * z[i + 2] + of_z[3] * z[i + 3];
          const double by_r = of_r[0] * r[i] + of_r[1] * r[i + 1] + of_r[2] * r[i + 2] + of_r[3] * r[i + 3];
          sums[i] += by_z + by_r + (of_z[4] * z[i + 4] + of_r[4] * r[i + 4]);
        }
        for (int64_t i = 0; i < kShifts; ++i) {
          const auto &by_z = stencils[i].of_z[shift], &by_r = stencils[i].of_r[shift];
          const int64_t first = slopes->column(i);
          for (int64_t j = 0; j < kPadding; ++j) parts[i][j] += by_z[j] * z[first + j] + by_r[j] * r[first + j];
        }
      }
      for (int64_t i = 0; i < kShifts; ++i) {
        sums[slopes->column(i)] = std::accumulate(parts[i], parts[i] + kPadding, stencils[i].constant);
      }
      A* to = slope + (plane * grid.height.size + row) * width;
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < width; ++i) to[i] = static_cast<A>(sums[i]);
    });
  }
};

// ---------------------------------------------------------------------------------------------------------- the term

// Puts the Cholesky factor in place of the lower triangle, nan where there is none, and returns h of the Schur
// complement of the last d rows.
template <typename G, size_t N>
double factorize(Matrix<N>& m) {
  double h = 0;
  for (size_t i = 0; i < N; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double s = m[i][j];
      for (size_t k = 0; k < j; ++k) s -= m[i][k] * m[j][k];
      m[i][j] = i == j ? std::sqrt(s) : s / m[j][j];
    }
    if (i >= N - G::d) h += std::log(m[i][i] / std::sqrt(G::a));
  }
  return h;
}

// h of factor ZZᵀ + aI.
template <typename G>
double entropy(typename G::Square zz, double factor) {
  for (int64_t i = 0; i < G::d; ++i) {
    for (int64_t j = 0; j < G::d; ++j) zz[i][j] = zz[i][j] * factor + (i == j ? G::a : 0);
  }
  return factorize<G>(zz);
}

// With V = (V_q, V_r), the last rows of the inverse of the Cholesky factor of J, dU = ½ tr(VᵀV dJ). As dR = -dQ, that
// is with D = V_q - V_r the product of dQ and DᵀV_q Q + DᵀV_r R = DᵀV_q Z - DᵀD R, and of dQ and |D|² times the
// derivative of half of a_q, of_noise (Z - R).
template <typename G, size_t N>
void set_slopes(const Matrix<N>& factor, double of_noise, double range, Slopes<G>& slopes) {
  constexpr int64_t d = G::d;
  Matrix<d, N> v = {};
  typename G::Square difference;
  double squares = 0;
  for (int64_t k = 0; k < d; ++k) {
    v[k][d + k] = 1;
    for (int64_t j = d + k; j >= 0; --j) {
      v[k][j] /= factor[j][j];
      for (int64_t i = 0; i < j; ++i) v[k][i] -= v[k][j] * factor[j][i];
    }
    for (int64_t i = 0; i < d; ++i) {
      difference[k][i] = v[k][i] - v[k][d + i];
      squares += difference[k][i] * difference[k][i];
    }
  }
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      double of_z = i == j ? of_noise * squares : 0, of_r = -of_z;
      for (int64_t k = 0; k < d; ++k) {
        of_z += difference[k][i] * v[k][j];
        of_r -= difference[k][i] * difference[k][j];
      }
      slopes.of_z[i][j] = of_z / range;
      slopes.of_r[i][j] = of_r / range;
    }
  }
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
  const double known = entropy<G>(zz, 1), range = 2 * known - entropy<G>(zz, 2);  // H and H - f
  if (!(range > kLeastKnown)) return false;

  const Map<G> r(grid, of_rest);
  const typename G::Square zr = scatter(grid, z, r), rr = scatter(grid, r, r);
  double contrast = 0, excess = 0;  // tr ZZᵀ and tr QQᵀ - tr ZZᵀ
  for (int64_t i = 0; i < d; ++i) {
    contrast += zz[i][i];
    excess += rr[i][i] - 2 * zr[i][i];
  }
  Matrix<2 * d> joint;  // J, its lower triangle
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      const double a = i == j ? G::a : 0, a_q = a * (1 + std::max(0.0, excess / contrast));
      joint[i][j] = zz[i][j] - zr[i][j] - zr[j][i] + rr[i][j] + a_q;
      joint[d + i][j] = zr[j][i] - rr[i][j] - a_q;
      joint[d + i][d + j] = rr[i][j] + a + a_q;
    }
  }
  *value = 1 + (factorize<G>(joint) - known) / range;
  if (slope) {
    Slopes<G> slopes{grid, z, r};
    set_slopes(joint, excess > 0 ? G::a / contrast : 0, range, slopes);
    slopes.write(slope);
  }
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
