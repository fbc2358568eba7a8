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

// log p(k) on the same side, log(1 - p(k)) on the other, by one logarithm for both: that of 1 + u, or of r / (1 + r)
// where k is likely.
template <typename A>
EDGELOSS_INLINE A log_term(Bits<A> same, A x, A m, A r) {
  const Bits<A> likely = ~same & mask_of<A>(is_likely(x, m, r));
  const A below = x - m, scale = A(1) / (A(1) + r);
  const A u = select(same, r, -exp_negative(below) * scale);
  const A sum = select(likely, r * scale, A(1) + u), lost = select(likely, A(0), u - (sum - A(1)));
  const A log = log_positive(sum) + lost / sum;
  return select(same, below - log, log);
}

// The other side's term is undefined, since r underflowed.
template <typename A>
EDGELOSS_INLINE Bits<A> is_undefined(A x, A m, A r) {
  return mask_of<A>(x == m) & ~mask_of<A>(is_exact(r));
}

// negative_log_mean of math.h over one side of many edge pixels at a time, whose formulas it repeats: there a pixel's
// running sum takes a branch for each term that is larger than those before it, which does not vectorize; here the
// largest is found in a pass of its own.
template <typename A>
struct SideSums {
  A nearest[kEdges], weights[kEdges], mean[kEdges], first[kEdges];
  A largest[kEdges], top[kEdges];  // exponent around the mean; exponent of a term
  A sum[kEdges], small[kEdges], log_sum[kEdges];

  EDGELOSS_INLINE void clear(int64_t n, A q) {
    for (int64_t e = 0; e < n; ++e) {
      nearest[e] = INFINITY;
      first[e] = q > A(0) ? -INFINITY : INFINITY;
      top[e] = -INFINITY;
      weights[e] = mean[e] = largest[e] = sum[e] = small[e] = A(0);
    }
  }
  EDGELOSS_INLINE A log_weight(int64_t e, A d, const LaneOptions<A>& options) const {
    return (nearest[e] - d) * options.inverse_decay;
  }
  EDGELOSS_INLINE void add_distance(int64_t e, Bits<A> on, A d) {
    const A own = select(on, d, A(INFINITY));
    nearest[e] = own < nearest[e] ? own : nearest[e];
  }
  EDGELOSS_INLINE void add_moments(int64_t e, Bits<A> on, A t, A d, const LaneOptions<A>& options) {
    const A w = exp_negative(log_weight(e, d, options)), own = select(on, t, first[e]);
    weights[e] += select(on, w);
    mean[e] += select(on, w * t);
    first[e] = (options.power > A(0)) == (own > first[e]) ? own : first[e];
  }
  EDGELOSS_INLINE void add_range(int64_t e, Bits<A> on, A t, A d, const LaneOptions<A>& options) {
    const A exponent = select(on, std::abs(options.power * (t - mean[e])));
    const A v = select(on, log_weight(e, d, options) + options.power * (t - first[e]), A(-INFINITY));
    largest[e] = exponent > largest[e] ? exponent : largest[e];
    top[e] = v > top[e] ? v : top[e];
  }
  EDGELOSS_INLINE void add_exponentials(int64_t e, Bits<A> on, A t, A d, const LaneOptions<A>& options) {
    const A log_w = log_weight(e, d, options), exponent = options.power * (t - mean[e]);
    sum[e] += select(on, exp_negative(log_w + options.power * (t - first[e]) - top[e]));
    const A below_one = exponent > A(1) ? A(1) : exponent;
    small[e] += select(on, exp_negative(log_w) * expm1_of_unit(below_one < A(-1) ? A(-1) : below_one));
  }
  EDGELOSS_INLINE A finish(int64_t e, A q) {
    const Bits<A> any = mask_of<A>(weights[e] > A(0)), is_small = mask_of<A>(largest[e] <= A(1));
    const A total = select(any, weights[e], A(1)), all = sum[e], log = top[e] + log_positive(select(any, all, A(1)));
    const A log_all = select(mask_of<A>(all == all), log, all);  // log_positive hides nan
    const A by_mean = mean[e] + log1p_positive(select(is_small & any, small[e] / total)) / q;
    const A by_first = first[e] + (log_all - log_positive(total)) / q;
    const A log_m = select(is_small, by_mean, by_first);
    log_sum[e] = log_all;
    return select(any & ~mask_of<A>(log_m > A(0)), A(0) - log_m);
  }
};

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
  std::vector<A**> arrays = {&this->x,      &this->m,         &this->r,           &this->d,
                             &this->t,      &this->log_other, &this->first_logit, &this->second_logit,
                             &same.nearest, &other.nearest};
  for (auto* side : {&same, &other}) {
    side->sum = side->rest = side->upstream = side->first = side->log_sum = side->share = nullptr;
    const std::vector<A**> more = pass == Pass::kForward
                                      ? std::vector<A**>{&side->sum, &side->rest}
                                      : std::vector<A**>{&side->upstream, &side->first, &side->log_sum, &side->share};
    arrays.insert(arrays.end(), more.begin(), more.end());
  }
  numbers_.resize(arrays.size() * step);
  labels_.resize(3 * all);
  for (size_t i = 0; i < arrays.size(); ++i) *arrays[i] = numbers_.data() + i * step;
  this->label = labels_.data();
  this->k = labels_.data() + all;
  this->other_class = labels_.data() + 2 * all;
  first.resize(edges);
  is_unknown.resize(all);
  if (width > 8) return;
  outside.resize(2 * width * width);
  for (int64_t i = 0; i < 2 * width * width; ++i) {
    const int64_t distance = std::abs(i % width - i / width % width);
    outside[i] = distance > radius || (i >= width * width && distance == 0) ? -1 : 0;
  }
}

