// Sums of the terms -> the loss, what it gives back to the sums, and its figures: the formula of
// edgeloss/_reduction.py. For images b and classes c, those of all tables,
//
//     t = (λ_o Σ v O + λ_s Σ v S) / n,   Φ(t) = t Σ_j w_j φ(t x_j) up to t_0, and Φ(t_0) + t - t_0 beyond
//     φ(t) = min(1, ε(t)/ε_0)^γ,   ε(t) = 1 - e^(-t/λ)
//     loss = λ_CE Σ v CE / W + λ_E Σ u n Φ(t) / Σ u n + λ_R Σ_b W_b R_b / W
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "../checks.h"
#include "parallel.h"

namespace edgeloss {
namespace {

// Places of the figures.
struct Value {
  enum : int { kCrossEntropy, kSameSide, kOtherSide, kEdge, kRegion, kEdgeFraction, kEdgeFocused, kEdgeFocus, kCount };
};

constexpr double kPrior = 0.05;  // of the balance, as in edgeloss/_reduction.py

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }
// weight · value, where what has no weight does not count: it may be infinite.
double weighed(double weight, double value) { return weight != 0 ? weight * value : 0; }

const double* doubles(const Tensor& tensor) { return static_cast<const double*>(tensor.const_data_ptr()); }

constexpr double kPi = 3.14159265358979323846;  // M_PI is not in standard C++
constexpr double kLeast = 1e-20;                // smaller denominators count as 0: LEAST_NORMALIZER of edgeloss/_checks
constexpr int kNodes = 28;                      // of the quadrature of Φ, as in edgeloss/_reduction.py

// The nodes of Gauss and Legendre on [0, 1], and their weights.
struct Quadrature {
  double z[kNodes], w[kNodes];

  Quadrature() {
    for (int i = 0; i < kNodes; ++i) {
      double x = std::cos(kPi * (i + 0.75) / (kNodes + 0.5)), slope = 0;
      for (int step = 0; step < 8; ++step) {  // of Newton, from within 1e-3 of the root
        double value = 1, before = 0;
        for (int n = 0; n < kNodes; ++n) {
          const double next = ((2 * n + 1) * x * value - n * before) / (n + 1);
          before = value;
          value = next;
        }
        slope = kNodes * (x * value - before) / (x * x - 1);
        x -= value / slope;
      }
      z[i] = (1 + x) / 2;
      w[i] = 1 / ((1 - x * x) * slope * slope);
    }
  }
};

// x^γ of x ≥ 0. Most γ are whole, for which std::pow takes several times as long.
struct Power {
  double gamma;
  int whole;  // γ, or -1 where it has a fraction

  explicit Power(double gamma) : gamma(gamma), whole(gamma <= 64 && gamma == std::floor(gamma) ? int(gamma) : -1) {}
  double operator()(double x) const {
    if (whole < 0) return std::pow(x, gamma);
    double result = 1;
    for (int rest = whole; rest > 0; rest /= 2, x *= x) result *= rest % 2 ? x : 1;
    return result;
  }
};

// Φ(t) = t Σ_j w_j φ(t x_j) with x = z^p, whose p makes φ(t x) dx like z^(11 + γ/2) dz near 0.
struct Focus {
  Power power;
  double scale, t_0, eps_0;  // λ, t_0, -ε_0
  double nodes[kNodes], weights[kNodes];

  Focus(double gamma, double scale, double t_0)
      : power(scale > 0 ? gamma : 0), scale(scale), t_0(t_0), eps_0(std::expm1(-t_0 / scale)) {
    static const Quadrature gauss;
    const double p = (12 + power.gamma / 2) / (power.gamma + 1);
    for (int j = 0; j < kNodes; ++j) {
      nodes[j] = std::pow(gauss.z[j], p);
      weights[j] = gauss.w[j] * p * nodes[j] / gauss.z[j];
    }
  }

