// neighbor_nll at one pixel: its value, what that leaves to backward, and the gradient. One copy for every kernel.
//
//     value_i = -log(Σ_n w_in P_in / Σ_n w_in),   P_in = Σ p_n(c) over the classes c that pixel i chooses
//     ∂value_i / ∂x_n(c) = -π_in ([i chooses c] p_n(c) / P_in - p_n(c)),   π_in = w_in P_in / Σ_n w_in P_in
//
// over the neighbors n of a center i inside the image with w_in > 0. A center counts where its mask is set, it has
// such a neighbor, and it chooses a class. Every pass looks at pixels from where it writes: at the neighbors of a
// center, or at the centers around a neighbor. So nothing is added up by two threads.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "checks.h"
#include "passes.h"
#include "window.h"

namespace edgeloss {

// The tensors of a call: what is given, and what the passes fill. value: [B, *S], or its gradient, and then forward has
// left the rest, and grad is filled; stats: [2, B·P]: m, r; largest: [1, B·P]; sums: [B·P, 3].
struct NllTensors {
  const Tensor &logits, &index, &weight;
  const std::optional<Tensor>& mask;
  const std::vector<int64_t>& radius;
  const Tensor &value, &stats, &largest, &sums;
  const Tensor* grad;

  bool has_index() const { return index.dim() < logits.dim(); }
  void check() const {
    const checks::Checker check(logits, checks::kReal);
    std::vector<int64_t> per_neighbor = sizes_of(logits);
    per_neighbor[1] = check.neighbors(radius);
    if (has_index()) {
      check.tensor("index", index, check.image, checks::kLabels);
    } else {
      check.tensor("index", index, sizes_of(logits), checks::kFlags, false);
    }
    check.tensor("weight", weight, per_neighbor, checks::kReal, false);
    check.tensor("mask", mask, check.image, checks::kFlags);
    check.flat("grad_value", value, check.pixels(), check.real);
    check.flat("stats", stats, 2 * check.pixels(), check.real);
    check.flat("largest", largest, check.pixels(), weight.scalar_type());
    check.flat("sides", sums, 3 * check.pixels(), check.real);
  }
};

// The classes that each pixel of an image chooses: one by its index, or those that its indicator sets.
struct Choice {
  Strided<const char> data;
  int64_t bytes;  // of an index; 0 for an indicator

  EDGELOSS_INLINE bool is_index() const { return bytes > 0; }
  EDGELOSS_INLINE int64_t index(int64_t pixel) const { return Labels{data.data, bytes}.at(pixel); }
  EDGELOSS_INLINE bool has(int64_t pixel, int64_t c) const { return data.at(pixel, c) != 0; }
  // Whether there is a class at all; an index out of range is none.
  EDGELOSS_INLINE bool any(int64_t pixel, int64_t classes) const {
    if (is_index()) return index(pixel) >= 0 && index(pixel) < classes;
    for (int64_t c = 0; c < classes; ++c) {
      if (has(pixel, c)) return true;
    }
    return false;
  }
};

// Σ (w / largest) P of a center: 1 / it, or 0 where A can't hold it, and there of the logarithms of its terms the
// largest, and log Σ of the others over it.
template <typename A>
struct NllSum {
  A inverse, first, log_sum;
};

// A: the type of the logits; W: that of the weights.
template <typename A, typename W>
struct NeighborNll : SoftmaxImage<NeighborNll<A, W>, A> {
  using Base = SoftmaxImage<NeighborNll, A>;
  using Base::g, Base::x, Base::m, Base::r, Base::run;

  Strided<const W> weight;  // w_in at pixel i and "class" number of n
  Choice choice;
  const uint8_t* mask;  // null: set everywhere
  W* largest;           // weight of any neighbor; 0 where the center does not count
  NllSum<A>* sums;      // of the centers that count
  A* value;             // of each center, or its gradient

  explicit NeighborNll(const NllTensors& of)
      : Base(of.logits, of.stats, of.grad, of.radius),
        weight{static_cast<const W*>(of.weight.const_data_ptr()), Steps(of.weight)},
        choice{{static_cast<const char*>(of.index.const_data_ptr()), Steps(of.index)},
               of.has_index() ? static_cast<int64_t>(of.index.element_size()) : 0},
        mask(of.mask ? static_cast<const uint8_t*>(of.mask->const_data_ptr()) : nullptr),
        largest(static_cast<W*>(of.largest.mutable_data_ptr())),
        sums(static_cast<NllSum<A>*>(of.sums.mutable_data_ptr())),
        value(static_cast<A*>(of.value.mutable_data_ptr())) {}