template <typename A>
void add_lanes(const A* lanes, int64_t n, int64_t width, A* sum) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    with_width(width, [=](auto constant) EDGELOSS_LOOP {
      constexpr int64_t kWidth = decltype(constant)::value;
      for (int64_t e = 0; e < n; ++e) {
        A all = 0;
        for (int64_t j = 0; j < (kWidth ? kWidth : width); ++j) all += lanes[e * (kWidth ? kWidth : width) + j];
        sum[e] = all;
      }
    });
  });
}

template <typename A>
void negate(A* value, int64_t n) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) value[i] = -value[i];
  });
}

template <typename A>
bool known_terms(const LaneArrays<A>& lanes, int64_t n, uint8_t* is_unknown) {
  return vectorized<A>([=, l = lanes]() EDGELOSS_LOOP {
    Bits<A> any = 0;
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const Masks<A> is(l, i);
      l.t[i] = select(is.same, -l.t[i], l.log_other[i]);
      const Bits<A> unknown = is.other & mask_of<A>(l.other_class[i] != l.k[i]);
      is_unknown[i] = static_cast<uint8_t>(unknown & 1);
      any |= unknown;
    }
    return any != 0;
  });
}

template <typename A>
bool other_terms(const A* x, const A* m, const A* r, int64_t n, A* t) {
  return vectorized<A>([=]() EDGELOSS_LOOP {
    Bits<A> any = 0;
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      t[i] = log_term(Bits<A>(0), x[i], m[i], r[i]);
      any |= is_undefined(x[i], m[i], r[i]);
    }
    return any != 0;
  });
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
      l.t[i] = log_term(is.same, x, m, r);
      any |= is.other & is_undefined(x, m, r);
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
          A w = A(1), p = A(1), complement = A(1);
          if (decltype(decays)::value) w = exp_negative(log_weight(l, i, is.same, inverse_decay));
          if (!decltype(logs)::value) probabilities(l.x[i], l.m[i], l.r[i], p, complement);
          l.same.share[i] = select(is.same, l.same.upstream[i] * w * p);
          l.other.share[i] = select(is.other, l.other.upstream[i] * w * complement);
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
      l.same.share[i] = select(is.same, l.same.upstream[i] * pi);
      l.other.share[i] = select(is.other, l.other.upstream[i] * pi);
    }
  });
}

