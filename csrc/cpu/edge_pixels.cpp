// The windows of edge_pixels.h.
#include "edge_pixels.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "edge_mask.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

// The labels of the pixels from lanes.first on, -1 where the lane is no neighbor. Width: lanes of an edge pixel, if it
// is known beforehand, and the image is not narrower; else 0.
template <int64_t Width, typename A>
EDGELOSS_INLINE void fill_labels(const Group<A>& group, bool own_row, Lanes<A>& lanes) {
  const Geometry& g = group.call.g;
  const int64_t width = Width ? Width : lanes.width, count = std::min(width, g.width);
  const int16_t* labels = group.call.label + group.image * g.pixels;
  const int32_t* outside = lanes.outside.data() + (own_row ? width * width : 0);
  const int64_t edges = group.count;
  const int64_t* first = lanes.first.data();
  int32_t* lane = lanes.label;
  for (int64_t e = 0; e < edges; ++e, lane += width) {
    if (first[e] < 0) {
      std::fill_n(lane, width, -1);
      continue;
    }
    const int16_t* label = labels + first[e];
    if constexpr (Width > 0) {
      VectorOf<int16_t, Width> shown;
      VectorOf<int32_t, Width> is_outside;
      load(label, shown);
      load(outside + group.offset[e] * width, is_outside);
      store(__builtin_convertvector(shown, VectorOf<int32_t, Width>) | is_outside, lane);
    } else {
      for (int64_t j = 0; j < count; ++j) {
        const int64_t distance = std::abs(j - group.offset[e]);
        lane[j] = distance > lanes.radius || (own_row && distance == 0) ? -1 : label[j];
      }
      for (int64_t j = count; j < width; ++j) lane[j] = -1;
    }
  }
}

// The class that each pixel's log_other is of, from lanes.first on.
template <int64_t Width, typename A>
EDGELOSS_INLINE void fill_classes(const Group<A>& group, Lanes<A>& lanes) {
  const int64_t width = Width ? Width : lanes.width, count = Width ? Width : std::min(width, group.call.g.width);
  const int64_t edges = group.count;
  const int64_t* first = lanes.first.data();
  const int16_t* image = group.call.other_class + group.image * group.call.g.pixels;
  int32_t* lane = lanes.other_class;
  for (int64_t e = 0; e < edges; ++e, lane += width) {
    if (first[e] < 0) continue;
    const int16_t* from = image + first[e];
    if constexpr (Width > 0) {
      VectorOf<int16_t, Width> shown;
      load(from, shown);
      store(__builtin_convertvector(shown, VectorOf<int32_t, Width>), lane);
    } else {
      for (int64_t j = 0; j < count; ++j) lane[j] = from[j];
    }
  }
}

// Copies n numbers that lie `step` apart.
template <typename T, typename A>
EDGELOSS_INLINE void copy(const T* from, int64_t step, int64_t n, A* lane) {
  if (step == 1 && std::is_same_v<T, A>) {
    std::memcpy(lane, from, n * sizeof(A));
  } else if (step == 1) {
    for (int64_t j = 0; j < n; ++j) lane[j] = widen(from[j]);
  } else {
    for (int64_t j = 0; j < n; ++j) lane[j] = widen(from[j * step]);
  }
}

// The logits of class k from lanes.first on, or both where m and r are not kept. Locals throughout: the compiler must
// take each copy for one that may overwrite a member.
template <int64_t Width, typename T, typename A>
EDGELOSS_INLINE void copy_logits(const Group<A>& group, const Stored<A>& x, const T* data, Lanes<A>& lanes) {
  const int64_t width = Width ? Width : lanes.width, count = Width ? Width : std::min(width, group.call.g.width);
  const int64_t edges = group.count, pixel_step = x.pixel_step, class_step = x.class_step;
  const int64_t* first = lanes.first.data();
  const int16_t* k = group.k;
  const bool is_kept = group.call.m, binary = x.binary;
  A *lane = lanes.x, *first_logit = lanes.first_logit, *second_logit = lanes.second_logit;
  for (int64_t e = 0; e < edges; ++e, lane += width, first_logit += width, second_logit += width) {
    if (first[e] < 0) continue;
    const T* from = data + first[e] * pixel_step;
    if (is_kept) {
      copy(from + k[e] * class_step, pixel_step, count, lane);
      continue;
    }
    if (!binary) copy(from, pixel_step, count, first_logit);  // of a binary pixel it is 0, and has been from the start
    copy(from + (binary ? 0 : class_step), pixel_step, count, second_logit);
    std::memcpy(lane, k[e] == 0 ? first_logit : second_logit, count * sizeof(A));
  }
}

