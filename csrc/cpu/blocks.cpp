// The loops of blocks.h.
#include "blocks.h"

#include <algorithm>
#include <cstring>

#include "edge_mask.h"
#include "passes.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

// A loop, since GCC 12 widens the halves of a vector one by one.
template <int64_t Width, typename Labels>
EDGELOSS_INLINE void widen_labels(const VectorOf<int16_t, Width>& from, Labels& labels) {
  int16_t narrow[Width];
  std::remove_reference_t<decltype(labels[0])> wide[Width];
  store(from, narrow);
  for (int64_t j = 0; j < Width; ++j) wide[j] = narrow[j];
  load(wide, labels);
}

// Sets the numbers to 0 where the mask is not set.
template <typename Mask, typename Numbers>
EDGELOSS_INLINE void keep(const Mask& mask, Numbers& numbers) {
  Mask bits;
  std::memcpy(&bits, &numbers, sizeof(bits));
  bits &= mask;
  std::memcpy(&numbers, &bits, sizeof(bits));
}

// Numbers from memory where the mask is set, else 0.
template <typename Mask, typename A, typename Numbers>
EDGELOSS_INLINE void load_kept(const A* from, const Mask& mask, Numbers& numbers) {
  load(from, numbers);
  keep(mask, numbers);
}

// ------------------------------------------------------------------------------------------------------------- forward

// The numbers of an image's pixels that forward adds up; log_other is null of two classes, where both sides' t is that
// of the pixel's own class.
template <typename A>
struct Terms {
  const int16_t* label;
  const A *nll, *log_other;
  const int16_t* other_class;
  int64_t width, reach;  // of a row, and of windows along it
};

// The sums of edge pixels.
template <typename A>
struct EdgeSums {
  A *sum[2], *count[2];
  uint8_t* is_unknown;
};

