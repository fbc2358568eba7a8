// Schema of the operators, and the module that Python imports to load them.
#include <Python.h>
#include <torch/csrc/stable/library.h>

#include <string>

#include "labels.h"

// What the operators leave to backward is each device's own affair, but for `flags`, whose first row is 1 at edges and
// 2 at false ones.
// validate: 0 takes labels out of range for ignored ones; 1 and 2 raise an error, on CUDA with 1 at the next call that
// finds it there, with 2 after waiting for the device.
STABLE_TORCH_LIBRARY(edgeloss, m) {
  m.def(
      "edge_loss(Tensor logits, Tensor target, Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight, "
      "Tensor? distance, int ignore_index, float label_smoothing, int[] radius, float power, float decay, float[] "
      "spacing, bool edges, bool false_edges, bool maps, int validate) -> (Tensor sums, Tensor ce, Tensor same, Tensor "
      "other, Tensor false_edge, Tensor label, Tensor flags, Tensor stats, Tensor edge_list, Tensor sides, Tensor "
      "field)");
  m.def(
      "edge_loss_backward(Tensor grad_sums, Tensor? grad_ce, Tensor? grad_same, Tensor? grad_other, Tensor? "
      "grad_false_edge, Tensor logits, Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight, Tensor label, "
      "Tensor flags, Tensor stats, Tensor edge_list, Tensor sides, Tensor field, float label_smoothing, int[] radius, "
      "float power, float decay) -> Tensor");
  m.def(
      "neighbor_nll(Tensor logits, Tensor index, Tensor weight, Tensor? mask, int[] radius) -> (Tensor value, Tensor "
      "stats, Tensor largest, Tensor sides)");
  m.def(
      "neighbor_nll_backward(Tensor grad_value, Tensor logits, Tensor index, Tensor weight, Tensor stats, Tensor "
      "largest, Tensor sides, int[] radius) -> Tensor");
}

namespace {

// Raises ValueError if an earlier call left word of wrong labels. Waits for no device.
PyObject* raise_label_errors(PyObject*, PyObject*) {
  const std::string message = edgeloss::take_label_error ? edgeloss::take_label_error() : "";
  if (message.empty()) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, message.c_str());
  return nullptr;
}

PyMethodDef functions[] = {{"raise_label_errors", raise_label_errors, METH_NOARGS,
                            "Raise ValueError if an earlier call left word of wrong labels."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
