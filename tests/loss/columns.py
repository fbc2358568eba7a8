"""What computes the loss in the agreement tests: loops over pixels, and each backend of the library."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import brute_force
import pytest
import torch
from cases import Case, interpolated
from torch import Tensor

from edgeloss import library
from edgeloss.functional import edge_aware_loss
from edgeloss.options import Backend

Results = dict[str, Tensor]  # the value, its gradient, and every term, by name


# Triton reads it where kernels are defined, so its column is a process of its own; tests/loss/interpreted.py.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    import interpreted  # noqa: F401


class Column(NamedTuple):
    """A backend on a device; interpreted, the kernels of GPUs run on CPUs."""

    backend: Backend
    device: str = "cpu"
    interpreted: bool = False

    @property
    def on_gpu(self) -> bool:
        """Return whether the kernels are those of GPUs."""
        return self.interpreted or self.device != "cpu"

    def loss(self, x: Tensor, y: Tensor, **options: Any) -> Any:
        """Return the loss of logits and labels on the device of the column."""
        backend = self.backend
        # Kernels return sums only, and those of GPUs are for power 0.
        if options.get("reduction") == "none" or (self.on_gpu and options.get("power")):
            backend = "auto" if backend == "fused" else backend
        library.interprets = self.interpreted
        options = {name: self.place(value) for name, value in options.items()}
        try:
            return edge_aware_loss(self.place(x), self.place(y), backend=backend, **options)
        finally:
            library.interprets = False

    def place(self, value: Any) -> Any:
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


def upstream_of(value: Tensor) -> Tensor:
    """Return the gradient that arrives at a loss, always the same for its shape."""
    random = torch.Generator().manual_seed(1)
    upstream = torch.rand(value.shape, generator=random, dtype=torch.float64) + 0.5
    return upstream.to(value)


def results_of(case: Case, column: Column, calls: tuple[bool, ...] = (False, True)) -> Results:
    """Return the results of a column, of calls with and without terms."""
    results = {}
    for return_terms in calls:
        x = case.logits.detach().requires_grad_()
        found = column.loss(x, case.target, return_terms=return_terms, **case.options)
        value, terms = found if return_terms else (found, {})
        (gradient,) = torch.autograd.grad(value, x, upstream_of(value))
        call = " with terms" if return_terms else ""
        results |= {f"value{call}": value.detach().cpu(), f"gradient{call}": gradient}
        results |= {name: term.cpu() for name, term in terms.items()}
    return results


def exact(case: Case) -> Case:
    """Return the case in float64, with the logits that nothing may read at 0."""
    return case._replace(logits=case.logits.double().masked_fill(case.unread, 0.0))


def of_loops(case: Case, step: float = 1e-4) -> Results:
    """Return the results of loops in float64; of the gradient, its product with ``direction_of`` by differences."""
    x, size = exact(case).logits, case.target.shape[2 - case.logits.dim() :]
    options = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in case.options.items()}
    dims, upsample = len(size), options.pop("upsample")
    radius = options.pop("radius")
    options["radius"] = tuple(min(r, 20) for r in ([radius] * dims if isinstance(radius, int) else radius))

    def loss(x: Tensor) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
        x = interpolated(x, size) if upsample else x
        value, *others = brute_force.loss(x.numpy(), case.target.long().numpy(), **options)
        return torch.from_numpy(value), *others

    (value, terms, maps), direction = loss(x), step * direction_of(case)
    slope = (loss(x + direction)[0] - loss(x - direction)[0]) / (2 * step)
    results = {name: torch.tensor(term, dtype=torch.float64) for name, term in terms.items()}
    results |= {f"map {name}": torch.from_numpy(values) for name, values in maps.items()}
    return {"value": value, "slope": (slope * upstream_of(value)).sum(), **results}


def direction_of(case: Case) -> Tensor:
    """Return the direction in which the gradient of the loops is taken."""
    random = torch.Generator().manual_seed(2)
    return torch.randn(case.logits.shape, generator=random, dtype=torch.float64)
