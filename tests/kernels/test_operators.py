"""The operators called directly: wrong shapes, dtypes and layouts raise errors, and no kernel runs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import operators_of
from torch import Tensor

from edgeloss import backends
from edgeloss._kernels import operators
from edgeloss._kernels.arguments import Arguments, KernelOptions, Outputs
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
    "mask": torch.ones(2, 5, 6, dtype=torch.bool),
    "radius": [1, 1],
}


def operators_of_call(call: str) -> list[tuple[Any, dict[str, Any]]]:
    """Return the operators of the sums, of the loss and of the gradient of a call, with their arguments."""
    x = torch.randn(2, 3, *((4, 5) if call == "upsampled" else SIZE[2:]), requires_grad=True)
    y = torch.randint(3, (2, *SIZE[2:]))
    return operators_of(lambda: edge_aware_loss(x, y, backend="fused", **CALLS[call]).backward())


def assert_checked(operator: Any, arguments: dict[str, Any], *, but_for: str = "") -> None:
    """Call an operator with tensors of another shape and of another dtype, one at a time."""
    given = {name: x for name, x in arguments.items() if isinstance(x, Tensor) and name != but_for}
    for name, value in given.items():
        longer = value.new_zeros(value.numel() + 1)
        other = value.to(torch.complex64 if name == "logits" else torch.bfloat16)
        for wrong in (longer, other):
            with pytest.raises(RuntimeError, match=f"{re.escape(name)}: expected .*, but got"):
                operator(**arguments | {name: wrong})
    operator(**arguments)


@pytest.mark.parametrize("call", CALLS)
def test_shapes_and_dtypes(call: str) -> None:
    forward, loss, backward = operators_of_call(call)
    assert_checked(*forward)
    assert_checked(*loss, but_for="edge_sums")  # of any shape [3, B, C]
    assert_checked(*backward, but_for="logits")
    assert backward[0](**backward[1]).shape == backward[1]["logits"].shape


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("logits", torch.zeros(2, 0, 8, 9), "logits: expected 1 to 32767 classes, but got 0"),
        ("logits", torch.zeros(2, 3, 8, 11)[..., :9], r"logits: expected evenly spaced pixels; call .contiguous\(\)"),
        ("logits", torch.zeros(2, 3, 0, 9), r"target: expected no pixels as there are no logits, but got \[2, 8, 9\]"),
        ("target", torch.zeros(2, 7, 9).long(), r"target: expected \[2, 8, 9\] or more .*, but got \[2, 7, 9\]"),
        ("target", torch.zeros(2, 9, 8).long().mT, r"target: expected evenly spaced elements; call .contiguous\(\)"),
        ("weight", torch.ones(6)[::2], "weight: expected evenly spaced elements"),
        ("radius", [1, 1], "radius and spacing: expected those of 3 axes, but got 2 and 3"),
        ("radius", [0, -1, 1], "radius: expected at least 0, but got -1"),
        ("spacing", [1.0], "radius and spacing: expected those of 3 axes, but got 3 and 1"),
    ],
)
def test_other_arguments(name: str, value: Any, message: str) -> None:
    (operator, arguments), *_ = operators_of_call("tensors")
    with pytest.raises(RuntimeError, match=message):
        operator(**arguments | {name: value})


@pytest.mark.parametrize("kernels", [operators.of_library, operators.of_triton], ids=["cpu", "triton"])
def test_arguments_are_named_and_ordered_as_in_the_schemas(kernels: Any) -> None:
    """They cross by position, which takes less time than by keyword."""
    names = [argument.name for argument in kernels.edge_loss.default._schema.arguments]
    assert names == [*Arguments._fields]
    assert names[-len(KernelOptions._fields) :] == [*KernelOptions._fields]
    returned = [value.name for value in kernels.edge_loss.default._schema.returns]
    assert returned[: len(Outputs._fields)] == [*Outputs._fields]
    for operator in ("edge_loss", "edge_loss_backward", "reduce"):
        schemas = [getattr(of, operator).default._schema for of in (kernels, operators.of_library)]
        ours, others = (str(schema).partition("(")[2] for schema in schemas)
        assert ours == others
    before = "grad", "slopes", "edge_pixel_weight", "logits", "weight", "pixel_weight", "distance"
    backward = [argument.name for argument in kernels.edge_loss_backward.default._schema.arguments]
    assert backward == [*before, *returned[len(Outputs._fields) :], *KernelOptions._fields]


@pytest.mark.parametrize("label", [-2, 3, 32767])
def test_saved_labels_out_of_range(label: int) -> None:
    _, _, (operator, arguments) = operators_of_call("power")
    wrong = arguments["label"].clone()
    wrong[1, 7, 8] = label
    with pytest.raises(RuntimeError, match=f"label: expected -1 to 2, but got .*{label}"):
        operator(**arguments | {"label": wrong})


def test_sums_of_other_shapes() -> None:
    _, (operator, arguments), _ = operators_of_call("tensors")
    for name, value, message in (
        ("edge_sums", torch.zeros(2, 2, 3).double(), r"edge_sums: expected \[3, B, C\], but got \[2, 2, 3\]"),
        ("tables", 3, "tables: expected a divisor of 2, but got 3"),
        ("normalizer", torch.ones(3).double(), r"normalizer: expected 4 contiguous elements .* but got \[3\]"),
    ):
        with pytest.raises(RuntimeError, match=message):
            operator(**arguments | {name: value})


def test_neighbor_nll(kernels: str) -> None:
    given = {name: x.to(kernels) if isinstance(x, Tensor) else x for name, x in NEIGHBOR.items()}
    forward, backward = operators.of_library.neighbor_nll, operators.of_library.neighbor_nll_backward
    assert_checked(forward, given)
    other_index = torch.zeros(2, 4, 5, 6, dtype=torch.bool, device=kernels)
    for name, value, message in (
        ("radius", [2, 1], r"weight: expected \[2, 14, 5, 6\], but got \[2, 8, 5, 6\]"),
        ("index", other_index, r"index: expected \[2, 3, 5, 6\], but got \[2, 4, 5, 6\]"),
    ):
        with pytest.raises(RuntimeError, match=message):
            forward(**given | {name: value})
    arguments = dict(zip(["grad_value", "stats", "largest", "sides"], forward(**given), strict=True))
    assert_checked(backward, arguments | {name: given[name] for name in ("logits", "index", "weight", "radius")})


def test_pair_terms(stepped: SimpleNamespace) -> None:
    given = {name: NEIGHBOR[name] for name in ("logits", "radius")} | {"power": 1.0, "distance": torch.ones(2, 5, 6)}
    given |= {"label": torch.zeros(2, 5, 6).short(), "edge": torch.ones(2, 5, 6, dtype=torch.bool)}
    forward, backward = stepped.pair_terms, stepped.pair_terms_backward
    terms, stats, sides = forward(**given)
    of_backward = given | {"grad_terms": terms, "stats": stats, "sides": sides}
    assert_checked(forward, given)
    assert_checked(backward, of_backward)
    for name, value, message in (
        ("logits", torch.zeros(2, 1, 5, 6), "logits: expected at least 2 classes, but got 1"),
        ("radius", [1], "radius: expected 2 numbers, one per axis, but got 1"),
        ("radius", [1, -1], "radius: expected at least 0, but got -1"),
    ):
        for operator, arguments in ((forward, given), (backward, of_backward)):
            with pytest.raises(RuntimeError, match=message):
                operator(**arguments | {name: value})
