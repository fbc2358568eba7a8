// Two maps of averages -> the region term and its slopes. Symbols are those of docs/loss.md.
//
// All comes from the sums of products of z and r = z - q: with the centered regions Z and R
//
//     Q Qᵀ = Z Zᵀ - Z Rᵀ - R Zᵀ + R Rᵀ        Q Rᵀ = Z Rᵀ - R Rᵀ
//
// in which a good prediction cancels nothing. They are formed in double: next to the sums of a whole image, float would
// lose the noise.
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
constexpr int64_t kLanes = 8;               // sums that are formed next to each other
constexpr int64_t kRows = 16, kPlanes = 8;  // whose products are added up at a time, so that they stay in cache

template <int64_t kHeight, int64_t kWidth = kHeight>
using Matrix = std::array<std::array<double, kWidth>, kHeight>;

// The positions along an axis of a map. The first ones and the last ones are parts of their own, and those between are
// one part, so that member k of the regions, one after another, has the parts from k to k + side - 1.
struct Axis {
  int64_t size, side;  // averages of the map, and of a region

  int64_t regions() const { return size - side + 1; }
  int64_t begin() const { return std::min(side - 1, regions()); }  // of the part between
  int64_t end() const { return std::max(side - 1, regions()); }
  int64_t part(int64_t i) const { return i < begin() ? i : i < end() ? side - 1 : i - regions() + side; }
  int64_t end_of_part(int64_t i) const { return i >= begin() && i < end() ? end() : i + 1; }
  bool has_member(int64_t part, int64_t k) const {
    return regions() > 1 ? part >= k && part < k + side : part == 2 * k;  // of a single region: 0, 2 and 4
  }
};

// The maps of an image; in 2-D they have one plane, and so have regions.
template <bool kIsVolume>
struct Grid {
  static constexpr int64_t kDepth = kIsVolume ? kSide : 1;                  // planes of a region
  static constexpr int64_t kRegionRows = kDepth * kSide;                    // rows of a region
  static constexpr int64_t d = kRegionRows * kSide;                         // averages of a region
  static constexpr int64_t kRowShifts = (2 * kDepth - 1) * kShifts;         // places of a row relative to another one
  static constexpr double kUnit = kPool * kPool * (kIsVolume ? kPool : 1);  // of averages to their sums
  using Square = Matrix<d>;

  Axis depth, height, width;

  int64_t averages() const { return depth.size * height.size * width.size; }
  int64_t regions() const { return depth.regions() * height.regions() * width.regions(); }
  int64_t part(int64_t plane, int64_t row) const { return depth.part(plane) * kShifts + height.part(row); }
  bool has_row(int64_t part, int64_t k) const {
    return depth.has_member(part / kShifts, k / kSide) && height.has_member(part % kShifts, k % kSide);
  }
  // The row at a shift from another one, of this many planes and rows; or -1.
  static int64_t shifted(int64_t plane, int64_t row, int64_t shift, int64_t planes, int64_t rows) {
    plane += shift / kShifts - (kDepth - 1);
    row += shift % kShifts - (kSide - 1);
    return plane >= 0 && plane < planes && row >= 0 && row < rows ? plane * rows + row : -1;
  }
  int64_t shifted_row(int64_t plane, int64_t row, int64_t shift) const {
    return shifted(plane, row, shift, depth.size, height.size);
  }
  static int64_t shifted_member(int64_t k, int64_t shift) {
    return shifted(k / kSide, k % kSide, shift, kDepth, kSide);
  }
};

// kLanes sums, in the vectors of a processor.
template <int64_t kBytes>
struct Lanes {
  typedef double Vector __attribute__((vector_size(kBytes)));
  Vector vectors[kLanes * sizeof(double) / kBytes] = {};

  static __attribute__((always_inline)) void load(const double* from, Vector& v) { std::memcpy(&v, from, sizeof(v)); }
  // Adds kLanes products.
  __attribute__((always_inline)) void add(const double* a, const double* b) {
    int64_t i = 0;
    for (Vector& sum : vectors) {
      Vector x, y;
      load(a + i, x);
      load(b + i, y);
      sum += x * y;
      i += kBytes / sizeof(double);
    }
  }
  __attribute__((always_inline)) void store(double* to) const { std::memcpy(to, vectors, sizeof(vectors)); }
  __attribute__((always_inline)) double sum() const {
    double lanes[kLanes], total = 0;
    store(lanes);
    for (double lane : lanes) total += lane;
    return total;
  }
};

// A map less its mean, which keeps products small, and the mean of each member of the regions.
template <typename G>
struct Map {
  std::vector<double> memory;  // some before the first and behind the last average are read, though not used
  const double* values;
  std::array<double, G::d> mean = {};