// One number per pixel, from lanes.first on.
template <int64_t Width, typename A>
EDGELOSS_INLINE void fill_numbers(const Group<A>& group, const A* numbers, const Lanes<A>& lanes, A* lane) {
  const int64_t width = Width ? Width : lanes.width, count = Width ? Width : std::min(width, group.call.g.width);
  const int64_t edges = group.count;
  const int64_t* first = lanes.first.data();
  const A* image = numbers + group.image * group.call.g.pixels;
  for (int64_t e = 0; e < edges; ++e, lane += width) {
    if (first[e] >= 0) std::memcpy(lane, image + first[e], count * sizeof(A));
  }
}

}  // namespace

template <typename A>
void logs_of_others(const Call<A>& call, int64_t image, const int32_t* pixel, const int16_t* k, int64_t n, A* t) {
  const Reader<A> logits = call.reader(image);
  const int64_t base = image * call.g.pixels, class_step = logits.x.class_step, pixel_step = logits.x.pixel_step;
  A x[kTile], m[kTile], r[kTile];
  for (int64_t i = 0; call.m && i < n; ++i) {
    m[i] = call.m[base + pixel[i]];
    r[i] = call.r[base + pixel[i]];
  }
  if (call.up) {
    for (int64_t i = 0; i < n; ++i) x[i] = logits.at(pixel[i], k[i]);
  } else if (call.m) {
    logits.x.by_type([&](const auto* data) {
      for (int64_t i = 0; i < n; ++i) x[i] = widen(data[k[i] * class_step + pixel[i] * pixel_step]);
    });
  } else {
    A few[kFewClasses * kTile], nll[kTile];
    int32_t y[kTile];
    logits.x.by_type([&](const auto* data) {
      for (int64_t c = 0; c < call.g.classes; ++c, data += class_step) {
        for (int64_t i = 0; i < n; ++i) few[c * kTile + i] = widen(data[pixel[i] * pixel_step]);
      }
    });
    for (int64_t i = 0; i < n; ++i) {
      y[i] = k[i];
      x[i] = few[k[i] * kTile + i];
    }
    tile_statistics(Tile<A>{few, kTile, call.g.classes, n}, y, m, r, nll);
  }
  if (!other_terms(x, m, r, n, t)) return;
  for (int64_t i = 0; i < n; ++i) {
    if (is_exact(r[i]) || x[i] != m[i]) continue;
    t[i] = other_term(logits, pixel[i], call.g.classes, k[i], m[i], r[i]);
  }
}

template <typename A>
Group<A>::Group(const Call<A>& call, int64_t image, const int32_t* pixel, int64_t count, Lanes<A>& lanes)
    : call(call), image(image), count(count), pixel(pixel) {
  const Geometry& g = call.g;
  const int16_t* label = call.label + image * g.pixels;
  const int64_t last = std::max<int64_t>(g.width - lanes.width, 0);
  int32_t wide[kEdges];
  int64_t row = 0, row_end = 0;  // they are in order
  for (int64_t e = 0; e < count; ++e) {
    const int64_t p = pixel[e];
    if (p >= row_end) {
      row = quotient(p, g.width);
      row_end = (row + 1) * g.width;
    }
    const int64_t own = p - (row_end - g.width);
    column[e] = static_cast<int32_t>(std::clamp<int64_t>(own - lanes.radius, 0, last));
    offset[e] = static_cast<int32_t>(own - column[e]);
    first[e] = p - offset[e];
    y[e] = static_cast<int32_t>(row);
    wide[e] = k[e] = label[p];
  }
  for (int64_t e = 0; e < count; ++e) {
    z[e] = g.depth == 1 ? 0 : y[e] / static_cast<int32_t>(g.height);
    y[e] -= z[e] * static_cast<int32_t>(g.height);
  }
  repeat_each(wide, count, lanes.width, lanes.k);
}

