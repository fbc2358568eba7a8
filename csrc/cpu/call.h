// The whole loss on the CPU: what forward and backward share.
//
// Forward (forward.cpp), in passes over chunks of rows: (1) labels, the two numbers of math.h for each pixel, and the
// cross-entropy, by tiles of pixels × classes that stay in cache (tiles.h; pairs.h of two classes); (2) the edge
// pixels, from the labels (edge_mask.h), and the false ones, from the prediction, with their term (false_edges.h); (3)
// with decay, the distances of what edge pixels see (row_search.h where they are far); (4) the edge terms, on edge
// pixels only (blocks.h, or edge_pixels.h and lanes.h, and wide.h where windows are wide). Backward (backward.cpp)
// takes a chunk at a time: the edge pixels around share their gradient out to its pixels, and the softmax of its tiles
// is formed again. Of logits of lower resolution (upsampled.cpp), tiles are interpolated (interpolate.h), and backward
// takes a box of their rows at a time, with all pixels that are mixed from it. What a chunk is does not depend on the
// number of threads, and sums are added up in the chunks' order, so every run gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "../kernels.h"
#include "false_edges.h"
#include "interpolate.h"
#include "lanes.h"
#include "tiles.h"

namespace edgeloss {

// A new tensor's first touch costs a page fault every 4 KB, more than the arithmetic that fills it: ask for 2 MB pages.
void want_large_pages(const Tensor& tensor);

template <typename A>
A* data_of(const Tensor& tensor) {
  return tensor.numel() > 0 ? static_cast<A*>(tensor.mutable_data_ptr()) : nullptr;
}

// An image's logits one by one, upsampled or not.
template <typename A>
struct Reader {
  Stored<A> x;
  const Upsample<A>* up;

  A at(int64_t pixel, int64_t c) const { return up ? up->at(x, pixel, c) : x.at(pixel, c); }
};

// Everything that the passes share: arguments, and the state that forward leaves to backward.
template <typename A>
struct Call {
  Geometry g;
  const Tensor& logits;
  Steps steps;
  const Upsample<A>* up;       // null where the logits are of the labels' resolution
  const A* pixel_weight;       // [B, P] or null
  const A* edge_class_weight;  // [tables, C] or null
  Smoothing<A> smoothing;
  LaneOptions<A> lane_options;
  SidePacking packing;
  int16_t* label;             // [B, P]
  int16_t* predicted;         // [B, P], in forward, or null: false edges are not wanted
  A* nll;                     // [B, P], in forward, or null: -log p(y)
  A* log_other;               // [B, P], in forward of more classes, or null: log(1 - p(k)) of edge pixels, for a
  int16_t* other_class;       // class k ≠ y in their window; the only one, mostly
  uint64_t* class_bits;       // of each row as PairEdges has them, in forward of two classes, or null
  A *m, *r;                   // [B, P] each; null where backward forms them again
  uint8_t* edge;              // [B, P], the edge mask, or null
  A* sides;                   // [B, P, 2, packing.count()], same and other side
  A* field;                   // [B, P]; read in reach of E only
  EdgeList list;              // without edges null
  FalseEdges<A> false_edges;  // without false edges null
  int64_t* edge_counts;       // [tables, C], in forward, or null: not wanted

