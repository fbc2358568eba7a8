// The windows of labels.h: sums over windows of the labels of one class at a time, in blocks of pixels that stay in the
// first-level cache. Most of an image has no edge nearby: a block whose labels are all the same costs one comparison.
#include "labels.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <type_traits>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kColumns = 24;  // of a block

// Σ in[i + j · step] over 0 ≤ j < length, for each i, by sums of 2, 4, 8, ... numbers: no difference of two sums, which
// would lose small weights next to large ones. Returns where they are.
template <typename T>
EDGELOSS_INLINE const T* window_sums(const T* in, int64_t count, int64_t step, int64_t length, T* part, T* sum) {
  if (length == 1) return in;
  std::memcpy(part, in, count * sizeof(T));
  int64_t covered = 0;
  for (int64_t reach = 1;; reach *= 2) {
    if (length & reach) {
      const T* from = part + covered * step;
      const int64_t n = count - (covered + reach - 1) * step;
      if (covered == 0) {
        std::memcpy(sum, from, n * sizeof(T));
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

// The sum of `chosen` over the window of each inner pixel, without the pixel itself. Axis by axis: along the line
// through the pixel, what is before and behind it; along the window's other lines, everything.
template <typename Box, typename Sums>
EDGELOSS_INLINE auto sums_around(const Box& box, const Sums& sums) {
  using T = std::remove_pointer_t<decltype(sums.sum)>;
  const T *sides = nullptr, *all = sums.chosen;
  const bool is_wide[3] = {box.radius[0] > 0, box.radius[1] > 0, box.radius[2] > 0};
  int turn = 0;
  for (int axis = 2; axis >= 0; --axis) {
    if (!is_wide[axis]) continue;
    const int64_t r = box.radius[axis], step = box.step[axis];
    const T* window = window_sums(all, box.count, step, r, sums.part, sums.sum);
    T *new_sides = sums.sides[turn], *new_all = sums.all[turn];
    const T *before = window - r * step, *behind = window + step;
    const int64_t first = r * step, last = box.count - r * step;
    if (sides) {
      EDGELOSS_INDEPENDENT
      for (int64_t i = first; i < last; ++i) new_sides[i] = sides[i] + (before[i] + behind[i]);
    } else {
      EDGELOSS_INDEPENDENT
      for (int64_t i = first; i < last; ++i) new_sides[i] = before[i] + behind[i];
    }
    const bool is_last = axis == 0 || (!is_wide[0] && (axis == 1 || !is_wide[1]));
    if (!is_last) {
      EDGELOSS_INDEPENDENT
      for (int64_t i = first; i < last; ++i) new_all[i] = all[i] + (before[i] + behind[i]);
    }
    sides = new_sides;
    all = new_all;
    turn ^= 1;
  }
  return sides;
}

// The least label above k; INT16_MAX or more if there is none. Labels up to k wrap around to the largest numbers.
EDGELOSS_INLINE int32_t next_label(const int16_t* label, int64_t count, int32_t k) {
  const uint16_t first = static_cast<uint16_t>(k + 1);
  uint16_t least = UINT16_MAX;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t above = static_cast<uint16_t>(static_cast<uint16_t>(label[i]) - first);
    least = above < least ? above : least;
  }
  return least + k + 1;
}

// Of each pixel, the sums of w over the neighbors of its class, and over the others; w may be null for ones.
template <typename T, typename L, typename Box, typename Sums>
EDGELOSS_INLINE void sum_sides(const Box& box, const L* label, const T* w, const int32_t* classes, int64_t n,
                               const Sums& sums, T* same, T* across) {
  std::fill_n(same, box.count, T(0));
  std::fill_n(across, box.count, T(0));
  for (int64_t of = 0; of < n; ++of) {
    const L k = static_cast<L>(classes[of]);
    T* chosen = sums.chosen;
    const int64_t count = box.count, begin = box.begin, end = box.end;
    if (w) {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < count; ++i) {
        const T value = w[i];
        chosen[i] = label[i] == k ? value : T(0);
      }
    } else {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < count; ++i) chosen[i] = label[i] == k ? T(1) : T(0);
    }
    const T* sum = sums_around(box, sums);
    EDGELOSS_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) {
      const T value = sum[i], own = same[i];
      const bool is_own = label[i] == k;
      same[i] = is_own ? value : own;
      across[i] = static_cast<T>(across[i] + (is_own ? T(0) : value));
    }
  }
}

