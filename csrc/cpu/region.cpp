// All comes from sums of products of z and r = z - q, in double: float would lose the noise next to those of a large
// image. With the centered regions Z and R, QQᵀ = ZZᵀ - ZRᵀ - RZᵀ + RRᵀ and QRᵀ = ZRᵀ - RRᵀ, and where the prediction
// is good, nothing cancels. Rows of regions that are as far apart have the same products, but for the first and the
// last rows of a map, which are not in all regions: so blocks of rows are multiplied by those at each shift from them.
#include "region.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kShifts = 2 * kSide - 1;  // places of an average relative to another one of its region, along an axis
constexpr int64_t kPadding = 8;             // numbers that are read around a map; at least kShifts, in whole vectors

template <size_t kHeight, size_t kWidth = kHeight>
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

  Axis depth, height, width;

  int64_t averages() const { return depth.size * height.size * width.size; }
  double regions() const { return static_cast<double>(depth.regions() * height.regions() * width.regions()); }
  // The row at a shift from another one, of so many planes and rows, or -1.
  static int64_t shifted(int64_t plane, int64_t row, int64_t shift, int64_t planes, int64_t rows) {
    plane += shift / kShifts - (kDepth - 1);
    row += shift % kShifts - (kSide - 1);
    return plane >= 0 && plane < planes && row >= 0 && row < rows ? plane * rows + row : -1;
  }
  // Calls body(k, l) for the rows k of regions that the rows of a block are, with the row l of regions at a shift.
  template <typename F>
  void for_each_pair(const Block& block, int64_t shift, const F& body) const {
    for (int64_t k = 0; k < kRegionRows; ++k) {
      const int64_t l = shifted(k / kSide, k % kSide, shift, kDepth, kSide);
      if (l >= 0 && depth.has_member(block.plane, k / kSide) && height.has_member(block.row, k % kSide)) body(k, l);
    }
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

template <int64_t kBytes>
struct VectorOf {
  typedef double type __attribute__((vector_size(kBytes)));
};

// Σ a(region, i) b(region, j) over the regions along the rows of a block, by members i and j of a row. `stride` is that
// of the rows of b.
template <typename G>
Matrix<kSide> products(const G& grid, const Block& block, const double* a, const double* b, int64_t stride) {
  return vectorized_by_size([=, height = grid.height.size, width = grid.width](auto bytes) EDGELOSS_LOOP {
    constexpr int64_t kNumbers = decltype(bytes)::value / sizeof(double);
    using Vector = typename VectorOf<decltype(bytes)::value>::type;
    const int64_t regions = width.regions(), end = regions / kNumbers * kNumbers;
    Vector sums[kSide][kSide] = {}, rest;
    for (int64_t j = 0; j < kNumbers; ++j) rest[j] = end + j < regions ? 1.0 : 0.0;
    const auto add = [&](const double* from_a, const double* from_b, const Vector& factor) EDGELOSS_LOOP {
      Vector first, second, third, of_b;
      std::memcpy(&first, from_a, sizeof(Vector));
      std::memcpy(&second, from_a + 1, sizeof(Vector));
      std::memcpy(&third, from_a + 2, sizeof(Vector));
      for (int64_t j = 0; j < kSide; ++j) {
        std::memcpy(&of_b, from_b + j, sizeof(Vector));
        of_b *= factor;
        sums[0][j] += first * of_b;
        sums[1][j] += second * of_b;
        sums[2][j] += third * of_b;
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
  double* values;  // numbers around them, kPadding on either side, are read but not used
  std::array<double, G::d> mean = {};

  template <typename A>
  Map(const G& grid, const A* given, double* memory) : values(memory + kPadding) {
    vectorized([=, to = values, n = grid.averages(), some = given[grid.averages() / 2]]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(given[i]) - some;
    });
    const std::vector<double> ones(grid.width.size + kPadding, 1.0);
    grid.for_each_block([&](const Block& block) {
      const Matrix<kSide> sums = products(grid, block, values, ones.data(), 0);
      grid.for_each_pair(block, G::kRowShifts / 2, [&](int64_t k, int64_t) {
        for (int64_t i = 0; i < kSide; ++i) mean[k * kSide + i] += sums[i][0] / grid.regions();
      });
    });
  }
};

// A Bᵀ of the centered regions of two maps.
template <typename G>
Matrix<G::d> scatter(const G& grid, const Map<G>& a, const Map<G>& b) {
  const bool is_symmetric = &a == &b;
  const int64_t width = grid.width.size;
  Matrix<G::d> result = {};
  grid.for_each_block([&](const Block& block) {
    const int64_t first = block.plane * grid.height.size + block.row;
    for (int64_t shift = is_symmetric ? G::kRowShifts / 2 : 0; shift < G::kRowShifts; ++shift) {
      const int64_t other = G::shifted(block.plane, block.row, shift, grid.depth.size, grid.height.size);
      if (other < 0) continue;
      const Matrix<kSide> sums = products(grid, block, a.values, b.values + (other - first) * width, width);
      grid.for_each_pair(block, shift, [&](int64_t k, int64_t l) {
        for (int64_t i = 0; i < kSide * kSide; ++i) {
          result[k * kSide + i / kSide][l * kSide + i % kSide] += sums[i / kSide][i % kSide];
        }
      });
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

// The slope by member k of each region is row k of of_z Z + of_r R; the slope by an average is the sum of those of the
// members that it is.
template <typename G, typename A>
void write_slopes(const G& grid, const Map<G>& z, const Map<G>& r, const Matrix<G::d>& of_z, const Matrix<G::d>& of_r,
                  A* slope) {
  std::vector<double> sums(kSide * grid.width.size);  // of a row, by member along it; 0 where there is none
  grid.for_each_block([&](const Block& block) {
    Matrix<kSide> by_z[G::kRowShifts] = {}, by_r[G::kRowShifts] = {};
    std::array<double, kSide> constant = {};
    for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
      grid.for_each_pair(block, shift, [&](int64_t k, int64_t l) {
        for (int64_t n = 0; n < kSide * kSide; ++n) {
          const int64_t i = k * kSide + n / kSide, j = l * kSide + n % kSide;
          by_z[shift][n / kSide][n % kSide] += of_z[i][j];
          by_r[shift][n / kSide][n % kSide] += of_r[i][j];
          constant[n / kSide] -= of_z[i][j] * z.mean[j] + of_r[i][j] * r.mean[j];
        }
      });
    }
    for (int64_t n = 0; n < block.planes * block.rows; ++n) {
      const int64_t plane = block.plane + n / block.rows, row = block.row + n % block.rows;
      vectorized([&, grid, width = grid.width.size, regions = grid.width.regions(), to = sums.data()]() EDGELOSS_LOOP {
        for (int64_t i = 0; i < kSide; ++i) std::fill_n(to + i * width + i, regions, constant[i]);
        for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
          const int64_t other = G::shifted(plane, row, shift, grid.depth.size, grid.height.size);
          if (other < 0) continue;
          const double *x = z.values + other * width, *y = r.values + other * width;
          for (int64_t i = 0; i < kSide; ++i) {
            const std::array<double, kSide> a = by_z[shift][i], b = by_r[shift][i];
            double* sum = to + i * width + i;
            EDGELOSS_INDEPENDENT
            for (int64_t j = 0; j < regions; ++j) {
              sum[j] +=
                  (a[0] * x[j] + a[1] * x[j + 1] + a[2] * x[j + 2]) + (b[0] * y[j] + b[1] * y[j + 1] + b[2] * y[j + 2]);
            }
          }
        }
        A* to_slope = slope + (plane * grid.height.size + row) * width;
        EDGELOSS_INDEPENDENT
        for (int64_t j = 0; j < width; ++j) to_slope[j] = static_cast<A>(to[j] + to[width + j] + to[2 * width + j]);
      });
    }
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
    double squares = 0;
    for (size_t k = 0; k < d; ++k) {
      std::array<double, N> v = {};
      v[d + k] = 1;
      for (size_t j = d + k + 1; j-- > 0;) {
        v[j] /= factor[j][j];
        EDGELOSS_INDEPENDENT
        for (size_t i = 0; i < j; ++i) v[i] -= v[j] * factor[j][i];
      }
      std::array<double, d> difference;
      for (size_t i = 0; i < d; ++i) {
        difference[i] = v[i] - v[d + i];
        squares += difference[i] * difference[i];
      }
      for (size_t i = 0; i < d; ++i) {
        const double of_row = difference[i] * scale;
        EDGELOSS_INDEPENDENT
        for (size_t j = 0; j < d; ++j) {
          z[i][j] += of_row * v[j];
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
bool term(const RegionSize& size, const A* of_labels, const A* of_rest, double* value, A* slope) {
  using G = Grid<kDepth>;
  constexpr int64_t d = G::d;
  const G grid{{size.depth, kDepth}, {size.height, kSide}, {size.width, kSide}};
  *value = 0;
  if (std::min({grid.depth.regions(), grid.height.regions(), grid.width.regions()}) < 1) return false;
  const int64_t length = grid.averages() + 2 * kPadding;
  std::vector<double> memory(2 * length);
  const Map<G> z(grid, of_labels, &memory[0]);
  const Matrix<G::d> zz = scatter(grid, z, z);
  const double known = entropy<G>(zz, 1), range = 2 * known - entropy<G>(zz, 2);  // H and H - f
  if (!(range > kLeastKnown)) return false;

  const Map<G> r(grid, of_rest, &memory[length]);
  const Matrix<G::d> zr = scatter(grid, z, r), rr = scatter(grid, r, r);
  double contrast = 0, of_zr = 0, excess = 0;  // tr ZZᵀ, tr ZRᵀ, and tr QQᵀ - tr ZZᵀ
  for (int64_t i = 0; i < d; ++i) {
    contrast += zz[i][i];
    of_zr += zr[i][i];
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
  const double unexplained = 1 + (factorize<G>(joint) - known) / range;  // nan stays nan
  const bool is_clamped = unexplained < 0;
  const double nu = is_clamped ? 0 : unexplained, along = 1 - of_zr / contrast, least = kLeastContrast;
  const double sigma = along > least ? 1 : along < -least ? -1 : along / least;
  *value = 1 - sigma * (1 - nu);
  if (slope) {
    Matrix<G::d> of_z, of_r;
    slopes_of_members(joint, excess > 0 ? G::a / contrast : 0, is_clamped ? 0 : sigma / range, of_z, of_r);
    if (std::abs(along) < least) {  // dσ = tr(Z dQᵀ) / (least · contrast)
      for (int64_t i = 0; i < d; ++i) of_z[i][i] -= (1 - nu) / (least * contrast);
    }
    write_slopes(grid, z, r, of_z, of_r, slope);
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