template <typename A>
void multiply_by_slopes(const A* x, const A* m, const A* r, int64_t n, A* value) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      A p, complement;
      probabilities(x[i], m[i], r[i], p, complement);
      const Bits<A> likely = mask_of<A>(is_likely(x[i], m[i], r[i]));
      value[i] *= select(likely, p, p / complement);
    }
  });
}

template <typename A>
void power_means(const WindowTerms<A>& terms, int side, const LaneOptions<A>& options, A* value, Side<A>* sides) {
  SideSums<A> sums;
  const int64_t n = terms.count;
  vectorized<A>([=, t = terms.t.data(), d = terms.d.data(), of = terms.side.data(), places = terms.places(),
                 s = &sums]() EDGELOSS_LOOP {
    s->clear(n, options.power);
    const auto for_each_place = [=](const auto& body) EDGELOSS_LOOP {
      for (int64_t i = 0; i < places * n; i += n) {
        EDGELOSS_INDEPENDENT
        for (int64_t e = 0; e < n; ++e) body(e, mask_of<A>(of[i + e] == side), t[i + e], d[i + e]);
      }
    };
    for_each_place([=](int64_t e, Bits<A> on, A, A d) EDGELOSS_LOOP { s->add_distance(e, on, d); });
    for_each_place([=](int64_t e, Bits<A> on, A t, A d) EDGELOSS_LOOP { s->add_moments(e, on, t, d, options); });
    EDGELOSS_INDEPENDENT
    for (int64_t e = 0; e < n; ++e) s->mean[e] /= s->weights[e];
    for_each_place([=](int64_t e, Bits<A> on, A t, A d) EDGELOSS_LOOP { s->add_range(e, on, t, d, options); });
    for_each_place([=](int64_t e, Bits<A> on, A t, A d) EDGELOSS_LOOP { s->add_exponentials(e, on, t, d, options); });
    EDGELOSS_INDEPENDENT
    for (int64_t e = 0; e < n; ++e) value[e] = s->finish(e, options.power);
  });
  for (int64_t e = 0; e < n; ++e) {
    sides[2 * e + side] = Side<A>();
    if (sums.weights[e] > A(0)) sides[2 * e + side] = {sums.first[e], sums.log_sum[e], sums.nearest[e], A(0)};
  }
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

#define EDGELOSS_INSTANTIATE(A)                                                               \
  template struct Lanes<A>;                                                                   \
  template void add_lanes(const A*, int64_t, int64_t, A*);                                    \
  template void negate(A*, int64_t);                                                          \
  template bool known_terms(const LaneArrays<A>&, int64_t, uint8_t*);                         \
  template bool other_terms(const A*, const A*, const A*, int64_t, A*);                       \
  template void least_distance(const LaneArrays<A>&, int64_t);                                \
  template void sum_probabilities(const LaneArrays<A>&, int64_t, const LaneOptions<A>&);      \
  template bool log_terms(const LaneArrays<A>&, int64_t);                                     \
  template void sum_logs(const LaneArrays<A>&, int64_t, const LaneOptions<A>&);               \
  template void mean_shares(const LaneArrays<A>&, int64_t, const LaneOptions<A>&);            \
  template void log_shares(const LaneArrays<A>&, int64_t, const LaneOptions<A>&);             \
  template void multiply_by_slopes(const A*, const A*, const A*, int64_t, A*);                \
  template void power_means(const WindowTerms<A>&, int, const LaneOptions<A>&, A*, Side<A>*); \
  template void finish_logs(const A*, const A*, int64_t, A*, A*);                             \
  template void finish_means(const A*, const A*, int64_t, A*, A*);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss
