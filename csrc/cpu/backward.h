// The gradient of a slab, tile by tile, wherever it goes.
#pragma once

#include <cstdint>
#include <vector>

#include "slab_tiles.h"

namespace edgeloss {

// What the backward pass of a thread works in.
template <typename A>
class SlabGradient {
 public:
  SlabGradient(const Call<A>& call, const Gradients& gradients);

  // Calls body(gradient [C, tile()], pixels, where they are) for each tile. number: that of the slab in forward, if it
  // was one.
  template <typename F>
  void for_each_tile(const Slab& slab, int64_t number, const F& body) {
    prepare(slab, number);
    const Smoothing<A> smoothing = call_.smoothing(slab.image);
    const EdgeWeights<A>* weights = call_.options.edges ? &weights_ : nullptr;
    tiles_.for_each(slab, weights, false, [&](const Pixels<A>& pixels, const TilePlace& at) {
      A own_m[kTile], own_r[kTile];
      const A *m = own_m, *r = own_r;
      if (call_.state.m && !at.place) {
        m = call_.state.m + at.start;
        r = call_.state.r + at.start;
      } else if (call_.g.classes > 2) {
        read_statistics(pixels, at, own_m, own_r);
      }
      const A* const* slopes = regions_.classes.empty() ? nullptr : rows_.read(regions_, pixels.tile.n, at);
      tile_gradient(pixels, factors_, smoothing, m, r, slopes, gradient_.data(), call_.tile());
      body(gradient_.data(), pixels, at);
    });
  }

 private:
  // The weights of the edge terms and the slopes of the region term.
  void prepare(const Slab& slab, int64_t number);
  bool recall_weights(const typename Call<A>::Near& near, const Slab& slab);
  void collect_shares(const Slab& slab);
  void read_statistics(const Pixels<A>& pixels, const TilePlace& at, A* m, A* r) const;

  const Call<A>& call_;
  TermFactors<A> factors_;
  const double* of_region_;
  EdgeWindows<A> windows_;
  EdgeWeights<A> weights_;
  SlabTiles<A> tiles_;
  TileRegions<A> regions_;
  RegionRows<A> rows_;
  std::vector<A> gradient_, own_;
  std::vector<OtherWeight<A>> others_;
};

// The gradient of logits to be upsampled.
template <typename A>
void upsampled_backward(const Call<A>& call, const Gradients& gradients, const Tensor& grad);

}  // namespace edgeloss
