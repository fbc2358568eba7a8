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

constexpr int64_t kShifts = 2 * kSide - 1;  // the places of an average relative to another one of its region, by axis
constexpr int64_t kLanes = 8;               // sums that are formed next to each other
constexpr int64_t kRows = 16, kPlanes = 8;  // whose products are added up at a time, so that they stay in cache

template <int64_t kHeight, int64_t kWidth = kHeight>
using Matrix = std::array<std::array<double, kWidth>, kHeight>;

template <int64_t kBytes>
struct Vector {
  typedef double type __attribute__((vector_size(kBytes)));
};
// As many of them as have kLanes numbers.
template <int64_t kBytes>
using Vectors = std::array<typename Vector<kBytes>::type, kLanes * sizeof(double) / kBytes>;

template <typename V>
__attribute__((always_inline)) inline void load(const double* from, V& v) {
  std::memcpy(&v, from, sizeof(v));
}

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

// The maps of an image; in 2-D they have a plane, and so have regions.
template <bool kIsVolume>
struct Grid {
  static constexpr int64_t kDepth = kIsVolume ? kSide : 1;           // planes of a region
  static constexpr int64_t kRegionRows = kDepth * kSide;             // rows of a region
  static constexpr int64_t d = kRegionRows * kSide;                  // averages of a region
  static constexpr int64_t kRowShifts = (2 * kDepth - 1) * kShifts;  // places of a row relative to another one
  using Square = Matrix<d>;

  Axis depth, height, width;

  int64_t averages() const { return depth.size * height.size * width.size; }
  int64_t regions() const { return depth.regions() * height.regions() * width.regions(); }
  // Rows have as many parts as shifts.
  int64_t part(int64_t plane, int64_t row) const { return depth.part(plane) * kShifts + height.part(row); }
  bool has_row(int64_t part, int64_t k) const {
    return depth.has_member(part / kShifts, k / kSide) && height.has_member(part % kShifts, k % kSide);
  }
  static int64_t plane_shift(int64_t row_shift) { return row_shift / kShifts - (kDepth - 1); }
  static int64_t shift_in_plane(int64_t row_shift) { return row_shift % kShifts - (kSide - 1); }
  int64_t distance(int64_t row_shift) const {
    return (plane_shift(row_shift) * height.size + shift_in_plane(row_shift)) * width.size;
  }
  // The row of a region at a shift from its row k, or -1.
  static int64_t row_at(int64_t k, int64_t row_shift) {
    const int64_t plane = k / kSide + plane_shift(row_shift), row = k % kSide + shift_in_plane(row_shift);
    return plane >= 0 && plane < kDepth && row >= 0 && row < kSide ? plane * kSide + row : -1;
  }
};

double sum(const double* from, int64_t n) {
  return vectorized_by_size<float, 64>([=](auto bytes) EDGELOSS_LOOP {
    Vectors<decltype(bytes)::value> sums = {}, next;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      load(from + i, next);
      for (size_t v = 0; v < sums.size(); ++v) sums[v] += next[v];
    }
    double lanes[kLanes], total = 0;
    std::memcpy(lanes, &sums, sizeof(lanes));
    for (double lane : lanes) total += lane;
    for (; i < n; ++i) total += from[i];
    return total;
  });
}

// A map less its mean, which keeps the products small, and the mean of each member of the regions.
template <typename G>
struct Map {
  std::vector<double> memory;  // some before the first and behind the last average are read, though not used
  const double* values;
  std::array<double, G::d> mean = {};

  template <typename A>
  Map(const G& grid, const A* given) : memory(grid.averages() + 3 * kLanes), values(&memory[kLanes]) {
    double* to = &memory[kLanes];
    vectorized([=, n = grid.averages()]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(given[i]);
    });
    const double center = sum(to, grid.averages()) / static_cast<double>(grid.averages());
    vectorized([=, n = grid.averages()]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] -= center;
    });
    Matrix<G::kRowShifts, kShifts> sums = {};
    const double* from = values;
    for (int64_t plane = 0; plane < grid.depth.size; ++plane) {
      for (int64_t row = 0; row < grid.height.size; ++row, from += grid.width.size) {
        for (int64_t i = 0, end; i < grid.width.size; i = end) {
          end = grid.width.end_of_part(i);
          sums[grid.part(plane, row)][grid.width.part(i)] += sum(from + i, end - i);
        }
      }
    }
    for (int64_t k = 0; k < G::d; ++k) {
      for (int64_t part = 0; part < G::kRowShifts; ++part) {
        for (int64_t i = 0; i < kShifts; ++i) {
          if (grid.has_row(part, k / kSide) && grid.width.has_member(i, k % kSide)) mean[k] += sums[part][i];
        }
      }
      mean[k] /= static_cast<double>(grid.regions());
    }
  }
  Map(const Map&) = delete;
};

