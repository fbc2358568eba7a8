// The labels of the loss on CUDA, before the logits.
#pragma once

#include <cstdint>

#include "../labels.h"
#include "../options.h"
#include "tiles.h"

namespace edgeloss {

struct LabelOutputs {
  int16_t* label;                   // [B, P], packed
  Bits edges;                       // null: not wanted
  uint8_t* edge_mask;               // [B, P], or null: not wanted
  unsigned long long* edge_counts;  // [C], the edge pixels of each class, or null: not wanted
};

// Packs the labels, and finds the edge pixels where they are wanted; partial: [Row::kCount, tiles], of which the counts
// of valid pixels, wrong labels and edge pixels are written.
void find_labels(const Geometry& g, const Tiles& tiles, const Target& target, const LabelOutputs& out, double* partial,
                 cudaStream_t stream);

// Marks the false edges, from packed labels and the most likely classes, kIgnored on pixels that do not count.
void mark_false_edges(const Geometry& g, const Tiles& tiles, const int16_t* label, const int16_t* predicted,
                      const Bits& out, cudaStream_t stream);

}  // namespace edgeloss
