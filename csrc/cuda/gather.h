// What edge pixels give the pixels around them, for the gradient.
#pragma once

#include <cstdint>

#include "gradient.h"

namespace edgeloss {

// Of the pixels near edge pixels, [B, P] each; the others' are not written.
template <typename A>
struct EdgeShares {
  A *same, *other;  // Σ π of the edge pixels of the own class; Σ π · slope of those of class k
  int16_t* k;       // the other class, or -2 - k where it is likely; kNoClass; or kIsWritten
};
constexpr int16_t kNoClass = -1;
// The whole gradient of the pixel is written already: it has edge pixels of several other classes around, or r is too
// small for the other classes of a likely one.
constexpr int16_t kIsWritten = INT16_MAX;

template <typename T, typename A>
void gather_edges(const Call<T, A, false>& call, const Upstream<A>& upstream, const EdgeShares<A>& out,
                  const GradientOutput<T>& output, cudaStream_t stream);

}  // namespace edgeloss
