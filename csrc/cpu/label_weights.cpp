// The windows of labels.h. Most of an image has no edge nearby, and only groups of pixels that see several labels are
// worked on: those that see an edge, and those that see such ones. There neighbors are looked at one by one, or, where
// that takes longer, in blocks of pixels that stay in cache, the labels of each class are summed over windows.
#include "label_weights.h"

#include <algorithm>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kColumns = 64;   // of a block, at least
constexpr int64_t kPerClass = 48;  // neighbors that take as long to look at as the sums over windows of a class

template <typename T, int64_t kBytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes)));
};

// Eight flags, 0 or 1, as the bits of a byte, the first one lowest.
inline uint8_t bits_of_flags(const uint8_t* flags) {
  uint64_t bytes;
  std::memcpy(&bytes, flags, sizeof(bytes));
  return static_cast<uint8_t>(bytes * 0x0102040810204080u >> 56);
}

// Whether each label of a row differs from the next one. A function of its own, as bytes may alias what a lambda holds.
EDGELOSS_INLINE void find_steps(const int16_t* row, int64_t width, uint8_t* differs) {
  EDGELOSS_INDEPENDENT
  for (int64_t x = 0; x < width - 1; ++x) differs[x] = row[x] != row[x + 1];
}

// sums: the bits of each of n groups, and those of other groups that are up to `reach` pixels away.
EDGELOSS_INLINE void spread(const int16_t* bits, int64_t n, int64_t reach, int16_t* sums) {
  std::copy_n(bits, n, sums);
  for (int64_t d = 1; (d - 1) * kGroup < reach && d < n; ++d) {
    // A step is seen where its farther pixel is in reach: of groups behind, that is the one after the bit's own.
    const int64_t left = reach - (d - 1) * kGroup, steps = std::min(left - 1, kGroup), pixels = std::min(left, kGroup);
    const int16_t behind = (1 << steps) - 1, before = 0xff00 >> pixels & 0xff;
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n - d; ++i) sums[i] |= bits[i + d] & behind;
    EDGELOSS_INDEPENDENT
    for (int64_t i = d; i < n; ++i) sums[i] |= bits[i - d] & before;
  }
}

// Sums over the neighbors of a group of pixels: of from.same_side of those of the pixel's class, and of from.other_side
// of the others. Pixels that do not count have 0 in both. Lists: also the class of the others, or kIgnored if there are
// several.
template <bool Lists, int64_t kBytes, typename A>
EDGELOSS_INLINE void add_neighbors(const WideLabel<A>* label, const int64_t* offsets, int64_t count,
                                   const TwoSides<A>& from, const TwoSides<A>& to, WideLabel<A>* other) {
  using Numbers = typename VectorOf<A, kBytes>::type;
  using Mask = typename VectorOf<WideLabel<A>, kBytes>::type;
  for (int64_t lane = 0; lane < kGroup; lane += kBytes / static_cast<int64_t>(sizeof(A))) {
    Mask own, neighbor, number, in_all = ~Mask{}, in_any = {};
    Numbers same = {}, across = {};
    std::memcpy(&own, label + lane, kBytes);
    for (int64_t n = 0; n < count; ++n) {
      const int64_t i = lane + offsets[n];
      std::memcpy(&neighbor, label + i, kBytes);
      const Mask is_own = neighbor == own;
      std::memcpy(&number, from.same_side + i, kBytes);
      same += reinterpret_cast<Numbers>(number & is_own);
      std::memcpy(&number, from.other_side + i, kBytes);
      across += reinterpret_cast<Numbers>(number & ~is_own);
      if constexpr (Lists) {  // the bits of the others' classes, of which kIgnored has all
        in_all &= neighbor | is_own;
        in_any |= (neighbor + 1) & ~is_own;
      }
    }
    std::memcpy(to.same_side + lane, &same, kBytes);
    std::memcpy(to.other_side + lane, &across, kBytes);
    if constexpr (Lists) {
      in_all |= in_any != in_all + 1;  // two classes k have a smaller one in all, and a larger k + 1 in any
      std::memcpy(other + lane, &in_all, kBytes);
    }
  }
}

