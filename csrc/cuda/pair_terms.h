// S and O of an edge pixel and their gradient at a neighbor, from the logits: what cpu/pairs.h is to the CPU, for
// devices where one thread takes a pixel. Edges and distances are given, and the sums are the caller's.
//
// Every pass looks at pixels from where it writes, as those of nll.h: at the neighbors of an edge pixel, or at the edge
// pixels around a neighbor. With the share π of a neighbor times what arrives, v, and k the class of the edge pixel,
// the gradient of class c of the neighbor is
//
//     same side    v p(c) - v [c = k]
//     other side   v p(k) [c = k] - v p(k) e^x(c) / Σ_{j≠k} e^x(j) [c ≠ k]
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "../checks.h"
#include "../passes.h"
#include "../power_mean.h"
#include "../window.h"

namespace edgeloss {

// The tensors of a call: what is given, and what the passes fill. terms: [2, B, *S]: S and O, or their gradients, and
// then forward has left the rest, and grad is filled; stats: [2, B·P]: m, r; sides: [B·P, 2, 3].
struct GatheredTensors {
  const Tensor &logits, &label, &edge;
  const std::optional<Tensor>& distance;
  const double power;
  const std::vector<int64_t>& radius;
  const Tensor &terms, &stats, &sides;
  const Tensor* grad;

  void check() const {
    const checks::Checker check(logits, checks::kReal);
    check.neighbors(radius);
    STD_TORCH_CHECK(logits.size(1) > 1, "logits: expected at least 2 classes, but got 1");
    check.tensor("label", label, check.image, {ScalarType::Short});
    check.tensor("edge", edge, check.image, checks::kFlags);
    check.tensor("distance", distance, check.image, {check.real});
    check.flat("grad_terms", terms, 2 * check.pixels(), check.real);
    check.flat("stats", stats, 2 * check.pixels(), check.real);
    check.flat("sides", sides, 6 * check.pixels(), check.real);
  }
};

template <typename A>
struct GatheredTerms : SoftmaxImage<GatheredTerms<A>, A> {
  using Base = SoftmaxImage<GatheredTerms, A>;
  using Base::g, Base::x, Base::m, Base::r, Base::run;

  PowerMean<A> mean;
  const int16_t* label;  // kIgnored where a pixel does not count
  const uint8_t* edge;   // the edge mask
  const A* distance;     // over the decay, or null: all neighbors weigh the same
  Side<A>* sides;        // [P, 2], of edge pixels
  A* terms;              // S of each pixel, and O at side_step, or their gradients
  int64_t side_step;

  explicit GatheredTerms(const GatheredTensors& of)
      : Base(of.logits, of.stats, of.grad, of.radius),
        mean{static_cast<A>(of.power), A(1)},
        label(static_cast<const int16_t*>(of.label.const_data_ptr())),
        edge(static_cast<const uint8_t*>(of.edge.const_data_ptr())),
        distance(data_or_null<A>(of.distance)),
        sides(static_cast<Side<A>*>(of.sides.mutable_data_ptr())),
        terms(static_cast<A*>(of.terms.mutable_data_ptr())),
        side_step(g.batch * g.pixels) {}

  EDGELOSS_INLINE void move(int64_t b) {
    Base::move(b);
    const int64_t base = b * g.pixels;
    label += base;
    edge += base;
    if (distance) distance += base;
    sides += 2 * base;
    terms += base;
  }

  // A label out of range is no class to look up.
  EDGELOSS_INLINE bool is_edge(int64_t i) const { return edge[i] && label[i] >= 0 && label[i] < g.classes; }
  EDGELOSS_INLINE A d(int64_t n) const { return distance ? distance[n] : A(0); }
  // What is averaged of neighbor n for an edge pixel of class k.
  EDGELOSS_INLINE A t(int64_t n, int64_t k, bool is_same) const {
    return averaged(x, n, g.classes, k, m[n], r[n], is_same);
  }

