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

#include "../checks.h"
#include "batch.h"
#include "window.h"

namespace edgeloss {

// The classes that each pixel of an image chooses: one by its index, or those that its indicator sets.
struct Choice {
  const char* data;
  int64_t bytes;                   // of an index; 0 for an indicator
  int64_t class_step, pixel_step;  // of an indicator

  EDGELOSS_INLINE bool is_index() const { return bytes > 0; }
  EDGELOSS_INLINE int64_t index(int64_t pixel) const { return Labels{data, bytes}.at(pixel); }
  EDGELOSS_INLINE bool has(int64_t pixel, int64_t c) const { return data[c * class_step + pixel * pixel_step] != 0; }
  // Whether there is a class at all; an index out of range is none.
  EDGELOSS_INLINE bool any(int64_t pixel, int64_t classes) const {
    if (is_index()) return index(pixel) >= 0 && index(pixel) < classes;
    for (int64_t c = 0; c < classes; ++c) {
      if (has(pixel, c)) return true;
    }
    return false;
  }
};

// Everything of one image. A: the type of its logits; W: that of the weights.
template <typename A, typename W>
struct NeighborNll : SoftmaxImage<A> {
  using Base = SoftmaxImage<A>;
  using Base::g, Base::x, Base::m, Base::r;

  Logits<W, W> weight;  // w_in at pixel i and "class" number of n
  Choice choice;
  const uint8_t* mask;  // null: set everywhere
  W* largest;           // weight of any neighbor; 0 where the center does not count
  A* inverse;           // of the centers that count: 1 / Σ (w / largest) P, or 0 where A can't hold it
  A *first, *log_sum;   // there: of log (w / largest) P the largest, and log Σ of the others over it
  A* value;             // of each center, or its gradient

  // Whether a sum over classes is so large that what underflowed of them does not matter to it.
  EDGELOSS_INLINE bool is_exact_sum(A sum) const { return is_exact(sum / static_cast<A>(g.logits)); }

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

  // Calls body(i, w_in) for the centers that count around a pixel n that has weight for them.
  template <typename F>
  EDGELOSS_INLINE void for_each_center(int64_t row, int64_t column, const F& body) const {
    const int64_t last = last_number(g);
    for_each_neighbor(g, row, column, [&](int64_t i, int64_t number) {
      if (!(largest[i] > W(0))) return;
      const W w = weight.at(i, last - number);
      if (w > W(0)) body(i, w);
    });
  }

