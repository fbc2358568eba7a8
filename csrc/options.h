// The options of the loss, as its operator takes them, and the order of the sums that it returns.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include <algorithm>
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

// Two lists of numbers cross the operator, in the order of edgeloss/_kernels/evaluate.py, which makes them.
struct Options {
  int64_t ignore_index;
  int64_t validate;  // 0 counts labels out of range as ignored; 1 and 2 raise an error
  int64_t tables;    // of class weights, as in Geometry
  bool edges;        // with the edge terms
  bool regions;      // with the region term
  bool gathers;      // the edge terms by pairs of pixels, as in neighbors/gather.h, not by weights from the labels
  bool maps;         // the terms of each pixel too, those of edges where neighbors are gathered
  bool keeps_state;  // for a backward pass
  int64_t radius[3];
  double label_smoothing, power;
  double decay;  // 0: all neighbors weigh the same
  double spacing[3];

  Options(const std::vector<int64_t>& integers, const std::vector<double>& reals) {
    STD_TORCH_CHECK(integers.size() == 11 && reals.size() == 6, "options: expected 11 integers and 6 reals, but got ",
                    integers.size(), " and ", reals.size());
    ignore_index = integers[0];
    validate = integers[1];
    tables = integers[2];
    edges = integers[3];
    regions = integers[4];
    gathers = integers[5];
    maps = integers[6];
    keeps_state = integers[7];
    std::copy_n(&integers[8], 3, radius);
    label_smoothing = reals[0];
    power = reals[1];
    decay = reals[2];
    std::copy_n(&reals[3], 3, spacing);
    for (const int64_t each : radius) STD_TORCH_CHECK(each >= 0, "radius: expected at least 0, but got ", each);
  }

  bool has_decay() const { return edges && decay > 0; }
};

}  // namespace edgeloss
