"""The operators called directly: wrong shapes, dtypes and layouts raise errors, and no kernel runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from kernel_kinds import Kernels
from recorded import operators_of
from torch import Tensor

from edgeloss import backends
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")

SIZE = (2, 3, 8, 9)
TENSORS: dict[str, Tensor] = {
    "weight": torch.ones(3),
    "pixel_weight": torch.ones(2, 8, 9),
    "edge_class_weight": torch.ones(3),
    "distance": torch.ones(2, 8, 9),
}
CALLS: dict[str, dict[str, Any]] = {
    "default": {"region_weight": 3.0},
    "tensors": {**TENSORS, "decay": 1.0},
    "power": {"power": -1.0, "decay": 1.0},
    "upsampled": {"upsample": True, "region_weight": 3.0},
}
NEIGHBOR: dict[str, Any] = {
    "logits": torch.zeros(2, 3, 5, 6),
    "index": torch.zeros(2, 5, 6, dtype=torch.int64),
    "weight": torch.ones(2, 8, 5, 6),
    "mask": None,
    "radius": [1, 1],
}


def placed(kernels: Kernels, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(kernels.device) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def operators(call: str) -> list[tuple[Any, dict[str, Any]]]:
    """Return the forward and the backward operator of a call, with their arguments."""
    x = torch.randn(2, 3, *((4, 5) if call == "upsampled" else SIZE[2:]), requires_grad=True)
    y = torch.randint(3, (2, *SIZE[2:]))
    return operators_of(lambda: edge_aware_loss(x, y, backend="fused", **CALLS[call]).backward())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("logits", torch.zeros(2, 3, 8), r"logits: expected \[B, C, H, W\] or \[B, C, D, H, W\], but got \[2, 3, 8\]"),
        ("logits", torch.zeros(SIZE, dtype=torch.int64), "logits: expected the dtype Half, .*, but got Long"),
        ("logits", torch.zeros(2, 0, 8, 9), "logits: expected 1 to 32767 classes, but got 0"),
        ("logits", torch.zeros(2, 3, 8, 11)[..., :9], r"logits: expected evenly spaced pixels; call .contiguous\(\)"),
        ("logits", torch.zeros(2, 3, 0, 9), r"target: expected no pixels as there are no logits, but got \[2, 8, 9\]"),
        ("target", torch.zeros(2, 8, 9), "target: expected the dtype Long, .*, but got Float"),
        ("target", torch.zeros(1, 8, 9).long(), r"target: expected \[2, 8, 9\] or more .*, but got \[1, 8, 9\]"),
        ("target", torch.zeros(2, 7, 9).long(), r"target: expected \[2, 8, 9\] or more .*, but got \[2, 7, 9\]"),
        ("target", torch.zeros(2, 1, 8, 9).long(), r"but got \[2, 1, 8, 9\]"),
        ("target", torch.zeros(2, 9, 8).long().mT, r"target: expected evenly spaced elements; call .contiguous\(\)"),
        ("weight", torch.ones(4), r"weight: expected \[3\], but got \[4\]"),
        ("weight", torch.ones(3).double(), "weight: expected the dtype Float, but got Double"),
        ("weight", torch.ones(6)[::2], "weight: expected evenly spaced elements"),
        ("pixel_weight", torch.ones(2, 8), r"pixel_weight: expected \[2, 8, 9\], but got \[2, 8\]"),
        ("edge_class_weight", torch.ones(1, 3), r"edge_class_weight: expected \[3\], but got \[1, 3\]"),
        ("distance", torch.ones(2, 9, 8), r"distance: expected \[2, 8, 9\], but got \[2, 9, 8\]"),
        ("distance", torch.ones(2, 8, 9).half(), "distance: expected the dtype Float, but got Half"),
        ("integers", [1, 2], "options: expected .* integers and .* reals, but got 2"),
        ("reals", [1.0], "options: expected .* integers and .* reals, but got .* 1"),
    ],
)
def test_forward(name: str, value: Any, message: str) -> None:
    (operator, arguments), _ = operators("tensors")
    with pytest.raises(RuntimeError, match=message):
        operator(**arguments | {name: value})


@pytest.mark.parametrize("call", CALLS)
def test_backward(call: str) -> None:
    _, (operator, arguments) = operators(call)
    given = {name: value for name, value in arguments.items() if isinstance(value, Tensor) and name != "logits"}
    assert len(given) > 3
    for name, value in given.items():
        longer = torch.zeros(value.numel() + 1, dtype=value.dtype)
        other = value.to(torch.float16 if value.is_floating_point() else torch.float64)
        for wrong in (longer, other):
            with pytest.raises(RuntimeError, match=f"{re.escape(name)}: expected .*, but got"):
                operator(**arguments | {name: wrong})
    assert operator(**arguments).shape == arguments["logits"].shape


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("index", torch.zeros(2, 5, 7).long(), r"index: expected \[2, 5, 6\], but got \[2, 5, 7\]"),
        ("index", torch.zeros(2, 5, 6), "index: expected the dtype Long, .*, but got Float"),
        ("index", torch.zeros(2, 4, 5, 6).bool(), r"index: expected \[2, 3, 5, 6\], but got \[2, 4, 5, 6\]"),
        ("weight", torch.zeros(2, 9, 5, 6), r"weight: expected \[2, 8, 5, 6\], but got \[2, 9, 5, 6\]"),
        ("weight", torch.zeros(2, 8, 5, 6).half(), "weight: expected the dtype Float, Double, but got Half"),
        ("mask", torch.zeros(2, 5, 6), "mask: expected the dtype Bool, Byte, but got Float"),
        ("mask", torch.zeros(1, 5, 6).bool(), r"mask: expected \[2, 5, 6\], but got \[1, 5, 6\]"),
        ("radius", [2, 1], r"weight: expected \[2, 14, 5, 6\], but got \[2, 8, 5, 6\]"),
    ],
)
def test_neighbor_nll(kernels: Kernels, name: str, value: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        kernels.operators.neighbor_nll(**placed(kernels, NEIGHBOR | {name: value}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("grad_value", torch.ones(2, 5, 7), r"grad_value: expected 60 contiguous elements, but got \[2, 5, 7\]"),
        ("stats", torch.zeros(2, 59), r"stats: expected 120 contiguous elements, but got \[2, 59\]"),
        ("largest", torch.zeros(1, 60).double(), "largest: expected the dtype Float, but got Double"),
        ("sides", torch.zeros(2, 60), r"sides: expected 180 contiguous elements, but got \[2, 60\]"),
    ],
)
def test_neighbor_nll_backward(kernels: Kernels, name: str, value: Any, message: str) -> None:
    given = placed(kernels, NEIGHBOR)
    found = kernels.operators.neighbor_nll(**given)
    arguments = dict(zip(["grad_value", "stats", "largest", "sides"], found, strict=True))
    arguments |= {key: given[key] for key in ("logits", "index", "weight", "radius")}
    kernels.operators.neighbor_nll_backward(**arguments)
    with pytest.raises(RuntimeError, match=message):
        kernels.operators.neighbor_nll_backward(**(arguments | placed(kernels, {name: value})))