// The lengths of the first moves from each pixel of a group to one of another class, or infinity.
template <int64_t kBytes, typename A>
EDGELOSS_INLINE void find_nearest(const WideLabel<A>* label, const int64_t* offsets, const A* lengths, int64_t count,
                                  A* nearest) {
  using Numbers = typename VectorOf<A, kBytes>::type;
  using Mask = typename VectorOf<WideLabel<A>, kBytes>::type;
  for (int64_t lane = 0; lane < kGroup; lane += kBytes / static_cast<int64_t>(sizeof(A))) {
    Mask own, other;
    std::memcpy(&own, label + lane, kBytes);
    Mask open = own >= Mask{};
    Numbers found = Numbers{} + A(INFINITY);
    for (int64_t n = 0, any = 1; n < count && any; ++n) {
      std::memcpy(&other, label + lane + offsets[n], kBytes);
      const Mask is_first = open & (other != own) & (other >= Mask{});
      found = is_first ? Numbers{} + lengths[n] : found;
      open &= ~is_first;
      if (n % 8 < 7) continue;
      any = 0;
      for (size_t j = 0; j < kBytes / sizeof(A); ++j) any |= open[j];
    }
    std::memcpy(nearest + lane, &found, kBytes);
  }
}

// Makes of D and D' of a group v / D and v / D', which are 0 but for edge pixels, and of v of other pixels -1.
template <int64_t kBytes, typename A>
EDGELOSS_INLINE void divide(const WideLabel<A>* label, const TwoSides<A>& sums, A* v) {
  using Numbers = typename VectorOf<A, kBytes>::type;
  using Mask = typename VectorOf<WideLabel<A>, kBytes>::type;
  for (int64_t lane = 0; lane < kGroup; lane += kBytes / static_cast<int64_t>(sizeof(A))) {
    Mask y;
    Numbers same, across, weight;
    std::memcpy(&y, label + lane, kBytes);
    std::memcpy(&same, sums.same_side + lane, kBytes);
    std::memcpy(&across, sums.other_side + lane, kBytes);
    std::memcpy(&weight, v + lane, kBytes);
    const Mask is_edge = (y >= Mask{}) & (across > Numbers{}), has_same = is_edge & (same > Numbers{});
    same = reinterpret_cast<Numbers>(reinterpret_cast<Mask>(weight / same) & has_same);
    across = reinterpret_cast<Numbers>(reinterpret_cast<Mask>(weight / across) & is_edge);
    weight = is_edge ? weight : Numbers{} - A(1);
    std::memcpy(sums.same_side + lane, &same, kBytes);
    std::memcpy(sums.other_side + lane, &across, kBytes);
    std::memcpy(v + lane, &weight, kBytes);
  }
}

template <typename A>
TwoSides<A> moved(const TwoSides<A>& sides, int64_t i) {
  return {sides.same_side + i, sides.other_side + i};
}

}  // namespace

template <typename A>
EdgeWindows<A>::EdgeWindows(const Geometry& g) : g_(g), newest_(g.classes) {
  const int64_t* r = g.radius;
  neighbors_ = (2 * r[0] + 1) * (2 * r[1] + 1) * (2 * r[2] + 1) - 1;
  groups_ = (g.width + kGroup - 1) / kGroup;
  columns_ = neighbors_ <= kPerClass ? groups_ * kGroup : std::max(kColumns, 2 * r[2] / kGroup * kGroup);
  differs_.resize(groups_ * kGroup);
}

