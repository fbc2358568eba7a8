// The module that Python imports to load the operators, and the schemas of those that CPUs and CUDA have. The others
// have theirs where they are: edge_loss in cpu/operators.cpp, reduce in cpu/sums.cpp.
#include <Python.h>
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(edgeloss, m) {
  m.def(
      "pair_terms(Tensor logits, Tensor label, Tensor edge, Tensor? distance, float power, int[] radius) -> "
      "(Tensor "
      "terms, Tensor stats, Tensor sides)");
  m.def(
      "pair_terms_backward(Tensor grad_terms, Tensor logits, Tensor label, Tensor edge, Tensor? distance, Tensor "
      "stats, Tensor sides, float power, int[] radius) -> Tensor");
  m.def(
      "neighbor_nll(Tensor logits, Tensor index, Tensor weight, Tensor? mask, int[] radius) -> (Tensor value, "
      "Tensor stats, Tensor largest, Tensor sides)");
  m.def(
      "neighbor_nll_backward(Tensor grad_value, Tensor logits, Tensor index, Tensor weight, Tensor stats, Tensor "
      "largest, Tensor sides, int[] radius) -> Tensor");
}

PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
