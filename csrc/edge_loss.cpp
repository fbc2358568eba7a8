// Schema of the operators, and the module that Python imports to load them.
#include <Python.h>
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(edgeloss, m) {
  m.def(
      "edge_loss(Tensor logits, Tensor target, Tensor? weight, Tensor? pixel_weight, Tensor? distance, "
      "int ignore_index, float label_smoothing, int[] radius, float power, float decay, float[] spacing, bool edges, "
      "bool maps, bool check_labels) -> (Tensor sums, Tensor ce, Tensor same, Tensor other, Tensor label, Tensor "
      "flags, Tensor stats, "
      "Tensor slot, Tensor sides, Tensor field)");
  m.def(
      "edge_loss_backward(Tensor grad_sums, Tensor? grad_ce, Tensor? grad_same, Tensor? grad_other, Tensor logits, "
      "Tensor? weight, Tensor? pixel_weight, Tensor label, Tensor flags, Tensor stats, Tensor slot, Tensor sides, "
      "Tensor field, "
      "float label_smoothing, int[] radius, float power, float decay) -> Tensor");
}

PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
