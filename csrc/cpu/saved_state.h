// What forward returns: sums, region terms, and the state that backward reads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "../options.h"
#include "../tensors.h"
#include "region.h"

namespace edgeloss {

// Of so few classes the statistics of the softmax take less time to form again than to keep.
constexpr int64_t kFewClasses = 8;

constexpr int64_t kSideNumbers = 3;  // of one side of an edge pixel, as in ../power_mean.h

inline int64_t averages_in(const RegionSize& size) { return size.depth * size.height * size.width; }
// Of the maps of averages of an image.
inline RegionSize region_size(const Geometry& g) {
  return {g.is_volume ? averages_of(g.depth) : 1, averages_of(g.height), averages_of(g.width), g.is_volume};
}
// Whether an image holds a region.
inline bool has_regions(const Geometry& g, const Options& options) {
  const RegionSize size = region_size(g);
  return options.regions && g.batch * g.pixels > 0 && size.height >= kSide && size.width >= kSide &&
         (!g.is_volume || size.depth >= kSide);
}

// What backward reads.
struct SavedState {
  Tensor label;                          // [B, *S]: the class, or kIgnored
  Tensor memory;                         // bytes, with the parts of State
  const std::optional<Tensor> distance;  // the user's, in place of the field
};

// The parts of the state, null where a call has no use for them: the numbers of pixels are [B, P].
template <typename A>
struct State {
  static constexpr int64_t kAligned = 64;  // bytes that each begins at a multiple of

  uint8_t* edge;      // the edge mask, where the edge terms are by pairs
  A *m, *r;           // the statistics of the softmax; null where backward forms them again
  A* field;           // d, with decay, unless the user gives it
  A* slopes;          // [B, C, *A] of the region term by the shares under each average
  A* sides;           // [B, P, 2, 3], of edge pixels, where the edge terms are by pairs
  uint8_t* has_term;  // [B, C] of the region term: whether a class has one
  int64_t bytes = 0;
  std::vector<std::pair<std::byte*, int64_t>> gaps;  // between the parts

  // Lays the parts out from `memory` on, which is null where only their bytes are asked for. The fake kernel in
  // edgeloss/_kernels/operators.py counts the same.
  State(std::byte* memory, const Geometry& g, const Options& options, bool is_upsampled, bool has_distance) {
    const int64_t pixels = g.batch * g.pixels, pairs = options.by_pairs ? pixels : 0;
    const bool keeps_statistics = options.keeps_state && (is_upsampled || g.classes > kFewClasses);
    const int64_t maps = options.keeps_state && has_regions(g, options) ? g.batch * g.classes : 0;
    const auto lay_out = [&](auto*& part, int64_t count) {
      using T = std::remove_reference_t<decltype(*part)>;
      const int64_t used = count * static_cast<int64_t>(sizeof(T)), taken = (used + kAligned - 1) / kAligned * kAligned;
      part = memory && count > 0 ? reinterpret_cast<T*>(memory + bytes) : nullptr;
      if (part) gaps.push_back({memory + bytes + used, taken - used});
      bytes += taken;
    };
    lay_out(edge, pairs);  // first, where Python reads it
    lay_out(m, pairs || keeps_statistics ? 2 * pixels : 0);
    r = m ? m + pixels : nullptr;
    lay_out(field, options.has_decay() && !has_distance ? pixels : 0);
    lay_out(slopes, maps * averages_in(region_size(g)));
    lay_out(has_term, maps);
    lay_out(sides, 2 * kSideNumbers * pairs);
  }

  // Writes what no pass writes, as all that an operator returns is to be written: distances far from edges, and the
  // bytes between the parts.
  void clear(const Geometry& g) const {
    if (field) std::fill_n(field, g.batch * g.pixels, A(0));
    for (const auto& [at, count] : gaps) std::memset(at, 0, count);
  }
};

inline int64_t state_bytes(const Tensor& logits, const Geometry& g, const Options& options, bool has_distance) {
  return by_arithmetic(logits, [&](auto a) {
    return State<decltype(a)>(nullptr, g, options, is_upsampled(g, logits), has_distance).bytes;
  });
}

struct Outputs {
  Tensor sums;                  // by Row
  Tensor edge_sums;             // [EdgeRow::kCount, B, C]
  Tensor region, image_weight;  // [B / tables]: R, and W of the image; empty unless asked for
  Tensor maps;                  // [kMaps, B, *S], the terms of each pixel, or empty
  SavedState saved;
};

inline Outputs new_outputs(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& distance,
                           const Geometry& g, const Options& options) {
  const auto flat = [&](int64_t length, ScalarType type) { return torch::stable::new_empty(logits, {length}, type); };
  const int64_t images = options.regions ? g.batch / g.tables : 0;
  std::vector<int64_t> maps = sizes_of(target);
  maps.insert(maps.begin(), options.maps ? kMaps : 0);
  return {flat(Row::kCount, ScalarType::Double),
          torch::stable::new_empty(logits, {EdgeRow::kCount, g.batch, g.classes}, ScalarType::Double),
          flat(images, ScalarType::Double),
          flat(images, ScalarType::Double),
          torch::stable::new_empty(logits, maps, real_type(logits)),
          {torch::stable::new_empty(logits, sizes_of(target), ScalarType::Short),
           flat(state_bytes(logits, g, options, distance.has_value()), ScalarType::Byte), distance}};
}

}  // namespace edgeloss
