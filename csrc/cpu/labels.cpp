// The windows of labels.h, in blocks of pixels that stay in the first-level cache. Most of an image has no edge nearby:
// a block whose labels are all the same costs one comparison. In others the labels of each class are summed over
// windows, or, where that takes longer, neighbors are looked at one by one.
#include "labels.h"

#include <algorithm>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kColumns = 24;  // of a block, at least
constexpr int64_t kPerClass = 5;  // neighbors that take as long to look at as the sums over windows of a class

// Σ in[i + j · step] over 0 ≤ j < length, for each i, by sums of 2, 4, 8, ... numbers: no difference of two sums, which
// would lose small weights next to large ones. Returns where they are.
template <typename A>
EDGELOSS_INLINE const A* window_sums(const A* in, int64_t count, int64_t step, int64_t length, A* part, A* sum) {
  if (length == 1) return in;
  std::memcpy(part, in, count * sizeof(A));
  int64_t covered = 0;
  for (int64_t reach = 1;; reach *= 2) {
    if (length & reach) {
      const A* from = part + covered * step;
      const int64_t n = count - (covered + reach - 1) * step;
      if (covered == 0) {
        std::memcpy(sum, from, n * sizeof(A));
      } else {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) sum[i] += from[i];
      }
      covered += reach;
    }
    if (covered == length) return sum;
    const int64_t n = count - (2 * reach - 1) * step, shift = reach * step;
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) part[i] += part[i + shift];
  }
}

// The sums of the numbers `from` of class k over the window of each inner pixel, without the pixel itself. Axis by
// axis: along the line through the pixel, what is before and behind it; along the window's other lines, everything.
template <typename A>
EDGELOSS_INLINE const A* sums_around(const Box& box, const BoxNumbers<A>& numbers, int32_t k, const A* from) {
  const int32_t* label = numbers.label;
  A* chosen = numbers.chosen;
  EDGELOSS_INDEPENDENT
  for (int64_t i = 0; i < box.count; ++i) {
    const A value = from[i];
    chosen[i] = label[i] == k ? value : A(0);
  }
  const A *sides = nullptr, *all = chosen;
  const int last_axis = box.radius[0] ? 0 : box.radius[1] ? 1 : 2;
  for (int axis = 2; axis >= 0; --axis) {
    const int64_t r = box.radius[axis], step = box.step[axis], first = r * step, last = box.count - first;
    if (r == 0) continue;
    const A* window = window_sums(all, box.count, step, r, numbers.part, numbers.sum);
    const A *before = window - first, *behind = window + step;
    A *new_sides = numbers.sides[axis % 2], *new_all = numbers.all[axis % 2];
    if (sides) {
      EDGELOSS_INDEPENDENT
      for (int64_t i = first; i < last; ++i) new_sides[i] = sides[i] + (before[i] + behind[i]);
    } else {
      EDGELOSS_INDEPENDENT
      for (int64_t i = first; i < last; ++i) new_sides[i] = before[i] + behind[i];
    }
    sides = new_sides;
    if (axis == last_axis) break;
    EDGELOSS_INDEPENDENT
    for (int64_t i = first; i < last; ++i) new_all[i] = all[i] + (before[i] + behind[i]);
    all = new_all;
  }
  return sides;
}

// The least label above k, or more than INT16_MAX. Labels up to k wrap around to the largest numbers.
EDGELOSS_INLINE int64_t next_label(const int32_t* label, int64_t count, int32_t k) {
  const uint32_t first = static_cast<uint32_t>(k + 1);
  uint32_t least = UINT32_MAX;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t above = static_cast<uint32_t>(label[i]) - first;
    least = above < least ? above : least;
  }
  return static_cast<int64_t>(least) + k + 1;
}