  // What p_n says of the classes that i chooses, from e(c) = e^(x_n(c) - m_n).
  struct Chosen {
    A p, complement;  // P_in and 1 - P_in
    A sum;            // with an indicator: Σ e(c) over them
  };
  template <typename F>
  EDGELOSS_INLINE Chosen chosen(int64_t i, int64_t n, const F& e) const {
    Chosen chosen_n = {0, 0, 0};
    if (choice.is_index()) {
      probabilities_of(e(choice.index(i)), r[n], chosen_n.p, chosen_n.complement);
      return chosen_n;
    }
    A others = 0;
    for (int64_t c = 0; c < g.logits; ++c) {
      const A e_c = e(c);
      const bool has = choice.has(i, c);
      chosen_n.sum += has ? e_c : A(0);
      others += has ? A(0) : e_c;
    }
    chosen_n.p = chosen_n.sum / (chosen_n.sum + others);
    chosen_n.complement = others / (chosen_n.sum + others);
    return chosen_n;
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
  EDGELOSS_INLINE bool may_count(int64_t i) const { return (!mask || mask[i]) && choice.any(i, g.logits); }
  EDGELOSS_INLINE void find_largest(int64_t row, int64_t column) const {
    const int64_t i = row * g.width + column;
    W result = 0;
    if (may_count(i)) for_each_weighted(row, column, [&](int64_t, W w) { result = w > result ? w : result; });
    largest[i] = result;
  }

  // Pass 2 finds the statistics of the pixels that they read. Nothing looks at the logits of others, or gives them any
  // gradient but 0.
  EDGELOSS_INLINE bool is_read(int64_t row, int64_t column) const {
    bool result = false;
    for_each_center(row, column, [&](int64_t, W) { result = true; });
    return result;
  }

  // Pass 3: the value.
  EDGELOSS_INLINE void find_value(int64_t row, int64_t column) const {
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
    inverse[i] = is_exact_sum(right) ? A(1) / right : A(0);
    if (inverse[i] > A(0)) return negative_log(right / (right + wrong), wrong / (right + wrong));
    first[i] = log_sum[i] = right;
    if (right != right) return right;  // nan where the logits are
    // So small that the type has no digits of it left, but of its logarithm.
    A weights = 0;
    LogSumExp<A> sum;
    for_each_weighted(row, column, [&](int64_t n, W w) {
      weights += relative(w, i);
      sum.add(log_relative(w, i) + log_p_chosen(i, n));
    });
    first[i] = sum.max;
    log_sum[i] = std::log(sum.sum);
    return std::log(weights) - sum.value();
  }

  // The gradient that center i gives to pixel n, where g is that of its value: push · e(c) for the classes that it does
  // not choose, and -pull · e(c) / Σ e over those it does. No difference in them cancels.
  struct Pull {
    A push, pull;
    LogSumExp<A> sum;  // over the chosen classes
    bool is_near;      // its max is m
  };
  EDGELOSS_INLINE Pull pull(int64_t i, int64_t n, W w, const Chosen& chosen_n, A g_i) const {
    const A pi = inverse[i] > A(0) ? relative(w, i) * chosen_n.p * inverse[i]
                                   : exp_negative(log_relative(w, i) + log_p_chosen(i, n) - first[i] - log_sum[i]);
    Pull gives = {
        pi * g_i / (A(1) + r[n]), pi * g_i * chosen_n.complement, {m[n], chosen_n.sum}, is_near(chosen_n.sum)};
    if (!choice.is_index() && !gives.is_near) gives.sum = sum_chosen(i, n);
    return gives;
  }
  // What it gives to a class that it chooses; the other ones get push · e.
  EDGELOSS_INLINE A at_chosen(const Pull& gives, int64_t n, int64_t c, A e) const {
    if (gives.pull == A(0)) return A(0);
    return -gives.pull * (gives.is_near ? e : exp_negative(x.at(n, c) - gives.sum.max)) / gives.sum.sum;
  }

  // Adds the gradient at a pixel that is read to the sums of `block` classes from `begin` on, whose e^(x - m) are
  // given; e_at(c) is that of any class.
  template <typename E>
  EDGELOSS_INLINE void add_gradient(int64_t row, int64_t column, int64_t begin, int block, const A* e, A* sum,
                                    const E& e_at) const {
    const int64_t n = row * g.width + column;
    for_each_center(row, column, [&](int64_t i, W w) {
      const Pull gives = pull(i, n, w, chosen(i, n, e_at), value[i]);
      if (choice.is_index()) {
        const int k = static_cast<int>(choice.index(i) - begin);
        EDGELOSS_UNROLL
        for (int b = 0; b < block; ++b) sum[b] += b == k ? -gives.pull : gives.push * e[b];
        return;
      }
      EDGELOSS_UNROLL
      for (int b = 0; b < block; ++b) {
        if (begin + b >= g.logits) continue;
        sum[b] += choice.has(i, begin + b) ? at_chosen(gives, n, begin + b, e[b]) : gives.push * e[b];
      }
    });
  }
};

// ------------------------------------------------------------------------------------------------------------- tensors

// All images of a call.
template <typename A, typename W>
struct NeighborNllBatch : SoftmaxBatch<A> {
  using SoftmaxBatch<A>::g;

  const W* weight;
  const char* choice;
  const uint8_t* mask;
  A *sides, *value;
  W* largest;
  Steps weight_steps, choice_steps;
  int64_t index_bytes;  // 0 for an indicator

  // value: [B, *S], or its gradient; stats: [2, B·P]: m, r; largest: [1, B·P]; sides: [3, B·P]: inverse, first,
  // log_sum.
  NeighborNllBatch(const Tensor& logits, const Tensor& weight, const Tensor& index, const Tensor* mask,
                   const std::vector<int64_t>& radius, const Tensor& value, const Tensor& stats, const Tensor& largest,
                   const Tensor& sides, const Tensor* grad)
      : SoftmaxBatch<A>(logits, stats, grad, radius),
        weight(static_cast<const W*>(weight.const_data_ptr())),
        choice(static_cast<const char*>(index.const_data_ptr())),
        mask(mask ? static_cast<const uint8_t*>(mask->const_data_ptr()) : nullptr),
        sides(static_cast<A*>(sides.mutable_data_ptr())),
        value(static_cast<A*>(value.mutable_data_ptr())),
        largest(static_cast<W*>(largest.mutable_data_ptr())),
        weight_steps(weight),
        choice_steps(index),
        index_bytes(index.dim() == logits.dim() ? 0 : index.element_size()) {}

