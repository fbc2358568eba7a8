// The two passes of gather.h. Pairs of an edge pixel and a neighbor are listed some hundred at a time, and their
// logarithms and exponentials formed together, so that they vectorize; what is left is a few additions per pair.
#include "gather.h"

#include <algorithm>
#include <cmath>

#include "../cpu/vectorize.h"
#include "window.h"

namespace edgeloss {
namespace {

constexpr int64_t kPairs = 512;  // at a time

// v = e^v for v ≤ 0.
template <typename A>
void exponentials(A* v, int64_t n) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    EDGELOSS_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) v[j] = exp_negative(v[j]);
  });
}

// Pairs of an edge pixel of class k and a neighbor on one of its sides.
template <typename A>
struct Pairs {
  const Gather<A>& gather;
  const Reader<A>& logits;
  const int64_t base;  // of the image
  const bool is_same_side;
  int64_t count = 0;
  std::vector<int32_t> edge, neighbor;
  std::vector<A> x, m, r, t, d, w, share;  // x: the neighbor's logit of class k

  Pairs(const Gather<A>& gather, const Reader<A>& logits, int64_t image, bool is_same_side)
      : gather(gather), logits(logits), base(image * gather.g.pixels), is_same_side(is_same_side) {
    const int64_t most = kPairs + last_number(gather.g) + 1;
    for (auto* numbers : {&edge, &neighbor}) numbers->resize(most);
    for (auto* numbers : {&x, &m, &r, &t, &d, &w, &share}) numbers->resize(most);
  }

  void add(int64_t i, int64_t n) {
    edge[count] = static_cast<int32_t>(i);
    neighbor[count++] = static_cast<int32_t>(n);
  }
  int16_t k(int64_t j) const { return gather.label[base + edge[j]]; }

  // Reads what is known of the neighbors, and finds t.
  void read() {
    for (int64_t j = 0; j < count; ++j) {
      x[j] = logits.at(neighbor[j], k(j));
      m[j] = gather.m[base + neighbor[j]];
      r[j] = gather.r[base + neighbor[j]];
      if (gather.distance) d[j] = gather.distance[base + neighbor[j]];
    }
    const bool is_undefined = vectorized<A>(
        [n = count, same = is_same_side, x = x.data(), m = m.data(), r = r.data(), t = t.data()]() EDGELOSS_LOOP {
          int32_t any = 0;
          if (same) {
            EDGELOSS_INDEPENDENT
            for (int64_t j = 0; j < n; ++j) t[j] = log_p(x[j], m[j], r[j]);
            return false;
          }
          EDGELOSS_INDEPENDENT
          for (int64_t j = 0; j < n; ++j) {
            t[j] = other_term(x[j], m[j], r[j]);
            any |= (x[j] == m[j]) & !is_exact(r[j]);
          }
          return any != 0;
        });
    for (int64_t j = 0; is_undefined && j < count; ++j) {
      if (x[j] == m[j]) t[j] = other_term(logits, neighbor[j], gather.g.classes, k(j), m[j], r[j]);
    }
  }
};

// One side of an edge pixel: its pairs, and what comes of them.
template <typename A>
struct Term {
  int64_t first, last;
  Side<A> side;
  A nearest, value;
};

