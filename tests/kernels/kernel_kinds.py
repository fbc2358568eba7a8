"""Where the kernels of ``neighbor_nll`` run in tests: on the CPU, on a CUDA device, or stepped on the host."""

from __future__ import annotations

import torch

CPU, CUDA, STEPPED = "cpu", "cuda", "cuda stepped on the host"
# Where there is no device, tests are not generated for it.
ON_CUDA = [CUDA] if torch.cuda.is_available() else []
KINDS = [CPU, *ON_CUDA, STEPPED]
