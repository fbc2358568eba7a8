"""Fixtures for the tests of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import torch
from kernel_kinds import CPU, CUDA, ON_CUDA, STEPPED, Kernels, choose_operators

from edgeloss import backends


@pytest.fixture(params=[CPU, *ON_CUDA, STEPPED])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Return the fused kernels of each kind; a label record that a test does not expect fails it."""
    if (state := backends()[CUDA if request.param == CUDA else CPU]) != "available":
        pytest.skip(f"fused kernels {state}")
    if request.param == STEPPED:
        found = cast("Kernels", request.getfixturevalue("stepped"))
        choose_operators(monkeypatch, found.operators)
    else:
        from edgeloss import _C

        found = Kernels(request.param, torch.ops.edgeloss, _C.raise_label_errors, False)
    yield found
    found.raise_label_errors()
