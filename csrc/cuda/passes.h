// The passes of forward and backward that look at edge pixels and at false edges.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>

#include "../upstream.h"
#include "call.h"
#include "labels.h"

namespace edgeloss {

// ------------------------------------------------------------------------------------------------------------- forward

template <typename A>
struct EdgeOutputs {
  A *same, *other, *false_edge;  // [B, P] each, or null: no maps are wanted
  double* partial;               // [Row::kCount, tiles]
};

// What the terms of edges need of each pixel, in forward. Neighbors on the same side are of an edge pixel's own class,
// and so is every valid neighbor off the true edges: with power 0 their term is what they have by themselves.
template <typename A>
struct PixelTerms {
  int16_t* predicted;  // [B, P], the most likely class, or kIgnored; or null: false edges are not wanted
  A* log_p;            // [B, P], of the pixel's own class; or null: not wanted
};

// The terms of the edge pixels, and their sides.
template <typename T, typename A, bool kUpsampled>
void find_edge_terms(const Call<T, A, kUpsampled>& call, const PixelTerms<A>& pixels, const EdgeOutputs<A>& out,
                     cudaStream_t stream);

// The false edges with their terms, and their side.
template <typename T, typename A, bool kUpsampled>
void find_false_edges(const Call<T, A, kUpsampled>& call, const PixelTerms<A>& pixels, const EdgeOutputs<A>& out,
                      cudaStream_t stream);

// Adds up what the tiles have of each term but that of false edges; partial: [Row::kFalseEdge, tiles].
void add_up_terms(const double* partial, int64_t tiles, double* sums, cudaStream_t stream);

// ------------------------------------------------------------------------------------------------------------ backward

// What the false edges around give the pixels, [B, P]: Σ upstream · π.
template <typename T, typename A, bool kUpsampled>
void gather_false_edges(const Call<T, A, kUpsampled>& call, const Upstream<A>& upstream, A* shares,
                        cudaStream_t stream);

}  // namespace edgeloss