template <typename A>
bool Group<A>::aim(int64_t dz, int64_t dy, int64_t begin, int64_t end, Lanes<A>& lanes) const {
  const Geometry& g = call.g;
  const int64_t shift = (dz * g.height + dy) * g.width;
  if (first[0] + shift >= end || first[count - 1] + shift < begin) return false;  // they are in order
  const bool one_slice = z[0] == z[count - 1] && z[0] + dz >= 0 && z[0] + dz < g.depth;
  if (one_slice && y[0] + dy >= 0 && y[count - 1] + dy < g.height && first[0] + shift >= begin &&
      first[count - 1] + shift < end) {  // all of them
    for (int64_t e = 0; e < count; ++e) lanes.first[e] = first[e] + shift;
    return true;
  }
  bool any = false;
  for (int64_t e = 0; e < count; ++e) {
    const int64_t p = first[e] + shift;
    const bool inside = y[e] + dy >= 0 && y[e] + dy < g.height && z[e] + dz >= 0 && z[e] + dz < g.depth;
    const bool wanted = inside && p >= begin && p < end;
    lanes.first[e] = wanted ? p : -1;
    any |= wanted;
  }
  return any;
}

template <typename A>
void Group<A>::fill(int64_t dz, int64_t dy, Wanted wanted, Lanes<A>& lanes) const {
  const bool is_known = wanted == Wanted::kLogs && call.nll;
  vectorized<A>([=, group = this, to = &lanes]() EDGELOSS_LOOP {
    with_width(group->call.g.width >= to->width ? to->width : 0, [=](auto constant) EDGELOSS_LOOP {
      constexpr int64_t kWidth = decltype(constant)::value;
      const Call<A>& call = group->call;
      fill_labels<kWidth>(*group, dz == 0 && dy == 0, *to);
      if (call.has_decay()) fill_numbers<kWidth>(*group, call.field, *to, to->d);
      if (!is_known) return;
      fill_numbers<kWidth>(*group, call.nll, *to, to->t);
      if (!call.log_other) return;
      fill_numbers<kWidth>(*group, call.log_other, *to, to->log_other);
      fill_classes<kWidth>(*group, *to);
    });
  });
  if (wanted == Wanted::kNothing) return;
  if (is_known && !call.log_other) return negate(lanes.t, count * lanes.width);
  if (is_known) return find_unknown_terms(lanes);
  fill_logits(dz, dy, lanes);
  if (wanted == Wanted::kLogs) find_terms(lanes);
}

template <typename A>
void Group<A>::find_unknown_terms(Lanes<A>& lanes) const {
  const int64_t width = lanes.width, all = count * width;
  if (!known_terms(lanes, all, lanes.is_unknown.data())) return;
  int32_t lane[kTile], pixel[kTile];
  int16_t of[kTile];
  A t[kTile];
  for (int64_t begin = 0; begin < all; begin += kTile) {
    const int64_t n = list_places(lanes.is_unknown.data() + begin, std::min(kTile, all - begin), begin, lane);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t e = quotient(lane[i], width);
      pixel[i] = static_cast<int32_t>(lanes.first[e] + lane[i] - e * width);
      of[i] = k[e];
    }
    logs_of_others(call, image, pixel, of, n, t);
    for (int64_t i = 0; i < n; ++i) lanes.t[lane[i]] = t[i];
  }
}

