// The error of a label that is neither a class nor ignored, in the words of edgeloss/inputs.py.
#pragma once

#include <cstdint>
#include <string>

#include "geometry.h"

namespace edgeloss {

inline std::string count_of_pixels(int64_t n) { return std::to_string(n) + (n == 1 ? " pixel" : " pixels"); }

// Where pixel i of the batch is: [b, y, x] or [b, z, y, x].
inline std::string position(const Geometry& g, int64_t i) {
  const int64_t p = i % g.pixels, row = p / g.width;
  std::string where = "[" + std::to_string(i / g.pixels) + ", ";
  if (g.is_volume) where += std::to_string(row / g.height) + ", ";
  return where + std::to_string(row % g.height) + ", " + std::to_string(p % g.width) + "]";
}

// Which labels were expected, and the one that came.
inline std::string unexpected_label(const Geometry& g, int64_t ignore_index, int64_t label) {
  const std::string expected =
      g.logits == 1 ? "0 or 1 (one logit a pixel is binary)" : "0 to " + std::to_string(g.classes - 1);
  return "expected labels " + expected + ", or ignore_index=" + std::to_string(ignore_index) + ", but got " +
         std::to_string(label);
}

// Takes the message of wrong labels that a device found after its call had returned, or "". Null where no kernels do
// so: those of CUDA set it when the library is loaded.
inline std::string (*take_label_error)() = nullptr;

}  // namespace edgeloss
