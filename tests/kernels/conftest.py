"""Fixtures for the tests of the kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgeloss._kernels import backends, library, operators

STEPPED = "cuda stepped on the host"
# Where there is no device, tests are not generated for it.
KINDS = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), STEPPED]


@pytest.fixture
def use(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes calls of ``neighbor_nll`` use a kind of kernels, and returns their device."""

    def use_kind(kind: str) -> str:
        if reason := library.why_not_on_cuda(None) if kind == "cuda" else library.MISSING:
            pytest.skip(reason)
        if kind == STEPPED:
            monkeypatch.setattr(operators, "of_library", request.getfixturevalue("stepped"))
        return "cuda" if kind == "cuda" else "cpu"

    return use_kind


@pytest.fixture(params=KINDS)
def kernels(request: pytest.FixtureRequest, use: Any) -> str:
    """Return the device of each kind of kernels, which are ``operators.of_library``."""
    return str(use(request.param))


@pytest.fixture(params=["reference", *KINDS])
def device(request: pytest.FixtureRequest, use: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a device on which ``backend="auto"`` chooses plain PyTorch, or kernels of each kind."""
    if request.param != "reference":
        return str(use(request.param))
    monkeypatch.setattr(backends, "why_no_neighbor_nll", lambda logits: "the test's choice")
    return "cpu"
