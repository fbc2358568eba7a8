// What forward returns besides the sums: counts, region terms, and the state that backward reads. The fake kernel in
// edgeloss/fused.py has the same sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "options.h"
#include "region/region.h"
#include "tensors.h"

namespace edgeloss {

// Of so few classes the statistics of the softmax take less time to form again than to keep.
constexpr int64_t kFewClasses = 8;

constexpr int64_t kSideNumbers = 3;  // of one side of an edge pixel, as in neighbors/gather.h

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

// The lengths of the tensors of the state but the labels.
struct StateSizes {
  int64_t stats, field, slopes, has_term, edge, sides, near, near_count;

  StateSizes(const Tensor& logits, const Geometry& g, const Options& options) {
    const int64_t pixels = g.batch * g.pixels;
    const bool forms_again = !is_upsampled(g, logits) && g.classes <= kFewClasses;
    const bool has_slopes = options.keeps_state && has_regions(g, options);
    stats = options.gathers || (options.keeps_state && !forms_again) ? 2 * pixels : 0;
    field = options.has_decay() ? pixels : 0;
    slopes = has_slopes ? g.batch * g.classes * averages_in(region_size(g)) : 0;
    has_term = has_slopes ? g.batch * g.classes : 0;
    edge = options.gathers ? pixels : 0;
    sides = options.gathers ? 2 * kSideNumbers * pixels : 0;
    near = options.edges && options.keeps_state && !options.gathers && !is_upsampled(g, logits) ? pixels : 0;
    near_count = near > 0 ? g.batch * g.depth * g.height : 0;  // at least the number of slabs
  }
};

inline Outputs new_outputs(const Tensor& logits, const Tensor& target, const Geometry& g, const Options& options) {
  const StateSizes sizes(logits, g, options);
  const ScalarType real = logits.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  const auto flat = [&](int64_t length, ScalarType type) { return new_tensor(logits, {length}, type); };
  const int64_t images = options.regions ? g.batch / g.tables : 0;
  return {flat(Row::kCount, ScalarType::Double),
          flat(options.count_edges ? g.tables * g.classes : 0, ScalarType::Long),
          flat(images, ScalarType::Double),
          flat(images, ScalarType::Double),
          {new_tensor(logits, sizes_of(target), ScalarType::Short), flat(sizes.stats, real), flat(sizes.field, real),
           flat(sizes.slopes, real), flat(sizes.has_term, ScalarType::Byte), flat(sizes.edge, ScalarType::Byte),
           flat(sizes.sides, real), flat(sizes.near, ScalarType::Int), flat(sizes.near, ScalarType::Short),
           flat(sizes.near, real), flat(sizes.near_count, ScalarType::Int)}};
}

}  // namespace edgeloss