// The same, neighbor by neighbor.
template <typename T, typename L, typename Box>
EDGELOSS_INLINE void sum_neighbors(const Box& box, const L* label, const T* w, const std::vector<int64_t>& offsets,
                                   T* same, T* across) {
  std::fill_n(same, box.count, T(0));
  std::fill_n(across, box.count, T(0));
  const int64_t begin = box.begin, end = box.end;
  for (const int64_t offset : offsets) {
    const L* neighbor = label + offset;
    const T* weight = w ? w + offset : nullptr;
    EDGELOSS_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) {
      const T value = weight ? weight[i] : T(1);
      const bool is_own = neighbor[i] == label[i];
      same[i] = static_cast<T>(same[i] + (is_own ? value : T(0)));
      across[i] = static_cast<T>(across[i] + ((!is_own & (neighbor[i] >= 0)) ? value : T(0)));
    }
  }
}

// Makes of D and D' what edge pixels give to each pixel on either side; of u, -1 elsewhere.
template <typename T, typename A>
EDGELOSS_INLINE void divide_sides(const int32_t* label, int64_t begin, int64_t end, const T* same_sum,
                                  const T* across_sum, A* u, A* same, A* across) {
  EDGELOSS_INDEPENDENT
  for (int64_t i = begin; i < end; ++i) {
    const A d_same = static_cast<A>(same_sum[i]), d_across = static_cast<A>(across_sum[i]), weight = u[i];
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
void EdgeWindows<A>::form(const LabelMap<A>& map, const Slab& slab, const Places& places, EdgeWeights<A>* weights,
                          EdgeTotals* totals) {
  if (weights) {
    weights->any = false;
    weights->others.clear();
  }
  unsorted_.clear();
  newest_.assign(g_.classes, -1);
  const int64_t *r = g_.radius, size[3] = {g_.depth, g_.height, g_.width};
  if (r[0] + r[1] + r[2] == 0) return;
  for (int64_t x = 0; x < g_.width; x += kColumns) {
    const Core core = {{slab.first_slice, slab.first_row, x},
                       {slab.last_slice, slab.last_row, std::min(x + kColumns, g_.width)}};
    int64_t from[3], to[3];  // what the weights of the block depend on
    for (int a = 0; a < 3; ++a) {
      from[a] = std::max<int64_t>(0, core.first[a] - 2 * r[a]);
      to[a] = std::min(size[a], core.last[a] + 2 * r[a]);
    }
    if (is_uniform(g_, map.label, from, to)) continue;
    const Box box = box_around(core);
    load(map, box);
    find_edges(map, box);
    if (totals) count_edges(map, box, core, *totals);
    if (!weights) continue;
    if (!weights->any) {
      weights->any = true;
      weights->same.assign(places.count, A(0));
      if (g_.classes == 2) weights->other.assign(places.count, A(0));
    }
    if (sees_neighbors()) {
      collect_neighbors(map, box, core, slab, places, *weights);
      continue;
    }
    for (const int32_t k : classes_) collect(map, box, k, core, slab, places, *weights);
  }
  if (weights && !unsorted_.empty()) sort(places, weights->others);
}

// Makes room for the numbers of a box.
template <typename A>
typename EdgeWindows<A>::Box EdgeWindows<A>::box_around(const Core& core) {
  Box box;
  const int64_t size[3] = {g_.depth, g_.height, g_.width};
  for (int a = 0; a < 3; ++a) {  // the edge pixels around the block, and what they see
    const int64_t r = box.radius[a] = g_.radius[a];
    box.origin[a] = std::max<int64_t>(0, core.first[a] - r) - r;
    box.size[a] = std::min(size[a], core.last[a] + r) + r - box.origin[a];
  }
  box.step[2] = 1;
  box.step[1] = box.size[2];
  box.step[0] = box.size[1] * box.size[2];
  box.count = box.size[0] * box.step[0];
  box.begin = box.radius[0] * box.step[0] + box.radius[1] * box.step[1] + box.radius[2];
  box.end = box.count - box.begin;
  if (room_ >= box.count) return box;
  room_ = box.count;
  numbers_.resize(11 * room_);
  labels_.resize(room_);
  short_numbers_.resize(10 * room_);
  found_.resize(room_ + 8);
  const auto numbers = [&](int64_t n) { return numbers_.data() + n * room_; };
  const auto shorts = [&](int64_t n) { return short_numbers_.data() + n * room_; };
  arrays_ = {labels_.data(), shorts(0), shorts(8), shorts(9), numbers(0), numbers(1), numbers(2), numbers(3)};
  sums_ = {numbers(4), numbers(5), numbers(6), {numbers(7), numbers(8)}, {numbers(9), numbers(10)}};
  short_sums_ = {shorts(1), shorts(2), shorts(3), {shorts(4), shorts(5)}, {shorts(6), shorts(7)}};
  return box;
}

// Labels, w and v of a box.
template <typename A>
void EdgeWindows<A>::load(const LabelMap<A>& map, const Box& box) {
  const int64_t size[3] = {g_.depth, g_.height, g_.width};
  int64_t from[3], to[3];
  bool is_inside = true;
  for (int a = 0; a < 3; ++a) {
    from[a] = std::max<int64_t>(box.origin[a], 0);
    to[a] = std::min(box.origin[a] + box.size[a], size[a]);
    is_inside &= to[a] - from[a] == box.size[a];
  }
  vectorized<A>([=, arrays = arrays_, g = &g_]() EDGELOSS_LOOP {
    if (!is_inside) std::fill_n(arrays.short_label, box.count, kIgnored);
    if (!is_inside || !map.pixel_weight) std::fill_n(arrays.u, box.count, A(1));
    const int64_t n = to[2] - from[2];
    for (int64_t z = from[0]; z < to[0]; ++z) {
      for (int64_t y = from[1]; y < to[1]; ++y) {
        const int64_t start = (z * g->height + y) * g->width + from[2], at = box.at(z, y, from[2]);
        std::memcpy(arrays.short_label + at, map.label + start, n * sizeof(int16_t));
        if (map.pixel_weight) std::memcpy(arrays.u + at, map.pixel_weight + start, n * sizeof(A));
        if (!map.field) continue;
        const A *d = map.field + start, per_decay = map.per_decay;
        A* w = arrays.w + at;
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) w[i] = exp_negative(-d[i] * per_decay);
      }
    }
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < box.count; ++i) arrays.label[i] = arrays.short_label[i];
  });
}

// The classes of a block, and what its edge pixels give to their neighbors.
template <typename A>
void EdgeWindows<A>::find_edges(const LabelMap<A>& map, const Box& box) {
  classes_.clear();
  const auto next = [&](int32_t k) {
    return vectorized([=, label = arrays_.short_label, n = box.count]()
                          EDGELOSS_LOOP { return next_label(label, n, k); });
  };
  for (int32_t k = next(-1); k < INT16_MAX; k = next(k)) classes_.push_back(k);
  offsets_.clear();
  for (int64_t z = -box.radius[0]; sees_neighbors() && z <= box.radius[0]; ++z) {
    for (int64_t y = -box.radius[1]; y <= box.radius[1]; ++y) {
      for (int64_t x = -box.radius[2]; x <= box.radius[2]; ++x) {
        const int64_t offset = z * box.step[0] + y * box.step[1] + x;
        if (offset != 0) offsets_.push_back(offset);
      }
    }
  }
  // Numbers of neighbors are counted in 16 bits.
  const bool counts = !map.field && window_ <= INT16_MAX, by_neighbor = sees_neighbors();
  vectorized<A>([=, arrays = arrays_, sums = sums_, shorts = short_sums_, classes = classes_.data(),
                 n = static_cast<int64_t>(classes_.size()), offsets = &offsets_]() EDGELOSS_LOOP {
    for (int64_t of = 0; map.class_weight && of < n; ++of) {
      const int32_t k = classes[of];
      const A factor = map.class_weight[k];
      EDGELOSS_INDEPENDENT
      for (int64_t i = box.begin; i < box.end; ++i) {
        const A weight = arrays.u[i];
        arrays.u[i] = arrays.label[i] == k ? weight * factor : weight;
      }
    }
    if (counts) {
      int16_t *same = arrays.short_same, *across = arrays.short_across;
      const int16_t* none = nullptr;
      if (by_neighbor) {
        sum_neighbors(box, arrays.short_label, none, *offsets, same, across);
      } else {
        sum_sides(box, arrays.short_label, none, classes, n, shorts, same, across);
      }
      std::fill_n(arrays.same, box.count, A(0));
      std::fill_n(arrays.across, box.count, A(0));
      divide_sides(arrays.label, box.begin, box.end, same, across, arrays.u, arrays.same, arrays.across);
    } else {
      const A* w = map.field ? arrays.w : nullptr;
      if (by_neighbor) {
        sum_neighbors(box, arrays.label, w, *offsets, arrays.same, arrays.across);
      } else {
        sum_sides(box, arrays.label, w, classes, n, sums, arrays.same, arrays.across);
      }
      divide_sides(arrays.label, box.begin, box.end, arrays.same, arrays.across, arrays.u, arrays.same, arrays.across);
    }
  });
}

template <typename A>
void EdgeWindows<A>::count_edges(const LabelMap<A>& map, const Box& box, const Core& core, EdgeTotals& totals) {
  if (static_cast<int64_t>(totals.counts.size()) != g_.classes) totals.counts.assign(g_.classes, 0);
  const int64_t n = core.last[2] - core.first[2];
  for (int64_t z = core.first[0]; z < core.last[0]; ++z) {
    for (int64_t y = core.first[1]; y < core.last[1]; ++y) {
      const int64_t at = box.at(z, y, core.first[2]);
      const A* u = arrays_.u + at;
      for (const int32_t k : classes_) {
        const int64_t count = vectorized<A>([=, label = arrays_.label + at]() EDGELOSS_LOOP {
          int32_t sum = 0;
          for (int64_t i = 0; i < n; ++i) sum += (label[i] == k) & (u[i] >= A(0));
          return sum;
        });
        totals.counts[k] += count;
        const double weight = map.class_weight ? static_cast<double>(map.class_weight[k]) : 1.0;
        if (!map.pixel_weight) totals.weight += static_cast<double>(count) * weight;
      }
      for (int64_t i = 0; map.pixel_weight && i < n; ++i)
        totals.weight += u[i] > A(0) ? static_cast<double>(u[i]) : 0.0;
    }
  }
}

// What the edge pixels of class k give to the pixels of a block.
template <typename A>
void EdgeWindows<A>::collect(const LabelMap<A>& map, const Box& box, int32_t k, const Core& core, const Slab& slab,
                             const Places& places, EdgeWeights<A>& weights) {
  const int64_t n = core.last[2] - core.first[2];
  const int32_t* label = arrays_.label;
  const A* w = map.field ? arrays_.w : nullptr;
  const auto for_each_row = [&](const auto& body) EDGELOSS_LOOP {
    for (int64_t z = core.first[0]; z < core.last[0]; ++z) {
      for (int64_t y = core.first[1]; y < core.last[1]; ++y) {
        body(box.at(z, y, core.first[2]),
             (z - slab.first_slice) * places.slice_step + (y - slab.first_row) * places.row_step + core.first[2]);
      }
    }
  };
  // Sums of u / D to the pixels of the class, and of u / D' to those of others: of two classes to the other one.
  const bool is_pair = g_.classes == 2;
  const A* sum =
      vectorized<A>([=, sums = sums_, same = arrays_.same, across = arrays_.across, to_same = weights.same.data(),
                     to_other = weights.other.data(), found = found_.data()]() EDGELOSS_LOOP {
        const A* of_others = nullptr;
        for (const bool is_own : {true, false}) {
          const A* from = is_own ? same : across;
          EDGELOSS_INDEPENDENT
          for (int64_t i = 0; i < box.count; ++i) {
            const A value = from[i];
            sums.chosen[i] = label[i] == k ? value : A(0);
          }
          const A* sum = sums_around(box, sums);
          of_others = sum;
          if (!is_own && !is_pair) {
            EDGELOSS_INDEPENDENT
            for (int64_t i = box.begin; i < box.end; ++i)
              found[i] = (label[i] >= 0) & (label[i] != k) & (sum[i] > A(0));
            break;
          }
          A* plane = is_own ? to_same : to_other;
          const int32_t of = is_own ? k : 1 - k;
          for_each_row([&](int64_t at, int64_t place) EDGELOSS_LOOP {
            EDGELOSS_INDEPENDENT
            for (int64_t i = 0; i < n; ++i) {
              const A all = sum[at + i], weighted = w ? all * w[at + i] : all, before = plane[place + i];
              const A value = all > A(0) ? weighted : A(0);  // w is not set far from edges
              plane[place + i] = label[at + i] == of ? value : before;
            }
          });
        }
        return of_others;
      });
  if (is_pair) return;
  for_each_row([&](int64_t at, int64_t place) {
    for_each_found(found_.data() + at, n, [&](int64_t i) {
      const int64_t j = at + i;
      unsorted_.push_back({static_cast<int32_t>(place + i), k, w ? sum[j] * w[j] : sum[j]});
    });
  });
}

