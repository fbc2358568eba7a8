// Schema and boxing of the operators, and the module that Python imports to load them.
#include <Python.h>
#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "checks.h"
#include "kernels.h"

// options.h has the meaning of integers and reals. tables: weight, edge_class_weight and edge_counts are [tables, C],
// flat; image b has the table b % tables.
STABLE_TORCH_LIBRARY(edgeloss, m) {
  m.def(
      "edge_loss(Tensor logits, Tensor target, Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight, "
      "Tensor? distance, int[] integers, float[] reals) -> (Tensor sums, Tensor edge_counts, Tensor region, Tensor "
      "region_weight, Tensor label, Tensor stats, Tensor field, Tensor slopes, Tensor has_term, Tensor edge, Tensor "
      "sides, Tensor near_place, Tensor near_class, Tensor near_weight, Tensor near_count)");
  m.def(
      "edge_loss_backward(Tensor grad_terms, Tensor? grad_region, Tensor logits, Tensor? weight, Tensor? "
      "pixel_weight, Tensor? edge_class_weight, Tensor label, Tensor stats, Tensor field, Tensor slopes, Tensor "
      "has_term, Tensor edge, Tensor sides, Tensor near_place, Tensor near_class, Tensor near_weight, Tensor "
      "near_count, int[] integers, float[] reals) -> Tensor");
  m.def(
      "neighbor_nll(Tensor logits, Tensor index, Tensor weight, Tensor? mask, int[] radius) -> (Tensor value, "
      "Tensor stats, Tensor largest, Tensor sides)");
  m.def(
      "neighbor_nll_backward(Tensor grad_value, Tensor logits, Tensor index, Tensor weight, Tensor stats, Tensor "
      "largest, Tensor sides, int[] radius) -> Tensor");
}

namespace edgeloss {
namespace {

using Optional = std::optional<Tensor>;
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                           Tensor, Tensor, Tensor, Tensor>;

template <Forward& forward>
Results edge_loss(const Tensor& logits, const Tensor& target, const Optional& weight, const Optional& pixel_weight,
                  const Optional& edge_class_weight, const Optional& distance, std::vector<int64_t> integers,
                  std::vector<double> reals) {
  const Inputs inputs = {logits, weight, pixel_weight, edge_class_weight};
  const Options options(integers, reals);
  checks::forward(inputs, target, distance, options);
  const auto [sums, counts, region, region_weight, saved] = forward(inputs, target, distance, options);
  return {sums,        counts,           region,           region_weight,     saved.label,
          saved.stats, saved.field,      saved.slopes,     saved.has_term,    saved.edge,
          saved.sides, saved.near_place, saved.near_class, saved.near_weight, saved.near_count};
}

template <Backward& backward>
Tensor edge_loss_backward(const Tensor& grad_terms, const Optional& grad_region, const Tensor& logits,
                          const Optional& weight, const Optional& pixel_weight, const Optional& edge_class_weight,
                          const Tensor& label, const Tensor& stats, const Tensor& field, const Tensor& slopes,
                          const Tensor& has_term, const Tensor& edge, const Tensor& sides, const Tensor& near_place,
                          const Tensor& near_class, const Tensor& near_weight, const Tensor& near_count,
                          std::vector<int64_t> integers, std::vector<double> reals) {
  const Gradients gradients = {grad_terms, grad_region};
  const SavedState saved = {label, stats,      field,      slopes,      has_term,  edge,
                            sides, near_place, near_class, near_weight, near_count};
  const Inputs inputs = {logits, weight, pixel_weight, edge_class_weight};
  const Options options(integers, reals);
  checks::backward(gradients, inputs, saved, options);
  return backward(gradients, inputs, saved, options);
}

template <NeighborForward& forward>
std::tuple<Tensor, Tensor, Tensor, Tensor> neighbor_nll(const Tensor& logits, const Tensor& index, const Tensor& weight,
                                                        const Optional& mask, std::vector<int64_t> radius) {
  checks::neighbor_nll(logits, index, weight, mask, radius);
  return forward(logits, index, weight, mask, radius);
}

template <NeighborBackward& backward>
Tensor neighbor_nll_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& index, const Tensor& weight,
                             const Tensor& stats, const Tensor& largest, const Tensor& sides,
                             std::vector<int64_t> radius) {
  checks::neighbor_nll_backward(grad_value, logits, index, weight, stats, largest, sides, radius);
  return backward(grad_value, logits, index, weight, stats, largest, sides, radius);
}

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) {
  namespace device = edgeloss::cpu;
  if (!device::forward) return;
  m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss<device::forward>));
  m.impl("edge_loss_backward", TORCH_BOX(&edgeloss::edge_loss_backward<device::backward>));
  m.impl("neighbor_nll", TORCH_BOX(&edgeloss::neighbor_nll<device::neighbor_nll>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&edgeloss::neighbor_nll_backward<device::neighbor_nll_backward>));
}

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CUDA, m) {
  namespace device = edgeloss::cuda;
  if (!device::neighbor_nll) return;
  m.impl("neighbor_nll", TORCH_BOX(&edgeloss::neighbor_nll<device::neighbor_nll>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&edgeloss::neighbor_nll_backward<device::neighbor_nll_backward>));
}

PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
