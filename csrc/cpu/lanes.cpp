// The loops of lanes.h. Every lane takes part in every operation, and those that are no neighbors are left out where
// results are selected: their numbers may be nan. Selected by masks, since the compiler turns conditions on the same
// comparison into branches, which do not vectorize.
#include "lanes.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "tiles.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

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

// Whether lane i shows a neighbor on the edge pixel's own side, or on the other.
template <typename A>
struct Masks {
  Bits<A> same, other;

  EDGELOSS_INLINE Masks(const LaneArrays<A>& lanes, int64_t i)
      : same(mask_of<A>(lanes.label[i] == lanes.k[i])), other(mask_of<A>(lanes.label[i] >= 0) & ~same) {}
};

// log w.
template <typename A>
EDGELOSS_INLINE A log_weight(const LaneArrays<A>& lanes, int64_t i, Bits<A> same, A inverse_decay) {
  return (select(same, lanes.same.nearest[i], lanes.other.nearest[i]) - lanes.d[i]) * inverse_decay;
}

// Calls body(condition) with a constant.
template <typename F>
EDGELOSS_INLINE void with_constant(bool condition, const F& body) {
  condition ? body(std::true_type()) : body(std::false_type());
}

}  // namespace

template <typename A>
Lanes<A>::Lanes(Pass pass, int64_t reach, int64_t row_width)
    : radius(std::min(reach, std::max<int64_t>(row_width - 1, 0))) {
  width = (2 * radius + 1 + 3) / 4 * 4;
  edges = std::clamp<int64_t>(2048 / width, 1, kEdges);
  const int64_t all = edges * width;
  const int64_t step = all + 64 / sizeof(A);  // arrays that begin in different lines of the cache
  auto &same = this->same, &other = this->other;
  std::vector<A**> arrays = {
      &this->x,      &this->m,      &this->r, &this->d, &this->t, &this->first_logit, &this->second_logit,
      &same.nearest, &other.nearest};
  for (auto* side : {&same, &other}) {
    side->sum = side->rest = side->upstream = side->first = side->log_sum = side->share = nullptr;
    const std::vector<A**> more = pass == Pass::kForward
                                      ? std::vector<A**>{&side->sum, &side->rest}
                                      : std::vector<A**>{&side->upstream, &side->first, &side->log_sum, &side->share};
    arrays.insert(arrays.end(), more.begin(), more.end());
  }
  numbers_.resize(arrays.size() * step);
  labels_.resize(2 * all);
  for (size_t i = 0; i < arrays.size(); ++i) *arrays[i] = numbers_.data() + i * step;
  this->label = labels_.data();
  this->k = labels_.data() + all;
  first.resize(edges);
  if (width > 8) return;
  outside.resize(2 * width * width);
  for (int64_t i = 0; i < 2 * width * width; ++i) {
    const int64_t distance = std::abs(i % width - i / width % width);
    outside[i] = distance > radius || (i >= width * width && distance == 0) ? -1 : 0;
  }
}

template <typename A>
void least_distance(const LaneArrays<A>& lanes, int64_t n) {
  vectorized<A>([=, l = lanes]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const Masks<A> is(l, i);
      const A on_same = select(is.same, l.d[i], A(INFINITY)), on_other = select(is.other, l.d[i], A(INFINITY));
      l.same.nearest[i] = on_same < l.same.nearest[i] ? on_same : l.same.nearest[i];
      l.other.nearest[i] = on_other < l.other.nearest[i] ? on_other : l.other.nearest[i];
    }
  });
}

template <typename A>
void sum_probabilities(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options) {
  vectorized<A>([=, l = lanes, inverse_decay = options.inverse_decay, has_decay = options.has_decay]() EDGELOSS_LOOP {
    with_constant(has_decay, [=](auto decays) EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        const Masks<A> is(l, i);
        A p, complement;
        probabilities(l.x[i], l.m[i], l.r[i], p, complement);
        if (decltype(decays)::value) {
          const A w = exp_negative(log_weight(l, i, is.same, inverse_decay));
          p *= w;
          complement *= w;
        }
        l.same.sum[i] += select(is.same, p);
        l.same.rest[i] += select(is.same, complement);
        l.other.rest[i] += select(is.other, p);
        l.other.sum[i] += select(is.other, complement);
      }
    });
  });
}

template <typename A>
bool log_terms(const LaneArrays<A>& lanes, int64_t n) {
  return vectorized<A>([=, l = lanes]() EDGELOSS_LOOP {
    Bits<A> any = 0;
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const Masks<A> is(l, i);
      const A x = l.x[i], m = l.m[i], r = l.r[i];
      const Bits<A> likely = ~is.same & mask_of<A>(is_likely(x, m, r));
      const A below = x - m, scale = A(1) / (A(1) + r);
      const A u = select(is.same, r, -exp_negative(below) * scale);
      const A sum = select(likely, r * scale, A(1) + u), lost = select(likely, A(0), u - (sum - A(1)));
      const A log = log_positive(sum) + lost / sum;
      l.t[i] = select(is.same, below - log, log);
      any |= is.other & mask_of<A>(x == m) & ~mask_of<A>(is_exact(r));
    }
    return any != 0;
  });
}

