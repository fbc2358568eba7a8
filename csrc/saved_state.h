// What forward returns besides the sums: counts, the maps, and the state that it leaves to backward. The sizes of these
// tensors are computed here only; the fake kernel reads them as `_C.output_sizes`.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <array>
#include <cstdint>

#include "math.h"
#include "options.h"
#include "tensors.h"

namespace edgeloss {

// The numbers kept of each side of an edge pixel: with power 0 or 1 `inverse` alone, which is 0 where the mean could
// only be computed by logarithms, which backward then repeats.
struct SidePacking {
  bool is_plain, has_decay;

  explicit SidePacking(const Options& options)
      : is_plain(is_plain_mean(options.power)), has_decay(options.has_decay()) {}

  EDGELOSS_INLINE int64_t count() const { return (is_plain ? 1 : 2) + (has_decay ? 1 : 0); }
  EDGELOSS_INLINE int64_t nearest() const { return is_plain ? 1 : 2; }  // its position

  // number(position) is a reference to where the number is kept.
  template <typename A, typename F>
  EDGELOSS_INLINE void keep(const Side<A>& side, const F& number) const {
    if (is_plain) {
      number(0) = side.inverse;
    } else {
      number(0) = side.first;
      number(1) = side.log_sum;
    }
    if (has_decay) number(nearest()) = side.nearest;
  }
  template <typename A, typename F>
  EDGELOSS_INLINE void recall(Side<A>& side, const F& number) const {
    side = Side<A>();
    if (has_decay) side.nearest = number(nearest());
    if (is_plain) {
      side.inverse = number(0);
    } else {
      side.first = number(0);
      side.log_sum = number(1);
    }
  }
};

// The numbers kept of each pixel by the term of false edges: share, and with another power than 0 least and term.
inline int64_t false_edge_numbers(double power) { return power == 0 ? 1 : 3; }

// The length of a returned tensor is constant + per_pixel · pixels + per_row · rows + per_class · classes, of the whole
// batch.
struct Size {
  enum Type : int { kReal, kDouble, kLong, kInt, kShort, kByte } type;  // kReal: the type that the kernels compute in
  int64_t constant, per_pixel, per_row, per_class = 0;
};

// In the order of the operator's results.
struct Output {
  enum : int {
    kSums,
    kEdgeCounts,
    kCe,
    kSame,
    kOther,
    kFalseEdge,
    kLabel,
    kFlags,
    kStats,
    kEdgeList,
    kSides,
    kField,
    kCount
  };
};

// Of so few classes m and r are formed again where they are needed.
constexpr int64_t kFewClasses = 4;

// The logits of a pixel; 0 where they are upsampled.
inline int64_t logits_in_place(const Tensor& logits, const Tensor& target, const Options& options) {
  return is_upsampled(geometry_of(logits, target, options.radius), logits) ? 0 : logits.size(1);
}

// logits: those in place.
inline std::array<Size, Output::kCount> output_sizes(const Options& options, bool has_distance, int64_t logits) {
  const bool edges = options.edges, maps = options.maps;
  const bool false_edges = edges && options.false_edges, searches = options.has_decay() && !has_distance;
  const bool flags = edges && (maps || searches);
  const bool forms_again = logits > 0 && logits <= (options.power == 0 ? kFewClasses : 2);
  const int64_t per_side = SidePacking(options).count();
  const int64_t of_false_edges = false_edges ? false_edge_numbers(options.power) : 0;
  std::array<Size, Output::kCount> sizes;
  sizes[Output::kSums] = {Size::kDouble, Row::kCount, 0, 0};
  sizes[Output::kEdgeCounts] = {Size::kLong, 0, 0, 0, options.count_edges ? options.tables : 0};
  sizes[Output::kCe] = {Size::kReal, 0, maps, 0};
  sizes[Output::kSame] = sizes[Output::kOther] = {Size::kReal, 0, maps && edges, 0};
  sizes[Output::kFalseEdge] = {Size::kReal, 0, maps && options.false_edges, 0};
  sizes[Output::kLabel] = {Size::kShort, 0, 1, 0};
  sizes[Output::kFlags] = {Size::kByte, 0, flags, 0};
  sizes[Output::kStats] = {Size::kReal, 0, forms_again ? 0 : 2, 0};
  sizes[Output::kEdgeList] = {Size::kInt, 0, edges, edges ? 2 + false_edges : 0};
  sizes[Output::kSides] = {Size::kReal, 0, edges ? 2 * per_side + of_false_edges : 0, 0};
  sizes[Output::kField] = {Size::kReal, 0, searches, 0};
  return sizes;
}

inline int64_t length_of(const Size& size, const Tensor& logits, const Tensor& target) {
  const int64_t pixels = target.numel(), rows = pixels ? pixels / target.size(target.dim() - 1) : 0;
  const int64_t classes = std::max<int64_t>(2, logits.size(1));
  return size.constant + size.per_pixel * pixels + size.per_row * rows + size.per_class * classes;
}

inline ScalarType dtype_of(const Size& size, const Tensor& logits) {
  const ScalarType real = logits.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  const ScalarType types[] = {
      real, ScalarType::Double, ScalarType::Long, ScalarType::Int, ScalarType::Short, ScalarType::Byte};
  return types[size.type];
}

// The edge pixels: those of each chunk in order, from the number of its first pixel on; the rest is left
// untouched, and so takes up no memory. Of each row the first and the end among them, and its number of false edges.
struct EdgeList {
  int32_t *pixel = nullptr, *row_first = nullptr, *row_end = nullptr, *false_edges = nullptr;

