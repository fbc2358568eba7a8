// neighbor_nll on CUDA.
#include "device.h"
#include "nll.h"

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CUDA, m) {
  m.impl("neighbor_nll", TORCH_BOX(&edgeloss::neighbor_nll<edgeloss::OnDevice>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&edgeloss::neighbor_nll_backward<edgeloss::OnDevice>));
}
