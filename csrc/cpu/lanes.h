// The work at the edges, vectorised: the windows of many edge pixels are laid side by side, in lanes.
//
// A window has a few rows, and in each of them a few pixels beside one another. `Lanes` holds one row of each window:
// that at the same offset from each of the edge pixels. Forward adds up over these rows; backward adds what is in the
// lanes to the pixels that they show.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "../math.h"
#include "tiles.h"

namespace edgeloss {
namespace {

// ----------------------------------------------------------------------------------------------------------- edge mask

// Smallest and largest valid label of a window, from rows; ignored pixels are -1 in `label`.
EDGELOSS_VECTORIZED void widen_range(const int16_t* label, int64_t n, int16_t* low, int16_t* high) {
  for (int64_t x = 0; x < n; ++x) {
    const int16_t as_low = label[x] < 0 ? INT16_MAX : label[x];
    low[x] = as_low < low[x] ? as_low : low[x];
    high[x] = label[x] > high[x] ? label[x] : high[x];
  }
}

// Marks the pixels of a row that differ from a valid one in their window: that is, from the smallest or the largest
// label there. low and high start `reach` pixels before the row; both are overwritten.
EDGELOSS_VECTORIZED void mark_edges(const int16_t* label, int64_t n, int64_t reach, int16_t* low, int16_t* high,
                                    uint8_t* edge) {
  // The extremes over 2 reach + 1 values side by side, by doubling what each place knows.
  int64_t known = 1;
  while (known < 2 * reach + 1) {
    const int64_t step = std::min(known, 2 * reach + 1 - known);
    const int64_t last = n + 2 * reach - step;
    for (int64_t x = 0; x < last; ++x) {
      low[x] = low[x + step] < low[x] ? low[x + step] : low[x];
      high[x] = high[x + step] > high[x] ? high[x + step] : high[x];
    }
    known += step;
  }
  for (int64_t x = 0; x < n; ++x) edge[x] = (label[x] >= 0) & ((low[x] < label[x]) | (high[x] > label[x]));
}

// Of the edges that a prediction has, leaves those that the labels have not; returns their number.
EDGELOSS_VECTORIZED int64_t keep_false(const uint8_t* edge, int64_t n, uint8_t* drawn) {
  int64_t count = 0;
  for (int64_t x = 0; x < n; ++x) {
    drawn[x] &= ~edge[x];
    count += drawn[x];
  }
  return count;
}

EDGELOSS_VECTORIZED void merge_row(const uint8_t* mask, int64_t n, uint8_t* any) {
  for (int64_t x = 0; x < n; ++x) any[x] |= mask[x];
}

// Lists the places, from `first` on, where the mask of n bytes is 1.
inline int64_t list_places(const uint8_t* mask, int64_t n, int64_t first, int32_t* place) {
  int64_t count = 0, x = 0;
  for (; x + 8 <= n; x += 8) {
    uint64_t word;
    std::memcpy(&word, mask + x, sizeof(word));
    for (; word != 0; word &= word - 1) place[count++] = static_cast<int32_t>(first + x + (__builtin_ctzll(word) >> 3));
  }
  for (; x < n; ++x) {
    if (mask[x]) place[count++] = static_cast<int32_t>(first + x);
  }
  return count;
}

// --------------------------------------------------------------------------------------------------------------- lanes

constexpr int64_t kEdges = 64;  // edge pixels at a time, at most

// Lanes [edge pixel, width]; a lane that is no neighbour has the label -1, and whatever else stands there is not read.
template <typename A>
struct Lanes {
  int64_t radius, width;          // width: 2 radius + 1 pixels, and some to fill vectors up
  int64_t edges;                  // edge pixels at a time
  std::vector<A> x, m, r, d;      // logit of the edge pixel's class; m and r; distance
  std::vector<A> logit[2];        // both of them, where m and r are not kept
  std::vector<int32_t> label, k;  // of the neighbour and of the edge pixel
  std::vector<int64_t> first;     // the pixel in an edge pixel's first lane, or -1: none of that row is wanted
  // Of each side of the edge pixel, repeated on its lanes: in backward upstream (by inverse), first, log_sum; the least
  // d.
  std::vector<A> own[2][4];
  std::vector<A> out[5];  // per side what is found; the last is t
  // -1 on the lanes that are none of its neighbours, by [its own row?][where it stands among its lanes][lane]; of wide
  // windows it is found anew each time.
  std::vector<int32_t> outside;