  // Calls body(i, number of the pixel) for the edge pixels i that have this pixel for a neighbor. Pass 1 finds its
  // statistics if there is one.
  template <typename F>
  EDGELOSS_INLINE void for_each_center(int64_t row, int64_t column, const F& body) const {
    if (label[row * g.width + column] < 0) return;
    for_each_neighbor(g, row, column, [&](int64_t i, int64_t number) {
      if (is_edge(i)) body(i, last_number(g) - number);
    });
  }

  // Pass 2: the terms of both sides.
  EDGELOSS_INLINE void run(FindValue, int64_t row, int64_t column) const {
    const int64_t i = row * g.width + column, k = label[i];
    for (int s = 0; s < 2; ++s) {
      A& term = terms[s * side_step + i];
      term = 0;
      if (!is_edge(i)) continue;
      const auto for_each = [&](const auto& body) {
        for_each_neighbor(g, row, column, [&](int64_t n, int64_t) {
          if (label[n] >= 0 && (label[n] != k) == (s == 1)) body(t(n, k, s == 0), d(n));
        });
      };
      term = mean.find_term(for_each, sides[2 * i + s]);
    }
  }

  // Pass 3: what edge pixel i gives to pixel n.
  template <typename E>
  EDGELOSS_INLINE Given<A> given(int64_t i, int64_t n, int64_t, const E& e_at) const {
    const int64_t k = label[i];
    const bool is_same = label[n] == k;
    const A x_k = x.at(n, k);
    const A share = exp_negative(mean.log_share(sides[2 * i + !is_same], t(n, k, is_same), d(n)));
    const A v = share * terms[is_same ? i : side_step + i];
    A p, complement;
    probabilities_of(e_at(k), r[n], p, complement);
    if (is_same) return {k, {-v * complement, x_k}, {v / (A(1) + r[n]), m[n]}};
    if (!is_likely(x_k, m[n], r[n])) return {k, {v * p, x_k}, {-v * p / (complement * (A(1) + r[n])), m[n]}};
    LogSumExp<A> others = {m[n], r[n]};
    if (!is_near(r[n])) others = sum_others<A>(x, n, g.classes, k);
    return {k, {v * p, x_k}, {-v * p / others.sum, others.max}};
  }
  EDGELOSS_INLINE bool chooses(int64_t i, int64_t c) const { return label[i] == c; }
};

// The operators; their passes are those of a device. Returns terms, stats, sides.
template <typename Passes>
std::tuple<Tensor, Tensor, Tensor> pair_terms(const Tensor& logits, const Tensor& label, const Tensor& edge,
                                              const std::optional<Tensor>& distance, double power,
                                              std::vector<int64_t> radius) {
  const checks::Checker check(logits, checks::kReal);
  std::vector<int64_t> sizes = check.image;
  sizes.insert(sizes.begin(), 2);
  const Tensor terms = torch::stable::new_empty(logits, sizes, check.real);
  const Tensor stats = torch::stable::new_empty(logits, {2, check.pixels()}, check.real);
  const Tensor sides = torch::stable::new_empty(logits, {check.pixels(), 2, 3}, check.real);
  const GatheredTensors tensors = {logits, label, edge, distance, power, radius, terms, stats, sides, nullptr};
  tensors.check();
  const Passes passes(logits);
  by_arithmetic(logits, [&](auto a) {
    const GatheredTerms<decltype(a)> image(tensors);
    passes.run(FindStatistics(), image);
    passes.run(FindValue(), image);
  });
  return {terms, stats, sides};
}

template <typename Passes>
Tensor pair_terms_backward(const Tensor& grad_terms, const Tensor& logits, const Tensor& label, const Tensor& edge,
                           const std::optional<Tensor>& distance, const Tensor& stats, const Tensor& sides,
                           double power, std::vector<int64_t> radius) {
  const Tensor grad = new_gradient(logits);
  const GatheredTensors tensors = {logits, label, edge, distance, power, radius, grad_terms, stats, sides, &grad};
  tensors.check();
  const Passes passes(logits);
  by_arithmetic(logits, [&](auto a) { passes.run(FindGradient(), GatheredTerms<decltype(a)>(tensors)); });
  return grad;
}

}  // namespace edgeloss
