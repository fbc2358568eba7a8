"""What computes the loss in the agreement tests: each backend of the library, on each device."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from edgeloss._checks.options import BackendChoice
from edgeloss._kernels import library
from edgeloss.functional import edge_aware_loss

# Triton reads it where kernels are defined, so its column is a process of its own; interpreted.py.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    import interpreted  # noqa: F401


class Column(NamedTuple):
    """A backend on a device; interpreted, the kernels of GPUs run on CPUs."""

    backend: BackendChoice
    device: str = "cpu"
    interpreted: bool = False

    @property
    def on_gpu(self) -> bool:
        """Return whether the kernels are those of GPUs."""
        return self.interpreted or self.device != "cpu"

    def is_plain(self, options: dict[str, Any]) -> bool:
        """Return whether plain PyTorch serves a call: kernels of GPUs return sums only, and are for power 0."""
        no_kernels = options.get("reduction") == "none" or options.get("power")
        return self.backend == "reference" or (self.on_gpu and bool(no_kernels))

    def loss(self, x: Tensor, y: Tensor, **options: Any) -> Any:
        """Return the loss of logits and labels on the device of the column."""
        backend = "auto" if self.is_plain(options) and self.backend == "fused" else self.backend
        library.interprets = self.interpreted
        options = {name: self.place(value) for name, value in options.items()}
        try:
            return edge_aware_loss(self.place(x), self.place(y), backend=backend, **options)
        finally:
            library.interprets = False

    def place(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self.place, value))
        return value.to(self.device) if isinstance(value, Tensor) else value


COLUMNS = [Column("fused", interpreted=True)]
if not INTERPRETED:
    COLUMNS = [Column("reference"), Column("fused")]
    COLUMNS += [Column("fused", "cuda")] if torch.cuda.is_available() else []
_NEEDS_LIBRARY = pytest.mark.skipif(bool(library.MISSING), reason=str(library.MISSING))
each_column = pytest.mark.parametrize(
    "column",
    [pytest.param(column, marks=[_NEEDS_LIBRARY] if column == Column("fused") else []) for column in COLUMNS],
    ids=lambda column: "triton" if column.on_gpu else column.backend,
)