  double slope(double t) const {
    if (power.gamma == 0) return 1;
    const double share = std::expm1(-std::max(t, 0.0) / scale) / eps_0;
    return share < 1 ? power(share) : share >= 1 ? 1 : share;  // nan stays nan
  }
  double value(double t) const {
    if (power.gamma == 0) return t;
    const double end = t > t_0 ? t_0 : t;
    double sum = 0;
    for (int j = 0; j < kNodes; ++j) sum += weights[j] * slope(end * nodes[j]);
    return t <= 0 ? 0 : end * sum + (t > t_0 ? t - t_0 : 0);
  }
};

// u of each class, [K]: the given ones, or those of a balance of n.
std::vector<double> class_weights(const std::optional<Tensor>& given, const double* n, int64_t count) {
  std::vector<double> u(count, 1);
  if (given) {
    const bool is_double = given->scalar_type() == ScalarType::Double;
    const auto* data = given->const_data_ptr();
    for (int64_t c = 0; c < count; ++c) {
      u[c] = is_double ? static_cast<const double*>(data)[c] : static_cast<const float*>(data)[c];
    }
  } else if (n) {
    double total = 0, scaled = 0;
    for (int64_t c = 0; c < count; ++c) total += n[c];
    for (int64_t c = 0; c < count; ++c) {
      u[c] = ratio(1, n[c] + kPrior * total / static_cast<double>(count));
      scaled += u[c] * n[c];
    }
    for (double& each : u) each *= ratio(total, scaled);
  }
  return u;
}

// The operator. sums, edge_sums, region and image_weight are those of edge_loss. normalizer: W and n of all classes, or
// W and E. Returns the loss, its derivatives by the sums as `slopes` of edge_loss_backward, and figures by Value.
std::tuple<Tensor, Tensor, Tensor> reduce(const Tensor& sums, const Tensor& edge_sums, const Tensor& region,
                                          const Tensor& image_weight, const std::optional<Tensor>& edge_class_weight,
                                          const std::optional<Tensor>& normalizer, int64_t tables, bool balanced,
                                          bool mean, bool wide, double ce_weight, double edge_weight,
                                          double other_side_weight, double same_side_weight, double region_weight,
                                          double edge_focus) {
  const int64_t images = edge_sums.size(1), per_image = edge_sums.size(2), all = images * per_image;
  const int64_t count = tables * per_image;  // classes of all tables
  checks::check_sums(sums, edge_sums, region, image_weight, edge_class_weight, normalizer, tables);
  const Tensor loss = torch::stable::new_empty(sums, {}, wide ? ScalarType::Double : ScalarType::Float);
  const Tensor slopes = torch::stable::new_empty(sums, {1 + 2 * all + region.numel()}, ScalarType::Double);
  const Tensor values = torch::stable::new_empty(sums, {Value::kCount}, ScalarType::Double);
  const double *row = doubles(sums), *n = doubles(edge_sums) + EdgeRow::kWeight * all;
  const double* same = doubles(edge_sums) + EdgeRow::kSameSide * all;
  const double* other = doubles(edge_sums) + EdgeRow::kOtherSide * all;
  const auto class_of = [&](int64_t i) { return i % count; };  // [B, tables, C]

  std::vector<double> own(count, 0);
  for (int64_t i = 0; i < all; ++i) own[class_of(i)] += n[i];
  const bool has_n = !normalizer || normalizer->numel() > 2;
  const double* of_classes = normalizer ? doubles(*normalizer) + 1 : own.data();
  double w = normalizer ? doubles(*normalizer)[0] : row[Row::kWeight], e = has_n ? 0 : of_classes[0];
  const std::vector<double> u = class_weights(edge_class_weight, balanced ? of_classes : nullptr, count);
  for (int64_t c = 0; has_n && c < count; ++c) e += u[c] * of_classes[c];
  if (w < kLeast) w = 0;
  if (e < kLeast) e = 0;
  const double mean_e = e;
  if (!mean) w = e = 1;

  const double classes = static_cast<double>(per_image), scale = other_side_weight + same_side_weight;
  const double t_0 = same_side_weight * std::log(classes) - other_side_weight * std::log1p(-1 / classes);
  const Focus focus(edge_focus, scale, t_0);
  std::vector<double> focused(all), phi(all);
  on_each_thread(all, 64, [&](Tasks& tasks) {
    for (int64_t i, end; tasks.take(i, end);) {
      for (; i < end; ++i) {
        const double t = ratio(weighed(other_side_weight, other[i]) + weighed(same_side_weight, same[i]), n[i]);
        focused[i] = n[i] > 0 ? focus.value(t) : 0;
        phi[i] = focus.slope(t);
      }
    }
  });
  double of_same = 0, of_other = 0, of_focused = 0, of_phi = 0, of_regions = 0;
  double* out = static_cast<double*>(slopes.mutable_data_ptr());
  const double per_w = ratio(1, w), per_e = ratio(1, e);
  out[0] = ce_weight * per_w;
  for (int64_t i = 0; i < all; ++i) {
    const double weight = u[class_of(i)];
    of_same += weighed(weight, same[i]);
    of_other += weighed(weight, other[i]);
    of_focused += weighed(weight * n[i], focused[i]);
    of_phi += weight * n[i] * phi[i];
    const double slope = weighed(edge_weight * per_e * weight, n[i] > 0 ? phi[i] : 0);
    out[1 + i] = same_side_weight * slope;
    out[1 + all + i] = other_side_weight * slope;
  }
  const double *r = doubles(region), *weight = doubles(image_weight);
  for (int64_t b = 0; b < region.numel(); ++b) {
    of_regions += weighed(weight[b], r[b]);
    out[1 + 2 * all + b] = region_weight * per_w * weight[b];
  }
  double* value = static_cast<double*>(values.mutable_data_ptr());
  value[Value::kCrossEntropy] = ratio(row[Row::kCrossEntropy], w);
  value[Value::kSameSide] = ratio(of_same, e);
  value[Value::kOtherSide] = ratio(of_other, e);
  value[Value::kEdge] = ratio(weighed(other_side_weight, of_other) + weighed(same_side_weight, of_same), e);
  value[Value::kRegion] = ratio(of_regions, w);
  value[Value::kEdgeFraction] = ratio(row[Row::kEdges], row[Row::kValid]);
  value[Value::kEdgeFocused] = ratio(of_focused, e);
  value[Value::kEdgeFocus] = ratio(of_phi, mean_e);
  const double total = weighed(ce_weight, value[Value::kCrossEntropy]) +
                       weighed(edge_weight, value[Value::kEdgeFocused]) + weighed(region_weight, value[Value::kRegion]);
  if (wide) {
    *static_cast<double*>(loss.mutable_data_ptr()) = total;
  } else {
    *static_cast<float*>(loss.mutable_data_ptr()) = static_cast<float>(total);
  }
  return {loss, slopes, values};
}

}  // namespace
}  // namespace edgeloss

// The numbers are AFTER_SUMS of edgeloss/_checks/options.py.
STABLE_TORCH_LIBRARY_FRAGMENT(edgeloss, m) {
  m.def(
      "reduce(Tensor sums, Tensor edge_sums, Tensor region, Tensor image_weight, Tensor? edge_class_weight, Tensor? "
      "normalizer, int tables, bool balanced, bool mean, bool wide, float ce_weight, float edge_weight, float "
      "other_side_weight, float same_side_weight, float region_weight, float edge_focus) -> (Tensor loss, Tensor "
      "slopes, Tensor values)");
}

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) { m.impl("reduce", TORCH_BOX(&edgeloss::reduce)); }
