// What arrives at the terms in the backward pass. For every kernel.
#pragma once

#include <optional>

#include "options.h"
#include "tensors.h"

namespace edgeloss {

// The derivatives of the loss by the region term of each image, and what `region` has left to its backward pass.
struct RegionState {
  const Tensor &upstream, &slope, &classes;
};

// The gradients of forward's results; a map without one is null.
struct Gradients {
  const Tensor& sums;
  const std::optional<Tensor>&ce, &same, &other, &false_edge;
  std::optional<RegionState> regions;  // on the CPU, to add the gradient of the region term while the other is in cache
};

template <typename A>
struct Upstream {
  const double* sums;  // of the terms' rows
  const A* map[Row::kTerms];

  explicit Upstream(const Gradients& gradients)
      : sums(static_cast<const double*>(gradients.sums.const_data_ptr())),
        map{data_or_null<A>(gradients.ce), data_or_null<A>(gradients.same), data_or_null<A>(gradients.other),
            data_or_null<A>(gradients.false_edge)} {}

  EDGELOSS_INLINE A of_sum(int term) const { return static_cast<A>(sums[term]); }
  // Of the term at pixel i, which has the weight v.
  EDGELOSS_INLINE A at(int term, int64_t i, A v) const {
    // By selection: an index would put the pointers into a GPU's memory.
    const A* gradient = term == 0 ? map[0] : term == 1 ? map[1] : term == 2 ? map[2] : map[3];
    return of_sum(term) * v + (gradient ? gradient[i] : A(0));
  }
};

}  // namespace edgeloss