template <typename A>
void EdgeWindows<A>::form(const LabelMap<A>& map, const Slab& slab, SlabWeights<A>* weights, EdgeTotals* totals) {
  if (weights) weights->clear();
  if (totals) {
    totals->counts.assign(g_.classes + 1, 0);
    totals->weights.assign(g_.classes, 0);
  }
  if (neighbors_ == 0) return;
  start(map.label, slab);
  if (!find_groups(edges_, 1, edge_groups_)) return;
  load(map, edges_, g_.radius);
  add_around(edges_, edge_groups_, {w_, w_}, sums_, nullptr);
  divide_sides(map, totals);
  if (!weights || !find_groups(inner_, 2, near_groups_)) return;
  weights->start(slab.pixels(g_.width), g_.classes);
  add_around(inner_, near_groups_, sums_, scales_, g_.classes > 2 ? &weights->others : nullptr);
  write(*weights);
  if (neighbors_ <= kPerClass) return;  // else block by block, or class by class
  std::sort(weights->others.begin(), weights->others.end(),
            [](const auto& a, const auto& b) { return a.place < b.place; });
}

template <typename A>
void EdgeWindows<A>::start(const int16_t* label, const Slab& slab) {
  slab_ = slab;
  inner_ = {{slab.first_slice, slab.first_row, 0}, {slab.last_slice, slab.last_row, g_.width}};
  edges_ = expanded(inner_);
  all_ = expanded(edges_);
  compare(label);
}

// With all pixels of the rows that those of a region see.
template <typename A>
Extent EdgeWindows<A>::expanded(const Extent& region) const {
  Extent result = region;
  const int64_t size[2] = {g_.depth, g_.height};
  for (int a = 0; a < 2; ++a) {
    result.first[a] = std::max<int64_t>(0, region.first[a] - g_.radius[a]);
    result.last[a] = std::min(size[a], region.last[a] + g_.radius[a]);
  }
  return result;
}

// The first label of each group, and the steps from one label to another that are near it in its row.
template <typename A>
void EdgeWindows<A>::compare(const int16_t* label) {
  const int64_t width = g_.width, n = groups_, r = g_.radius[2];
  const int64_t rows = (all_.last[0] - all_.first[0]) * (all_.last[1] - all_.first[1]);
  for (auto* of_groups : {&first_, &steps_[0], &steps_[1]}) of_groups->resize(rows * n);
  std::vector<int16_t> bits(n);
  int64_t at = 0;
  for_each_row(all_, [&](int64_t z, int64_t y) {
    const int16_t* row = label + (z * g_.height + y) * width;
    vectorized([=, differs = differs_.data(), first = &first_[at], bits = bits.data(), near = &steps_[0][at],
                far = &steps_[1][at]]() EDGELOSS_LOOP {
      find_steps(row, width, differs);
      for (int64_t i = 0; i < n; ++i) {
        first[i] = row[i * kGroup];
        bits[i] = bits_of_flags(differs + i * kGroup);
      }
      spread(bits, n, r, near);
      spread(bits, n, 2 * r, far);
    });
    at += n;
  });
}

// Finds the groups of a region that see several labels up to `reach` windows away, 1 or 2.
template <typename A>
bool EdgeWindows<A>::find_groups(const Extent& region, int64_t reach, Flags& found) {
  const int64_t far = reach * g_.radius[0], wide = reach * g_.radius[1], n = groups_;
  const auto at = [n, all = all_](int64_t z, int64_t y) {
    return ((z - all.first[0]) * (all.last[1] - all.first[1]) + y - all.first[1]) * n;
  };
  found.resize((region.last[0] - region.first[0]) * (region.last[1] - region.first[1]) * n + kGroup);
  uint8_t* flags = found.data();
  int16_t any = 0;
  std::vector<int16_t> several(n);
  for_each_row(region, [&](int64_t z, int64_t y) {
    const int64_t first_slice = std::max<int64_t>(0, z - far), last_slice = std::min(g_.depth, z + far + 1);
    const int64_t first_row = std::max<int64_t>(0, y - wide), last_row = std::min(g_.height, y + wide + 1);
    vectorized([=, own = &first_[at(z, y)], first = first_.data(), steps = steps_[reach - 1].data(),
                several = several.data()]() EDGELOSS_LOOP {
      std::fill_n(several, n, int16_t(0));
      for (int64_t v = first_slice; v < last_slice; ++v) {
        for (int64_t row = at(v, first_row); row < at(v, last_row); row += n) {
          EDGELOSS_INDEPENDENT
          for (int64_t i = 0; i < n; ++i) several[i] |= (first[row + i] ^ own[i]) | steps[row + i];
        }
      }
    });
    for (int64_t i = 0; i < n; ++i) {
      *flags++ = several[i] != 0;
      any |= several[i];
    }
  });
  return any != 0;
}

