// The edge terms from the logits around each edge pixel, on CUDA.
#include "device.h"
#include "gathered_terms.h"

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CUDA, m) {
  m.impl("gathered_terms", TORCH_BOX(&edgeloss::gathered_terms<edgeloss::OnDevice>));
  m.impl("gathered_terms_backward", TORCH_BOX(&edgeloss::gathered_terms_backward<edgeloss::OnDevice>));
}
