// Labels of any integer type.
#pragma once

#include <cstdint>

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
};

}  // namespace edgeloss