// Adds to `same` the sum of from_same over the neighbors of a pixel's class, and to `across` that of from_across over
// the others, neighbor by neighbor. Pixels that do not count have 0 in both.
template <typename A>
EDGELOSS_INLINE void add_by_neighbor(const int32_t* label, const std::vector<int64_t>& offsets, int64_t begin,
                                     int64_t end, const TwoSides<const A>& from, const TwoSides<A>& to) {
  A *same = to.same, *across = to.across;
  for (const int64_t offset : offsets) {
    const int32_t* neighbor = label + offset;
    const A *from_same = from.same + offset, *from_across = from.across + offset;
    EDGELOSS_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) {
      const A own = from_same[i], other = from_across[i];
      const bool is_own = neighbor[i] == label[i];
      same[i] += is_own ? own : A(0);
      across[i] += is_own ? A(0) : other;
    }
  }
}

// The same of the neighbors of class k; returns the sums of from_across.
template <typename A>
EDGELOSS_INLINE const A* add_of_class(const Box& box, const BoxNumbers<A>& numbers, int32_t k,
                                      const TwoSides<const A>& from, const TwoSides<A>& to) {
  const int32_t* label = numbers.label;
  A *same = to.same, *across = to.across;
  const A* sum = sums_around(box, numbers, k, from.same);
  EDGELOSS_INDEPENDENT
  for (int64_t i = box.begin; i < box.end; ++i) {
    const A value = sum[i], before = same[i];
    same[i] = label[i] == k ? value : before;
  }
  if (from.across != from.same) sum = sums_around(box, numbers, k, from.across);
  EDGELOSS_INDEPENDENT
  for (int64_t i = box.begin; i < box.end; ++i) {
    const A value = sum[i];
    across[i] += label[i] == k ? A(0) : value;
  }
  return sum;
}

// Multiplies u by the weight of class k.
template <typename A>
EDGELOSS_INLINE void multiply(const Box& box, const BoxNumbers<A>& numbers, int32_t k, A weight) {
  const int32_t* label = numbers.label;
  A* u = numbers.u;
  EDGELOSS_INDEPENDENT
  for (int64_t i = box.begin; i < box.end; ++i) {
    const A value = u[i];
    u[i] = label[i] == k ? value * weight : value;
  }
}

// Makes of D and D' what edge pixels give to each pixel on either side; of u, -1 elsewhere.
template <typename A>
EDGELOSS_INLINE void divide_sides(const Box& box, const BoxNumbers<A>& numbers) {
  const int32_t* label = numbers.label;
  A *u = numbers.u, *same = numbers.sums.same, *across = numbers.sums.across;
  EDGELOSS_INDEPENDENT
  for (int64_t i = box.begin; i < box.end; ++i) {
    const A d_same = same[i], d_across = across[i], weight = u[i];
    const A of_same = weight / d_same, of_across = weight / d_across;
    const bool is_edge = (label[i] >= 0) & (d_across > A(0));
    same[i] = (is_edge & (d_same > A(0))) ? of_same : A(0);
    across[i] = is_edge ? of_across : A(0);
    u[i] = is_edge ? weight : A(-1);
  }
}

}  // namespace

bool is_uniform(const Geometry& g, const int16_t* label, const int64_t* first, const int64_t* last) {
  const int64_t n = last[2] - first[2];
  const int16_t* top = label + (first[0] * g.height + first[1]) * g.width + first[2];
  const int64_t slices = last[0] - first[0], rows = last[1] - first[1], width = g.width, slice = g.height * g.width;
  return vectorized([=]() EDGELOSS_LOOP {
    const int16_t one = *top;
    for (int64_t z = 0; z < slices; ++z) {
      for (int64_t y = 0; y < rows; ++y) {
        const int16_t* row = top + z * slice + y * width;
        int16_t differs = 0;
        for (int64_t x = 0; x < n; ++x) differs |= static_cast<int16_t>(row[x] ^ one);
        if (differs) return false;
      }
    }
    return true;
  });
}

