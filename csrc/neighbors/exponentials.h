// e^v and e^v - 1 of many numbers at a time, vectorized.
#pragma once

#include "../cpu/vectorize.h"
#include "../math.h"

namespace edgeloss {

// v = e^v for v ≤ 0.
template <typename A>
void exponentials(A* v, int64_t n) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) v[j] = exp_negative(v[j]);
  });
}

// v = e^v - 1 for |v| ≤ 1.
template <typename A>
void exponentials_minus_1(A* v, int64_t n) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) v[j] = expm1_of_unit(v[j]);
  });
}

}  // namespace edgeloss