// Calls body(slice, row, flags of its groups) for the rows of a region.
template <typename A>
template <typename F>
void EdgeWindows<A>::for_each_flagged(const Extent& region, const uint8_t* groups, const F& body) const {
  for_each_row(region, [&](int64_t z, int64_t y) {
    body(z, y, groups);
    groups += groups_;
  });
}

// Labels and w, and room for the rest.
template <typename A>
void EdgeWindows<A>::load(const LabelMap<A>& map, const Extent& region, const int64_t* margin) {
  Extent whole = region;
  whole.last[2] = groups_ * kGroup;
  box_ = Box(whole, margin);
  offsets_.clear();
  if (static_cast<int64_t>(label_.size()) < box_.count) {
    label_.resize(box_.count);
    other_.resize(box_.count);
    numbers_.resize(6 * box_.count);
  }
  A* numbers = numbers_.data();
  w_ = numbers;
  sums_ = {numbers + box_.count, numbers + 2 * box_.count};
  scales_ = {numbers + 3 * box_.count, numbers + 4 * box_.count};
  v_ = numbers + 5 * box_.count;
  std::fill_n(sums_.same_side, 2 * box_.count, A(0));
  const Extent rows = {{region.first[0] - margin[0], region.first[1] - margin[1]},
                       {region.last[0] + margin[0], region.last[1] + margin[1]}};
  for_each_row(rows, [&](int64_t z, int64_t y) {
    const bool is_inside = 0 <= z && z < g_.depth && 0 <= y && y < g_.height;
    const int64_t n = is_inside ? g_.width : 0, at = box_.at(z, y, 0), start = (z * g_.height + y) * g_.width;
    vectorized<A>([=, from = map.label + start, d = map.field ? map.field + start : nullptr, per_decay = map.per_decay,
                   label = label_.data() + at, w = w_ + at, left = margin[2], right = box_.step[1] - margin[2] - n]()
                      EDGELOSS_LOOP {
                        std::fill_n(label - left, left, WideLabel<A>(kIgnored));
                        std::fill_n(label + n, right, WideLabel<A>(kIgnored));
                        std::fill_n(w - left, left, A(0));
                        std::fill_n(w + n, right, A(0));
                        EDGELOSS_INDEPENDENT
                        for (int64_t x = 0; x < n; ++x) label[x] = from[x];
                        EDGELOSS_INDEPENDENT
                        for (int64_t x = 0; x < n; ++x) {
                          const A of_field = d ? exp_negative(-d[x] * per_decay) : A(1);
                          w[x] = from[x] < 0 ? A(0) : of_field;
                        }
                      });
  });
}

// Sums of `from` over the neighbors of the pixels of a region, where its groups are flagged.
template <typename A>
void EdgeWindows<A>::add_around(const Extent& region, const Flags& groups, const TwoSides<A>& from,
                                const TwoSides<A>& to, Others* others) {
  for (int64_t x = 0; x < g_.width; x += columns_) {
    Extent block = region;
    block.first[2] = x;
    block.last[2] = std::min(x + columns_, groups_ * kGroup);
    const uint8_t* flags = groups.data() + x / kGroup;
    bool any = false;
    for_each_flagged(block, flags, [&](int64_t, int64_t, const uint8_t* row) {
      any |= std::memchr(row, 1, (block.last[2] - x) / kGroup) != nullptr;
    });
    if (!any) continue;
    classes_.clear();
    if (neighbors_ > kPerClass) find_classes(block);
    if (neighbors_ <= kPerClass * std::max<int64_t>(1, classes_.size())) {
      add_by_neighbor(block, flags, from, to, others);
    } else {
      add_by_class(block, from, to, others);
      for_each_flagged(block, flags, [&](int64_t z, int64_t y, const uint8_t* row) {
        for (int64_t i = 0; i < (block.last[2] - x) / kGroup; ++i) {
          if (row[i]) continue;
          const int64_t at = box_.at(z, y, x + i * kGroup);
          std::fill_n(to.same_side + at, kGroup, A(0));
          std::fill_n(to.other_side + at, kGroup, A(0));  // of places behind the image too, which other blocks see
        }
      });
    }
  }
}