// The sums of the edge pixels of the row that begins at pixel `own`; rows: the first pixels of those in their windows.
template <int64_t Width, bool IsPair, typename A>
EDGELOSS_INLINE void sum_rows(const Terms<A>& terms, const int64_t* rows, int64_t row_count, int64_t own,
                              const int32_t* pixel, int64_t edges, const EdgeSums<A>& out) {
  using Numbers = VectorOf<A, Width>;
  using Labels = VectorOf<Bits<A>, Width>;
  const int64_t neighbors = row_count * (2 * terms.reach + 1) - 1;
  for (int64_t e = 0; e < edges;) {
    // Where possible, not so far to the right that labels behind the row would be asked for, which is slow.
    const int64_t first = pixel[e] - own, last_inside = terms.width - terms.reach - Width;
    const int64_t x = std::max(std::min(first, last_inside), std::max<int64_t>(first - Width + 1, 0));
    Numbers same_sum = {}, other_sum = {}, t;
    // known: on the other side, with the log_other that is asked for. Counts are of -1.
    Labels same_count = {}, known_count = {}, absent_count = {}, same, known, absent;
    VectorOf<int16_t, Width> k, y, other_class;
    load_labels<Width>(terms.label + own, x, terms.width, k);
    for (int64_t i = 0; i < row_count; ++i) {
      VectorOf<int16_t, Width> absent_here = {};  // of a row, or of so much of it that it has room
      for (int64_t dx = -terms.reach; dx <= terms.reach; ++dx) {
        if (rows[i] == own && dx == 0) continue;
        const int64_t n = rows[i] + x + dx;
        load_labels<Width>(terms.label + rows[i], x + dx, terms.width, y);
        const VectorOf<int16_t, Width> is_absent = y >> 15;
        absent_here += is_absent;
        widen_labels<Width>(y == k, same);
        load_kept(terms.nll + n, same, t);
        same_sum += t;
        same_count += same;
        if constexpr (IsPair) {
          widen_labels<Width>((y != k) & ~is_absent, known);
          load_kept(terms.nll + n, known, t);
          other_sum += t;
        } else {
          load(terms.other_class + n, other_class);
          widen_labels<Width>((other_class == k) & ~is_absent, known);
          load_kept(terms.log_other + n, known, t);
          other_sum -= t;
          known_count += known;
        }
        if (dx == terms.reach || (dx & 0x3fff) == 0) {
          widen_labels<Width>(absent_here, absent);
          absent_count += absent;
          absent_here = VectorOf<int16_t, Width>{};
        }
      }
    }
    const Labels other_count = Labels{} - static_cast<Bits<A>>(neighbors) - same_count - absent_count;
    const Labels unknown = other_count - known_count;
    A sum[2][Width];
    Bits<A> count[2][Width], is_unknown[Width];
    store(same_sum, sum[0]);
    store(other_sum, sum[1]);
    store(same_count, count[0]);
    store(other_count, count[1]);
    store(unknown, is_unknown);
    for (; e < edges && pixel[e] - own < x + Width; ++e) {
      const int64_t j = pixel[e] - own - x;
      for (int side = 0; side < 2; ++side) {
        out.sum[side][e] = -sum[side][j];
        out.count[side][e] = static_cast<A>(-count[side][j]);
      }
      out.is_unknown[e] = !IsPair && is_unknown[j] != 0;
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ backward

// A row with edges: its first pixel, and what its edge pixels give.
template <typename A>
struct ShareRow {
  int64_t first;
  const A *same, *other;
  const Bits<A>* code;
};

constexpr int kCodeBits = 15, kCodeMask = (1 << kCodeBits) - 1;

// The bits of a class, and above them its complement: classes differ where the or of their codes has a bit in both.
template <typename Label>
EDGELOSS_INLINE void code_of(const Label& label, Label& code) {
  code = label | (~label & kCodeMask) << kCodeBits;
}

// The shares of the pixels of a row.
template <typename A>
struct Shares {
  A *same, *other;
  int32_t* k;
};

// Adds up what the rows give the pixels from x on of the row that begins at pixel `own`. Returns whether edge pixels of
// more than one other class give something to one of them.
template <int64_t Width, bool IsPair, typename A>
EDGELOSS_INLINE bool gather_block(const int16_t* label, int64_t width, int64_t reach, const ShareRow<A>* rows,
                                  int64_t row_count, int64_t own, int64_t x, const Shares<A>& out) {
  using Numbers = VectorOf<A, Width>;
  using Labels = VectorOf<Bits<A>, Width>;
  Numbers same_sum = {}, other_sum = {}, given;
  Labels any = {}, k, code;  // any: of the codes of the other classes
  VectorOf<int16_t, Width> own_label;
  load_labels<Width>(label + own, x, width, own_label);
  widen_labels<Width>(own_label, k);
  Labels own_code;
  code_of(k, own_code);
  for (int64_t i = 0; i < row_count; ++i) {
    for (int64_t dx = -reach; dx <= reach; ++dx) {
      if (rows[i].first == own && dx == 0) continue;
      load(rows[i].code + x + dx, code);
      const Labels same = code == own_code, other = ~same;
      load_kept(rows[i].same + x + dx, same, given);
      same_sum += given;
      load_kept(rows[i].other + x + dx, other, given);
      if constexpr (IsPair) {
        same_sum += given;
      } else {
        other_sum += given;
        any |= code & other;
      }
    }
  }
  const Labels valid = k >= 0;
  keep(valid, same_sum);
  store(same_sum, out.same + x);
  if constexpr (IsPair) return false;
  const Labels seen = valid & (any != 0), first = any & kCodeMask, mixed = seen & first & (any >> kCodeBits);
  keep(seen, other_sum);
  store(other_sum, out.other + x);
  const Labels others = (first & seen) | ~seen;
  store(__builtin_convertvector(others, VectorOf<int32_t, Width>), out.k + x);
  int64_t parts[sizeof(mixed) / sizeof(int64_t)], any_mixed = 0;
  std::memcpy(parts, &mixed, sizeof(mixed));
  for (int64_t part : parts) any_mixed |= part;
  return any_mixed != 0;
}

// Splits by class what edge pixels of several other classes give the pixel at `column`.
template <typename A>
void split_mixed(const Call<A>& call, const int16_t* label, const std::vector<ShareRow<A>>& rows, int64_t own,
                 int64_t column, int64_t in_chunk, Gathered<A>& gathered) {
  const int64_t reach = call.g.radius[2], p = in_chunk + column;
  int32_t& k = gathered.k[p];
  if (k < 0) return;
  A& sum = gathered.other[p] = A(0);
  k = -1;
  for (const ShareRow<A>& row : rows) {
    for (int64_t x = std::max<int64_t>(column - reach, 0); x <= std::min(column + reach, call.g.width - 1); ++x) {
      const int16_t y = label[row.first + x];
      if (y < 0 || y == label[own + column]) continue;
      if (k < 0) k = y;
      if (y == k) {
        sum += row.other[x];
      } else {
        gathered.more.push_back({p, y, row.other[x]});
      }
    }
  }
}

}  // namespace

template <typename A>
void sum_windows(const Call<A>& call, const Chunk& chunk, WindowSums<A>& sums) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, first = chunk.image * g.depth * g.height;
  const int32_t *row_first = call.list.row_first + first, *row_end = call.list.row_end + first;
  const int64_t begin = row_first[chunk.first_row], count = row_end[chunk.last_row - 1] - begin;
  const Terms<A> terms = {call.label + base,
                          call.nll + base,
                          call.log_other ? call.log_other + base : nullptr,
                          call.log_other ? call.other_class + base : nullptr,
                          g.width,
                          g.radius[2]};
  for (int side = 0; side < 2; ++side) {
    sums.sum[side].resize(count);
    sums.count[side].resize(count);
  }
  sums.is_unknown.resize(count);
  std::vector<int64_t> rows;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t edges = row_end[row] - row_first[row], e = row_first[row] - begin;
    if (edges == 0) continue;
    rows.clear();
    for_each_row(g, row, g.radius, [&](int64_t pixel) { rows.push_back(pixel); });
    const EdgeSums<A> out = {{sums.sum[0].data() + e, sums.sum[1].data() + e},
                             {sums.count[0].data() + e, sums.count[1].data() + e},
                             sums.is_unknown.data() + e};
    const int64_t *seen = rows.data(), own = row * g.width, row_count = static_cast<int64_t>(rows.size());
    const int32_t* pixel = call.list.pixel + base + row_first[row];
    vectorized_by_size<A, kForwardBlock * sizeof(float)>([=](auto bytes) EDGELOSS_LOOP {
      constexpr int64_t kWidth = decltype(bytes)::value / sizeof(A);
      if (terms.log_other) {
        sum_rows<kWidth, false>(terms, seen, row_count, own, pixel, edges, out);
      } else {
        sum_rows<kWidth, true>(terms, seen, row_count, own, pixel, edges, out);
      }
    });
  }
}

