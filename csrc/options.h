// The options of the loss, as its operator takes them, and the order of the sums that it returns.
#pragma once

#include <cstdint>
#include <vector>

namespace edgeloss {

// Rows of `sums`: the weighted sums of the terms, of the weights, and counts of pixels.
struct Row {
  enum : int {
    kCrossEntropy,
    kSameSide,
    kOtherSide,
    kFalseEdge,
    kWeight,
    kEdgeWeight,
    kValid,
    kEdges,
    kWrong,
    kCount,
    kTerms = kWeight,  // the rows before it are sums of terms
  };
};

struct Options {
  int64_t ignore_index;
  double label_smoothing;
  std::vector<int64_t> radius;  // per axis
  double power, decay;          // decay 0: all neighbors weigh the same
  std::vector<double> spacing;  // per axis
  bool edges, false_edges, maps;
  bool count_edges;  // per class
  int64_t validate;
  int64_t tables;  // of class weights, as in Geometry

  bool has_decay() const { return edges && decay > 0; }
};

}  // namespace edgeloss