template <typename A>
void EdgeWindows<A>::form(const LabelMap<A>& map, const Slab& slab, EdgeWeights<A>* weights, EdgeTotals* totals) {
  if (weights) weights->clear();
  if (totals) totals->counts.assign(g_.classes, 0);
  unsorted_.clear();
  const int64_t *r = g_.radius, size[3] = {g_.depth, g_.height, g_.width};
  if (r[0] + r[1] + r[2] == 0) return;
  const int64_t columns = std::max(kColumns, 2 * r[2]);
  for (int64_t x = 0; x < g_.width; x += columns) {
    const Box box = box_around(slab, x, std::min(x + columns, g_.width));
    int64_t from[3], to[3];  // what the weights of the block depend on
    for (int a = 0; a < 3; ++a) {
      from[a] = std::max<int64_t>(0, box.first[a] - 2 * r[a]);
      to[a] = std::min(size[a], box.last[a] + 2 * r[a]);
    }
    if (is_uniform(g_, map.label, from, to)) continue;
    load(map, box);
    find_edges(box, map.class_weight);
    if (totals) count_edges(box, *totals);
    if (!weights) continue;
    if (!weights->any) weights->start(slab.pixels(g_.width), g_.classes);
    give(box, slab);
    write(box, slab, *weights);
  }
  if (!unsorted_.empty()) sort(slab.pixels(g_.width), weights->others);
}

// The box around columns of a slab; makes room for its numbers.
template <typename A>
Box EdgeWindows<A>::box_around(const Slab& slab, int64_t first_column, int64_t last_column) {
  Box box = {};
  const int64_t first[3] = {slab.first_slice, slab.first_row, first_column};
  const int64_t last[3] = {slab.last_slice, slab.last_row, last_column};
  std::copy_n(first, 3, box.first);
  std::copy_n(last, 3, box.last);
  const int64_t size[3] = {g_.depth, g_.height, g_.width};
  for (int a = 0; a < 3; ++a) {  // the edge pixels around the block, and what they see
    const int64_t r = box.radius[a] = g_.radius[a];
    box.origin[a] = std::max<int64_t>(0, box.first[a] - r) - r;
    box.size[a] = std::min(size[a], box.last[a] + r) + r - box.origin[a];
  }
  box.step[2] = 1;
  box.step[1] = box.size[2];
  box.step[0] = box.size[1] * box.size[2];
  box.count = box.size[0] * box.step[0];
  box.begin = box.radius[0] * box.step[0] + box.radius[1] * box.step[1] + box.radius[2];
  box.end = box.count - box.begin;
  if (static_cast<int64_t>(labels_.size()) >= box.count) return box;
  labels_.resize(box.count);
  found_.resize(box.count + 8);
  numbers_.resize(13 * box.count);
  A* next = numbers_.data() - box.count;
  const auto room = [&] { return next += box.count; };
  box_ = {labels_.data(), room(), room(), {room(), room()}, {room(), room()},
          room(),         room(), room(), {room(), room()}, {room(), room()}};
  return box;
}