template <typename A>
void sum_logs(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options) {
  vectorized<A>([=, l = lanes, inverse_decay = options.inverse_decay, has_decay = options.has_decay]() EDGELOSS_LOOP {
    with_constant(has_decay, [=](auto decays) EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        const Masks<A> is(l, i);
        A w = A(1);
        if (decltype(decays)::value) w = exp_negative(log_weight(l, i, is.same, inverse_decay));
        l.same.sum[i] += select(is.same, w * l.t[i]);
        l.same.rest[i] += select(is.same, w);
        l.other.sum[i] += select(is.other, w * l.t[i]);
        l.other.rest[i] += select(is.other, w);
      }
    });
  });
}

template <typename A>
void mean_shares(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options) {
  vectorized<A>([=, l = lanes]() EDGELOSS_LOOP {
    const A inverse_decay = options.inverse_decay;
    with_constant(options.has_decay, [=](auto decays) EDGELOSS_LOOP {
      with_constant(options.power == A(0), [=](auto logs) EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) {
          const Masks<A> is(l, i);
          A p, complement;
          probabilities(l.x[i], l.m[i], l.r[i], p, complement);
          const bool likely = is_likely(l.x[i], l.m[i], l.r[i]);
          // Of probabilities π is in proportion to w · complement, which the slope divides by where k is not likely.
          const A leak = decltype(logs)::value ? other_slope(p, complement, likely)
                                               : select(mask_of<A>(likely), complement * p, p);
          A w = A(1);
          if (decltype(decays)::value) w = exp_negative(log_weight(l, i, is.same, inverse_decay));
          const A on_same = l.same.upstream[i] * w;
          l.same.share[i] = select(is.same, decltype(logs)::value ? on_same : on_same * p);
          l.other.share[i] = select(is.other, l.other.upstream[i] * w * leak);
        }
      });
    });
  });
}

template <typename A>
void log_shares(const LaneArrays<A>& lanes, int64_t n, const LaneOptions<A>& options) {
  vectorized<A>([=, l = lanes, power = options.power, inverse_decay = options.inverse_decay]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const Masks<A> is(l, i);
      const A log_w = log_weight(l, i, is.same, inverse_decay);
      const A q_t = power * (l.t[i] - select(is.same, l.same.first[i], l.other.first[i]));
      const A pi = exp_negative(log_w + q_t - select(is.same, l.same.log_sum[i], l.other.log_sum[i]));
      A p, complement;
      probabilities(l.x[i], l.m[i], l.r[i], p, complement);
      const A slope = other_slope(p, complement, is_likely(l.x[i], l.m[i], l.r[i]));
      l.same.share[i] = select(is.same, l.same.upstream[i] * pi);
      l.other.share[i] = select(is.other, l.other.upstream[i] * pi * slope);
    }
  });
}

template <typename A>
void finish_logs(const A* sum, const A* weights, int64_t n, A* value, A* inverse) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      value[i] = negative_mean(sum[i], weights[i]);
      inverse[i] = weights[i] > A(0) ? A(1) / weights[i] : A(0);
    }
  });
}

template <typename A>
void finish_means(const A* mean, const A* complement, int64_t n, A* value, A* inverse) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    const A least = std::numeric_limits<A>::min() / std::numeric_limits<A>::epsilon();
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const A scale = A(1) / (mean[i] + complement[i]);
      const A nll = negative_log(mean[i] * scale, complement[i] * scale);
      value[i] = mean[i] > least ? nll : A(0);
      inverse[i] = mean[i] > least ? A(1) / mean[i] : A(0);
    }
  });
}

#define EDGELOSS_INSTANTIATE(A)                                                          \
  template struct Lanes<A>;                                                              \
  template void least_distance(const LaneArrays<A>&, int64_t);                           \
  template void sum_probabilities(const LaneArrays<A>&, int64_t, const LaneOptions<A>&); \
  template bool log_terms(const LaneArrays<A>&, int64_t);                                \
  template void sum_logs(const LaneArrays<A>&, int64_t, const LaneOptions<A>&);          \
  template void mean_shares(const LaneArrays<A>&, int64_t, const LaneOptions<A>&);       \
  template void log_shares(const LaneArrays<A>&, int64_t, const LaneOptions<A>&);        \
  template void finish_logs(const A*, const A*, int64_t, A*, A*);                        \
  template void finish_means(const A*, const A*, int64_t, A*, A*);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