template <typename A>
void NeighborShares<A>::reach(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk) {
  const Geometry& g = call.g;
  const int64_t reach = std::min(g.radius[0], g.depth) * g.height + std::min(g.radius[1], g.height);
  const int64_t first = std::max<int64_t>(chunk.first_row - reach, 0);
  const int64_t last = std::min(chunk.last_row + reach, g.depth * g.height);
  const bool goes_on = chunk.image == image_ && first >= first_ && first <= last_ && last - first <= rows_;
  for (; first_ < (goes_on ? first : last_); ++first_) clear(call, first_);
  if (last - first > rows_) {
    rows_ = last - first;
    for (auto* numbers : {&same_, &other_}) numbers->resize(rows_ * stride_);
    code_.resize(rows_ * stride_);
    near_.resize(rows_ * blocks_);
    has_.resize(rows_);
  }
  image_ = chunk.image;
  if (!goes_on) first_ = last_ = first;
  for (; last_ < last; ++last_) fill(call, upstream, last_);
}

template <typename A>
void NeighborShares<A>::fill(const Call<A>& call, const Upstream<A>& upstream, int64_t row) {
  const Geometry& g = call.g;
  const int64_t base = image_ * g.pixels, in_list = image_ * g.depth * g.height + row;
  const bool varies =
      call.pixel_weight || call.edge_class_weight || upstream.map[Row::kSameSide] || upstream.map[Row::kOtherSide];
  A of_same = upstream.of_sum(Row::kSameSide), of_other = upstream.of_sum(Row::kOtherSide);
  // Locals: the compiler has to assume that a store changes any of the members.
  const int32_t* pixel = call.list.pixel + base;
  const int16_t* label = call.label + base;
  const A* sides = call.sides + 2 * base;
  A *same = this->same(row), *other = this->other(row);
  Bits<A>* code = this->code(row);
  uint8_t* near = this->near(row);
  const int64_t end = call.list.row_end[in_list], start = row * g.width, width = g.width, reach = g.radius[2];
  int64_t e = call.list.row_first[in_list];
  has_[row % rows_] = e < end;
  // The next row's: edge pixels are too far apart for the processor to foresee them.
  for (int64_t x = 0; x < width; x += 64 / sizeof(*label)) __builtin_prefetch(label + start + width + x);
  for (; e < end; ++e) {
    const int64_t p = pixel[e], x = p - start;
    if (varies) {
      const A weight = call.edge_weight_of(base + p);
      of_same = upstream.at(Row::kSameSide, base + p, weight);
      of_other = upstream.at(Row::kOtherSide, base + p, weight);
    }
    same[x] = of_same * sides[2 * e];
    other[x] = of_other * sides[2 * e + 1];
    code_of<Bits<A>>(label[p], code[x]);
    const uint64_t first = std::max<int64_t>(x - reach, 0), last = std::min(x + reach, width - 1);
    for (uint64_t block = first / kBlock + 1; block < last / kBlock; ++block) near[block] = 1;
    near[first / kBlock] = near[last / kBlock] = 1;  // mostly all of them
  }
}