// ---------------------------------------------------------------------------------------------- sums of products

// Of averages and those at each shift in another row: [shift][part of the row of the first one].
using Products = Matrix<kShifts>;

// The products of the rows of some planes with others, which b points to.
template <typename G>
Products products(const G& grid, const double* a, const double* b, int64_t planes, int64_t rows) {
  return vectorized_by_size<float, 64>([=, width = grid.width.size, begin = grid.width.begin(), end = grid.width.end(),
                                        height = grid.height.size](auto bytes) EDGELOSS_LOOP {
    using V = Vectors<decltype(bytes)::value>;
    V between[kShifts] = {}, ends[kShifts] = {};  // ends by part, all shifts in a vector
    const int64_t column[kShifts] = {0, 1, 0, width - 2, width - 1};
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t row = 0; row < rows; ++row) {
        const double* from = a + (plane * height + row) * width;
        const double* others = b + (plane * height + row) * width - (kSide - 1);
        const auto add = [&](const double* x, const double* y) EDGELOSS_LOOP {
          V first, second;
          load(x, first);
          for (int64_t shift = 0; shift < kShifts; ++shift) {
            load(y + shift, second);
            for (size_t v = 0; v < first.size(); ++v) between[shift][v] += first[v] * second[v];
          }
        };
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes) add(from + i, others + i);
        double rest[kLanes];
        for (int64_t j = 0; j < kLanes; ++j) rest[j] = i + j < end ? from[i + j] : 0.0;
        add(rest, others + i);
        for (int64_t part = 0; part < kShifts; ++part) {
          V second;
          load(others + column[part], second);
          for (size_t v = 0; v < second.size(); ++v) ends[part][v] += from[column[part]] * second[v];
        }
      }
    }
    double lanes[kShifts][kLanes], of_ends[kShifts][kLanes];
    std::memcpy(lanes, between, sizeof(lanes));
    std::memcpy(of_ends, ends, sizeof(of_ends));
    Products sums;
    for (int64_t shift = 0; shift < kShifts; ++shift) {
      for (int64_t part = 0; part < kShifts; ++part) sums[shift][part] = of_ends[part][shift];
      double total = 0;
      for (double lane : lanes[shift]) total += lane;
      sums[shift][kSide - 1] = total;
    }
    return sums;
  });
}