  Call(const Geometry& g, const std::optional<Upsample<A>>& up, const Inputs& inputs, const SavedState& saved,
       const Options& options)
      : g(g),
        logits(inputs.logits),
        steps(inputs.logits),
        up(up ? &*up : nullptr),
        pixel_weight(data_or_null<A>(inputs.pixel_weight)),
        edge_class_weight(data_or_null<A>(inputs.edge_class_weight)),
        smoothing(data_or_null<A>(inputs.weight), g.classes, static_cast<A>(options.label_smoothing)),
        lane_options{static_cast<A>(options.power), options.has_decay() ? static_cast<A>(1 / options.decay) : A(0),
                     options.has_decay()},
        packing(options),
        label(static_cast<int16_t*>(saved.label.mutable_data_ptr())),
        predicted(nullptr),
        nll(nullptr),
        log_other(nullptr),
        other_class(nullptr),
        class_bits(nullptr),
        m(data_of<A>(saved.stats)),
        r(m ? m + g.batch * g.pixels : nullptr),
        edge(data_of<uint8_t>(saved.flags)),
        sides(data_of<A>(saved.sides)),
        field(static_cast<A*>(saved.field.mutable_data_ptr())),
        list(saved.edge_list, g, options.false_edges),
        false_edges{lane_options.power, nullptr, nullptr, nullptr, nullptr},
        edge_counts(nullptr) {
    if (!list.false_edges) return;
    const int64_t all = g.batch * g.pixels;
    false_edges.count = list.false_edges;
    false_edges.share = sides + 2 * packing.count() * all;
    if (false_edge_numbers(options.power) == 1) return;
    false_edges.least = false_edges.share + all;
    false_edges.term = false_edges.least + all;
  }

  A power() const { return lane_options.power; }
  bool has_decay() const { return lane_options.has_decay; }
  // Whether the windows of edge pixels are summed up in blocks, not in lanes.
  bool in_blocks() const { return power() == A(0) && !has_decay(); }
  Stored<A> image(int64_t b) const { return stored<A>(logits, steps, b, g.logits == 1); }
  Reader<A> reader(int64_t b) const { return {image(b), up}; }
  int64_t table_of(int64_t i) const { return g.tables == 1 ? 0 : g.table(i / g.pixels); }
  A pixel_weight_of(int64_t i) const { return pixel_weight ? pixel_weight[i] : A(1); }
  A edge_weight_of(int64_t i) const {
    return edge_class_weight ? pixel_weight_of(i) * edge_class_weight[table_of(i) + label[i]] : pixel_weight_of(i);
  }
  // That of the image of pixel i.
  Smoothing<A> smoothing_of(int64_t i) const {
    if (g.tables == 1 || !smoothing.weight) return smoothing;
    return {smoothing.weight + table_of(i), g.classes, smoothing.smoothing};
  }

  // Both sides of n edge pixels from the place `at` of the list on.
  void keep(int64_t at, int64_t n, const Side<A>* from) const {
    A* numbers = sides + 2 * at * packing.count();
    for (int64_t s = 0; s < 2 * n; ++s, numbers += packing.count()) {
      packing.keep(from[s], [&](int64_t position) -> A& { return numbers[position]; });
    }
  }
  void recall(int64_t at, int64_t n, Side<A>* out) const {
    const A* numbers = sides + 2 * at * packing.count();
    for (int64_t s = 0; s < 2 * n; ++s, numbers += packing.count()) {
      packing.recall(out[s], [&](int64_t position) { return numbers[position]; });
    }
  }
  // Whether both sides are plain means: else `inverse` is 0 on the other one.
  bool is_of_means(int64_t at) const { return packing.is_plain && sides[(2 * at + 1) * packing.count()] > A(0); }

  // Pixels of a tile. Of many classes they are fewer: the tile's gradient stays in the second-level cache, and the rows
  // that are fetched ahead in the first.
  int64_t tile() const {
    const int64_t pixels = (1 << 17) / (g.classes * static_cast<int64_t>(sizeof(A))) & ~15;
    return std::clamp<int64_t>(pixels, 16, g.classes > kFewClasses ? kTile / 2 : kTile);
  }
};

// What upsamples the logits to the labels' resolution; nothing where they have it.
template <typename A>
std::optional<Upsample<A>> upsample_for(const Geometry& g, const Tensor& logits) {
  if (!is_upsampled(g, logits) || g.batch * g.pixels == 0) return std::nullopt;
  const Geometry low = geometry_of(logits, {0, 0, 0});
  return Upsample<A>({low.depth, g.depth}, {low.height, g.height}, {low.width, g.width});
}

// The pixels of a tile: the j-th one is start + j, or start + place[j] where there are places; -1 is none.
struct Pixels {
  int64_t start;
  const int32_t* place;

  int64_t at(int64_t j) const { return start + (place ? place[j] : j); }
};

}  // namespace edgeloss