template <typename A>
void Group<A>::fill_logits(int64_t dz, int64_t dy, Lanes<A>& lanes) const {
  const Geometry& g = call.g;
  const Stored<A> x = call.image(image);
  vectorized<A>([=, group = this, to = &lanes]() EDGELOSS_LOOP {
    with_width(group->call.g.width >= to->width ? to->width : 0, [=](auto constant) EDGELOSS_LOOP {
      constexpr int64_t kWidth = decltype(constant)::value;
      const Call<A>& call = group->call;
      if (call.m) {
        fill_numbers<kWidth>(*group, call.m, *to, to->m);
        fill_numbers<kWidth>(*group, call.r, *to, to->r);
      }
      if (!call.up) x.by_type([=](const auto* data) EDGELOSS_LOOP { copy_logits<kWidth>(*group, x, data, *to); });
    });
  });
  if (call.up) {
    const int64_t in_row = std::min(lanes.width, g.width);
    for (int64_t e = 0; e < count; ++e) {
      if (lanes.first[e] < 0) continue;
      const RowTaps<A> taps = call.up->row_taps(z[e] + dz, y[e] + dy);
      call.up->along_row(x, taps, column[e], in_row, k[e], lanes.x + e * lanes.width);
    }
  } else if (!call.m) {
    statistics_of_two(lanes.first_logit, lanes.second_logit, count * lanes.width, lanes.m, lanes.r);
  }
}

template <typename A>
void Group<A>::find_terms(Lanes<A>& lanes) const {
  if (!log_terms(lanes, count * lanes.width)) return;
  const Reader<A> x = call.reader(image);
  for (int64_t e = 0; e < count; ++e) {
    for (int64_t i = e * lanes.width; i < (e + 1) * lanes.width; ++i) {
      if (lanes.label[i] < 0 || lanes.label[i] == k[e] || is_exact(lanes.r[i]) || lanes.x[i] != lanes.m[i]) continue;
      const int64_t n = lanes.first[e] + (i - e * lanes.width);
      lanes.t[i] = other_term(x, n, call.g.classes, k[e], lanes.m[i], lanes.r[i]);
    }
  }
}

template <typename A>
void Group<A>::terms_of_logs(Lanes<A>& lanes, A (*value)[kEdges], Side<A>* sides) const {
  const int64_t width = lanes.width;
  WindowTerms<A> terms = {count, {}, {}, {}};
  for_each_row_seen(0, call.g.pixels, Wanted::kLogs, lanes, [&] {
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t e = 0, i = j; e < count; ++e, i += width) {
        const bool exists = lanes.label[i] >= 0;
        terms.t.push_back(exists ? lanes.t[i] : A(0));
        terms.d.push_back(exists && call.has_decay() ? lanes.d[i] : A(0));
        terms.side.push_back(exists ? lanes.label[i] != k[e] : -1);
      }
    }
  });
  for (int side = 0; side < 2; ++side) power_means(terms, side, call.lane_options, value[side], sides);
}

template <typename A>
void find_others(const Call<A>& call, int64_t image, const int32_t* pixel, int64_t count) {
  const int64_t base = image * call.g.pixels;
  int16_t k[kTile];
  A t[kTile];
  for (int64_t begin = 0; begin < count; begin += kTile, pixel += kTile) {
    const int64_t n = std::min(kTile, count - begin);
    for (int64_t e = 0; e < n; ++e) k[e] = call.other_class[base + pixel[e]];
    logs_of_others(call, image, pixel, k, n, t);
    for (int64_t e = 0; e < n; ++e) call.log_other[base + pixel[e]] = t[e];
  }
}

template struct Group<float>;
template struct Group<double>;
template void logs_of_others(const Call<float>&, int64_t, const int32_t*, const int16_t*, int64_t, float*);
template void logs_of_others(const Call<double>&, int64_t, const int32_t*, const int16_t*, int64_t, double*);
template void find_others(const Call<float>&, int64_t, const int32_t*, int64_t);
template void find_others(const Call<double>&, int64_t, const int32_t*, int64_t);

}  // namespace edgeloss
