// Schema and boxing of the operators, and the module that Python imports to load them.
#include <Python.h>
#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "checks.h"
#include "kernels.h"
#include "labels.h"

// validate: 0 counts labels out of range as ignored; 1 and 2 raise an error, on CUDA with 1 at the next call that sees
// it there, with 2 after waiting for the device. tables: weight, edge_class_weight and edge_counts are [tables, C],
// flat; image b has the table b % tables.
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
      "int[] radius, float power, float decay, int tables, Tensor? grad_regions=None, Tensor? slope=None, Tensor? "
      "classes=None) -> Tensor");
  m.def(
      "neighbor_nll(Tensor logits, Tensor index, Tensor weight, Tensor? mask, int[] radius) -> (Tensor value, "
      "Tensor stats, Tensor largest, Tensor sides)");
  m.def(
      "neighbor_nll_backward(Tensor grad_value, Tensor logits, Tensor index, Tensor weight, Tensor stats, Tensor "
      "largest, Tensor sides, int[] radius) -> Tensor");
  m.def(
      "region(Tensor logits, Tensor target, int ignore_index) -> (Tensor value, Tensor counts, Tensor slope, Tensor "
      "classes)");
  m.def(
      "region_backward(Tensor(a!) gradient, Tensor grad_value, Tensor logits, Tensor target, Tensor slope, Tensor "
      "classes, int ignore_index) -> ()");
  // Of libraries with kernels for CUDA, for what one read of the logits is enough for. The second writes the terms
  // among the sums, and the gradient that has the factors, unless it has those that are assumed.
  if (!edgeloss::cuda::single_read) return;
  m.def(
      "count_labels(Tensor logits, Tensor target, Tensor? edge_class_weight, int ignore_index, bool edges, bool "
      "count_edges, int validate, int tables) -> (Tensor sums, Tensor edge_counts, Tensor label, Tensor edge_list)");
  m.def(
      "single_read(Tensor factors, Tensor? assumed, Tensor logits, Tensor? edge_class_weight, Tensor label, Tensor "
      "edge_list, Tensor(a!)? gradient, Tensor(b!)? sums, int tables) -> ()");
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

template <Backward& backward, Device device>
Tensor edge_loss_backward(const Tensor& grad_sums, const Optional& grad_ce, const Optional& grad_same,
                          const Optional& grad_other, const Optional& grad_false_edge, const Tensor& logits,
                          const Optional& weight, const Optional& pixel_weight, const Optional& edge_class_weight,
                          const Tensor& label, const Tensor& flags, const Tensor& stats, const Tensor& edge_list,
                          const Tensor& sides, const Tensor& field, double label_smoothing, std::vector<int64_t> radius,
                          double power, double decay, int64_t tables, const Optional& grad_regions,
                          const Optional& slope, const Optional& classes) {
  const Gradients gradients = {
      grad_sums,  grad_ce,         grad_same,
      grad_other, grad_false_edge, checks::region_state(device, logits, label, grad_regions, slope, classes)};
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
  checks::backward(device, gradients, inputs, saved, options);
  return backward(gradients, inputs, saved, options);
}

