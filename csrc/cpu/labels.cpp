// The windows of labels.h: sums over windows of the labels of one class at a time, in blocks of pixels that stay in the
// first-level cache. Most of an image has no edge nearby: a block whose labels are all the same costs one comparison.
#include "labels.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kColumns = 64;  // of a block

template <typename A>
struct WindowArrays {
  A *sum, *part, *sides[2], *all[2];
};

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
    for (int64_t i = 0; i < n; ++i) part[i] += part[i + shift];
  }
}

// The sum of `in` over the window of each pixel without the pixel itself, axis by axis: of the window's line through
// the pixel the two sides, and of the lines beside it all of them. Valid a radius away from the borders of the box.
template <typename A, typename Box>
EDGELOSS_INLINE const A* sums_around(const Box& box, const A* in, const WindowArrays<A>& arrays) {
  const A *sides = nullptr, *all = in;
  int turn = 0;
  for (int axis = 2; axis >= 0; --axis) {
    const int64_t r = box.radius[axis], step = box.step[axis];
    if (r == 0) continue;
    const A* window = window_sums(all, box.count, step, r, arrays.part, arrays.sum);
    A *new_sides = arrays.sides[turn], *new_all = arrays.all[turn];
    const A *before = window - r * step, *behind = window + step;
    const int64_t first = r * step, last = box.count - r * step;
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
    turn ^= 1;
  }
  return sides;
}

// The least label above k; INT32_MAX if there is none.
EDGELOSS_INLINE int32_t next_label(const int32_t* label, int64_t count, int32_t k) {
  int32_t least = INT32_MAX;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t candidate = label[i] > k ? label[i] : INT32_MAX;
    least = candidate < least ? candidate : least;
  }
  return least;
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
  if (totals && static_cast<int64_t>(totals->counts.size()) != g_.classes) totals->counts.assign(g_.classes, 0);
  const int64_t *r = g_.radius, size[3] = {g_.depth, g_.height, g_.width};
  if (r[0] + r[1] + r[2] == 0) return;
  for (int64_t x = 0; x < g_.width; x += kColumns) {
    const int64_t first[3] = {slab.first_slice, slab.first_row, x};
    const int64_t last[3] = {slab.last_slice, slab.last_row, std::min(x + kColumns, g_.width)};
    int64_t from[3], to[3];  // what the weights of the block depend on
    for (int a = 0; a < 3; ++a) {
      from[a] = std::max<int64_t>(0, first[a] - 2 * r[a]);
      to[a] = std::min(size[a], last[a] + 2 * r[a]);
    }
    if (is_uniform(g_, map.label, from, to)) continue;
    if (weights && !weights->any) {
      weights->any = true;
      weights->same.assign(places.count, A(0));
      if (g_.classes == 2) weights->other.assign(places.count, A(0));
    }
    form_block(map, first, last, weights, totals, slab, places);
  }
  if (weights && !unsorted_.empty()) sort(places, weights->others);
}

// Labels, w and u of a box; u without the class weights.
template <typename A>
void EdgeWindows<A>::load(const LabelMap<A>& map, const Box& box, const int64_t* first, const int64_t* last,
                          const Arrays& arrays) {
  std::fill_n(arrays.label, box.count, static_cast<int32_t>(kIgnored));
  std::fill_n(arrays.u, box.count, A(1));
  const int64_t size[3] = {g_.depth, g_.height, g_.width};
  int64_t from[3], to[3];
  for (int a = 0; a < 3; ++a) {
    from[a] = std::max(first[a], int64_t(0));
    to[a] = std::min(last[a], size[a]);
  }
  for (int64_t z = from[0]; z < to[0]; ++z) {
    for (int64_t y = from[1]; y < to[1]; ++y) {
      const int64_t start = (z * g_.height + y) * g_.width + from[2], at = box.at(z, y, from[2]), n = to[2] - from[2];
      vectorized<A>([=, row = map.label + start, out = arrays.label + at, v = map.pixel_weight, u = arrays.u + at,
                     field = map.field, w = arrays.w + at, per_decay = map.per_decay]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) out[i] = row[i];
        if (v) std::memcpy(u, v + start, n * sizeof(A));
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; field && i < n; ++i) w[i] = exp_negative(-field[start + i] * per_decay);
      });
    }
  }
}

