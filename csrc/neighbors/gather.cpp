// The two passes of gather.h. Pairs of an edge pixel and a neighbor are listed some hundred at a time, and their
// logarithms and exponentials formed together, so that they vectorize; what is left is a few additions per pair.
#include "gather.h"

#include <algorithm>
#include <cmath>

#include "../cpu/statistics.h"
#include "../cpu/vectorize.h"
#include "power_mean.h"
#include "window.h"

namespace edgeloss {
namespace {

constexpr int64_t kPairs = 512;  // at a time

// One side of edge pixel i: its pairs, and what comes of them.
template <typename A>
struct Term {
  int64_t i, first, last;
  A nearest;
};

// Pairs of an edge pixel of class k and a neighbor on one of its sides.
template <typename A>
struct Pairs {
  const Call<A>& call;
  const bool is_same_side;
  const int64_t base;  // of the image
  const Reader<A> logits;
  const LabelMap<A> map;
  const PowerMean<A> mean;
  int64_t count = 0;
  std::vector<int32_t> edge, neighbor;
  std::vector<A> x, m, r, t, d, w, share;  // x: the neighbor's logit of class k
  std::vector<Term<A>> terms;              // of forward

  Pairs(const Call<A>& call, int64_t image, bool is_same_side)
      : call(call),
        is_same_side(is_same_side),
        base(image * call.g.pixels),
        logits(call.reader(image)),
        map(call.label_map(image)),
        mean{static_cast<A>(call.options.power), call.per_decay()} {
    const int64_t most = kPairs + last_number(call.g) + 1;
    for (auto* numbers : {&edge, &neighbor}) numbers->resize(most);
    for (auto* numbers : {&x, &m, &r, &t, &d, &w, &share}) numbers->resize(most);
  }

  void add(int64_t i, int64_t n) {
    edge[count] = static_cast<int32_t>(i);
    neighbor[count++] = static_cast<int32_t>(n);
  }
  int16_t k(int64_t j) const { return map.label[edge[j]]; }
  Side<A>& side(int64_t i) const {
    return reinterpret_cast<Side<A>*>(call.state.sides)[2 * (base + i) + !is_same_side];
  }
  A edge_weight(int64_t i) const {
    const A v = map.pixel_weight ? map.pixel_weight[i] : A(1);
    return map.class_weight ? v * map.class_weight[map.label[i]] : v;
  }

  // Reads what is known of the neighbors, and finds t.
  void read() {
    for (int64_t j = 0; j < count; ++j) {
      x[j] = logits.at(neighbor[j], k(j));
      m[j] = call.state.m[base + neighbor[j]];
      r[j] = call.state.r[base + neighbor[j]];
      if (call.field) d[j] = call.field[base + neighbor[j]];
    }
    vectorized<A>([n = count, same = is_same_side, x = x.data(), m = m.data(), r = r.data(), t = t.data()]()
                      EDGELOSS_LOOP {
                        if (same) {
                          EDGELOSS_INDEPENDENT
                          for (int64_t j = 0; j < n; ++j) t[j] = log_p(x[j], m[j], r[j]);
                        } else {
                          EDGELOSS_INDEPENDENT
                          for (int64_t j = 0; j < n; ++j) t[j] = other_term(x[j], m[j], r[j]);
                        }
                      });
    for (int64_t j = 0; !is_same_side && j < count; ++j) {
      if (x[j] == m[j] && !is_exact(r[j])) t[j] = other_term(logits, neighbor[j], call.g.classes, k(j), m[j], r[j]);
    }
  }

  // Adds the terms to the sum, and forgets the pairs.
  void add_terms(double* sum) {
    read();
    for (Term<A>& term : terms) {
      const auto for_each = [&](const auto& body) {
        for (int64_t j = term.first; j < term.last; ++j) body(t[j], d[j]);
      };
      mean.find_largest(for_each, side(term.i), term.nearest);
      for (int64_t j = term.first; j < term.last; ++j) {
        w[j] = mean.log_weight(d[j], term.nearest);
        share[j] = mean.log_share(side(term.i), t[j], d[j]);
      }
    }
    exponentials(w.data(), count);
    exponentials(share.data(), count);
    for (Term<A>& term : terms) {
      const auto for_each = [&](const auto& body) {
        for (int64_t j = term.first; j < term.last; ++j) body(t[j], w[j], share[j]);
      };
      if (term.first == term.last) continue;
      *sum += static_cast<double>(edge_weight(term.i)) * mean.find_value(for_each, side(term.i), term.nearest);
    }
    count = 0;
    terms.clear();
  }

