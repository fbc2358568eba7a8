// The two passes of pairs.h.
#include "pairs.h"

#include <algorithm>
#include <array>

#include "../power_mean.h"
#include "../window.h"

namespace edgeloss {
namespace {

// An image of a call. Sides are 0, a pixel's own, and 1, across the edge.
template <typename A>
struct GatheredImage {
  const Geometry& g;
  const Stored<A> x;
  const LabelMap<A> map;
  const PowerMean<A> mean;
  const A *m, *r, *distance;
  uint8_t* edge;
  std::array<Side<A>, 2>* sides;

  GatheredImage(const Call<A>& call, int64_t image)
      : g(call.g),
        x(call.image(image)),
        map(call.label_map(image)),
        mean{static_cast<A>(call.options.power), call.per_decay()},
        m(call.state.m + image * g.pixels),
        r(call.state.r + image * g.pixels),
        distance(call.field ? call.field + image * g.pixels : nullptr),
        edge(call.state.edge + image * g.pixels),
        sides(reinterpret_cast<std::array<Side<A>, 2>*>(call.state.sides) + image * g.pixels) {}

  A d(int64_t n) const { return distance ? distance[n] : A(0); }
  // What is averaged of neighbor n for an edge pixel of class k.
  A t(int64_t n, int64_t k, int side) const { return averaged(x, n, g.classes, k, m[n], r[n], side == 0); }
  A edge_weight(int64_t i) const { return map.pixel_weight ? map.pixel_weight[i] : A(1); }
  // What neighbor n has of the gradient of edge pixel i.
  A share(int64_t i, int64_t n, int side) const {
    return exp_negative(mean.log_share(sides[i][side], t(n, map.label[i], side), d(n))) * edge_weight(i);
  }
  // Marks the pixels i of a row that have a neighbor n with holds(i, n), in loops that vectorize.
  template <typename F>
  void mark_row(int64_t row, uint8_t* marks, const F& holds) const {
    const int64_t own = row * g.width, reach = std::min(g.radius[2], g.width - 1);
    std::fill_n(marks, g.width, uint8_t(0));
    for_each_row_around(g, row, [&](int64_t first, int64_t) {
      for (int64_t dx = -reach; dx <= reach; ++dx) {
        const int64_t last = g.width - std::max<int64_t>(0, dx), other = first + dx;
        for (int64_t x = std::max<int64_t>(0, -dx); x < last && other != own; ++x)
          marks[x] |= holds(own + x, other + x);
      }
    });
  }
};

}  // namespace

template <typename A>
void add_pair_terms(const Call<A>& call, const Slab& slab, double* sums, A* maps) {
  const GatheredImage<A> image(call, slab.image);
  const Geometry& g = call.g;
  const int16_t* label = image.map.label;
  std::vector<A> t[2], d[2];
  for_each_row(slab, [&](int64_t z, int64_t y) {
    const int64_t row = z * g.height + y;
    uint8_t* edge = image.edge + row * g.width;
    image.mark_row(row, edge, [label](int64_t i, int64_t n) {
      return (label[n] != label[i]) & (label[n] >= 0) & (label[i] >= 0);
    });
    std::fill_n(image.sides + row * g.width, g.width, std::array<Side<A>, 2>{});
    RunSum of_side[2] = {RunSum(sums), RunSum(sums + g.classes)};
    for (int64_t column = 0; column < g.width; ++column) {
      if (!edge[column]) continue;
      const int64_t i = row * g.width + column;
      for (int side = 0; side < 2; ++side) {
        t[side].clear();
        d[side].clear();
      }
      for_each_neighbor(g, row, column, [&](int64_t n, int64_t) {
        if (label[n] < 0) return;
        const int side = label[n] != label[i];
        t[side].push_back(image.t(n, label[i], side));
        d[side].push_back(image.d(n));
      });
      const double v = image.edge_weight(i);
      for (int side = 0; side < 2; ++side) {
        const auto for_each = [&](const auto& body) {
          for (size_t j = 0; j < t[side].size(); ++j) body(t[side][j], d[side][j]);
        };
        const A term = image.mean.find_term(for_each, image.sides[i][side]);
        of_side[side].add(label[i], v * term);
        if (maps) maps[(side * g.batch + slab.image) * g.pixels + i] = term;
      }
    }
  });
}

template <typename A>
void find_pair_shares(const Call<A>& call, const Slab& slab, A* own, std::vector<OtherWeight<A>>& others) {
  const GatheredImage<A> image(call, slab.image);
  const Geometry& g = call.g;
  const int16_t* label = image.map.label;
  const uint8_t* edge = image.edge;
  std::vector<int64_t> latest(g.classes, -1);  // of the entries of each class
  std::vector<uint8_t> near(g.width);
  for_each_row(slab, [&](int64_t z, int64_t y) {
    const int64_t row = z * g.height + y;
    image.mark_row(row, near.data(), [=](int64_t n, int64_t i) { return (edge[i] != 0) & (label[n] >= 0); });
    for (int64_t column = 0; column < g.width; ++column) {
      if (!near[column]) continue;
      const int64_t n = row * g.width + column;
      const int32_t place = slab.place(g.width, z, y, column);
      for_each_neighbor(g, row, column, [&](int64_t i, int64_t) {
        if (!edge[i]) return;
        const int16_t k = label[i];
        if (k == label[n]) {
          own[place] += image.share(i, n, 0);
          return;
        }
        if (latest[k] < 0 || others[latest[k]].place != place) {
          latest[k] = static_cast<int64_t>(others.size());
          others.push_back({place, k, A(0)});
        }
        others[latest[k]].weight += image.share(i, n, 1);
      });
    }
  });
}

template void add_pair_terms(const Call<float>&, const Slab&, double*, float*);
template void add_pair_terms(const Call<double>&, const Slab&, double*, double*);
template void find_pair_shares(const Call<float>&, const Slab&, float*, std::vector<OtherWeight<float>>&);
template void find_pair_shares(const Call<double>&, const Slab&, double*, std::vector<OtherWeight<double>>&);

}  // namespace edgeloss
