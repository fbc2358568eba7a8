"""Fixtures for the tests of the kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import host_shim
import pytest
import torch
from kernel_kinds import CPU, CUDA, ON_CUDA, STEPPED, Kernels

from edgeloss import fused, library


@pytest.fixture(scope="session")
def stepped() -> Kernels:
    """Return the CUDA kernels, stepped on the host."""
    command = host_shim.compiler()
    if command is None:
        pytest.skip("no C++ compiler to build the CUDA kernels for the host")
    host_shim.load(host_shim.build(command))
    names, of_loss = ("neighbor_nll", "neighbor_nll_backward"), ("edge_loss", "edge_loss_backward")
    operators = {name: getattr(torch.ops.edgeloss_host, name) for name in names}
    return Kernels("cpu", SimpleNamespace(**operators, **{name: getattr(torch.ops.edgeloss, name) for name in of_loss}))


@pytest.fixture(params=[CPU, *ON_CUDA, STEPPED])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Return the kernels of ``neighbor_nll`` of each kind."""
    reason = library._why_not_on_cuda(None) if request.param == CUDA else library.MISSING
    if reason:
        pytest.skip(reason)
    if request.param != STEPPED:
        return Kernels(request.param, torch.ops.edgeloss)
    found = cast("Kernels", request.getfixturevalue("stepped"))
    monkeypatch.setattr(fused, "operators", found.operators)
    return found


@pytest.fixture(params=["reference", "fused", STEPPED])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``backend="auto"`` choose each backend in turn, and the stepped kernels of ``neighbor_nll``."""
    if request.param == "reference":
        monkeypatch.setattr(library, "why_not_fused", lambda *arguments: "the test's choice")
    elif library.MISSING:
        pytest.skip(library.MISSING)
    elif request.param == STEPPED:
        monkeypatch.setattr(fused, "operators", cast("Kernels", request.getfixturevalue("stepped")).operators)