  // Calls body(edge pixel, neighbor, weight of the neighbor in the gradient), and forgets the pairs.
  template <typename F>
  void for_each_share(const F& body) {
    read();
    for (int64_t j = 0; j < count; ++j) share[j] = mean.log_share(side(edge[j]), t[j], d[j]);
    exponentials(share.data(), count);
    for (int64_t j = 0; j < count; ++j) body(neighbor[j], k(j), share[j] * edge_weight(edge[j]));
    count = 0;
  }
};

// Marks the pixels i of a row that have a neighbor n with holds(i, n), in loops that vectorize.
template <typename F>
void mark_row(const Geometry& g, int64_t row, uint8_t* marks, const F& holds) {
  const int64_t own = row * g.width, reach = std::min(g.radius[2], g.width - 1);
  std::fill_n(marks, g.width, uint8_t(0));
  for_each_row_around(g, row, [&](int64_t first, int64_t) {
    for (int64_t dx = -reach; dx <= reach; ++dx) {
      const int64_t last = g.width - std::max<int64_t>(0, dx), other = first + dx;
      for (int64_t x = std::max<int64_t>(0, -dx); x < last && other != own; ++x) marks[x] |= holds(own + x, other + x);
    }
  });
}

}  // namespace

template <typename A>
void gather_terms(const Call<A>& call, const Chunk& chunk, double* same_side, double* other_side) {
  const Geometry& g = call.g;
  const int16_t* label = call.label + chunk.image * g.pixels;
  uint8_t* edge = call.state.edge + chunk.image * g.pixels;
  Pairs<A> same(call, chunk.image, true), other(call, chunk.image, false);
  const auto flush = [&] {
    same.add_terms(same_side);
    other.add_terms(other_side);
  };
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    mark_row(g, row, edge + row * g.width,
             [label](int64_t i, int64_t n) { return (label[n] != label[i]) & (label[n] >= 0) & (label[i] >= 0); });
    for (int64_t column = 0; column < g.width; ++column) {
      const int64_t i = row * g.width + column;
      if (!edge[i]) continue;
      for (auto* pairs : {&same, &other}) pairs->terms.push_back({i, pairs->count, 0, 0});
      for_each_neighbor(g, row, column, [&](int64_t n, int64_t) {
        if (label[n] >= 0) (label[n] == label[i] ? same : other).add(i, n);
      });
      for (auto* pairs : {&same, &other}) pairs->terms.back().last = pairs->count;
      if (std::max(same.count, other.count) >= kPairs) flush();
    }
  }
  flush();
}

template <typename A>
void gather_shares(const Call<A>& call, const Chunk& chunk, A* own, std::vector<OtherWeight<A>>& others) {
  const Geometry& g = call.g;
  const int64_t start = chunk.first_row * g.width;
  const int16_t* label = call.label + chunk.image * g.pixels;
  const uint8_t* edge = call.state.edge + chunk.image * g.pixels;
  Pairs<A> same(call, chunk.image, true), other(call, chunk.image, false);
  std::vector<int64_t> latest(g.classes, -1);  // of the entries of each class
  const auto flush = [&] {
    same.for_each_share([&](int64_t n, int16_t, A weight) { own[n - start] += weight; });
    other.for_each_share([&](int64_t n, int16_t k, A weight) {
      const int32_t place = static_cast<int32_t>(n - start);
      if (latest[k] < 0 || others[latest[k]].place != place) {
        latest[k] = static_cast<int64_t>(others.size());
        others.push_back({place, k, A(0)});
      }
      others[latest[k]].weight += weight;
    });
  };
  std::vector<uint8_t> near(g.width);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    mark_row(g, row, near.data(), [=](int64_t n, int64_t i) { return (edge[i] != 0) & (label[n] >= 0); });
    for (int64_t column = 0; column < g.width; ++column) {
      const int64_t n = row * g.width + column;
      if (!near[column]) continue;
      for_each_neighbor(g, row, column, [&](int64_t i, int64_t) {
        if (edge[i]) (label[i] == label[n] ? same : other).add(i, n);
      });
      if (std::max(same.count, other.count) >= kPairs) flush();
    }
  }
  flush();
}

template void gather_terms(const Call<float>&, const Chunk&, double*, double*);
template void gather_terms(const Call<double>&, const Chunk&, double*, double*);
template void gather_shares(const Call<float>&, const Chunk&, float*, std::vector<OtherWeight<float>>&);
template void gather_shares(const Call<double>&, const Chunk&, double*, std::vector<OtherWeight<double>>&);

}  // namespace edgeloss
