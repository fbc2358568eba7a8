// The operators of the loss on the CPU: their schemas, and the checks of what they get.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "../checks.h"
#include "call.h"

namespace edgeloss {
namespace {

using Optional = std::optional<Tensor>;
using checks::Checker, checks::Sizes, checks::text;
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Labels, of the logits' resolution or of a higher one.
void check_target(const Checker& check, const char* name, const Tensor& x, checks::Types types) {
  const Sizes &low = check.image, high = sizes_of(x);
  bool fits = high.size() == low.size() && high[0] == low[0];
  for (size_t axis = 1; fits && axis < low.size(); ++axis) fits = high[axis] >= low[axis];
  STD_TORCH_CHECK(fits, name, ": expected ", text(low), " or more along the axes of space, but got ", text(high));
  for (size_t axis = 1; axis < low.size(); ++axis) {
    STD_TORCH_CHECK(low[axis] > 0 || high[axis] == 0, name, ": expected no pixels as there are no logits, but got ",
                    text(high));
  }
  check.tensor(name, x, high, types);
}

void check_given(const Checker& check, const Inputs& inputs, const Optional& distance, const Sizes& image,
                 int64_t tables) {
  STD_TORCH_CHECK(tables >= 1 && image[0] % tables == 0, "tables: expected a divisor of the batch, ", image[0],
                  ", but got ", tables);
  const Sizes classes = {tables * std::max<int64_t>(2, inputs.logits.size(1))};
  check.tensor("weight", inputs.weight, classes, {check.real});
  check.tensor("pixel_weight", inputs.pixel_weight, image, {check.real});
  check.tensor("edge_pixel_weight", inputs.edge_pixel_weight, image, {check.real});
  check.tensor("distance", distance, image, {check.real});
}

Results edge_loss(const Tensor& logits, const Tensor& target, const Optional& weight, const Optional& pixel_weight,
                  const Optional& distance, int64_t ignore_index, int64_t validate, int64_t tables, bool edges,
                  bool regions, bool by_pairs, bool maps, bool keeps_state, std::vector<int64_t> radius,
                  double label_smoothing, double power, double decay, std::vector<double> spacing) {
  const Optional none;
  const Inputs inputs = {logits, weight, pixel_weight, none};
  const Options options = {ignore_index, validate, tables,          edges, regions, by_pairs, maps,
                           keeps_state,  radius,   label_smoothing, power, decay,   spacing};
  options.check();
  const Checker check(logits);
  check_target(check, "target", target, checks::kLabels);
  check_given(check, inputs, distance, sizes_of(target), options.tables);
  const Outputs to = forward(inputs, target, distance, options);
  return {to.sums, to.edge_sums, to.region, to.image_weight, to.maps, to.saved.label, to.saved.memory};
}

Tensor edge_loss_backward(const Optional& grad, const Tensor& slopes, const Optional& edge_pixel_weight,
                          const Tensor& logits, const Optional& weight, const Optional& pixel_weight,
                          const Optional& distance, const Tensor& label, const Tensor& memory, int64_t ignore_index,
                          int64_t validate, int64_t tables, bool edges, bool regions, bool by_pairs, bool maps,
                          bool keeps_state, std::vector<int64_t> radius, double label_smoothing, double power,
                          double decay, std::vector<double> spacing) {
  const Inputs inputs = {logits, weight, pixel_weight, edge_pixel_weight};
  const Options options = {ignore_index, validate, tables,          edges, regions, by_pairs, maps,
                           keeps_state,  radius,   label_smoothing, power, decay,   spacing};
  options.check();
  const Checker check(logits);
  check_target(check, "label", label, {ScalarType::Short});
  check_given(check, inputs, distance, sizes_of(label), options.tables);
  STD_TORCH_CHECK(!edge_pixel_weight || options.by_pairs || !options.edges,
                  "edge_pixel_weight: expected a call with maps");
  const Geometry g = clipped_geometry(logits, label, options);
  if (grad) {
    checks::dtype("grad", *grad, checks::kReal);
    STD_TORCH_CHECK(grad->numel() == 1, "grad: expected one element, but got ", grad->numel());
  }
  const int64_t images = options.regions ? g.batch / g.tables : 0;
  check.flat("slopes", slopes, 1 + 2 * g.batch * g.classes + images, ScalarType::Double);
  check.flat("memory", memory, state_bytes(logits, g, options, distance.has_value()), ScalarType::Byte);
  return backward({grad, slopes}, inputs, {label, memory, distance}, options);
}

}  // namespace
}  // namespace edgeloss

// options.h has the meaning of the options. tables: weight and edge_class_weight are [tables, C], flat; image b has the
// table b % tables. slopes: what arrives at Σ v CE, at Σ v S of each image and class, at Σ v O of each, and at R of
// each image, in float64; grad is a factor of all of them. edge_pixel_weight is v of the edge terms, where it is
// another.
#define EDGELOSS_WEIGHTS "Tensor? weight, Tensor? pixel_weight, Tensor? distance"
#define EDGELOSS_OPTIONS                                                                                  \
  "int ignore_index, int validate, int tables, bool edges, bool regions, bool by_pairs, bool maps, bool " \
  "keeps_state, int[] radius, float label_smoothing, float power, float decay, float[] spacing"

STABLE_TORCH_LIBRARY_FRAGMENT(edgeloss, m) {
  m.def("edge_loss(Tensor logits, Tensor target, " EDGELOSS_WEIGHTS ", " EDGELOSS_OPTIONS
        ") -> (Tensor sums, Tensor edge_sums, Tensor region, Tensor image_weight, Tensor maps, Tensor label, Tensor "
        "memory)");
  m.def("edge_loss_backward(Tensor? grad, Tensor slopes, Tensor? edge_pixel_weight, Tensor logits, " EDGELOSS_WEIGHTS
        ", Tensor label, Tensor memory, " EDGELOSS_OPTIONS ") -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) {
  m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss));
  m.impl("edge_loss_backward", TORCH_BOX(&edgeloss::edge_loss_backward));
}
