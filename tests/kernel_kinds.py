"""Where the fused kernels run in tests: on the CPU, on a CUDA device, or as CUDA kernels stepped on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_map_only

from edgeloss import fused, region

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


def choose_operators(monkeypatch: pytest.MonkeyPatch, operators: Any) -> None:
    """Make the loss call these operators on the CPU; those of the region term, which CUDA lacks, give way to PyTorch.

    Args:
        monkeypatch: of the test.
        operators: of CUDA kernels, stepped or carried.
    """
    monkeypatch.setattr(fused, "operators", operators)
    monkeypatch.setattr(region, "by_kernels", lambda *arguments, **named: None)


class Carried:
    """Operators that carry their tensors to a device and their results back to the CPU, in autograd's sight.

    Args:
        operators: a namespace of ``torch.ops``.
        device: where they run.
    """

    def __init__(self, operators: Any, device: str) -> None:
        """Store the arguments."""
        self.operators, self.device = operators, device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return an operator."""
        operator = getattr(self.operators, name)

        def call(*arguments: Any, **named: Any) -> Any:
            there = tree_map_only(torch.Tensor, lambda x: x.to(self.device), (arguments, named))
            return tree_map_only(torch.Tensor, torch.Tensor.cpu, operator(*there[0], **there[1]))

        call.default = call  # type: ignore[attr-defined]
        return call
