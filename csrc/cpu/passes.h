// The passes over chunks and boxes, and what those of upsampled logits share with the others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "../upstream.h"
#include "blocks.h"
#include "call.h"
#include "edge_pixels.h"
#include "parallel.h"

namespace edgeloss {

// ------------------------------------------------------------------------------------------------------------- forward

using Sums = std::array<double, Row::kCount>;

// Pass 1 of forward: labels, statistics and cross-entropy of a chunk. ce_map may be null.
template <typename A>
void upsampled_cross_entropy_chunk(const Call<A>& call, const Target& target, const Chunk& chunk, A* ce_map,
                                   Sums& sums);

// A tile with its labels and statistics.
template <typename A>
struct Statistics {
  Tile<A> tile;
  Pixels pixels;
  const int32_t* y;
  const A *m, *r, *nll;
};

// The cross-entropy of a tile.
template <typename A>
void cross_entropy_tile(const Call<A>& call, const Statistics<A>& statistics, A* ce, Sums& sums);

// ------------------------------------------------------------------------------------------------------------ backward

// What edge pixels give a tile, as `Gathered` has it of a chunk; null where there are none near.
template <typename A>
struct TileShares {
  const A *same = nullptr, *other = nullptr;
  const int32_t* k = nullptr;
};

// What edge pixels of class k give a pixel.
template <typename A>
struct Share {
  int64_t pixel;  // counted from the chunk's or the tile's first
  int32_t k;
  A sum;
};

// What the edge pixels around give the pixels of a chunk: Σ upstream · π on the pixel's own side, and on the other side
// the same for each class k that edge pixels look at, where the pixel's slope is still a factor. Of two classes all is
// on the own side: 1 - p(k) is then the probability of the pixel's own class.
template <typename A>
struct Gathered {
  std::vector<A> same,
      other;                     // Σ on the own side; on the other side, for class k
  std::vector<int32_t> k;        // the first class that is seen, or -1
  std::vector<Share<A>> more;    // of further classes, by pixel
  std::vector<A> dense;          // [pixels, C], those of `more` where they would take more room
  std::vector<uint8_t> is_near;  // the rows that edge pixels see; the others' sums are not set
  int64_t width;                 // of a row

  void start(const Geometry& g, int64_t rows, int64_t margin);
  // Makes the rows of the pixels [first, last] ready.
  void approach(int64_t first, int64_t last);
  // Adds up `more` where there are many, as in wide windows.
  void add_up(int64_t classes);
  // Sorts `more` by pixel.
  void finish(int64_t classes);
  // Whether any of the pixels [first, last] may be near the edge; if so, all of them are ready.
  bool reaches(int64_t first, int64_t last);
  TileShares<A> from(int64_t pixel) const { return {same.data() + pixel, other.data() + pixel, k.data() + pixel}; }
};

// Additions of `value` to class k of pixel j of a tile, after the rest; likely ones concern all other classes too.
template <typename A>
struct Corrections {
  int64_t count = 0;
  std::vector<int32_t> j, k;
  std::vector<A> x, m, r, value;  // x: the logit of class k

  // In full vectors, since there are few: what is left over a loop would compute one by one.
  int64_t padded() const { return (count + 15) & ~int64_t(15); }
  bool is_likely(int64_t i) const { return edgeloss::is_likely(x[i], m[i], r[i]); }
  // Removes all, and makes room for `most`.
  void start(int64_t most) {
    count = most;
    const size_t room = padded();
    count = 0;
    if (j.size() >= room) return;
    for (auto* numbers : {&j, &k}) numbers->resize(room);
    for (auto* numbers : {&x, &m, &r, &value}) numbers->resize(room);
  }
  void add(int64_t pixel, int32_t of_class, A share) {
    j[count] = static_cast<int32_t>(pixel);
    k[count] = of_class;
    value[count++] = share;
  }
};

// What the backward pass of a thread works in.
template <typename A>
struct Workspace {
  std::vector<A> buffer;
  std::vector<A> sums;  // of a box
  Corrections<A> corrections;
  std::vector<Share<A>> more;  // of a tile
  Gathered<A> gathered;
  Lanes<A> lanes;
  NeighborShares<A> neighbor_shares;
  RowWindows<A> windows;

  explicit Workspace(const Geometry& g)
      : lanes(Pass::kBackward, g.radius[2], g.width), neighbor_shares(g), windows(g) {}
};

// Gathers the shares of a chunk's pixels into the workspace.
template <typename A>
void gather_chunk(const Call<A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                  Workspace<A>& space);

// A tile whose gradient is asked for. m and r are null where they are formed again.
template <typename A>
struct TileState {
  Tile<A> tile;
  Pixels pixels;
  const int16_t* label;
  const A *m, *r;
  TileShares<A> shares;
};

// The gradient of a tile, to g[c · ld + j], with the shares of further classes in space.more.
template <typename A>
void gradient_tile(const Call<A>& call, const Upstream<A>& upstream, const TileState<A>& state, A* g, int64_t ld,
                   Workspace<A>& space);

// The gradient of logits to be upsampled.
template <typename A>
void upsampled_backward(const Call<A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Tensor& grad);

}  // namespace edgeloss