template <typename A>
void EdgeWindows<A>::form_block(const LabelMap<A>& map, const int64_t* first, const int64_t* last,
                                EdgeWeights<A>* weights, EdgeTotals* totals, const Slab& slab, const Places& places) {
  Box box;
  int64_t from[3], to[3];
  const int64_t size[3] = {g_.depth, g_.height, g_.width};
  for (int a = 0; a < 3; ++a) {
    const int64_t r = box.radius[a] = g_.radius[a];
    from[a] = std::max<int64_t>(0, first[a] - r) - r;  // the edge pixels around the block, and what they see
    to[a] = std::min(size[a], last[a] + r) + r;
    box.origin[a] = from[a];
    box.size[a] = to[a] - from[a];
  }
  box.step[2] = 1;
  box.step[1] = box.size[2];
  box.step[0] = box.size[1] * box.size[2];
  box.count = box.size[0] * box.step[0];
  const int64_t count = box.count, room = Places::aligned(count);
  if (static_cast<int64_t>(labels_.size()) < room) {
    numbers_.resize(11 * room);
    labels_.resize(room);
  }
  const auto numbers = [&](int64_t n) { return numbers_.data() + n * room; };
  const Arrays arrays = {labels_.data(), numbers(0), numbers(1), numbers(2),
                         numbers(3),     numbers(4),    numbers(5), numbers(6), {numbers(7), numbers(8)},
                         {numbers(9), numbers(10)}};
  load(map, box, from, to, arrays);
  const WindowArrays<A> windows = {
      arrays.sum, arrays.part, {arrays.sides[0], arrays.sides[1]}, {arrays.all[0], arrays.all[1]}};
  const int64_t inner = box.radius[0] * box.step[0] + box.radius[1] * box.step[1] + box.radius[2];
  const int32_t* label = arrays.label;
  const A* w = map.field ? arrays.w : nullptr;
  // D and D' of each pixel, and then in their places u / D and u / D' of edge pixels, 0 elsewhere.
  vectorized<A>([=, same = arrays.same, across = arrays.across, u = arrays.u, chosen = arrays.chosen,
                 of_class = map.class_weight]() EDGELOSS_LOOP {
    std::fill_n(same, count, A(0));
    std::fill_n(across, count, A(0));
    for (int32_t k = next_label(label, count, -1); k != INT32_MAX; k = next_label(label, count, k)) {
      if (w) {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) {
          const A value = w[i];
          chosen[i] = label[i] == k ? value : A(0);
        }
      } else {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) chosen[i] = label[i] == k ? A(1) : A(0);
      }
      const A *sum = sums_around(box, chosen, windows), factor = of_class ? of_class[k] : A(1);
      EDGELOSS_INDEPENDENT
      for (int64_t i = inner; i < count - inner; ++i) {
        const A value = sum[i], own = same[i], weight = u[i];
        const bool is_own = label[i] == k;
        same[i] = is_own ? value : own;
        across[i] += is_own ? A(0) : value;
        u[i] = is_own ? weight * factor : weight;
      }
    }
    EDGELOSS_INDEPENDENT
    for (int64_t i = inner; i < count - inner; ++i) {
      const A weight = u[i], of_same = weight / same[i], of_across = weight / across[i];
      const bool is_edge = (label[i] >= 0) & (across[i] > A(0));
      same[i] = is_edge & (same[i] > A(0)) ? of_same : A(0);
      u[i] = is_edge ? weight : A(-1);  // no edge pixel
      across[i] = is_edge ? of_across : A(0);
    }
  });
  if (totals) count_edges(box, arrays, first, last, *totals);
  if (!weights) return;
  for (int32_t k = next_label(label, count, -1); k != INT32_MAX; k = next_label(label, count, k)) {
    collect(map, box, arrays, k, first, last, slab, places, *weights);
  }
}