  template <typename A>
  Map(const G& grid, const A* given) : memory(grid.averages() + 3 * kLanes), values(&memory[kLanes]) {
    vectorized([=, to = &memory[kLanes], n = grid.averages()]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(given[i]);
    });
    const double center = sum(values, grid.averages()) / static_cast<double>(grid.averages());
    vectorized([=, to = &memory[kLanes], n = grid.averages()]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] -= center;
    });
    const double* from = values;
    for (int64_t plane = 0; plane < grid.depth.size; ++plane) {
      for (int64_t row = 0; row < grid.height.size; ++row, from += grid.width.size) {
        for (int64_t i = 0; i < kSide; ++i) {
          const double of_row = sum(from + i, grid.width.regions()) / static_cast<double>(grid.regions());
          for (int64_t k = 0; k < G::kRegionRows; ++k) {
            if (grid.has_row(grid.part(plane, row), k)) mean[k * kSide + i] += of_row;
          }
        }
      }
    }
  }
  Map(const Map&) = delete;

  static double sum(const double* from, int64_t n) {
    return vectorized_by_size<float, 64>([=](auto bytes) EDGELOSS_LOOP {
      constexpr double kOnes[kLanes] = {1, 1, 1, 1, 1, 1, 1, 1};
      Lanes<decltype(bytes)::value> sums;
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) sums.add(from + i, kOnes);
      double total = sums.sum();
      for (; i < n; ++i) total += from[i];
      return total;
    });
  }
};

// ------------------------------------------------------------------------------------------------- sums of products

// The products of members i and j of regions along a row, of some rows and others, which b points to.
template <typename G>
Matrix<kSide> products(const G& grid, const double* a, const double* b, int64_t planes, int64_t rows) {
  return vectorized_by_size<float, 64>([=, width = grid.width, height = grid.height.size](auto bytes) EDGELOSS_LOOP {
    Lanes<decltype(bytes)::value> between[kShifts], ends[kShifts];  // by shift; by part, all shifts next to each other
    const int64_t columns[kShifts] = {0, 1, 0, width.size - 2, width.size - 1}, begin = width.begin(),
                  end = width.end();
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t row = 0; row < rows; ++row) {
        const double* of_a = a + (plane * height + row) * width.size;
        const double* of_b = b + (plane * height + row) * width.size - (kSide - 1);
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes) {
          for (int64_t shift = 0; shift < kShifts; ++shift) between[shift].add(of_a + i, of_b + i + shift);
        }
        double rest[kLanes];
        for (int64_t j = 0; j < kLanes; ++j) rest[j] = i + j < end ? of_a[i + j] : 0.0;
        for (int64_t shift = 0; shift < kShifts; ++shift) between[shift].add(rest, of_b + i + shift);
        for (int64_t part = 0; part < kShifts; ++part) {
          double same[kLanes];
          std::fill_n(same, kLanes, of_a[columns[part]]);
          ends[part].add(same, of_b + columns[part]);
        }
      }
    }
    double by_part[kShifts][kLanes];
    for (int64_t part = 0; part < kShifts; ++part) ends[part].store(by_part[part]);
    for (int64_t shift = 0; shift < kShifts; ++shift) by_part[kSide - 1][shift] = between[shift].sum();
    Matrix<kSide> sums = {};
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        for (int64_t part = 0; part < kShifts; ++part) {
          if (width.has_member(part, i)) sums[i][j] += by_part[part][j - i + kSide - 1];
        }
      }
    }
    return sums;
  });
}

// A Bᵀ: the products of each member of the regions of a with each of b, less those of their means.
template <typename G>
typename G::Square scatter(const G& grid, const Map<G>& a, const Map<G>& b) {
  typename G::Square result = {};
  const bool is_symmetric = &a == &b;
  for (int64_t plane = 0, end; plane < grid.depth.size; plane = end) {
    end = std::min(plane + kPlanes, grid.depth.end_of_part(plane));
    for (int64_t row = 0, stop; row < grid.height.size; row = stop) {
      stop = std::min(row + kRows, grid.height.end_of_part(row));
      const double* from = a.values + (plane * grid.height.size + row) * grid.width.size;
      for (int64_t shift = is_symmetric ? G::kRowShifts / 2 : 0; shift < G::kRowShifts; ++shift) {
        const int64_t other = grid.shifted_row(plane, row, shift);
        if (other < 0) continue;
        const auto sums = products(grid, from, b.values + other * grid.width.size, end - plane, stop - row);
        for (int64_t k = 0; k < G::kRegionRows; ++k) {
          const int64_t l = G::shifted_member(k, shift);
          if (l < 0 || !grid.has_row(grid.part(plane, row), k)) continue;
          for (int64_t i = 0; i < kSide; ++i) {
            for (int64_t j = 0; j < kSide; ++j) result[k * kSide + i][l * kSide + j] += sums[i][j];
          }
        }
      }
    }
  }
  const double n = static_cast<double>(grid.regions());
  for (int64_t k = 0; k < G::d; ++k) {
    for (int64_t l = 0; l < G::d; ++l) {
      const bool is_mirrored = is_symmetric && l / kSide < k / kSide;
      result[k][l] = is_mirrored ? result[l][k] : (result[k][l] - n * a.mean[k] * b.mean[l]) / (G::kUnit * G::kUnit);
    }
  }
  return result;
}