template <typename A>
void find_values(Pairs<A>& pairs, std::vector<Term<A>>& terms) {
  pairs.read();
  const PowerMean<A> mean = pairs.gather.mean();
  A *t = pairs.t.data(), *d = pairs.d.data(), *w = pairs.w.data(), *share = pairs.share.data();
  for (Term<A>& term : terms) {
    const auto for_each = [=, first = term.first, last = term.last](const auto& body) {
      for (int64_t j = first; j < last; ++j) body(t[j], d[j]);
    };
    mean.find_largest(for_each, term.side, term.nearest);
    for (int64_t j = term.first; j < term.last; ++j) {
      w[j] = mean.log_weight(d[j], term.nearest);
      share[j] = mean.log_share(term.side, t[j], d[j]);
    }
  }
  exponentials(w, pairs.count);
  exponentials(share, pairs.count);
  for (Term<A>& term : terms) {
    const auto for_each = [=, first = term.first, last = term.last](const auto& body) {
      for (int64_t j = first; j < last; ++j) body(t[j], w[j], share[j]);
    };
    if (term.first < term.last) term.value = mean.find_value(for_each, term.side, term.nearest);
  }
}

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
void Gather<A>::add_terms(const Reader<A>& x, const Chunk& chunk, double* same_side, double* other_side) const {
  const int64_t base = chunk.image * g.pixels;
  Pairs<A> of_side[2] = {{*this, x, chunk.image, true}, {*this, x, chunk.image, false}};
  std::vector<Term<A>> terms[2];
  std::vector<int64_t> pixels;
  const auto flush = [&] {
    for (int s = 0; s < 2; ++s) {
      find_values(of_side[s], terms[s]);
      for (size_t e = 0; e < pixels.size(); ++e) {
        const A weight = edge_weight(chunk.image, pixels[e]);
        *(s ? other_side : same_side) += static_cast<double>(weight) * terms[s][e].value;
        sides[2 * (base + pixels[e]) + s] = terms[s][e].side;
      }
      of_side[s].count = 0;
      terms[s].clear();
    }
    pixels.clear();
  };
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    uint8_t* row_edge = edge + base + row * g.width;
    mark_row(g, row, row_edge,
             [y = label + base](int64_t i, int64_t n) { return (y[n] != y[i]) & (y[n] >= 0) & (y[i] >= 0); });
    for (int64_t column = 0; column < g.width; ++column) {
      if (!row_edge[column]) continue;
      const int64_t i = row * g.width + column;
      for (int s = 0; s < 2; ++s) terms[s].push_back({of_side[s].count, 0, {}, 0, 0});
      for_each_neighbor(g, row, column, [&](int64_t n, int64_t) {
        if (label[base + n] >= 0) of_side[label[base + n] != label[base + i]].add(i, n);
      });
      for (int s = 0; s < 2; ++s) terms[s].back().last = of_side[s].count;
      pixels.push_back(i);
      if (std::max(of_side[0].count, of_side[1].count) >= kPairs) flush();
    }
  }
  flush();
}

template <typename A>
void Gather<A>::collect_shares(const Reader<A>& x, const Chunk& chunk, A* own,
                               std::vector<OtherWeight<A>>& others) const {
  const int64_t base = chunk.image * g.pixels, start = chunk.first_row * g.width;
  Pairs<A> of_side[2] = {{*this, x, chunk.image, true}, {*this, x, chunk.image, false}};
  std::vector<int64_t> latest(g.classes, -1);  // of the entries of each class
  const auto flush = [&] {
    for (Pairs<A>& pairs : of_side) {
      pairs.read();
      for (int64_t j = 0; j < pairs.count; ++j) {
        const Side& side = sides[2 * (base + pairs.edge[j]) + !pairs.is_same_side];
        pairs.share[j] = mean().log_share(side, pairs.t[j], pairs.d[j]);
      }
      exponentials(pairs.share.data(), pairs.count);
      for (int64_t j = 0; j < pairs.count; ++j) {
        const int32_t pixel = static_cast<int32_t>(pairs.neighbor[j] - start);
        const A weight = pairs.share[j] * edge_weight(chunk.image, pairs.edge[j]);
        if (pairs.is_same_side) {
          own[pixel] += weight;
          continue;
        }
        int64_t& entry = latest[pairs.k(j)];
        if (entry < 0 || others[entry].place != pixel) {
          entry = static_cast<int64_t>(others.size());
          others.push_back({pixel, pairs.k(j), A(0)});
        }
        others[entry].weight += weight;
      }
      pairs.count = 0;
    }
  };
  std::vector<uint8_t> near(g.width);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    mark_row(g, row, near.data(), [&](int64_t n, int64_t i) { return (edge[base + i] != 0) & (label[base + n] >= 0); });
    for (int64_t column = 0; column < g.width; ++column) {
      const int64_t n = row * g.width + column;
      if (!near[column]) continue;
      for_each_neighbor(g, row, column, [&](int64_t i, int64_t) {
        if (edge[base + i]) of_side[label[base + i] != label[base + n]].add(i, n);
      });
      if (std::max(of_side[0].count, of_side[1].count) >= kPairs) flush();
    }
  }
  flush();
}

template struct Gather<float>;
template struct Gather<double>;

}  // namespace edgeloss
