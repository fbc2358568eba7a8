// The windows of labels.h, in blocks of pixels that stay in the first-level cache. Most of an image has no edge nearby:
// a block whose labels are all the same costs one comparison. Few neighbors are looked at one by one, more are summed
// over windows of the labels of one class at a time.
#include "labels.h"

#include <algorithm>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kColumns = 24;       // of a block, at least
constexpr int64_t kFewNeighbors = 27;  // those of radius 1 in volumes, the pixel included

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

// The sums of the numbers `from` of class k over the window of each inner pixel, without the pixel itself. Axis by axis:
// along the line through the pixel, what is before and behind it; along the window's other lines, everything.
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
    EDGELOSS_INDEPENDENT
    for (int64_t i = first; i < last; ++i) new_all[i] = all[i] + (before[i] + behind[i]);
    sides = new_sides;
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

// Adds up D and D', the sums of w over the neighbors of a pixel's class and over the others, class by class.
template <typename A>
EDGELOSS_INLINE void add_by_class(const Box& box, const BoxNumbers<A>& numbers, const std::vector<int32_t>& classes) {
  const int32_t* label = numbers.label;
  A *same = numbers.same, *across = numbers.across;
  for (const int32_t k : classes) {
    const A* sum = sums_around(box, numbers, k, numbers.w);
    EDGELOSS_INDEPENDENT
    for (int64_t i = box.begin; i < box.end; ++i) {
      const A value = sum[i], own = same[i], others = across[i];
      const bool is_own = label[i] == k;
      same[i] = is_own ? value : own;
      across[i] = others + (is_own ? A(0) : value);
    }
  }
}

// The same, neighbor by neighbor.
template <typename A>
EDGELOSS_INLINE void add_by_neighbor(const Box& box, const BoxNumbers<A>& numbers,
                                     const std::vector<int64_t>& offsets) {
  const int32_t* label = numbers.label;
  A *same = numbers.same, *across = numbers.across;
  for (const int64_t offset : offsets) {
    const int32_t* neighbor = label + offset;
    const A* w = numbers.w + offset;
    EDGELOSS_INDEPENDENT
    for (int64_t i = box.begin; i < box.end; ++i) {
      const A value = w[i];
      const bool is_own = neighbor[i] == label[i];
      same[i] += is_own ? value : A(0);
      across[i] += (!is_own & (neighbor[i] >= 0)) ? value : A(0);
    }
  }
}

// Makes of D and D' what edge pixels give to each pixel on either side; of u, -1 elsewhere.
template <typename A>
EDGELOSS_INLINE void divide_sides(const Box& box, const BoxNumbers<A>& numbers) {
  const int32_t* label = numbers.label;
  A *u = numbers.u, *same = numbers.same, *across = numbers.across;
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
EdgeWindows<A>::EdgeWindows(const Geometry& g)
    : g_(g), by_neighbor_((2 * g.radius[0] + 1) * (2 * g.radius[1] + 1) * (2 * g.radius[2] + 1) <= kFewNeighbors) {}

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
    find_edges(map, box);
    if (totals) count_edges(box, *totals);
    if (!weights) continue;
    if (!weights->any) weights->start(slab.pixels(g_.width), g_.classes);
    by_neighbor_ ? give_by_neighbor(box, slab) : give_by_class(box, slab);
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
  box_ = {labels_.data(), room(), room(), room(), room(), room(), room(), room(), room(), room(), {room(), room()},
          {room(), room()}};
  return box;
}

// Labels, w and v of a box.
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
  });
}