// -------------------------------------------------------------------------------------------------------- the term

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

template <int64_t d>
double trace(const Matrix<d>& m) {
  double s = 0;
  for (int64_t i = 0; i < d; ++i) s += m[i][i];
  return s;
}

// The last rows of the inverse of a Cholesky factor.
template <size_t N>
Matrix<N / 2, N> last_rows_of_inverse(const Matrix<N>& factor) {
  Matrix<N / 2, N> rows = {};
  for (size_t i = 0; i < N / 2; ++i) {
    auto& row = rows[i];
    row[N / 2 + i] = 1;
    for (size_t j = N / 2 + i + 1; j-- > 0;) {
      row[j] /= factor[j][j];
      for (size_t k = 0; k < j; ++k) row[k] -= row[j] * factor[j][k];
    }
  }
  return rows;
}

// ------------------------------------------------------------------------------------------------------------- slopes

// The slope by an average: what the averages around it are multiplied by, and a constant. Averages at the ends of an
// axis are in fewer members of the regions.
template <typename G>
struct Stencil {
  double of_z[G::kRowShifts][kLanes], of_r[G::kRowShifts][kLanes];  // all shifts along a row in a vector
  double constant;
};

// of_z, of_r: the slope by member k of a region of each average of the region.
template <typename G>
std::vector<Stencil<G>> stencils(const G& grid, const Map<G>& z, const Map<G>& r, const typename G::Square& of_z,
                                 const typename G::Square& of_r) {
  std::vector<Stencil<G>> result(G::kRowShifts * kShifts, Stencil<G>{});  // by part
  for (int64_t part = 0; part < G::kRowShifts * kShifts; ++part) {
    Stencil<G>& to = result[part];
    for (int64_t k = 0; k < G::d; ++k) {
      if (!grid.has_row(part / kShifts, k / kSide) || !grid.width.has_member(part % kShifts, k % kSide)) continue;
      for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
        const int64_t row = G::shifted_member(k / kSide, shift);
        for (int64_t i = 0; row >= 0 && i < kSide; ++i) {
          const int64_t l = row * kSide + i, column = i - k % kSide + kSide - 1;
          to.of_z[shift][column] += of_z[k][l];
          to.of_r[shift][column] += of_r[k][l];
          to.constant -= of_z[k][l] * z.mean[l] + of_r[k][l] * r.mean[l];
        }
      }
    }
  }
  return result;
}

template <typename G, typename A>
void write_slopes(const G& grid, const Map<G>& z, const Map<G>& r, const std::vector<Stencil<G>>& stencils, A* slope) {
  std::vector<double> sums(grid.width.size + kLanes);
  for (int64_t plane = 0; plane < grid.depth.size; ++plane) {
    for (int64_t row = 0; row < grid.height.size; ++row, slope += grid.width.size) {
      vectorized_by_size<float, 64>([=, &grid, of_z = z.values, of_r = r.values, to = sums.data(), width = grid.width,
                                     of_row = &stencils[grid.part(plane, row) * kShifts]](auto bytes) EDGELOSS_LOOP {
        using Numbers = Lanes<decltype(bytes)::value>;
        Numbers ends[kShifts];
        const int64_t columns[kShifts] = {0, 1, 0, width.size - 2, width.size - 1};
        std::fill(to + width.begin(), to + width.end(), of_row[kSide - 1].constant);
        for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
          const int64_t other = grid.shifted_row(plane, row, shift);
          if (other < 0) continue;
          const double *a = of_z + other * width.size - (kSide - 1), *b = of_r + other * width.size - (kSide - 1);
          const double *by_a = of_row[kSide - 1].of_z[shift], *by_b = of_row[kSide - 1].of_r[shift];
          for (int64_t i = width.begin(); i < width.end(); i += sizeof(typename Numbers::Vector) / sizeof(double)) {
            typename Numbers::Vector of_a, of_b = {}, next;
            Numbers::load(to + i, of_a);
            for (int64_t column = 0; column < kShifts; ++column) {
              Numbers::load(a + i + column, next);
              of_a += by_a[column] * next;
              Numbers::load(b + i + column, next);
              of_b += by_b[column] * next;
            }
            of_a += of_b;
            std::memcpy(to + i, &of_a, sizeof(of_a));
          }
          for (int64_t part = 0; part < kShifts; ++part) {
            ends[part].add(of_row[part].of_z[shift], a + columns[part]);
            ends[part].add(of_row[part].of_r[shift], b + columns[part]);
          }
        }
        for (int64_t i = 0; i < width.size; ++i) {
          const int64_t part = width.part(i);
          if (part != kSide - 1) to[i] = of_row[part].constant + ends[part].sum();
        }
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < width.size; ++i) slope[i] = static_cast<A>(to[i]);
      });
    }
  }
}

