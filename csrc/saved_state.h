// What forward returns besides the sums: counts, region terms, and the state that backward reads.
#pragma once

#include <array>
#include <cstdint>

#include "options.h"
#include "region/region.h"
#include "tensors.h"

namespace edgeloss {

// Of so few classes the statistics of the softmax take less time to form again than to keep.
constexpr int64_t kFewClasses = 8;

constexpr int64_t kSideNumbers = 3;  // of one side of an edge pixel, as in neighbors/power_mean.h

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

struct SavedState {
  Tensor label;     // [B, *S]: the class, or kIgnored
  Tensor stats;     // m of all pixels, then r; empty where backward forms them again
  Tensor field;     // d of each pixel, or the user's distances; empty without decay
  Tensor slopes;    // [B, C, *A] of the region term by the shares under each average; empty without regions
  Tensor has_term;  // [B, C] of the region term: whether a class has one
  Tensor edge;      // [B, *S], the edge mask, where neighbors are gathered
  Tensor sides;     // numbers of both sides of each edge pixel, where neighbors are gathered
  // The weights of the edge terms that are not 0, as EdgeWeights has them: of each slab as many as it has pixels at
  // most, and how many there are, -1 where there are more, which are formed again, as of upsampled logits all are.
  Tensor near_place, near_class, near_weight, near_count;
};

struct Outputs {
  Tensor sums, edge_counts;      // by Row; [tables, C], the edge pixels of each class, or empty
  Tensor region, region_weight;  // [B / tables]: R, and W of the image; empty unless asked for
  SavedState saved;
};

// The tensors of the state but the labels. The fake kernel in edgeloss/fused.py has the same sizes.
struct StateTensor {
  const char* name;
  Tensor SavedState::* member;
  int64_t length;
  ScalarType type;
};
inline std::array<StateTensor, 10> state_tensors(const Tensor& logits, const Geometry& g, const Options& options) {
  using S = SavedState;
  const ScalarType real = real_type(logits);
  const int64_t pixels = g.batch * g.pixels, pairs = options.gathers ? pixels : 0;
  const bool upsampled = is_upsampled(g, logits), has_statistics = upsampled || g.classes > kFewClasses;
  const int64_t maps = options.keeps_state && has_regions(g, options) ? g.batch * g.classes : 0;
  const int64_t near = options.edges && options.keeps_state && !options.gathers && !upsampled ? pixels : 0;
  return {{{"stats", &S::stats, pairs || (options.keeps_state && has_statistics) ? 2 * pixels : 0, real},
           {"field", &S::field, options.has_decay() ? pixels : 0, real},
           {"slopes", &S::slopes, maps * averages_in(region_size(g)), real},
           {"has_term", &S::has_term, maps, ScalarType::Byte},
           {"edge", &S::edge, pairs, ScalarType::Byte},
           {"sides", &S::sides, 2 * kSideNumbers * pairs, real},
           {"near_place", &S::near_place, near, ScalarType::Int},
           {"near_class", &S::near_class, near, ScalarType::Short},
           {"near_weight", &S::near_weight, near, real},
           // At least the number of slabs.
           {"near_count", &S::near_count, near > 0 ? g.batch * g.depth * g.height : 0, ScalarType::Int}}};
}

inline Outputs new_outputs(const Tensor& logits, const Tensor& target, const Geometry& g, const Options& options) {
  const auto flat = [&](int64_t length, ScalarType type) { return new_tensor(logits, {length}, type); };
  const int64_t images = options.regions ? g.batch / g.tables : 0;
  Outputs outputs = {flat(Row::kCount, ScalarType::Double),
                     flat(options.count_edges ? g.tables * g.classes : 0, ScalarType::Long),
                     flat(images, ScalarType::Double),
                     flat(images, ScalarType::Double),
                     {}};
  outputs.saved.label = new_tensor(logits, sizes_of(target), ScalarType::Short);
  for (const StateTensor& each : state_tensors(logits, g, options)) {
    outputs.saved.*each.member = flat(each.length, each.type);
  }
  return outputs;
}

}  // namespace edgeloss