// Labels, w and u of a box, its classes, and where its pixels have their neighbors if these are looked at.
template <typename A>
void EdgeWindows<A>::load(const LabelMap<A>& map, const Box& box) {
  const int64_t size[3] = {g_.depth, g_.height, g_.width};
  int64_t from[3], to[3];
  for (int a = 0; a < 3; ++a) {
    from[a] = std::max<int64_t>(box.origin[a], 0);
    to[a] = std::min(box.origin[a] + box.size[a], size[a]);
  }
  vectorized<A>([=, numbers = box_, g = &g_]() EDGELOSS_LOOP {
    std::fill_n(numbers.label, box.count, kIgnored);
    std::fill_n(numbers.w, box.count, A(1));
    std::fill_n(numbers.u, box.count, A(1));
    const int64_t n = to[2] - from[2];
    for (int64_t z = from[0]; z < to[0]; ++z) {
      for (int64_t y = from[1]; y < to[1]; ++y) {
        const int64_t start = (z * g->height + y) * g->width + from[2], at = box.at(z, y, from[2]);
        const int16_t* labels = map.label + start;
        int32_t* label = numbers.label + at;
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) label[i] = labels[i];
        if (map.pixel_weight) std::memcpy(numbers.u + at, map.pixel_weight + start, n * sizeof(A));
        if (!map.field) continue;
        const A *d = map.field + start, per_decay = map.per_decay;
        A* w = numbers.w + at;
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) w[i] = exp_negative(-d[i] * per_decay);
      }
    }
    const int32_t* label = numbers.label;
    A* w = numbers.w;
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < box.count; ++i) {
      const A value = w[i];
      w[i] = label[i] < 0 ? A(0) : value;
    }
  });
  const auto next = [&](int32_t k) {
    return vectorized([=, label = box_.label, n = box.count]() EDGELOSS_LOOP { return next_label(label, n, k); });
  };
  classes_.clear();
  for (int64_t k = next(-1); k <= INT16_MAX; k = next(static_cast<int32_t>(k))) {
    classes_.push_back(static_cast<int32_t>(k));
  }
  offsets_.clear();
  const int64_t *r = box.radius, window = (2 * r[0] + 1) * (2 * r[1] + 1) * (2 * r[2] + 1);
  by_neighbor_ = window - 1 < kPerClass * static_cast<int64_t>(classes_.size());
  for (int64_t i = 0; by_neighbor_ && i < window; ++i) {
    const int64_t x = i % (2 * r[2] + 1), y = i / (2 * r[2] + 1) % (2 * r[1] + 1),
                  z = i / ((2 * r[2] + 1) * (2 * r[1] + 1));
    const int64_t offset = (z - r[0]) * box.step[0] + (y - r[1]) * box.step[1] + x - r[2];
    if (offset != 0) offsets_.push_back(offset);
  }
}

// The edge pixels of a box, and what they give to their neighbors.
template <typename A>
void EdgeWindows<A>::find_edges(const Box& box, const A* class_weight) {
  const int64_t n = static_cast<int64_t>(classes_.size());
  vectorized<A>([=, numbers = box_, by_neighbor = by_neighbor_, k = classes_.data(), offsets = &offsets_]()
                    EDGELOSS_LOOP {
                      std::fill_n(numbers.sums.same, box.count, A(0));
                      std::fill_n(numbers.sums.across, box.count, A(0));
                      const TwoSides<const A> w = {numbers.w, numbers.w};
                      for (int64_t of = 0; of < n; ++of) {
                        if (!by_neighbor) add_of_class(box, numbers, k[of], w, numbers.sums);
                        if (class_weight) multiply(box, numbers, k[of], class_weight[k[of]]);
                      }
                      add_by_neighbor(numbers.label, *offsets, box.begin, box.end, w, numbers.sums);
                      divide_sides(box, numbers);
                    });
}

// Calls body(pixel of the box) for each pixel of a block that is_found(pixel) names, in loops that vectorize.
template <typename A, typename P, typename F>
void for_each_in_block(const Box& box, uint8_t* found, const P& is_found, const F& body) {
  const int64_t n = box.last[2] - box.first[2];
  box.for_each_row([&](int64_t z, int64_t y, int64_t at) {
    vectorized<A>([=]() EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) found[i] = is_found(at + i);
    });
    for_each_found(found, n, [&](int64_t i) { body(z, y, i, at + i); });
  });
}

template <typename A>
void EdgeWindows<A>::count_edges(const Box& box, EdgeTotals& totals) {
  const auto is_edge = [u = box_.u](int64_t i) EDGELOSS_LOOP { return u[i] >= A(0); };
  for_each_in_block<A>(box, found_.data(), is_edge, [&](int64_t, int64_t, int64_t, int64_t i) {
    ++totals.counts[box_.label[i]];
    totals.weight += static_cast<double>(box_.u[i]);
  });
}

