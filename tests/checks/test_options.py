"""Signatures, ``Options`` and docstrings agree on the options."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from edgeloss import EdgeAwareLoss, _reduction
from edgeloss._checks.options import AFTER_SUMS, EDGE_TERMS, HELP, SUMMANDS, TERMS, Options, Term, check_option
from edgeloss._kernels import backends
from edgeloss._reduction import VALUES, EdgeRow, LossMaps
from edgeloss.cli.commands import OF_LOSS
from edgeloss.functional import edge_aware_loss, loss_maps, normalizers

WEIGHTS = {"weight": None, "edge_class_weight": "balanced"}
NOT_OF_MAPS = {*AFTER_SUMS, *(name for term in TERMS for name in term.weights)} - {
    "other_side_weight",
    "same_side_weight",
}
OPTIONS = {option.name: option.default for option in dataclasses.fields(Options)}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(function).parameters.items() if name != "self"}


def in_order(options: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and defaults for a comparison with their order; 0 is not 0.0."""
    return [(name, repr(value)) for name, value in options.items()]


def test_the_module_has_the_class_weights_and_every_option() -> None:
    assert in_order(defaults(EdgeAwareLoss.__init__)) == in_order(WEIGHTS | OPTIONS)
    assert EdgeAwareLoss().options() == WEIGHTS | OPTIONS
    assert list(HELP) == list(OPTIONS)


def test_the_function_has_the_arguments_of_the_module_and_of_its_call() -> None:
    call = defaults(EdgeAwareLoss.forward)
    tensors = {name: call.pop(name) for name in ("logits", "target")}
    expected = tensors | WEIGHTS | OPTIONS | call
    assert in_order(defaults(edge_aware_loss)) == in_order(expected)


@pytest.mark.parametrize(
    ("function", "left_out"),
    [
        (loss_maps, NOT_OF_MAPS | {"edge_class_weight", "reduction"}
         | {"sync_normalizer", "pixel_weight", "normalizer", "return_maps", "return_terms"}),
        (normalizers, {"logits", "distance", "normalizer", "return_maps", "return_terms"}
         | (set(OPTIONS) - {"ignore_index", "multilabel", "radius", "validate"})),
    ],
)  # fmt: skip
def test_functions_of_fewer_arguments(function: Callable[..., Any], left_out: set[str]) -> None:
    whole, own = defaults(edge_aware_loss), defaults(function)
    own.pop("num_classes", None)
    assert left_out < set(whole)
    assert in_order(own) == [pair for pair in in_order(whole) if pair[0] not in left_out]


@pytest.mark.parametrize("described", [EdgeAwareLoss, EdgeAwareLoss.forward, edge_aware_loss, loss_maps, normalizers])
def test_docstrings_describe_every_argument_in_order(described: Any) -> None:
    part = inspect.getdoc(described).split("Args:\n")[1].split("\n\n")[0]
    assert re.findall(r"^    (\w+):", part, re.MULTILINE) == list(defaults(described))


def test_commands_have_the_numbers_among_the_options() -> None:
    assert {"edge_weight", "edge_focus", "radius"} < set(OF_LOSS) < set(OPTIONS)


def test_options_are_checked_and_do_not_change() -> None:
    assert Options() == Options.from_attributes(EdgeAwareLoss())
    with pytest.raises(ValueError, match="power: expected a number in"):
        check_option("power", float("nan"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().radius = 2  # type: ignore[misc]


def test_every_list_of_the_terms_is_that_of_the_options() -> None:
    names = [term.name for term in TERMS if term.has_kernels]
    assert [row.name.lower() for row in EdgeRow][1:] == [term.name for term in EDGE_TERMS]
    assert [*VALUES][: len(names) + 1] == [*names[:-1], "edge", names[-1]]  # the edge term of both sides is between
    assert {*SUMMANDS} < {*VALUES}
    mapped = [term.name for term in TERMS if term.has_map]
    assert [name for name in LossMaps._fields if name in mapped] == mapped
    assert {name for term in TERMS for name in term.weights} <= set(HELP)


def test_a_term_may_be_of_the_reference_only(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(1, 3, 8, 8), torch.randint(3, (1, 8, 8))
    monkeypatch.setattr(backends, "_WITHOUT_KERNELS", [term for term in TERMS if term.name == "region"])
    with pytest.raises(RuntimeError, match="no kernels for the region term; pass 'auto' or 'reference'"):
        edge_aware_loss(x, y, backend="fused")
    torch.testing.assert_close(edge_aware_loss(x, y), edge_aware_loss(x, y, backend="reference"), rtol=0, atol=0)
    monkeypatch.setattr(
        _reduction, "TERMS", (*TERMS, Term("further", "further term", "of a test", "W", ("further_weight",)))
    )
    _, terms = edge_aware_loss(x, y, region_weight=0.0, return_terms=True)
    assert terms["further"] == 0