  Lanes(int64_t reach, int64_t row_width) : radius(std::min(reach, std::max<int64_t>(row_width - 1, 0))) {
    width = (2 * radius + 1 + 3) / 4 * 4;
    edges = std::clamp<int64_t>(2048 / width, 1, kEdges);
    const int64_t all = edges * width;
    for (auto* v : {&x, &m, &r, &d, &logit[0], &logit[1]}) v->resize(all);
    for (auto& side : own) {
      for (auto& v : side) v.resize(all);
    }
    for (auto& v : out) v.resize(all);
    label.resize(all);
    k.resize(all);
    first.resize(edges);
    if (width > 8) return;
    outside.resize(2 * width * width);
    for (int64_t i = 0; i < 2 * width * width; ++i) {
      const int64_t distance = std::abs(i % width - i / width % width);
      outside[i] = distance > radius || (i >= width * width && distance == 0) ? -1 : 0;
    }
  }
};

// An image, as the windows see it.
template <typename T, typename A>
struct View {
  Logits<T, A> x;
  int64_t width;
  const int16_t* label;
  const A *m, *r, *d;  // any may be null
  bool is_upsampled;   // then x is not filled
};

// Width numbers as one vector: the compiler does not see by itself that the lanes of an edge pixel make one.
template <typename V, int64_t Width>
struct Vector {
  typedef V type __attribute__((vector_size(Width * sizeof(V))));
};
template <typename V, int64_t Width>
using VectorOf = typename Vector<V, Width>::type;

// By reference: how vectors are passed by value depends on the processor.
template <typename Vec, typename V>
EDGELOSS_INLINE void load(const V* from, Vec& v) {
  std::memcpy(&v, from, sizeof(v));
}
template <typename Vec, typename V>
EDGELOSS_INLINE void store(const Vec& v, V* to) {
  std::memcpy(to, &v, sizeof(v));
}
template <int64_t Width, typename V>
EDGELOSS_INLINE void add_to(const V* value, V* sum) {
  VectorOf<V, Width> a, b;
  load(value, a);
  load(sum, b);
  store(a + b, sum);
}

// Repeats each of n numbers on `width` lanes.
template <typename V>
void repeat_each(const V* value, int64_t n, int64_t width, V* to) {
  const auto repeat = [&](auto known) __attribute__((always_inline)) {
    constexpr int64_t kWidth = decltype(known)::value;
    for (int64_t e = 0; e < n; ++e) store(value[e] - VectorOf<V, kWidth>{}, to + e * kWidth);
  };
  if (width == 4) {
    repeat(std::integral_constant<int64_t, 4>());
  } else if (width == 8) {
    repeat(std::integral_constant<int64_t, 8>());
  } else {
    for (int64_t e = 0; e < n; ++e) std::fill_n(to + e * width, width, value[e]);
  }
}

// Fills the lanes of n edge pixels with the pixels from lanes.first on, side by side. k: the edge pixels' classes;
// offset: where they stand among their lanes; centre: it is their own row. Width: lanes of an edge pixel, if it is
// known beforehand, and the image is not narrower.
template <int64_t Width, typename T, typename A>
EDGELOSS_INLINE void fill_lanes(const View<T, A>& view, const int16_t* k, const int32_t* offset, int64_t n, bool centre,
                                bool logits, Lanes<A>& lanes) {
  const int64_t width = Width ? Width : lanes.width, count = Width ? Width : std::min(width, view.width);
  const int64_t step = view.x.pixel_step;
  const int32_t* outside = lanes.outside.data() + (centre ? width * width : 0);
  const int64_t* first = lanes.first.data();
  for (int64_t e = 0; e < n; ++e) {
    int32_t* to = lanes.label.data() + e * width;
    if (first[e] < 0) {
      std::fill_n(to, width, -1);
      continue;
    }
    const int16_t* label = view.label + first[e];
    if constexpr (Width > 0) {
      VectorOf<int16_t, Width> seen;
      VectorOf<int32_t, Width> is_outside;
      load(label, seen);
      load(outside + offset[e] * width, is_outside);
      store(__builtin_convertvector(seen, VectorOf<int32_t, Width>) | is_outside, to);
    } else {
      for (int64_t j = 0; j < count; ++j) {
        const int64_t distance = std::abs(j - offset[e]);
        to[j] = distance > lanes.radius || (centre && distance == 0) ? -1 : label[j];
      }
      for (int64_t j = count; j < width; ++j) to[j] = -1;
    }
  }
  for (int64_t e = 0; e < n && view.d; ++e) {
    if (first[e] >= 0) std::memcpy(lanes.d.data() + e * width, view.d + first[e], count * sizeof(A));
  }
  const auto copy = [&](const T* from, A* to) __attribute__((always_inline)) {
    if (step == 1 && std::is_same_v<T, A>) {
      std::memcpy(to, from, count * sizeof(A));
    } else if (step == 1) {
      for (int64_t j = 0; j < count; ++j) to[j] = widen(from[j]);
    } else {
      for (int64_t j = 0; j < count; ++j) to[j] = widen(from[j * step]);
    }
  };
  for (int64_t e = 0; e < n && logits; ++e) {
    if (first[e] < 0) continue;
    const T* from = view.x.data + first[e] * step;
    A* x = lanes.x.data() + e * width;
    if (view.m) {
      std::memcpy(lanes.m.data() + e * width, view.m + first[e], count * sizeof(A));
      std::memcpy(lanes.r.data() + e * width, view.r + first[e], count * sizeof(A));
      if (!view.is_upsampled) copy(from + k[e] * view.x.class_step, x);
      continue;
    }
    A *first_logit = lanes.logit[0].data() + e * width, *second_logit = lanes.logit[1].data() + e * width;
    if (!view.x.binary) copy(from, first_logit);  // of a binary pixel it is 0, and has been from the beginning
    copy(from + (view.x.binary ? 0 : view.x.class_step), second_logit);
    std::memcpy(x, k[e] == 0 ? first_logit : second_logit, count * sizeof(A));
  }
}

// Adds what n edge pixels of classes k share out, in the lanes, to the sums of the pixels there, counted from `start`:
// to same, and to other where the pixel's k is theirs or still -1. Calls more(pixel, k, share) for the rest.
template <int64_t Width, typename A, typename F>
EDGELOSS_INLINE void add_shares(const Lanes<A>& lanes, const int16_t* k, int64_t n, int64_t start, A* same_sum,
                                A* other_sum, int32_t* seen_k, const F& more) {
  const int64_t width = Width ? Width : lanes.width;
  const auto add = [&](int64_t e) __attribute__((always_inline)) {
    const int64_t i = e * width, p = lanes.first[e] - start;
    const A *same = lanes.out[0].data() + i, *other = lanes.out[1].data() + i;
    A *to_same = same_sum + p, *to_other = other_sum + p;
    const int32_t *label = lanes.label.data() + i, own = k[e];
    int32_t* seen = seen_k + p;
    if constexpr (Width > 0) {
      add_to<Width>(same, to_same);
      VectorOf<int32_t, Width> labels, before;
      load(label, labels);
      load(seen, before);
      const VectorOf<int32_t, Width> is_other = (labels >= 0) & (labels != own);
      const VectorOf<int32_t, Width> is_taken = is_other & (before >= 0) & (before != own);
      int64_t taken[Width / 2], any = 0;
      std::memcpy(taken, &is_taken, sizeof(taken));
      for (int64_t part : taken) any |= part;
      if (any == 0) {
        add_to<Width>(other, to_other);
        store((is_other & own) | (~is_other & before), seen);
        return;
      }
    } else {
      for (int64_t j = 0; j < width; ++j) to_same[j] += same[j];
    }
    for (int64_t j = 0; j < width; ++j) {
      if (label[j] < 0 || label[j] == own) continue;
      if (seen[j] < 0 || seen[j] == own) {
        seen[j] = own;
        to_other[j] += other[j];
      } else {
        more(p + j, own, other[j]);
      }
    }
  };
  // Every fourth in turn: neighbours write to the same pixels, and a processor waits where it reads half of what it has
  // just written.
  for (int64_t turn = 0; turn < 4; ++turn) {
    for (int64_t e = turn; e < n; e += 4) {
      if (lanes.first[e] >= 0) add(e);
    }
  }
}

// The loops over lanes. Every lane takes part in every operation, and those that are no neighbours are left out where
// results are selected: their numbers may be nan. Selected by masks, since the compiler turns conditions on the same
// comparison into branches, which do not vectorise.

template <typename A>
using Bits = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;

// All bits where the condition holds.
template <typename A>
EDGELOSS_INLINE Bits<A> mask_of(bool condition) {
  return -static_cast<Bits<A>>(condition);
}

// The value where the mask is set, else 0 or the other value.
template <typename A>
EDGELOSS_INLINE A select(Bits<A> mask, A value, A other = A(0)) {
  return bits_of<A>((bits_of<Bits<A>>(value) & mask) | (bits_of<Bits<A>>(other) & ~mask));
}

// Numbers of each side of an edge pixel, repeated on its lanes.
template <typename A>
struct Own {
  const A *scale[2], *first[2], *log_sum[2], *nearest[2];