// What edge pixels give to the pixels of a block.
template <typename A>
void EdgeWindows<A>::give(const Box& box, const Slab& slab) {
  std::fill_n(box_.given.same, box.count, A(0));
  std::fill_n(box_.given.across, box.count, A(0));
  const TwoSides<const A> from = {box_.sums.same, box_.sums.across};
  if (by_neighbor_) {
    vectorized<A>([=, numbers = box_, offsets = &offsets_]() EDGELOSS_LOOP {
      for (int64_t z = box.first[0]; z < box.last[0]; ++z) {
        const int64_t begin = box.at(z, box.first[1], box.first[2]), end = box.at(z, box.last[1] - 1, box.last[2]);
        add_by_neighbor(numbers.label, *offsets, begin, end, from, numbers.given);
      }
    });
    if (g_.classes > 2) list_others(box, slab);
    return;
  }
  for (const int32_t k : classes_) {
    const A* sum = vectorized<A>([=, numbers = box_]()
                                     EDGELOSS_LOOP { return add_of_class(box, numbers, k, from, numbers.given); });
    if (g_.classes == 2) continue;
    const auto is_found = [=, label = box_.label](int64_t i)
                              EDGELOSS_LOOP { return (label[i] >= 0) & (label[i] != k) & (sum[i] > A(0)); };
    for_each_in_block<A>(box, found_.data(), is_found, [&](int64_t z, int64_t y, int64_t x, int64_t i) {
      unsorted_.push_back({slab.place(g_.width, z, y, box.first[2] + x), k, sum[i] * box_.w[i]});
    });
  }
}

// What the pixels of a block get by class, neighbor by neighbor. Only edge pixels have one of another class.
template <typename A>
void EdgeWindows<A>::list_others(const Box& box, const Slab& slab) {
  newest_.assign(g_.classes, -1);
  const auto is_edge = [u = box_.u](int64_t i) EDGELOSS_LOOP { return u[i] >= A(0); };
  for_each_in_block<A>(box, found_.data(), is_edge, [&](int64_t z, int64_t y, int64_t x, int64_t i) {
    const int64_t first = static_cast<int64_t>(unsorted_.size());
    for (const int64_t offset : offsets_) {
      const int32_t k = box_.label[i + offset];
      const A weight = box_.sums.across[i + offset] * box_.w[i];
      if (k == box_.label[i] || weight == A(0)) continue;
      if (newest_[k] < first) {
        newest_[k] = static_cast<int64_t>(unsorted_.size());
        unsorted_.push_back({slab.place(g_.width, z, y, box.first[2] + x), k, A(0)});
      }
      unsorted_[newest_[k]].weight += weight;
    }
  });
}

// Writes what is given to each pixel of a block, times its w.
template <typename A>
void EdgeWindows<A>::write(const Box& box, const Slab& slab, EdgeWeights<A>& weights) const {
  const int64_t n = box.last[2] - box.first[2];
  box.for_each_row([&](int64_t z, int64_t y, int64_t at) {
    const int32_t place = slab.place(g_.width, z, y, box.first[2]);
    const auto copy = [&](const A* given, A* out) {
      vectorized<A>([=, w = box_.w + at, label = box_.label + at]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) {
          const A all = given[i], weighted = all * w[i];
          out[i] = ((all > A(0)) & (label[i] >= 0)) ? weighted : A(0);  // w is not set far from edges
        }
      });
    };
    copy(box_.given.same + at, weights.same.data() + place);
    if (g_.classes == 2) copy(box_.given.across + at, weights.other.data() + place);
  });
}

// By place; the order of the classes of a pixel does not matter.
template <typename A>
void EdgeWindows<A>::sort(int64_t pixels, std::vector<OtherWeight<A>>& others) {
  starts_.assign(pixels + 1, 0);
  for (const auto& each : unsorted_) ++starts_[each.place + 1];
  for (int64_t i = 0; i < pixels; ++i) starts_[i + 1] += starts_[i];
  others.resize(unsorted_.size());
  for (const auto& each : unsorted_) others[starts_[each.place]++] = each;
}

template class EdgeWindows<float>;
template class EdgeWindows<double>;

}  // namespace edgeloss