// The classes of a box, and what its edge pixels give to their neighbors.
template <typename A>
void EdgeWindows<A>::find_edges(const LabelMap<A>& map, const Box& box) {
  classes_.clear();
  const auto next = [&](int32_t k) {
    return vectorized([=, label = box_.label, n = box.count]() EDGELOSS_LOOP { return next_label(label, n, k); });
  };
  for (int64_t k = next(-1); k <= INT16_MAX; k = next(static_cast<int32_t>(k)))
    classes_.push_back(static_cast<int32_t>(k));
  offsets_.clear();
  for (int64_t z = -box.radius[0]; by_neighbor_ && z <= box.radius[0]; ++z) {
    for (int64_t y = -box.radius[1]; y <= box.radius[1]; ++y) {
      for (int64_t x = -box.radius[2]; x <= box.radius[2]; ++x) {
        const int64_t offset = z * box.step[0] + y * box.step[1] + x;
        if (offset != 0) offsets_.push_back(offset);
      }
    }
  }
  vectorized<A>([=, numbers = box_, by_neighbor = by_neighbor_, classes = &classes_,
                 offsets = &offsets_]() EDGELOSS_LOOP {
    for (size_t of = 0; map.class_weight && of < classes->size(); ++of) {
      const int32_t k = (*classes)[of], *label = numbers.label;
      const A factor = map.class_weight[k];
      A* u = numbers.u;
      EDGELOSS_INDEPENDENT
      for (int64_t i = box.begin; i < box.end; ++i) {
        const A weight = u[i];
        u[i] = label[i] == k ? weight * factor : weight;
      }
    }
    std::fill_n(numbers.same, box.count, A(0));
    std::fill_n(numbers.across, box.count, A(0));
    by_neighbor ? add_by_neighbor(box, numbers, *offsets) : add_by_class(box, numbers, *classes);
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

// What edge pixels give to the pixels of a block, neighbor by neighbor.
template <typename A>
void EdgeWindows<A>::give_by_neighbor(const Box& box, const Slab& slab) {
  const bool is_pair = g_.classes == 2;
  vectorized<A>([=, numbers = box_, offsets = &offsets_]() EDGELOSS_LOOP {
    const int32_t* label = numbers.label;
    A *to_own = numbers.to_own, *to_other = numbers.to_other;
    for (int64_t z = box.first[0]; z < box.last[0]; ++z) {
      const int64_t first = box.at(z, box.first[1], box.first[2]), last = box.at(z, box.last[1] - 1, box.last[2]);
      std::fill(to_own + first, to_own + last, A(0));
      std::fill(to_other + first, to_other + last, A(0));
      for (const int64_t offset : *offsets) {
        const int32_t* neighbor = label + offset;
        const A *same = numbers.same + offset, *across = numbers.across + offset;
        EDGELOSS_INDEPENDENT
        for (int64_t i = first; i < last; ++i) {
          const A value = same[i];
          to_own[i] += neighbor[i] == label[i] ? value : A(0);
        }
        if (!is_pair) continue;
        EDGELOSS_INDEPENDENT
        for (int64_t i = first; i < last; ++i) {
          const A value = across[i];
          to_other[i] += neighbor[i] == label[i] ? A(0) : value;
        }
      }
    }
  });
  if (is_pair) return;
  newest_.assign(g_.classes, -1);
  // Only edge pixels have a neighbor of another class.
  const auto is_edge = [u = box_.u](int64_t i) EDGELOSS_LOOP { return u[i] >= A(0); };
  for_each_in_block<A>(box, found_.data(), is_edge, [&](int64_t z, int64_t y, int64_t x, int64_t i) {
    const int64_t first = static_cast<int64_t>(unsorted_.size());
    for (const int64_t offset : offsets_) {
      const int32_t k = box_.label[i + offset];
      const A weight = box_.across[i + offset] * box_.w[i];
      if (k == box_.label[i] || weight == A(0)) continue;
      if (newest_[k] < first) {
        newest_[k] = static_cast<int64_t>(unsorted_.size());
        unsorted_.push_back({slab.place(g_.width, z, y, box.first[2] + x), k, A(0)});
      }
      unsorted_[newest_[k]].weight += weight;
    }
  });
}

// The same, class by class.
template <typename A>
void EdgeWindows<A>::give_by_class(const Box& box, const Slab& slab) {
  const bool is_pair = g_.classes == 2;
  const int32_t* label = box_.label;
  const auto give = [&](int32_t k, const A* from, int32_t to_class, A* to) {
    return vectorized<A>([=, numbers = box_]() EDGELOSS_LOOP {
      const A* sum = sums_around(box, numbers, k, from);
      if (!to) return sum;
      EDGELOSS_INDEPENDENT
      for (int64_t i = box.begin; i < box.end; ++i) {
        const A value = sum[i], before = to[i];
        to[i] = label[i] == to_class ? value : before;
      }
      return sum;
    });
  };
  std::fill_n(box_.to_own, box.count, A(0));
  std::fill_n(box_.to_other, box.count, A(0));
  for (const int32_t k : classes_) {
    give(k, box_.same, k, box_.to_own);
    const A* sum = give(k, box_.across, 1 - k, is_pair ? box_.to_other : nullptr);
    if (is_pair) continue;
    const auto is_found = [=](int64_t i) EDGELOSS_LOOP {
      return (label[i] >= 0) & (label[i] != k) & (sum[i] > A(0));
    };
    for_each_in_block<A>(box, found_.data(), is_found, [&](int64_t z, int64_t y, int64_t x, int64_t i) {
      unsorted_.push_back({slab.place(g_.width, z, y, box.first[2] + x), k, sum[i] * box_.w[i]});
    });
  }
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
    copy(box_.to_own + at, weights.same.data() + place);
    if (g_.classes == 2) copy(box_.to_other + at, weights.other.data() + place);
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