template <typename A>
void EdgeWindows<A>::add_by_neighbor(const Extent& block, const uint8_t* groups, const TwoSides<A>& from,
                                     const TwoSides<A>& to, Others* others) {
  const int64_t* r = g_.radius;
  for (int64_t z = -r[0]; z <= r[0] && static_cast<int64_t>(offsets_.size()) < neighbors_; ++z) {
    for (int64_t y = -r[1]; y <= r[1]; ++y) {
      for (int64_t x = -r[2]; x <= r[2]; ++x) {
        if (z || y || x) offsets_.push_back(z * box_.step[0] + y * box_.step[1] + x);
      }
    }
  }
  const int64_t n = (block.last[2] - block.first[2]) / kGroup;
  for_each_flagged(block, groups, [&](int64_t z, int64_t y, const uint8_t* flags) {
    const int64_t at = box_.at(z, y, block.first[2]);
    vectorized_by_size<A>([=, label = label_.data(), offsets = offsets_.data(), count = neighbors_,
                           lists = others != nullptr, other = other_.data()](auto bytes) EDGELOSS_LOOP {
      constexpr int64_t kBytes = decltype(bytes)::value;
      for_each_found(flags, n, [&](int64_t group) EDGELOSS_LOOP {
        const int64_t i = at + group * kGroup;
        if (lists) {
          add_neighbors<true, kBytes>(label + i, offsets, count, moved(from, i), moved(to, i), other + i);
        } else {
          add_neighbors<false, kBytes>(label + i, offsets, count, moved(from, i), moved(to, i), other);
        }
      });
    });
    if (!others) return;
    for_each_found(flags, n, [&](int64_t group) {
      const int64_t i = at + group * kGroup;
      const int32_t place = slab_.place(g_.width, z, y, block.first[2] + group * kGroup);
      for (int32_t j = 0; j < kGroup; ++j) {
        if (v_[i + j] < A(0)) continue;
        if (other_[i + j] < 0) {
          list_others(i + j, place + j, *others);
        } else {
          others->push_back({place + j, static_cast<int32_t>(other_[i + j]), to.other_side[i + j] * w_[i + j]});
        }
      }
    });
  });
}

// What a pixel gets from edge pixels of several classes, neighbor by neighbor.
template <typename A>
void EdgeWindows<A>::list_others(int64_t i, int32_t place, Others& others) {
  const size_t first = others.size();
  for (const int64_t offset : offsets_) {
    const auto k = label_[i + offset];
    const A weight = sums_.other_side[i + offset] * w_[i];
    if (k == label_[i] || weight == A(0)) continue;
    size_t& newest = newest_[k];
    if (newest < first || newest >= others.size() || others[newest].k != k) {
      newest = others.size();
      others.push_back({place, static_cast<int32_t>(k), A(0)});
    }
    others[newest].weight += weight;
  }
}

