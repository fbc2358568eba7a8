"""Where the fused kernels run in tests: on the CPU, on a CUDA device, or as CUDA kernels stepped on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

CPU, CUDA, STEPPED = "cpu", "cuda", "cuda stepped on the host"
# Where there is no device, tests are not generated for it.
ON_CUDA = [CUDA] if torch.cuda.is_available() else []


class Kernels(NamedTuple):
    """One kind of fused kernels.

    Attributes:
        device: of the tensors.
        operators: a namespace of ``torch.ops``.
        raise_label_errors: raise what earlier calls recorded about their labels.
        are_stepped: CUDA kernels that run on the CPU.
    """

    device: str
    operators: Any
    raise_label_errors: Callable[[], None]
    are_stepped: bool
