// The windows of edge pixels at power 0 without decay, in blocks: a few pixels next to each other in a row, one in each
// place of a vector.
//
// All neighbors of a side weigh the same then, so what a window adds up depends on labels and on numbers of the
// neighbor alone: -log p(y) and log(1 - p(k)) in forward, in backward what an edge pixel gives each of its neighbors.
// The neighbors of a block at one offset are next to each other, too: they are read as they lie in memory, and the sums
// stay in registers. The work is proportional to the number of blocks near an edge.
#pragma once

#include <cstdint>
#include <vector>

#include "../upstream.h"
#include "call.h"
#include "parallel.h"

namespace edgeloss {

constexpr int64_t kForwardBlock = 16, kBlock = 8;  // pixels of a block, at most: in forward, in backward

// The numbers of pixels are read up to this far before an image's first pixel and behind its last one, and not used.
inline int64_t block_margin(const Geometry& g) { return g.radius[2] + kForwardBlock; }

// What forward adds up over the windows of edge pixels: on the same side, and on the other.
template <typename A>
struct WindowSums {
  std::vector<A> sum[2], count[2];  // Σ t; neighbors
  std::vector<uint8_t> is_unknown;  // log_other of a neighbor is that of another class: it is left out of the sum
};

// Those of a chunk's edge pixels, in their order.
template <typename A>
void sum_windows(const Call<A>& call, const Chunk& chunk, WindowSums<A>& sums);

// What edge pixels give each neighbor of a side: upstream over the number of these neighbors. Of the rows that the
// windows of a chunk reach; 0 where there is no edge pixel. Rows that the next chunk sees too are kept for it.
template <typename A>
class NeighborShares {
 public:
  explicit NeighborShares(const Geometry& g)
      : margin_(block_margin(g)), stride_(g.width + 2 * margin_), blocks_((g.width + kBlock - 1) / kBlock) {}

  void reach(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk);

  bool has(int64_t row) const { return has_[row % rows_]; }
  A* same(int64_t row) { return same_.data() + row % rows_ * stride_ + margin_; }
  A* other(int64_t row) { return other_.data() + row % rows_ * stride_ + margin_; }
  Bits<A>* code(int64_t row) { return code_.data() + row % rows_ * stride_ + margin_; }
  // Whether edge pixels of the row are in reach of a block, for each of them.
  uint8_t* near(int64_t row) { return near_.data() + row % rows_ * blocks_; }
  int64_t blocks() const { return blocks_; }

 private:
  void fill(const Call<A>& call, const Upstream<A>& upstream, int64_t row);
  void clear(const Call<A>& call, int64_t row);

  int64_t margin_, stride_, blocks_;                     // stride: of a row of numbers
  int64_t image_ = 0, first_ = 0, last_ = 0, rows_ = 0;  // the rows in reach; room for so many
  std::vector<A> same_, other_;
  std::vector<Bits<A>> code_;  // of the edge pixels' classes
  std::vector<uint8_t> near_, has_;
};

template <typename A>
struct Gathered;

// Gathers the shares of a chunk's pixels.
template <typename A>
void gather_blocks(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, NeighborShares<A>& shares,
                   Gathered<A>& gathered);

}  // namespace edgeloss
