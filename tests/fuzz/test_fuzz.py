"""The fuzzer: right results pass, and wrong ones are found."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import fuzz
import pytest
from torch import Tensor

from edgeloss import backends
from edgeloss._checks.options import BackendChoice
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")

NUMBERS = range(40)
fuzz.solved = cache(fuzz.solved)  # the oracle takes longer than what it is compared with


def failures(number: int, *backends: BackendChoice) -> list[str]:
    return fuzz.check(number, backends or fuzz.BACKENDS)[1]


def test_calls_have_regions_and_labels_of_each_class() -> None:
    calls = [fuzz.solved(number) for number in NUMBERS]
    found = {(case.options["multilabel"], answer(0).has_regions) for case, answer in calls}
    assert found == {(multilabel, regions) for multilabel in (False, True) for regions in (False, True)}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_call_passes(number: int) -> None:
    assert not failures(number)


def is_found(wrong_loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(fuzz, "edge_aware_loss", wrong_loss)
    # By the loss of the kernels; the maps of the reference would find a distance where no edge has a weight.
    return any(failures(number, "fused") for number in range(5 * len(NUMBERS)))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("radius", lambda radius: [r + 1 for r in radius]),
        ("spacing", lambda spacing: spacing and [1.001 * s for s in spacing]),
        ("decay", lambda decay: decay and 1.001 * decay),
        ("power", lambda q: 0.999 * q),
        ("label_smoothing", lambda smoothing: 0.999 * smoothing),
        ("edge_weight", lambda weight: 1.0001 * weight),
        ("region_weight", lambda weight: 1.0001 * weight),
        ("ignore_index", lambda label: None if label == 1 else label),
        ("weight", lambda weight: weight if weight is None else weight.flip(-1)),
        ("edge_class_weight", lambda weight: weight.flip(0) if isinstance(weight, Tensor) else weight),
        ("edge_class_weight", lambda weight: None if isinstance(weight, str) else weight),
        ("edge_focus", lambda gamma: 1.0001 * gamma),
        ("other_side_weight", lambda weight: 1.0001 * weight),
        ("normalizer", lambda sums: sums and (sums[0], sums[1] if isinstance(sums[1], float) else sums[1].flip(-1))),
        ("pixel_weight", lambda _: None),
        ("distance", lambda _: None),
        ("backend", lambda _: "reference"),  # whose derivative of a softmax is p - 1
    ],
)
def test_a_wrong_option_is_found(name: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, y: Tensor, **options: Any) -> Any:
        return edge_aware_loss(x, y, **options | {name: change(options[name])})

    assert is_found(wrong, monkeypatch)


WRONG_GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scaled": lambda x, loss, again: loss + 1e-4 * (loss - loss.detach()),
    "rounded twice": lambda x, loss, again: 0.3 * loss + 0.7 * again,
    "of logits that are not read": lambda x, loss, again: loss + 0 * x.sum().to(loss.dtype),
}


@pytest.mark.parametrize("change", WRONG_GRADIENTS.values(), ids=WRONG_GRADIENTS)
def test_a_wrong_gradient_is_found(change: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, y: Tensor, **options: Any) -> Any:
        result, again = (edge_aware_loss(x, y, **options) for _ in range(2))
        many = isinstance(result, tuple)
        return (change(x, result[0], again[0]), *result[1:]) if many else change(x, result, again)

    assert is_found(wrong, monkeypatch)