// Windows of 3 × 3 pixels, with power 0.
Options options_of_single_read(bool edges, int64_t tables) {
  Options options = {};
  options.radius = {1, 1};
  options.edges = edges;
  options.tables = tables;
  return options;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> count_labels(const Tensor& logits, const Tensor& target,
                                                        const Optional& edge_class_weight, int64_t ignore_index,
                                                        bool edges, bool count_edges, int64_t validate,
                                                        int64_t tables) {
  const Inputs inputs = {logits, std::nullopt, std::nullopt, edge_class_weight};
  Options options = options_of_single_read(edges, tables);
  options.ignore_index = ignore_index;
  options.count_edges = count_edges;
  options.validate = validate;
  checks::single_read(inputs, target, "target", checks::kLabels, options);
  const auto [sums, edge_counts, label, edge_list] = cuda::count_labels(inputs, target, options);
  return {sums, edge_counts, label, edge_list};
}

void single_read(const Tensor& needed, const Optional& assumed, const Tensor& logits, const Optional& edge_class_weight,
                 const Tensor& label, const Tensor& edge_list, const Optional& gradient, const Optional& sums,
                 int64_t tables) {
  const Inputs inputs = {logits, std::nullopt, std::nullopt, edge_class_weight};
  const LabelState labels = {Tensor(), Tensor(), label, edge_list};
  const Options options = options_of_single_read(edge_list.numel() > 0, tables);
  const TermFactors factors = {needed, assumed};
  checks::single_read(inputs, labels, factors, gradient, sums, options);
  cuda::single_read(inputs, labels, factors, gradient, sums, options);
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

template <RegionForward& forward>
std::tuple<Tensor, Tensor, Tensor, Tensor> region(const Tensor& logits, const Tensor& target, int64_t ignore_index) {
  checks::region(logits, target);
  return forward(logits, target, ignore_index);
}

template <RegionBackward& backward>
void region_backward(const Tensor& gradient, const Tensor& grad_value, const Tensor& logits, const Tensor& target,
                     const Tensor& slope, const Tensor& classes, int64_t ignore_index) {
  checks::region_backward(gradient, grad_value, logits, target, slope, classes);
  backward(gradient, grad_value, logits, target, slope, classes, ignore_index);
}

// Raises ValueError if an earlier call recorded wrong labels. Waits for no device.
PyObject* raise_label_errors(PyObject*, PyObject*) {
  const std::string message = take_label_error ? take_label_error() : "";
  if (message.empty()) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, message.c_str());
  return nullptr;
}

// For the fake kernel: (type, constant, per_pixel, per_row, per_class) of each result of edge_loss.
PyObject* get_output_sizes(PyObject*, PyObject* arguments) {
  static const char* const types[] = {"real", "float64", "int64", "int32", "int16", "uint8"};
  const char* device;
  int edges, false_edges, maps, count_edges, has_distance;
  Options options = {};
  long long logits, tables;
  if (!PyArg_ParseTuple(arguments, "sddpppppLL", &device, &options.power, &options.decay, &edges, &false_edges, &maps,
                        &count_edges, &has_distance, &logits, &tables)) {
    return nullptr;
  }
  options.tables = tables;
  options.edges = edges;
  options.false_edges = false_edges;
  options.maps = maps;
  options.count_edges = count_edges;
  const Device kind = std::string(device) == "cpu" ? Device::kCpu : Device::kCuda;
  PyObject* result = PyTuple_New(Output::kCount);
  Py_ssize_t position = 0;
  for (const Size& size : output_sizes(kind, options, has_distance, logits)) {
    PyObject* item = Py_BuildValue("(sLLLL)", types[size.type], static_cast<long long>(size.constant),
                                   static_cast<long long>(size.per_pixel), static_cast<long long>(size.per_row),
                                   static_cast<long long>(size.per_class));
    PyTuple_SetItem(result, position++, item);
  }
  return result;
}

PyMethodDef functions[] = {{"raise_label_errors", raise_label_errors, METH_NOARGS,
                            "Raise ValueError if an earlier call recorded wrong labels."},
                           {"output_sizes", get_output_sizes, METH_VARARGS,
                            "Return (type, constant, per_pixel, per_row, per_class) of each result of edge_loss."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) {
  namespace device = edgeloss::cpu;
  if (!device::forward) return;
  m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss<device::forward>));
  m.impl("edge_loss_backward", TORCH_BOX((&edgeloss::edge_loss_backward<device::backward, edgeloss::Device::kCpu>)));
  m.impl("neighbor_nll", TORCH_BOX(&edgeloss::neighbor_nll<device::neighbor_nll>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&edgeloss::neighbor_nll_backward<device::neighbor_nll_backward>));
  m.impl("region", TORCH_BOX(&edgeloss::region<device::region>));
  m.impl("region_backward", TORCH_BOX(&edgeloss::region_backward<device::region_backward>));
}

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CUDA, m) {
  namespace device = edgeloss::cuda;
  if (!device::forward) return;
  m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss<device::forward>));
  m.impl("edge_loss_backward", TORCH_BOX((&edgeloss::edge_loss_backward<device::backward, edgeloss::Device::kCuda>)));
  m.impl("count_labels", TORCH_BOX(&edgeloss::count_labels));
  m.impl("single_read", TORCH_BOX(&edgeloss::single_read));
  m.impl("neighbor_nll", TORCH_BOX(&edgeloss::neighbor_nll<device::neighbor_nll>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&edgeloss::neighbor_nll_backward<device::neighbor_nll_backward>));
}

PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, edgeloss::functions, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
