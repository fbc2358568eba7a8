// What arrives at the terms in the backward pass. For every kernel.
#pragma once

#include <optional>

#include "options.h"
#include "tensors.h"

namespace edgeloss {

// The gradients of forward's results; a map without one is null.
struct Gradients {
  const Tensor& sums;
  const std::optional<Tensor>&ce, &same, &other, &false_edge;
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
  EDGELOSS_INLINE A at(int term, int64_t i, A v) const { return of_sum(term) * v + (map[term] ? map[term][i] : A(0)); }
};

}  // namespace edgeloss