template <bool kIsVolume, typename A>
bool term(const RegionSize& size, const A* z, const A* r, double* value, A* slope) {
  using G = Grid<kIsVolume>;
  constexpr int64_t d = G::d;
  const G grid{{size.depth, G::kDepth}, {size.height, kSide}, {size.width, kSide}};
  *value = 0;
  if (slope) std::fill_n(slope, grid.averages(), A(0));
  if (std::min({grid.depth.regions(), grid.height.regions(), grid.width.regions()}) < 1) return false;
  const Map<G> labels(grid, z);
  const typename G::Square zz = scatter(grid, labels, labels);
  typename G::Square once = zz, twice = zz;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) twice[i][j] *= 2;
    once[i][i] += kNoise;
    twice[i][i] += kNoise;
  }
  factorize(once);
  factorize(twice);
  const double known = entropy<d>(once), range = 2 * known - entropy<d>(twice);  // H, H - f
  if (!(range > kLeastKnown)) return false;

  const Map<G> rest(grid, r);
  const typename G::Square zr = scatter(grid, labels, rest), rr = scatter(grid, rest, rest);
  const double excess = trace<d>(rr) - 2 * trace<d>(zr);  // tr QQᵀ - tr ZZᵀ
  const double noise = kNoise * (1 + std::max(0.0, excess / trace<d>(zz)));
  Matrix<2 * d> joint;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      const double own = i == j ? noise : 0.0, of_z = i == j ? kNoise : 0.0;
      joint[i][j] = zz[i][j] - zr[i][j] - zr[j][i] + rr[i][j] + own;
      joint[d + i][j] = zr[j][i] - rr[i][j] - own;
      joint[d + i][d + j] = rr[i][j] + own + of_z;
    }
  }
  factorize(joint);
  *value = 1 + (entropy<d>(joint) - known) / range;
  if (!slope) return true;

  // dU = ½ tr(VᵀV dJ) with V = (V_q, V_r), the last rows of the inverse factor: nothing cancels. With D = V_q - V_r
  // and dR = -dQ it is <DᵀV_q Z - DᵀD R, dQ>, and that of the noise a |D|² / tr ZZᵀ <Z - R, dQ>.
  const Matrix<d, 2 * d> v = last_rows_of_inverse(joint);
  typename G::Square difference, of_z = {}, of_r = {};
  double of_noise = 0;
  for (int64_t k = 0; k < d; ++k) {
    for (int64_t i = 0; i < d; ++i) {
      difference[k][i] = v[k][i] - v[k][d + i];
      of_noise += difference[k][i] * difference[k][i];
    }
  }
  of_noise *= excess > 0 ? kNoise / trace<d>(zz) : 0;
  for (int64_t i = 0; i < d; ++i) {
    of_z[i][i] = of_noise;
    of_r[i][i] = -of_noise;
    for (int64_t j = 0; j < d; ++j) {
      for (int64_t k = 0; k < d; ++k) {
        of_z[i][j] += difference[k][i] * v[k][j];
        of_r[i][j] -= difference[k][i] * difference[k][j];
      }
      of_z[i][j] /= G::kUnit * G::kUnit * range;
      of_r[i][j] /= G::kUnit * G::kUnit * range;
    }
  }
  write_slopes(grid, labels, rest, stencils(grid, labels, rest, of_z, of_r), slope);
  return true;
}

}  // namespace

template <typename A>
bool region_term(const RegionSize& size, const A* z, const A* r, double* value, A* slope) {
  return size.is_volume ? term<true>(size, z, r, value, slope) : term<false>(size, z, r, value, slope);
}
template bool region_term(const RegionSize&, const float*, const float*, double*, float*);
template bool region_term(const RegionSize&, const double*, const double*, double*, double*);

}  // namespace edgeloss
