"""Fixtures for the tests of the kernels."""

from __future__ import annotations

import pytest
import torch
from kernel_kinds import CPU, CUDA, ON_CUDA, STEPPED, Kernels

from edgeloss import fused, library


@pytest.fixture(params=[CPU, *ON_CUDA, STEPPED])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Return the kernels of ``neighbor_nll`` of each kind."""
    reason = library._why_not_on_cuda(None) if request.param == CUDA else library.MISSING
    if reason:
        pytest.skip(reason)
    if request.param != STEPPED:
        return Kernels(request.param, torch.ops.edgeloss)
    operators = request.getfixturevalue("stepped")
    monkeypatch.setattr(fused, "operators", operators)
    return Kernels("cpu", operators)


@pytest.fixture(params=["reference", "fused", STEPPED])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``backend="auto"`` choose each backend in turn, and the stepped kernels of ``neighbor_nll``."""
    if request.param == "reference":
        monkeypatch.setattr(library, "why_not_fused", lambda *arguments, **named: "the test's choice")
    elif library.MISSING:
        pytest.skip(library.MISSING)
    elif request.param == STEPPED:
        monkeypatch.setattr(fused, "operators", request.getfixturevalue("stepped"))
