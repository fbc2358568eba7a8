// The schemas of the operators, and the module that Python imports to load them. Each device registers its own kernels.
#include <Python.h>
#include <torch/csrc/stable/library.h>

// options.h has the meaning of the options. tables: weight and edge_class_weight are [tables, C], flat; image b has the
// table b % tables. slopes: what arrives at Σ v CE, at Σ v S of each image and class, at Σ v O of each, and at R of
// each image, in float64; grad is a factor of all of them. edge_pixel_weight is v of the edge terms, where it is
// another.
#define EDGELOSS_WEIGHTS "Tensor? weight, Tensor? pixel_weight, Tensor? distance"
#define EDGELOSS_OPTIONS                                                                                  \
  "int ignore_index, int validate, int tables, bool edges, bool regions, bool by_pairs, bool maps, bool " \
  "keeps_state, int[] radius, float label_smoothing, float power, float decay, float[] spacing"

STABLE_TORCH_LIBRARY(edgeloss, m) {
  m.def("edge_loss(Tensor logits, Tensor target, " EDGELOSS_WEIGHTS ", " EDGELOSS_OPTIONS
        ") -> (Tensor sums, Tensor edge_sums, Tensor region, Tensor region_weight, Tensor maps, Tensor label, Tensor "
        "memory)");
  m.def("edge_loss_backward(Tensor? grad, Tensor slopes, Tensor? edge_pixel_weight, Tensor logits, " EDGELOSS_WEIGHTS
        ", Tensor label, Tensor memory, " EDGELOSS_OPTIONS ") -> Tensor");
  m.def(
      "reduce(Tensor sums, Tensor edge_sums, Tensor region, Tensor region_weight, Tensor? edge_class_weight, Tensor? "
      "normalizer, int tables, bool balanced, bool mean, bool wide, float ce_weight, float edge_weight, float "
      "other_side_weight, float same_side_weight, float region_weight_of_loss, float edge_focus) -> (Tensor loss, "
      "Tensor slopes, Tensor values)");
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
