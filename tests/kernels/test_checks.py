"""The operators called directly: wrong shapes, dtypes and layouts raise errors, and no kernel runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from kernel_kinds import Kernels
from torch import Tensor

from edgeloss import backends

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")

SIZE = (2, 3, 5, 6)
FORWARD: dict[str, Any] = {
    "logits": torch.zeros(SIZE),
    "target": torch.zeros(2, 5, 6, dtype=torch.int64),
    "weight": torch.ones(3),
    "pixel_weight": torch.ones(2, 5, 6),
    "edge_class_weight": torch.ones(3),
    "distance": torch.ones(2, 5, 6),
    "ignore_index": 255,
    "label_smoothing": 0.0,
    "radius": [1, 1],
    "power": 1.0,
    "decay": 1.0,
    "spacing": [1.0, 1.0],
    "edges": True,
    "false_edges": False,
    "maps": False,
    "count_edges": False,
    "validate": 0,
    "tables": 1,
}
STATE = ["label", "flags", "stats", "edge_list", "sides", "field"]
NEIGHBOR: dict[str, Any] = {
    "logits": torch.zeros(SIZE),
    "index": torch.zeros(2, 5, 6, dtype=torch.int64),
    "weight": torch.ones(2, 8, 5, 6),
    "mask": None,
    "radius": [1, 1],
}


def placed(kernels: Kernels, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(kernels.device) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def backward_arguments(**changes: Any) -> dict[str, Any]:
    """Return the arguments of a backward pass after a forward pass with these changes."""
    given = FORWARD | changes
    *_, label, flags, stats, edge_list, sides, field = torch.ops.edgeloss.edge_loss(**given)
    state = dict(zip(STATE, (label, flags, stats, edge_list, sides, field), strict=True))
    if given["distance"] is not None:
        state["field"] = given["distance"]
    maps = dict.fromkeys(["grad_ce", "grad_same", "grad_other", "grad_false_edge"])
    names = ["logits", "weight", "pixel_weight", "edge_class_weight"]
    names += ["label_smoothing", "radius", "power", "decay", "tables"]
    sums = torch.ones(4, dtype=torch.float64)
    return {"grad_sums": sums, **maps, **state} | {name: given[name] for name in names}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("logits", torch.zeros(2, 3, 5), r"logits: expected \[B, C, H, W\] or \[B, C, D, H, W\], but got \[2, 3, 5\]"),
        ("logits", torch.zeros(SIZE, dtype=torch.int64), "logits: expected the dtype Half, .*, but got Long"),
        ("logits", torch.zeros(2, 0, 5, 6), "logits: expected 1 to 32767 classes, but got 0"),
        ("logits", torch.zeros(2, 3, 5, 8)[..., :6], r"logits: expected evenly spaced pixels; call .contiguous\(\)"),
        ("logits", torch.zeros(2, 3, 0, 6), r"target: expected no pixels as there are no logits, but got \[2, 5, 6\]"),
        ("target", torch.zeros(2, 5, 6), "target: expected the dtype Long, .*, but got Float"),
        ("target", torch.zeros(1, 5, 6).long(), r"target: expected \[2, 5, 6\] or more .*, but got \[1, 5, 6\]"),
        ("target", torch.zeros(2, 4, 6).long(), r"target: expected \[2, 5, 6\] or more .*, but got \[2, 4, 6\]"),
        ("target", torch.zeros(2, 1, 5, 6).long(), r"but got \[2, 1, 5, 6\]"),
        ("target", torch.zeros(2, 6, 5).long().mT, r"target: expected evenly spaced elements; call .contiguous\(\)"),
        ("weight", torch.ones(4), r"weight: expected \[3\], but got \[4\]"),
        ("weight", torch.ones(3).double(), "weight: expected the dtype Float, but got Double"),
        ("weight", torch.ones(6)[::2], "weight: expected evenly spaced elements"),
        ("pixel_weight", torch.ones(2, 5), r"pixel_weight: expected \[2, 5, 6\], but got \[2, 5\]"),
        ("edge_class_weight", torch.ones(1, 3), r"edge_class_weight: expected \[3\], but got \[1, 3\]"),
        ("distance", torch.ones(2, 6, 5), r"distance: expected \[2, 5, 6\], but got \[2, 6, 5\]"),
        ("distance", torch.ones(2, 5, 6).half(), "distance: expected the dtype Float, but got Half"),
        ("radius", [1], "radius: expected 2 numbers, one per axis, but got 1"),
        ("radius", [1, -1], "radius: expected at least 0, but got -1"),
        ("spacing", [1.0], "spacing: expected 2 numbers, one per axis, but got 1"),
        ("tables", 3, "tables: expected a divisor of the batch, 2, but got 3"),
        ("tables", 0, "tables: expected a divisor of the batch, 2, but got 0"),
        ("tables", 2, r"weight: expected \[6\], but got \[3\]"),
    ],
)
def test_forward(name: str, value: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.ops.edgeloss.edge_loss(**FORWARD | {name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("grad_sums", torch.ones(4), "grad_sums: expected the dtype Double, but got Float"),
        ("grad_sums", torch.ones(3).double(), r"grad_sums: expected 4 contiguous elements, but got \[3\]"),
        ("grad_ce", torch.ones(59), r"gradient of a map: expected 60 contiguous elements, but got \[59\]"),
        ("label", torch.zeros(2, 5, 6).long(), "label: expected the dtype Short, but got Long"),
        ("label", torch.zeros(2, 3, 6).short(), r"label: expected \[2, 5, 6\] or more"),
        ("stats", torch.zeros(119), r"stats: expected 120 contiguous elements, but got \[119\]"),
        ("stats", torch.zeros(120).double(), "stats: expected the dtype Float, but got Double"),
        ("sides", torch.zeros(7), r"sides: expected \d+ contiguous elements, but got \[7\]"),
        ("edge_list", torch.zeros(5).int(), r"edge_list: expected"),
        ("field", torch.zeros(59), r"field: expected \d+ contiguous elements, but got \[59\]"),
        ("edge_class_weight", torch.ones(2), r"edge_class_weight: expected \[3\], but got \[2\]"),
        ("radius", [1, 1, 1], "radius: expected 2 numbers, one per axis, but got 3"),
    ],
)
def test_backward(name: str, value: Any, message: str) -> None:
    arguments = backward_arguments()
    with pytest.raises(RuntimeError, match=message):
        torch.ops.edgeloss.edge_loss_backward(**arguments | {name: value})


@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("classes", [1, 3])
def test_backward_takes_every_state_of_forward(classes: int, maps: bool, edges: bool, decay: float) -> None:
    changes: dict[str, Any] = {"logits": torch.zeros(2, classes, 5, 6), "maps": maps, "edges": edges, "decay": decay}
    changes |= {"weight": torch.ones(max(2, classes)), "edge_class_weight": None}
    for distance, power in itertools.product((None, FORWARD["distance"]), (0.0, 0.5)):
        arguments = backward_arguments(**changes, distance=distance, power=power)
        gradient = torch.ops.edgeloss.edge_loss_backward(**arguments)
        assert gradient.shape == (2, classes, 5, 6)
        assert gradient.isfinite().all()


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