  EDGELOSS_INLINE void move(int64_t b) {
    Base::move(b);
    const int64_t base = b * g.pixels;
    weight.move(b);
    choice.data.move(choice.is_index() ? b * choice.bytes : b);
    if (mask) mask += base;
    largest += base;
    sums += base;
    value += base;
  }

  // w / largest, exact for weights of any size but where it underflows.
  EDGELOSS_INLINE A relative(W w, int64_t center) const {
    using Wider = std::common_type_t<A, W>;
    return static_cast<A>(static_cast<Wider>(w) / static_cast<Wider>(largest[center]));
  }
  // Its logarithm, which does not underflow.
  EDGELOSS_INLINE A log_relative(W w, int64_t center) const {
    return static_cast<A>(std::log(static_cast<double>(w)) - std::log(static_cast<double>(largest[center])));
  }

  // Calls body(n, w_in) for the neighbors of a center that have weight.
  template <typename F>
  EDGELOSS_INLINE void for_each_weighted(int64_t row, int64_t column, const F& body) const {
    const int64_t center = row * g.width + column;
    for_each_neighbor(g, row, column, [&](int64_t n, int64_t number) {
      const W w = weight.at(center, number);
      if (w > W(0)) body(n, w);
    });
  }

  // Calls body(i, number of the pixel) for the centers i that count and have a weight for this pixel. Pass 2 finds its
  // statistics if there is one.
  template <typename F>
  EDGELOSS_INLINE void for_each_center(int64_t row, int64_t column, const F& body) const {
    const int64_t last = last_number(g);
    for_each_neighbor(g, row, column, [&](int64_t i, int64_t number) {
      if (largest[i] > W(0) && weight.at(i, last - number) > W(0)) body(i, last - number);
    });
  }

  // What p_n says of the classes that i chooses, from e(c) = e^(x_n(c) - m_n).
  struct Chosen {
    A p, complement;  // P_in and 1 - P_in
    A sum;            // with an indicator: Σ e(c) over them
  };
  template <typename F>
  EDGELOSS_INLINE Chosen chosen(int64_t i, int64_t n, const F& e) const {
    A p, complement, sum = 0, others = 0;
    if (choice.is_index()) {
      probabilities_of(e(choice.index(i)), r[n], p, complement);
      return {p, complement, sum};
    }
    for (int64_t c = 0; c < g.logits; ++c) {
      const A e_c = e(c);
      const bool has = choice.has(i, c);
      sum += has ? e_c : A(0);
      others += has ? A(0) : e_c;
    }
    return {sum / (sum + others), others / (sum + others), sum};
  }
  // Σ e^x over the classes that i chooses, its max and its sum apart.
  EDGELOSS_INLINE LogSumExp<A> sum_chosen(int64_t i, int64_t n) const {
    if (choice.is_index()) return {x.at(n, choice.index(i)), A(1)};
    LogSumExp<A> sum;
    for (int64_t c = 0; c < g.logits; ++c) {
      if (choice.has(i, c)) sum.add(x.at(n, c));
    }
    return sum;
  }
  // log P_in.
  EDGELOSS_INLINE A log_p_chosen(int64_t i, int64_t n) const {
    const LogSumExp<A> sum = sum_chosen(i, n);
    return log_p((sum.max - m[n]) + std::log(sum.sum), A(0), r[n]);
  }

  // Pass 1 of forward: which centers count.
  EDGELOSS_INLINE void run(FindLargest, int64_t row, int64_t column) const {
    const int64_t i = row * g.width + column;
    const bool may_count = (!mask || mask[i]) && choice.any(i, g.logits);
    W result = 0;
    if (may_count) for_each_weighted(row, column, [&](int64_t, W w) { result = larger(result, w); });
    largest[i] = result;
  }

