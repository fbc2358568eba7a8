// The region term of a class of an image: maps of averages -> how much of what the labels say about small regions the
// prediction leaves open, and its slopes. Symbols and formulas are those of docs/loss.md and
// edgeloss/_reference/region.py.
#pragma once

#include <cstdint>
#include <vector>

namespace edgeloss {

constexpr int64_t kPool = 3;             // pixels per axis that are averaged
constexpr int64_t kSide = 3;             // averages per axis of a region
constexpr double kNoise = 5e-4;          // a
constexpr double kLeastKnown = 0.1;      // of H - f, else a class has no term
constexpr double kLeastContrast = 0.05;  // along the labels, relative to theirs, where the sign is 1

// The number of averages along an axis of `size` pixels.
inline int64_t averages_of(int64_t size) { return (size - 1) / kPool + 1; }

// The size of a map of averages; the depth of that of an image is 1.
struct RegionSize {
  int64_t depth, height, width;
  bool is_volume;
};

// Returns whether a class has a term, in an image with valid pixels of it and of another one; else the value is 0. Of
// the pixels under each average, z [size] is the number of labels of the class, and r [size] the sum of z - q. slope
// [size], which may be null, or r, gets the derivative of the value, R = 1 - σ (1 - ν), by the q of one of them. If r
// has a nan, the value and all slopes are nan. memory: what one call after another works in.
template <typename A>
bool region_term(const RegionSize& size, const uint8_t* z, const A* r, std::vector<double>& memory, double* value,
                 A* slope);

}  // namespace edgeloss