  EDGELOSS_INLINE NeighborNll<A, W> image(int64_t b) const {
    const int64_t base = b * g.pixels, all = g.batch * g.pixels;
    const int64_t chosen = index_bytes ? base * index_bytes : b * choice_steps.image;
    return {this->softmax(b),
            {weight + b * weight_steps.image, weight_steps.channel, weight_steps.pixel, false},
            {choice + chosen, index_bytes, choice_steps.channel, choice_steps.pixel},
            mask ? mask + base : nullptr,
            largest + base,
            sides + base,
            sides + all + base,
            sides + 2 * all + base,
            value + base};
  }
};

// Calls body(batch) with the types of a call.
template <typename F, typename... Arguments>
void with_batch(const F& body, const Tensor& logits, const Tensor& weight, const Arguments&... arguments) {
  by_arithmetic(logits, [&](auto a) {
    by_arithmetic(weight,
                  [&](auto w) { body(NeighborNllBatch<decltype(a), decltype(w)>(logits, weight, arguments...)); });
  });
}

inline checks::Checker checked(const Tensor& logits, const Tensor& index, const Tensor& weight,
                               const std::vector<int64_t>& radius) {
  const checks::Checker check(logits, checks::kReal);
  std::vector<int64_t> per_neighbor = sizes_of(logits);
  per_neighbor[1] = check.neighbors(radius);
  if (index.dim() == logits.dim()) {
    check.tensor("index", index, sizes_of(logits), checks::kFlags, false);
  } else {
    check.tensor("index", index, check.image, checks::kLabels);
  }
  check.tensor("weight", weight, per_neighbor, checks::kReal, false);
  return check;
}

// The operators; their passes are those of a device, each over all pixels. Returns value, stats, largest, sides.
template <typename Passes>
std::tuple<Tensor, Tensor, Tensor, Tensor> neighbor_nll(const Tensor& logits, const Tensor& index, const Tensor& weight,
                                                        const std::optional<Tensor>& mask,
                                                        std::vector<int64_t> radius) {
  const checks::Checker check = checked(logits, index, weight, radius);
  check.tensor("mask", mask, check.image, checks::kFlags);
  const Tensor value = new_tensor(logits, check.image, check.real);
  const auto rows = [&](int64_t count, ScalarType type) { return new_tensor(logits, {count, value.numel()}, type); };
  const Tensor stats = rows(2, check.real), largest = rows(1, weight.scalar_type()), sides = rows(3, check.real);
  const Passes passes(logits);
  const auto run = [&](const auto& batch) {
    passes.run(FindLargest(), batch);
    passes.run(FindStatistics(), batch);
    passes.run(FindValue(), batch);
  };
  const Tensor *given = mask ? &*mask : nullptr, *const no_grad = nullptr;
  with_batch(run, logits, weight, index, given, radius, value, stats, largest, sides, no_grad);
  return {value, stats, largest, sides};
}

template <typename Passes>
Tensor neighbor_nll_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& index, const Tensor& weight,
                             const Tensor& stats, const Tensor& largest, const Tensor& sides,
                             std::vector<int64_t> radius) {
  const checks::Checker check = checked(logits, index, weight, radius);
  const int64_t pixels = check.pixels();
  check.flat("grad_value", grad_value, pixels, check.real);
  check.flat("stats", stats, 2 * pixels, check.real);
  check.flat("largest", largest, pixels, weight.scalar_type());
  check.flat("sides", sides, 3 * pixels, check.real);
  const Tensor grad = torch::stable::empty_like(logits);
  const Passes passes(logits);
  const Tensor *const no_mask = nullptr, *const to = &grad;
  with_batch([&](const auto& batch) { passes.run(FindGradient(), batch); }, logits, weight, index, no_mask, radius,
             grad_value, stats, largest, sides, to);
  return grad;
}

}  // namespace edgeloss
