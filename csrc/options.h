// The options of the loss, as its operator takes them, and the order of the sums that it returns.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <vector>

namespace edgeloss {

// Rows of `sums`, over the batch: the weighted sum of the cross-entropy, that of its weights, and counts of pixels.
struct Row {
  enum : int { kCrossEntropy, kWeight, kValid, kEdges, kWrong, kCount };
};

// Rows of `edge_sums`, over the edge pixels of a class in an image: of their weights, and the weighted terms.
struct EdgeRow {
  enum : int { kWeight, kSameSide, kOtherSide, kCount };
};

constexpr int64_t kMaps = 3;  // terms of each pixel: the cross-entropy, S and O

// Named as in the schemas of cpu/operators.cpp, and as KernelOptions in edgeloss/_kernels/arguments.py.
struct Options {
  int64_t ignore_index;
  int64_t validate;             // 0 counts labels out of range as ignored; 1 and 2 raise an error
  int64_t tables;               // of class weights, as in Geometry
  bool edges;                   // with the edge terms
  bool regions;                 // with the region term
  bool by_pairs;                // the edge terms by pairs of pixels, as in cpu/pairs.h, not by weights from the labels
  bool maps;                    // the terms of each pixel too, those of edges by pairs
  bool keeps_state;             // for a backward pass
  std::vector<int64_t> radius;  // of 3 axes, as spacing
  double label_smoothing, power;
  double decay;  // 0: all neighbors weigh the same
  std::vector<double> spacing;

  void check() const {
    STD_TORCH_CHECK(radius.size() == 3 && spacing.size() == 3, "radius and spacing: expected those of 3 axes, but got ",
                    radius.size(), " and ", spacing.size());
    for (const int64_t each : radius) STD_TORCH_CHECK(each >= 0, "radius: expected at least 0, but got ", each);
  }

  bool has_decay() const { return edges && decay > 0; }
};

}  // namespace edgeloss