// Makes of D and D' what edge pixels give to each pixel on either side, and counts those of the slab.
template <typename A>
void EdgeWindows<A>::divide_sides(const LabelMap<A>& map, EdgeTotals* totals) {
  for_each_flagged(edges_, edge_groups_.data(), [&](int64_t z, int64_t y, const uint8_t* groups) {
    const int64_t at = box_.at(z, y, 0), start = (z * g_.height + y) * g_.width;
    const auto* label = label_.data() + at;
    A* v = v_ + at;
    std::fill_n(v, groups_ * kGroup, A(-1));
    for_each_found(groups, groups_, [&](int64_t group) {
      const int64_t first = group * kGroup, n = std::min(kGroup, g_.width - first);
      map.pixel_weight ? std::copy_n(map.pixel_weight + start + first, n, v + first) : std::fill_n(v + first, n, A(1));
    });
    vectorized_by_size<A>([=, sums = moved(sums_, at), n = groups_](auto bytes) EDGELOSS_LOOP {
      for_each_found(groups, n, [&](int64_t group) EDGELOSS_LOOP {
        const int64_t i = group * kGroup;
        divide<decltype(bytes)::value>(label + i, moved(sums, i), v + i);
      });
    });
    const bool is_inside = slab_.first_slice <= z && z < slab_.last_slice && slab_.first_row <= y && y < slab_.last_row;
    if (totals && is_inside) count(label, v, groups, map.pixel_weight != nullptr, *totals);
  });
}

// Adds the edge pixels of a row to the totals.
template <typename A>
void EdgeWindows<A>::count(const WideLabel<A>* label, const A* v, const uint8_t* groups, bool has_weights,
                           EdgeTotals& totals) const {
  RunSum sum(totals.weights.data());
  for_each_found(groups, groups_, [&](int64_t group) {
    for (int64_t x = group * kGroup; x < (group + 1) * kGroup; ++x) {
      const bool is_edge = v[x] >= A(0);
      ++totals.counts[is_edge ? label[x] : g_.classes];
      if (has_weights && is_edge) sum.add(label[x], static_cast<double>(v[x]));
    }
  });
}

// Writes what is given to each pixel of the slab, times its w.
template <typename A>
void EdgeWindows<A>::write(SlabWeights<A>& weights) const {
  for_each_flagged(inner_, near_groups_.data(), [&](int64_t z, int64_t y, const uint8_t* groups) {
    const int64_t at = box_.at(z, y, 0), place = slab_.place(g_.width, z, y, 0);
    const auto copy = [&](const A* given, A* out) {
      vectorized<A>([=, w = w_ + at, n = groups_]() EDGELOSS_LOOP {
        for_each_found(groups, n, [&](int64_t group) EDGELOSS_LOOP {
          EDGELOSS_INDEPENDENT
          for (int64_t i = group * kGroup; i < group * kGroup + kGroup; ++i) out[i] = given[i] * w[i];
        });
      });
    };
    copy(scales_.same_side + at, weights.same_side.data() + place);
    if (g_.classes == 2) copy(scales_.other_side + at, weights.other_side.data() + place);
  });
}

template <typename A>
void EdgeWindows<A>::find_distances(const int16_t* label, const Slab& slab, const Moves& moves, A* field) {
  start(label, slab);
  if (!find_groups(inner_, 2, near_groups_)) return;
  load({label, nullptr, nullptr, A(0)}, inner_, moves.farthest);
  std::vector<A> lengths;
  for (const auto& [by, length] : moves.moves) {
    offsets_.push_back(by[0] * box_.step[0] + by[1] * box_.step[1] + by[2]);
    lengths.push_back(static_cast<A>(length));
  }
  for_each_flagged(inner_, near_groups_.data(), [&](int64_t z, int64_t y, const uint8_t* groups) {
    A* nearest = scales_.same_side;
    vectorized_by_size<A>([=, label = label_.data() + box_.at(z, y, 0), n = groups_, offsets = offsets_.data(),
                           lengths = lengths.data(), count = offsets_.size()](auto bytes) EDGELOSS_LOOP {
      for_each_found(groups, n, [&](int64_t group) EDGELOSS_LOOP {
        const int64_t i = group * kGroup;
        find_nearest<decltype(bytes)::value>(label + i, offsets, lengths, count, nearest + i);
      });
    });
    A* row = field + (z * g_.height + y) * g_.width;
    for_each_found(groups, groups_, [&](int64_t group) {
      const int64_t first = group * kGroup;
      std::copy_n(nearest + first, std::min(kGroup, g_.width - first), row + first);
    });
  });
}

template class EdgeWindows<float>;
template class EdgeWindows<double>;

}  // namespace edgeloss
