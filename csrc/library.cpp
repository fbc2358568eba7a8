// Schema and boxing of the operators, and the module that Python imports to load them.
#include <Python.h>
#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "checks.h"
#include "kernels.h"

// validate: 0 counts labels out of range as ignored; 1 and 2 raise an error. tables: weight, edge_class_weight and
// edge_counts are [tables, C], flat; image b has the table b % tables.
STABLE_TORCH_LIBRARY(edgeloss, m) {
  m.def(
      "edge_loss(Tensor logits, Tensor target, Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight, "
      "Tensor? distance, int ignore_index, float label_smoothing, int[] radius, float power, float decay, float[] "
      "spacing, bool edges, bool false_edges, bool maps, bool count_edges, int validate, int tables) -> (Tensor sums, "
      "Tensor edge_counts, Tensor ce, Tensor same, Tensor other, Tensor false_edge, Tensor label, Tensor flags, "
      "Tensor stats, Tensor edge_list, Tensor sides, Tensor field)");
  m.def(
      "edge_loss_backward(Tensor grad_sums, Tensor? grad_ce, Tensor? grad_same, Tensor? grad_other, Tensor? "
      "grad_false_edge, Tensor logits, Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight, Tensor "
      "label, Tensor flags, Tensor stats, Tensor edge_list, Tensor sides, Tensor field, float label_smoothing, "
      "int[] radius, float power, float decay, int tables) -> Tensor");
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
using Results =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <Forward& forward>
Results edge_loss(const Tensor& logits, const Tensor& target, const Optional& weight, const Optional& pixel_weight,
                  const Optional& edge_class_weight, const Optional& distance, int64_t ignore_index,
                  double label_smoothing, std::vector<int64_t> radius, double power, double decay,
                  std::vector<double> spacing, bool edges, bool false_edges, bool maps, bool count_edges,
                  int64_t validate, int64_t tables) {
  const Inputs inputs = {logits, weight, pixel_weight, edge_class_weight};
  const Options options = {ignore_index, label_smoothing, radius, power,       decay,    spacing,
                           edges,        false_edges,     maps,   count_edges, validate, tables};
  checks::forward(inputs, target, distance, options);
  const auto [sums, edge_counts, ce, same, other, false_edge, saved] = forward(inputs, target, distance, options);
  return {sums,        edge_counts,     ce,          same,       other, false_edge, saved.label, saved.flags,
          saved.stats, saved.edge_list, saved.sides, saved.field};
}

template <Backward& backward>
Tensor edge_loss_backward(const Tensor& grad_sums, const Optional& grad_ce, const Optional& grad_same,
                          const Optional& grad_other, const Optional& grad_false_edge, const Tensor& logits,
                          const Optional& weight, const Optional& pixel_weight, const Optional& edge_class_weight,
                          const Tensor& label, const Tensor& flags, const Tensor& stats, const Tensor& edge_list,
                          const Tensor& sides, const Tensor& field, double label_smoothing, std::vector<int64_t> radius,
                          double power, double decay, int64_t tables) {
  const Gradients gradients = {grad_sums, grad_ce, grad_same, grad_other, grad_false_edge};
  const SavedState saved = {label, flags, stats, edge_list, sides, field};
  Options options = {};
  options.label_smoothing = label_smoothing;
  options.radius = radius;
  options.power = power;
  options.decay = decay;
  options.tables = tables;
  options.edges = saved.has_edges();
  options.false_edges = saved.has_false_edges(options);
  const Inputs inputs = {logits, weight, pixel_weight, edge_class_weight};
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

// For the fake kernel: (type, constant, per_pixel, per_row, per_class) of each result of edge_loss.
PyObject* get_output_sizes(PyObject*, PyObject* arguments) {
  static const char* const types[] = {"real", "float64", "int64", "int32", "int16", "uint8"};
  int edges, false_edges, maps, count_edges, has_distance;
  Options options = {};
  long long logits, tables;
  if (!PyArg_ParseTuple(arguments, "ddpppppLL", &options.power, &options.decay, &edges, &false_edges, &maps,
                        &count_edges, &has_distance, &logits, &tables)) {
    return nullptr;
  }
  options.tables = tables;
  options.edges = edges;
  options.false_edges = false_edges;
  options.maps = maps;
  options.count_edges = count_edges;
  PyObject* result = PyTuple_New(Output::kCount);
  Py_ssize_t position = 0;
  for (const Size& size : output_sizes(options, has_distance, logits)) {
    PyObject* item = Py_BuildValue("(sLLLL)", types[size.type], static_cast<long long>(size.constant),
                                   static_cast<long long>(size.per_pixel), static_cast<long long>(size.per_row),
                                   static_cast<long long>(size.per_class));
    PyTuple_SetItem(result, position++, item);
  }
  return result;
}

PyMethodDef functions[] = {{"output_sizes", get_output_sizes, METH_VARARGS,
                            "Return (type, constant, per_pixel, per_row, per_class) of each result of edge_loss."},
                           {nullptr, nullptr, 0, nullptr}};

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
  static PyModuleDef module = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, edgeloss::functions, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
