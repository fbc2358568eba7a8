// The region term of a class of an image, from maps of averages: how much of what the labels say about small regions
// the prediction leaves open, and its slopes. docs/loss.md has the formulas, edgeloss/region.py the same in plain
// PyTorch; symbols are those of both.
#pragma once

#include <cstdint>

namespace edgeloss {

constexpr int64_t kPool = 3;         // pixels per axis that are averaged
constexpr int64_t kSide = 3;         // averages per axis of a region
constexpr double kNoise = 5e-4;      // a
constexpr double kLeastKnown = 0.1;  // of H - f, else the class has no term

// The number of averages along an axis of `size` pixels.
inline int64_t averages_of(int64_t size) { return (size - 1) / kPool + 1; }

// The size of a map of averages; that of an image has a depth of 1.
struct RegionSize {
  int64_t depth, height, width;
  bool is_volume;
};

// Computes the term of a class with valid pixels of it and of another class, and returns whether it has one.
//
// z: [size], the number of labels of the class under each average, at most 9, or 27 in volumes.
// r: [size], the sums of z - q of the pixels under each average. A nan makes the value and all slopes nan.
// value: (U - f) / (H - f), 0 without a term.
// slope: [size], the derivative of the value by q of one pixel under each average, 0 without a term; or null.
template <typename A>
bool region_term(const RegionSize& size, const A* z, const A* r, double* value, A* slope);

}  // namespace edgeloss