// The products of each member of the regions of a with each of b, less those of their means: A Bᵀ, of centered regions.
template <typename G>
typename G::Square scatter(const G& grid, const Map<G>& a, const Map<G>& b) {
  typename G::Square result = {};
  const bool is_symmetric = &a == &b;
  for (int64_t plane = 0, end; plane < grid.depth.size; plane = end) {
    end = std::min(plane + kPlanes, grid.depth.end_of_part(plane));
    for (int64_t row = 0, stop; row < grid.height.size; row = stop) {
      stop = std::min(row + kRows, grid.height.end_of_part(row));
      const int64_t part = grid.part(plane, row), first = (plane * grid.height.size + row) * grid.width.size;
      for (int64_t shift = is_symmetric ? G::kRowShifts / 2 : 0; shift < G::kRowShifts; ++shift) {
        bool is_known = false;
        Matrix<kSide> sums = {};
        for (int64_t k = 0; k < G::kRegionRows; ++k) {
          const int64_t l = G::row_at(k, shift);
          if (l < 0 || !grid.has_row(part, k)) continue;
          if (!is_known) {
            is_known = true;
            const Products found =
                products(grid, a.values + first, b.values + first + grid.distance(shift), end - plane, stop - row);
            for (int64_t i = 0; i < kSide; ++i) {
              for (int64_t j = 0; j < kSide; ++j) {
                for (int64_t of_row = 0; of_row < kShifts; ++of_row) {
                  if (grid.width.has_member(of_row, i)) sums[i][j] += found[j - i + kSide - 1][of_row];
                }
              }
            }
          }
          for (int64_t i = 0; i < kSide; ++i) {
            for (int64_t j = 0; j < kSide; ++j) result[k * kSide + i][l * kSide + j] += sums[i][j];
          }
        }
      }
    }
  }
  constexpr double kUnit = kPool * kPool * (G::kDepth > 1 ? kPool : 1);  // of averages to their sums
  for (int64_t k = 0; k < G::d; ++k) {
    for (int64_t l = 0; l < G::d; ++l) {
      if (is_symmetric && l / kSide < k / kSide) {
        result[k][l] = result[l][k];
      } else {
        result[k][l] = (result[k][l] - static_cast<double>(grid.regions()) * a.mean[k] * b.mean[l]) / (kUnit * kUnit);
      }
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
        const int64_t row = G::row_at(k / kSide, shift);
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
    for (int64_t row = 0; row < grid.height.size; ++row) {
      const int64_t first = (plane * grid.height.size + row) * grid.width.size;
      int64_t distance[G::kRowShifts], shift_of[G::kRowShifts], shifts = 0;
      for (int64_t shift = 0; shift < G::kRowShifts; ++shift) {
        const int64_t other_plane = plane + G::plane_shift(shift), other_row = row + G::shift_in_plane(shift);
        if (other_plane < 0 || other_plane >= grid.depth.size || other_row < 0 || other_row >= grid.height.size)
          continue;
        shift_of[shifts] = shift;
        distance[shifts++] = first + grid.distance(shift) - (kSide - 1);
      }
      const Stencil<G>* of_row = &stencils[grid.part(plane, row) * kShifts];
      vectorized_by_size<float, 64>([=, &distance, &shift_of, of_z = z.values, of_r = r.values, to = sums.data(),
                                     width = grid.width](auto bytes) EDGELOSS_LOOP {
        constexpr int64_t kNumbers = decltype(bytes)::value / sizeof(double);
        using V = typename Vector<decltype(bytes)::value>::type;
        const Stencil<G>& between = of_row[kSide - 1];
        for (int64_t i = width.begin(); i < width.end(); ++i) to[i] = between.constant;
        for (int64_t s = 0; s < shifts; ++s) {
          const double *a = of_z + distance[s], *b = of_r + distance[s];
          const double *by_a = between.of_z[shift_of[s]], *by_b = between.of_r[shift_of[s]];
          for (int64_t i = width.begin(); i < width.end(); i += kNumbers) {
            V total, part = {}, next;
            load(to + i, total);
            for (int64_t column = 0; column < kShifts; ++column) {
              load(a + i + column, next);
              total += by_a[column] * next;
              load(b + i + column, next);
              part += by_b[column] * next;
            }
            total += part;
            std::memcpy(to + i, &total, sizeof(total));
          }
        }
        for (int64_t i = 0; i < width.size; i = width.end_of_part(i)) {
          if (i == width.begin() && i < width.end()) continue;
          const Stencil<G>& here = of_row[width.part(i)];
          Vectors<decltype(bytes)::value> total = {}, factor, next;
          for (int64_t s = 0; s < shifts; ++s) {
            for (const auto& [map, factors] : {std::pair(of_z, here.of_z), std::pair(of_r, here.of_r)}) {
              load(map + distance[s] + i, next);
              load(factors[shift_of[s]], factor);
              for (size_t v = 0; v < total.size(); ++v) total[v] += factor[v] * next[v];
            }
          }
          double lanes[kLanes];
          std::memcpy(lanes, &total, sizeof(lanes));
          to[i] = here.constant;
          for (double lane : lanes) to[i] += lane;
        }
      });
      vectorized([=, from = sums.data(), to = slope + first, n = grid.width.size]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
      });
    }
  }
}

template <bool kIsVolume, typename A>
bool term(const RegionSize& size, const A* z, const A* r, double* value, A* slope) {
  using G = Grid<kIsVolume>;
  constexpr int64_t d = G::d;
  constexpr double kUnit = kPool * kPool * (kIsVolume ? kPool : 1);  // of averages to their sums
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
      of_z[i][j] /= kUnit * kUnit * range;
      of_r[i][j] /= kUnit * kUnit * range;
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