  EdgeList(const Tensor& list, const Geometry& g, bool has_false_edges) {
    if (list.numel() == 0) return;
    const int64_t rows = g.batch * g.depth * g.height;
    pixel = static_cast<int32_t*>(list.mutable_data_ptr());
    row_first = pixel + g.batch * g.pixels;
    row_end = row_first + rows;
    if (has_false_edges) false_edges = row_end + rows;
  }
};

struct SavedState {
  Tensor label;      // [B, *S]: the class, or kIgnored
  Tensor flags;      // the edge mask, where maps are wanted or distances searched for
  Tensor stats;      // m of all pixels, then r
  Tensor edge_list;  // EdgeList
  Tensor sides;      // per edge pixel two sides, as SidePacking says, followed by those of false edges
  Tensor field;      // d of each pixel, or the user's distances

  bool has_edges() const { return sides.numel() > 0; }
  bool has_false_edges(const Options& options) const {
    return sides.numel() > 2 * SidePacking(options).count() * label.numel();
  }
};

inline Tensor new_output(const Size& size, const Tensor& logits, const Tensor& target) {
  return new_tensor(logits, {length_of(size, logits, target)}, dtype_of(size, logits));
}

struct Outputs {
  Tensor sums, edge_counts;            // by Row; [tables, C], the edge pixels of each class, or empty
  Tensor ce, same, other, false_edge;  // may be empty
  SavedState saved;

  Outputs(const Tensor& logits, const Tensor& target, const Options& options, bool has_distance) {
    const auto sizes = output_sizes(options, has_distance, logits_in_place(logits, target, options));
    const auto allocate = [&](int output) { return new_output(sizes[output], logits, target); };
    sums = allocate(Output::kSums);
    edge_counts = allocate(Output::kEdgeCounts);
    if (options.count_edges) torch::stable::zero_(edge_counts);  // the kernels add to it
    ce = allocate(Output::kCe);
    same = allocate(Output::kSame);
    other = allocate(Output::kOther);
    false_edge = allocate(Output::kFalseEdge);
    saved.label = new_tensor(logits, sizes_of(target), dtype_of(sizes[Output::kLabel], logits));
    saved.flags = allocate(Output::kFlags);
    saved.stats = allocate(Output::kStats);
    saved.edge_list = allocate(Output::kEdgeList);
    saved.sides = allocate(Output::kSides);
    saved.field = allocate(Output::kField);
  }
};

}  // namespace edgeloss