  // Pass 3: the value.
  EDGELOSS_INLINE void run(FindValue, int64_t row, int64_t column) const {
    const int64_t i = row * g.width + column;
    value[i] = largest[i] > W(0) ? value_of(i, row, column) : A(0);
  }
  EDGELOSS_INLINE A value_of(int64_t i, int64_t row, int64_t column) const {
    A right = 0, wrong = 0;
    for_each_weighted(row, column, [&](int64_t n, W w) {
      const Chosen chosen_n = chosen(i, n, [&](int64_t c) { return exp_negative(x.at(n, c) - m[n]); });
      right += relative(w, i) * chosen_n.p;
      wrong += relative(w, i) * chosen_n.complement;
    });
    const A all = right + wrong;
    if (is_exact(right / static_cast<A>(g.logits))) {  // so large that what underflowed of it does not matter
      sums[i].inverse = A(1) / right;
      return negative_log(right / all, wrong / all);
    }
    sums[i] = {A(0), right, right};
    if (right != right) return right;  // nan where the logits are
    // So small that the type has no digits of it left, but of its logarithm.
    LogSumExp<A> sum;
    for_each_weighted(row, column, [&](int64_t n, W w) { sum.add(log_relative(w, i) + log_p_chosen(i, n)); });
    sums[i] = {A(0), sum.max, std::log(sum.sum)};
    return std::log(all) - sum.value();
  }

  // Pass 4: what center i gives to pixel n, where value is the gradient of its value: push · e(c) to the classes that
  // it does not choose, and -pull · e(c) / Σ e to those it does. No difference in them cancels.
  template <typename E>
  EDGELOSS_INLINE Given<A> given(int64_t i, int64_t n, int64_t number, const E& e_at) const {
    const Chosen chosen_n = chosen(i, n, e_at);
    const W w = weight.at(i, number);
    const NllSum<A>& sum_i = sums[i];
    const A pi = sum_i.inverse > A(0)
                     ? relative(w, i) * chosen_n.p * sum_i.inverse
                     : exp_negative(log_relative(w, i) + log_p_chosen(i, n) - sum_i.first - sum_i.log_sum);
    const A push = pi * value[i] / (A(1) + r[n]), pull = pi * value[i] * chosen_n.complement;
    if (choice.is_index()) return {choice.index(i), {-pull, x.at(n, choice.index(i))}, {push, m[n]}};
    LogSumExp<A> sum = {m[n], chosen_n.sum};
    if (!is_near(sum.sum)) sum = sum_chosen(i, n);
    return {-1, {pull == A(0) ? A(0) : -pull / sum.sum, sum.max}, {push, m[n]}};
  }
  EDGELOSS_INLINE bool chooses(int64_t i, int64_t c) const { return choice.has(i, c); }
};

// Calls body(image) with the types of a call.
template <typename F>
void with_types(const NllTensors& tensors, const F& body) {
  tensors.check();
  by_arithmetic(tensors.logits, [&](auto a) {
    by_arithmetic(tensors.weight, [&](auto w) { body(NeighborNll<decltype(a), decltype(w)>(tensors)); });
  });
}

// The operators; their passes are those of a device, each over all pixels. Returns value, stats, largest, sides.
template <typename Passes>
std::tuple<Tensor, Tensor, Tensor, Tensor> neighbor_nll(const Tensor& logits, const Tensor& index, const Tensor& weight,
                                                        const std::optional<Tensor>& mask,
                                                        std::vector<int64_t> radius) {
  const checks::Checker check(logits, checks::kReal);
  const Tensor value = torch::stable::new_empty(logits, check.image, check.real);
  Tensor stats = torch::stable::new_empty(logits, {2, check.pixels()}, check.real);
  const Tensor largest = torch::stable::new_empty(logits, {1, check.pixels()}, weight.scalar_type());
  Tensor sides = torch::stable::new_empty(logits, {check.pixels(), 3}, check.real);
  torch::stable::zero_(stats);  // what is returned is written, also of pixels that no pass looks at
  torch::stable::zero_(sides);
  const Passes passes(logits);
  with_types({logits, index, weight, mask, radius, value, stats, largest, sides, nullptr}, [&](const auto& image) {
    passes.run(FindLargest(), image);
    passes.run(FindStatistics(), image);
    passes.run(FindValue(), image);
  });
  return {value, stats, largest, sides};
}

template <typename Passes>
Tensor neighbor_nll_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& index, const Tensor& weight,
                             const Tensor& stats, const Tensor& largest, const Tensor& sides,
                             std::vector<int64_t> radius) {
  const Tensor grad = new_gradient(logits);
  const Passes passes(logits);
  with_types({logits, index, weight, {}, radius, grad_value, stats, largest, sides, &grad},
             [&](const auto& image) { passes.run(FindGradient(), image); });
  return grad;
}

}  // namespace edgeloss