template <typename A>
void EdgeWindows<A>::count_edges(const Box& box, const Arrays& arrays, const int64_t* first, const int64_t* last,
                                 EdgeTotals& totals) {
  const int64_t n = last[2] - first[2];
  for (int64_t z = first[0]; z < last[0]; ++z) {
    for (int64_t y = first[1]; y < last[1]; ++y) {
      const int64_t at = box.at(z, y, first[2]);
      const int32_t* label = arrays.label + at;
      const A* u = arrays.u + at;
      for (int64_t i = 0; i < n; ++i) {
        if (label[i] < 0 || u[i] < A(0)) continue;
        totals.weight += static_cast<double>(u[i]);
        ++totals.counts[label[i]];
      }
    }
  }
}

// What the edge pixels of class k give to the pixels of a block.
template <typename A>
void EdgeWindows<A>::collect(const LabelMap<A>& map, const Box& box, const Arrays& arrays, int32_t k,
                             const int64_t* first, const int64_t* last, const Slab& slab, const Places& places,
                             EdgeWeights<A>& weights) {
  const WindowArrays<A> windows = {
      arrays.sum, arrays.part, {arrays.sides[0], arrays.sides[1]}, {arrays.all[0], arrays.all[1]}};
  const int64_t count = box.count, n = last[2] - first[2];
  const int32_t* label = arrays.label;
  const A* w = map.field ? arrays.w : nullptr;
  const auto for_each_row = [&](const auto& body) {
    for (int64_t z = first[0]; z < last[0]; ++z) {
      for (int64_t y = first[1]; y < last[1]; ++y) {
        body(box.at(z, y, first[2]), (z - slab.first_slice) * places.slice_step +
                                         (y - slab.first_row) * places.row_step + first[2]);
      }
    }
  };
  // Sums of u / D to the pixels of the class, and of u / D' to those of others.
  for (const bool is_own : {true, false}) {
    const A* sum = vectorized<A>([=, from = is_own ? arrays.same : arrays.across, chosen = arrays.chosen]()
                                     EDGELOSS_LOOP {
                                       EDGELOSS_INDEPENDENT
                                       for (int64_t i = 0; i < count; ++i) {
                                         const A value = from[i];
                                         chosen[i] = label[i] == k ? value : A(0);
                                       }
                                       return sums_around(box, chosen, windows);
                                     });
    if (is_own || g_.classes == 2) {
      A* plane = is_own ? weights.same.data() : weights.other.data();
      const int32_t of = is_own ? k : 1 - k;
      for_each_row([&](int64_t at, int64_t place) {
        vectorized<A>([=, label = label + at, sum = sum + at, out = plane + place]() EDGELOSS_LOOP {
          EDGELOSS_INDEPENDENT
          for (int64_t i = 0; i < n; ++i) {
            const A all = sum[i], weighted = w ? all * w[at + i] : all, before = out[i];
            const A value = all > A(0) ? weighted : A(0);  // w is not set far from edges
            out[i] = label[i] == of ? value : before;
          }
        });
      });
    } else {
      for_each_row([&](int64_t at, int64_t place) {
        uint8_t found[kColumns] = {};
        vectorized<A>([=, label = label + at, sum = sum + at, out = &found[0]]() EDGELOSS_LOOP {
          EDGELOSS_INDEPENDENT
          for (int64_t i = 0; i < n; ++i) out[i] = (label[i] >= 0) & (label[i] != k) & (sum[i] > A(0));
        });
        for (int64_t i = 0; i < n; i += 8) {
          uint64_t bytes;
          std::memcpy(&bytes, found + i, sizeof(bytes));
          for (int64_t j = i; bytes; ++j, bytes >>= 8) {
            if (bytes & 1) unsorted_.push_back({static_cast<int32_t>(place + j), k, w ? sum[at + j] * w[at + j] : sum[at + j]});
          }
        }
      });
    }
  }
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