  explicit Own(const Lanes<A>& lanes) {
    for (int side = 0; side < 2; ++side) {
      scale[side] = lanes.own[side][0].data();
      first[side] = lanes.own[side][1].data();
      log_sum[side] = lanes.own[side][2].data();
      nearest[side] = lanes.own[side][3].data();
    }
  }
};

// out[side] = the least d on each side, of the rows so far.
template <typename A>
EDGELOSS_INLINE void least_distance(int64_t n, const int32_t* __restrict label, const int32_t* __restrict k,
                                    const A* __restrict d, A* __restrict same_least, A* __restrict other_least) {
  for (int64_t i = 0; i < n; ++i) {
    const Bits<A> same = mask_of<A>(label[i] == k[i]), other = mask_of<A>(label[i] >= 0) & ~same;
    const A on_same = select(same, d[i], A(INFINITY)), on_other = select(other, d[i], A(INFINITY));
    same_least[i] = on_same < same_least[i] ? on_same : same_least[i];
    other_least[i] = on_other < other_least[i] ? on_other : other_least[i];
  }
}

// Adds Σ w p(k) and Σ w (1 - p(k)) of the same side and of the other; nearest is the least d there.
template <bool Decay, typename A>
EDGELOSS_INLINE void sum_probabilities(int64_t n, const int32_t* __restrict label, const int32_t* __restrict k,
                                       const A* __restrict x, const A* __restrict m, const A* __restrict r,
                                       const A* __restrict d, const A* __restrict same_nearest,
                                       const A* __restrict other_nearest, A inverse_decay, A* __restrict same_p,
                                       A* __restrict same_c, A* __restrict other_p, A* __restrict other_c) {
  for (int64_t i = 0; i < n; ++i) {
    const Bits<A> same = mask_of<A>(label[i] == k[i]), other = mask_of<A>(label[i] >= 0) & ~same;
    A p, complement;
    probabilities(x[i], m[i], r[i], p, complement);
    if (Decay) {
      const A w = exp_negative((select(same, same_nearest[i], other_nearest[i]) - d[i]) * inverse_decay);
      p *= w;
      complement *= w;
    }
    same_p[i] += select(same, p);
    same_c[i] += select(same, complement);
    other_p[i] += select(other, p);
    other_c[i] += select(other, complement);
  }
}

// t: log p(k) on the same side, log(1 - p(k)) on the other, of math.h, by one logarithm for both: that of 1 + u,
// or of r / (1 + r) where k is likely. True if one of them makes no sense, since r underflowed and the max is k.
template <typename A>
EDGELOSS_INLINE bool log_terms(int64_t n, const int32_t* __restrict label, const int32_t* __restrict k,
                               const A* __restrict x, const A* __restrict m, const A* __restrict r, A* __restrict t) {
  Bits<A> any = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Bits<A> same = mask_of<A>(label[i] == k[i]), other = mask_of<A>(label[i] >= 0) & ~same;
    const Bits<A> likely = ~same & mask_of<A>(is_likely(x[i], m[i], r[i]));
    const A below = x[i] - m[i], scale = A(1) / (A(1) + r[i]);
    const A u = select(same, r[i], -exp_negative(below) * scale);
    const A sum = select(likely, r[i] * scale, A(1) + u), lost = select(likely, A(0), u - (sum - A(1)));
    const A log = log_positive(sum) + lost / sum;
    t[i] = select(same, below - log, log);
    any |= other & mask_of<A>(x[i] == m[i]) & ~mask_of<A>(is_exact(r[i]));
  }
  return any != 0;
}

// Adds Σ w t and Σ w of the same side and of the other; nearest is the least d there.
template <bool Decay, typename A>
EDGELOSS_INLINE void sum_logs(int64_t n, const int32_t* __restrict label, const int32_t* __restrict k,
                              const A* __restrict t, const A* __restrict d, const A* __restrict same_nearest,
                              const A* __restrict other_nearest, A inverse_decay, A* __restrict same_t,
                              A* __restrict same_w, A* __restrict other_t, A* __restrict other_w) {
  for (int64_t i = 0; i < n; ++i) {
    const Bits<A> same = mask_of<A>(label[i] == k[i]), other = mask_of<A>(label[i] >= 0) & ~same;
    A w = A(1);
    if (Decay) w = exp_negative((select(same, same_nearest[i], other_nearest[i]) - d[i]) * inverse_decay);
    same_t[i] += select(same, w * t[i]);
    same_w[i] += select(same, w);
    other_t[i] += select(other, w * t[i]);
    other_w[i] += select(other, w);
  }
}

// upstream · π of each neighbour on the own side, and upstream · π · slope on the other, where the means are plain
// ones, of logarithms or else of probabilities; scale is upstream · inverse.
template <bool Decay, bool Logs, typename A>
EDGELOSS_INLINE void mean_shares(int64_t n, const int32_t* __restrict label, const int32_t* __restrict k,
                                 const A* __restrict x, const A* __restrict m, const A* __restrict r,
                                 const A* __restrict d, const A* __restrict same_nearest,
                                 const A* __restrict other_nearest, A inverse_decay, const A* __restrict same_scale,
                                 const A* __restrict other_scale, A* __restrict same_share, A* __restrict other_share) {
  for (int64_t i = 0; i < n; ++i) {
    const Bits<A> same = mask_of<A>(label[i] == k[i]), other = mask_of<A>(label[i] >= 0) & ~same;
    A p, complement;
    probabilities(x[i], m[i], r[i], p, complement);
    const bool likely = is_likely(x[i], m[i], r[i]);
    // Of probabilities π is in proportion to w · complement, which the slope divides by where k is not likely.
    const A leak = Logs ? other_slope(p, complement, likely) : select(mask_of<A>(likely), complement * p, p);
    A w = A(1);
    if (Decay) w = exp_negative((select(same, same_nearest[i], other_nearest[i]) - d[i]) * inverse_decay);
    same_share[i] = select(same, Logs ? same_scale[i] * w : same_scale[i] * w * p);
    other_share[i] = select(other, other_scale[i] * w * leak);
  }
}

// The same where they were formed of logarithms.
template <typename A>
EDGELOSS_INLINE void log_shares(int64_t n, const int32_t* __restrict label, const int32_t* __restrict k,
                                const A* __restrict x, const A* __restrict m, const A* __restrict r,
                                const A* __restrict t, const A* __restrict d, A power, A inverse_decay,
                                const Own<A>& own, A* __restrict same_share, A* __restrict other_share) {
  const A* __restrict same_scale = own.scale[0], * __restrict other_scale = own.scale[1];
  const A* __restrict same_first = own.first[0], * __restrict other_first = own.first[1];
  const A* __restrict same_log_sum = own.log_sum[0], * __restrict other_log_sum = own.log_sum[1];
  const A* __restrict same_nearest = own.nearest[0], * __restrict other_nearest = own.nearest[1];
  for (int64_t i = 0; i < n; ++i) {
    const Bits<A> same = mask_of<A>(label[i] == k[i]), other = mask_of<A>(label[i] >= 0) & ~same;
    const A log_w = (select(same, same_nearest[i], other_nearest[i]) - d[i]) * inverse_decay;
    const A q_t = power * (t[i] - select(same, same_first[i], other_first[i]));
    const A pi = exp_negative(log_w + q_t - select(same, same_log_sum[i], other_log_sum[i]));
    A p, complement;
    probabilities(x[i], m[i], r[i], p, complement);
    same_share[i] = select(same, same_scale[i] * pi);
    other_share[i] = select(other, other_scale[i] * pi * other_slope(p, complement, is_likely(x[i], m[i], r[i])));
  }
}

// -log M_0 of n sides from Σ w t and Σ w, and 1 / Σ w for backward.
template <typename A>
EDGELOSS_INLINE void finish_logs(const A* __restrict sum, const A* __restrict weights, int64_t n, A* __restrict value,
                                 A* __restrict inverse) {
  for (int64_t i = 0; i < n; ++i) {
    value[i] = negative_mean(sum[i], weights[i]);
    inverse[i] = weights[i] > A(0) ? A(1) / weights[i] : A(0);
  }
}

// -log M_1 of n sides from Σ w p and Σ w (1 - p), and 1 / Σ w p for backward: 0 where float has none of p left.
template <typename A>
EDGELOSS_INLINE void finish_means(const A* __restrict mean, const A* __restrict complement, int64_t n,
                                  A* __restrict value, A* __restrict inverse) {
  const A least = std::numeric_limits<A>::min() / std::numeric_limits<A>::epsilon();
  for (int64_t i = 0; i < n; ++i) {
    const A scale = A(1) / (mean[i] + complement[i]);
    const A nll = negative_log(mean[i] * scale, complement[i] * scale);
    value[i] = mean[i] > least ? nll : A(0);
    inverse[i] = mean[i] > least ? A(1) / mean[i] : A(0);
  }
}

// Each of them over the first n lanes. In float they are compiled for several processors.

// body(decay?) with a constant.
template <typename F>
EDGELOSS_INLINE void with_constant(bool value, const F& body) {
  value ? body(std::true_type()) : body(std::false_type());
}

template <typename A>
EDGELOSS_INLINE void least_distance_in(Lanes<A>& l, int64_t n) {
  least_distance(n, l.label.data(), l.k.data(), l.d.data(), l.out[0].data(), l.out[1].data());
}
template <typename A>
EDGELOSS_INLINE void sum_probabilities_in(Lanes<A>& l, int64_t n, bool decay, A inverse_decay) {
  with_constant(decay, [&](auto decays) __attribute__((always_inline)) {
    sum_probabilities<decltype(decays)::value>(n, l.label.data(), l.k.data(), l.x.data(), l.m.data(), l.r.data(),
                                               l.d.data(), l.own[0][3].data(), l.own[1][3].data(), inverse_decay,
                                               l.out[0].data(), l.out[1].data(), l.out[2].data(), l.out[3].data());
  });
}
template <typename A>
EDGELOSS_INLINE bool log_terms_in(Lanes<A>& l, int64_t n) {
  return log_terms(n, l.label.data(), l.k.data(), l.x.data(), l.m.data(), l.r.data(), l.out[4].data());
}
template <typename A>
EDGELOSS_INLINE void sum_logs_in(Lanes<A>& l, int64_t n, bool decay, A inverse_decay) {
  with_constant(decay, [&](auto decays) __attribute__((always_inline)) {
    sum_logs<decltype(decays)::value>(n, l.label.data(), l.k.data(), l.out[4].data(), l.d.data(), l.own[0][3].data(),
                                      l.own[1][3].data(), inverse_decay, l.out[0].data(), l.out[1].data(),
                                      l.out[2].data(), l.out[3].data());
  });
}
template <typename A>
EDGELOSS_INLINE void mean_shares_in(Lanes<A>& l, int64_t n, bool logs, bool decay, A inverse_decay) {
  with_constant(decay, [&](auto decays) __attribute__((always_inline)) {
    with_constant(logs, [&](auto of_logs) __attribute__((always_inline)) {
      mean_shares<decltype(decays)::value, decltype(of_logs)::value>(
          n, l.label.data(), l.k.data(), l.x.data(), l.m.data(), l.r.data(), l.d.data(), l.own[0][3].data(),
          l.own[1][3].data(), inverse_decay, l.own[0][0].data(), l.own[1][0].data(), l.out[0].data(), l.out[1].data());
    });
  });
}
template <typename A>
EDGELOSS_INLINE void log_shares_in(Lanes<A>& l, int64_t n, A power, A inverse_decay) {
  log_shares(n, l.label.data(), l.k.data(), l.x.data(), l.m.data(), l.r.data(), l.out[4].data(), l.d.data(), power,
             inverse_decay, Own<A>(l), l.out[0].data(), l.out[1].data());
}

EDGELOSS_VECTORIZED void find_least_distance(Lanes<float>& l, int64_t n) { least_distance_in(l, n); }
EDGELOSS_VECTORIZED void find_sum_probabilities(Lanes<float>& l, int64_t n, bool decay, float inverse_decay) {
  sum_probabilities_in(l, n, decay, inverse_decay);
}
EDGELOSS_VECTORIZED bool find_log_terms(Lanes<float>& l, int64_t n) { return log_terms_in(l, n); }
EDGELOSS_VECTORIZED void find_sum_logs(Lanes<float>& l, int64_t n, bool decay, float inverse_decay) {
  sum_logs_in(l, n, decay, inverse_decay);
}
EDGELOSS_VECTORIZED void find_mean_shares(Lanes<float>& l, int64_t n, bool logs, bool decay, float inverse_decay) {
  mean_shares_in(l, n, logs, decay, inverse_decay);
}
EDGELOSS_VECTORIZED void find_log_shares(Lanes<float>& l, int64_t n, float power, float inverse_decay) {
  log_shares_in(l, n, power, inverse_decay);
}
EDGELOSS_VECTORIZED void find_means(const float* mean, const float* complement, int64_t n, float* value,
                                    float* inverse) {
  finish_means(mean, complement, n, value, inverse);
}
EDGELOSS_VECTORIZED void find_means_of_logs(const float* sum, const float* weights, int64_t n, float* value,
                                            float* inverse) {
  finish_logs(sum, weights, n, value, inverse);
}

inline void find_least_distance(Lanes<double>& l, int64_t n) { least_distance_in(l, n); }
inline void find_sum_probabilities(Lanes<double>& l, int64_t n, bool decay, double inverse_decay) {
  sum_probabilities_in(l, n, decay, inverse_decay);
}
inline bool find_log_terms(Lanes<double>& l, int64_t n) { return log_terms_in(l, n); }
inline void find_sum_logs(Lanes<double>& l, int64_t n, bool decay, double inverse_decay) {
  sum_logs_in(l, n, decay, inverse_decay);
}
inline void find_mean_shares(Lanes<double>& l, int64_t n, bool logs, bool decay, double inverse_decay) {
  mean_shares_in(l, n, logs, decay, inverse_decay);
}
inline void find_log_shares(Lanes<double>& l, int64_t n, double power, double inverse_decay) {
  log_shares_in(l, n, power, inverse_decay);
}
inline void find_means(const double* mean, const double* complement, int64_t n, double* value, double* inverse) {
  finish_means(mean, complement, n, value, inverse);
}
inline void find_means_of_logs(const double* sum, const double* weights, int64_t n, double* value, double* inverse) {
  finish_logs(sum, weights, n, value, inverse);
}

}  // namespace
}  // namespace edgeloss