template <typename A>
void NeighborShares<A>::clear(const Call<A>& call, int64_t row) {
  const Geometry& g = call.g;
  const int32_t* pixel = call.list.pixel + image_ * g.pixels;
  const int64_t in_list = image_ * g.depth * g.height + row, start = row * g.width;
  A *same = this->same(row), *other = this->other(row);
  Bits<A>* code = this->code(row);
  const int64_t end = call.list.row_end[in_list];
  for (int64_t e = call.list.row_first[in_list]; e < end; ++e) {
    const int64_t x = pixel[e] - start;
    same[x] = other[x] = A(0);
    code[x] = 0;
  }
  std::fill_n(near(row), blocks_, 0);
}

template <typename A>
void gather_blocks(const Call<A>& call, const Upstream<A>& upstream, const Chunk& chunk, NeighborShares<A>& shares,
                   Gathered<A>& gathered) {
  const Geometry& g = call.g;
  shares.reach(call, upstream, chunk);
  const int16_t* label = call.label + chunk.image * g.pixels;
  std::vector<ShareRow<A>> rows;
  std::vector<uint8_t> near(shares.blocks());  // 2: of several classes
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    rows.clear();
    std::fill(near.begin(), near.end(), 0);
    for_each_row(g, row, g.radius, [&](int64_t first) {
      const int64_t seen = quotient(first, g.width);
      if (!shares.has(seen)) return;
      rows.push_back({first, shares.same(seen), shares.other(seen), shares.code(seen)});
      const uint8_t* of_row = shares.near(seen);
      for (int64_t block = 0; block < shares.blocks(); ++block) near[block] |= of_row[block];
    });
    if (rows.empty()) continue;
    const int64_t in_chunk = (row - chunk.first_row) * g.width, own = row * g.width;
    gathered.approach(in_chunk, in_chunk + g.width - 1);
    const Shares<A> out = {gathered.same.data() + in_chunk, gathered.other.data() + in_chunk,
                           gathered.k.data() + in_chunk};
    const bool is_mixed = vectorized_by_size<A>([=, seen = rows.data(), row_count = static_cast<int64_t>(rows.size()),
                                                 near = near.data(), width = g.width, reach = g.radius[2],
                                                 is_pair = g.classes == 2](auto bytes) EDGELOSS_LOOP {
      constexpr int64_t kWidth = decltype(bytes)::value / sizeof(A);
      bool any = false;
      for (int64_t x = 0; x < width; x += kWidth) {
        if (!near[x / kBlock]) continue;
        if (is_pair) {
          gather_block<kWidth, true>(label, width, reach, seen, row_count, own, x, out);
        } else if (gather_block<kWidth, false>(label, width, reach, seen, row_count, own, x, out)) {
          near[x / kBlock] = 2;
          any = true;
        }
      }
      return any;
    });
    if (!is_mixed) continue;
    for (int64_t x = 0; x < g.width; ++x) {
      if (near[x / kBlock] == 2) split_mixed(call, label, rows, own, x, in_chunk, gathered);
    }
    gathered.add_up(g.classes);
  }
}

#define EDGELOSS_INSTANTIATE(A)                                            \
  template void sum_windows(const Call<A>&, const Chunk&, WindowSums<A>&); \
  template class NeighborShares<A>;                                        \
  template void gather_blocks(const Call<A>&, const Upstream<A>&, const Chunk&, NeighborShares<A>&, Gathered<A>&);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
