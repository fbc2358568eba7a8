"""Where the kernels of ``neighbor_nll`` run in tests: on the CPU, on a CUDA device, or stepped on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

CPU, CUDA, STEPPED = "cpu", "cuda", "cuda stepped on the host"
# Where there is no device, tests are not generated for it.
ON_CUDA = [CUDA] if torch.cuda.is_available() else []


class Kernels(NamedTuple):
    """One kind of kernels.

    Attributes:
        device: of the tensors.
        operators: a namespace of ``torch.ops``.
    """

    device: str
    operators: Any
