// Labels of any integer type, and the error of a label that is neither a class nor ignored.
#pragma once

#include <cstdint>
#include <string>

#include "geometry.h"

namespace edgeloss {

constexpr int16_t kIgnored = -1;  // what forward keeps of a pixel that does not count

// A tensor of labels or class indices: int64, int32, int16, uint8 or bool.
struct Labels {
  const void* data;
  int64_t bytes;  // of a label

  // Calls body(pointer to the labels, of their type).
  template <typename F>
  EDGELOSS_INLINE auto by_type(const F& body) const {
    switch (bytes) {
      case 8:
        return body(static_cast<const int64_t*>(data));
      case 4:
        return body(static_cast<const int32_t*>(data));
      case 2:
        return body(static_cast<const int16_t*>(data));
      default:
        return body(static_cast<const uint8_t*>(data));
    }
  }
  EDGELOSS_INLINE int64_t at(int64_t i) const {
    return by_type([i](const auto* label) { return static_cast<int64_t>(label[i]); });
  }
};

// The labels of the loss, with what decides which of them count.
struct Target {
  Labels labels;
  int64_t ignore_index, classes;  // INT64_MIN ignores none: it stands for no label

  EDGELOSS_INLINE int64_t at(int64_t i) const { return labels.at(i); }
  EDGELOSS_INLINE bool is_class(int64_t label) const { return label != ignore_index && label >= 0 && label < classes; }
  EDGELOSS_INLINE bool is_wrong(int64_t label) const { return label != ignore_index && !is_class(label); }
};

inline std::string count_of_pixels(int64_t n) { return std::to_string(n) + (n == 1 ? " pixel" : " pixels"); }

// Where pixel i of the batch is: [b, y, x] or [b, z, y, x], with the number of the table after b if there are several.
inline std::string position(const Geometry& g, int64_t i) {
  const int64_t image = i / g.pixels, p = i % g.pixels, row = p / g.width;
  std::string where = "[" + std::to_string(image / g.tables) + ", ";
  if (g.tables > 1) where += std::to_string(image % g.tables) + ", ";
  if (g.is_volume) where += std::to_string(row / g.height) + ", ";
  return where + std::to_string(row % g.height) + ", " + std::to_string(p % g.width) + "]";
}

// Which labels were expected, and the one that came; in the words of edgeloss/inputs.py.
inline std::string unexpected_label(const Geometry& g, int64_t ignore_index, int64_t label) {
  const std::string expected =
      g.logits == 1 ? "0 or 1 (one logit per pixel is binary)" : "0 to " + std::to_string(g.classes - 1);
  const std::string ignored = ignore_index == INT64_MIN ? "" : ", or ignore_index=" + std::to_string(ignore_index);
  return "expected labels " + expected + ignored + ", but got " + std::to_string(label);
}

}  // namespace edgeloss