// The same for all classes, more than two, neighbor by neighbor.
template <typename A>
void EdgeWindows<A>::collect_neighbors(const LabelMap<A>& map, const Box& box, const Core& core, const Slab& slab,
                                       const Places& places, EdgeWeights<A>& weights) {
  const A* w = map.field ? arrays_.w : nullptr;
  const Arrays arrays = arrays_;
  const int64_t n = core.last[2] - core.first[2];
  for_each_row(slab, [&](int64_t z, int64_t y) {
    const int64_t at = box.at(z, y, core.first[2]);
    const int64_t place =
        (z - slab.first_slice) * places.slice_step + (y - slab.first_row) * places.row_step + core.first[2];
    const int32_t* label = arrays.label + at;
    vectorized<A>([=, offsets = &offsets_, to_same = weights.same.data() + place]() EDGELOSS_LOOP {
      for (const int64_t offset : *offsets) {
        const int32_t* neighbor = label + offset;
        const A* same = arrays.same + at + offset;
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) {
          const A value = same[i];
          to_same[i] += neighbor[i] == label[i] ? value : A(0);
        }
      }
      if (!w) return;
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        const A all = to_same[i], weighted = all * w[at + i];
        to_same[i] = all > A(0) ? weighted : A(0);  // w is not set far from edges
      }
    });
    for (int64_t i = 0; i < n; ++i) {
      if (!(arrays.u[at + i] >= A(0))) continue;  // only edge pixels have a neighbor of another class
      const int32_t first = static_cast<int32_t>(unsorted_.size());
      for (const int64_t offset : offsets_) {
        const int32_t k = label[i + offset];
        const A weight = arrays.across[at + i + offset];
        if (k == label[i] || weight == A(0)) continue;
        const A weighted = w ? weight * w[at + i] : weight;
        if (newest_[k] < first) {
          newest_[k] = static_cast<int32_t>(unsorted_.size());
          unsorted_.push_back({static_cast<int32_t>(place + i), k, weighted});
        } else {
          unsorted_[newest_[k]].weight += weighted;
        }
      }
    }
  });
}

// By multiples of kAligned of the places, of which a tile holds whole ones; the order among them does not matter.
template <typename A>
void EdgeWindows<A>::sort(const Places& places, std::vector<OtherWeight<A>>& others) {
  starts_.assign(places.count / Places::kAligned + 1, 0);
  for (const auto& each : unsorted_) ++starts_[each.place / Places::kAligned + 1];
  for (size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
  others.resize(unsorted_.size());
  for (const auto& each : unsorted_) others[starts_[each.place / Places::kAligned]++] = each;
}

template class EdgeWindows<float>;
template class EdgeWindows<double>;

}  // namespace edgeloss
