"""The fuzzer: cases follow from their numbers, right results pass, and wrong ones are found."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fuzz
import numpy as np
import pytest
import torch
from torch import Tensor

from edgeloss import backends, inputs, neighborhoods, reduction, reference

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")


def failures(number: int) -> list[str]:
    errors: fuzz.Table = defaultdict(fuzz.Errors)
    return [line for case in fuzz.make_cases(number) for line in fuzz.check(case, "cpu", errors, verbose=False)]


# Failures of earlier runs: shares that underflow (power 1), a position of interpolation that rounds beyond a pixel,
# a probability that underflows before its weight of 18, a share that does (power 3), a tiny power of a logit so large
# that the mean is computed by its logarithm, sums over hundreds of equal neighbors, and shares in wide windows, one
# factor of which lost digits near the smallest numbers.
FOUND = [1795396487028, 1795396487746, 1795396485064, 10016626, 20011109, 20408585]
FOUND += [1795449110648, 1795449110944, 1795459571252, 1795459572242]


@pytest.mark.parametrize("numbers", [range(12), FOUND], ids=["first", "found"])
def test_cases_pass(numbers: Sequence[int]) -> None:
    assert {number: failures(number) for number in numbers} == {number: [] for number in numbers}


@pytest.mark.parametrize("name", ["loss", "gradient", "cross_entropy", "edge_mask"])
def test_a_wrong_result_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuzz.run

    def wrong(*arguments: Any) -> dict[str, Any]:
        found = right(*arguments)
        if name == "edge_mask":
            return found | {name: 1 - found[name]}
        return found | {name: found[name] + 1e-2 * np.abs(found[name]).max(initial=0)}

    monkeypatch.setattr(fuzz, "run", wrong)
    found = [failure for number in range(8) for failure in failures(number)]
    assert any(("maps" if name in ("cross_entropy", "edge_mask") else name) in failure for failure in found)


def without_rest(x: Tensor, n: Tensor, k: Tensor) -> Tensor:
    """Compute 1 - p where it cancels."""
    return torch.logit(MARGINS(x, n, k).sigmoid(), eps=1e-7)


MARGINS = reference.margins


def without_small_shares(t: Tensor, log_w: Tensor, row: Tensor, count: int, power: float) -> Tensor:
    """Drop shares below a rounding that do not underflow."""
    largest = t.new_full((count,), -math.inf).scatter_reduce(0, row, t.detach(), "amax")
    return MEAN(torch.where(t < largest[row] - 20, t.detach(), t), log_w, row, count, power)


MEAN = reference.negative_log_mean


def of_narrow_windows(radius: Sequence[int]) -> list[tuple[int, ...]]:
    return OFFSETS([min(r, 3) for r in radius])


OFFSETS = neighborhoods.offsets


def with_labels_swapped(weight: Tensor, *, multilabel: bool) -> Tensor:
    return FLAT(weight.flip(-1) if weight.dim() == 2 else weight, multilabel=multilabel)


FLAT = inputs.flat_class_weight


def with_weights_of_the_image(y: Tensor, tables: int) -> Tensor:
    """Take the class weights by the place in the batch."""
    place = torch.arange(len(y)) // (len(y) // tables)
    return y + 2 * place.view(-1, *[1] * (y.dim() - 1))


@pytest.mark.parametrize(
    ("number", "kind", "result", "where", "name", "mutant"),
    [
        (4, "plain", "gradient", reference, "margins", without_rest),
        (829, "plain", "gradient", reference, "negative_log_mean", without_small_shares),
        (7, "multilabel", "loss", inputs, "flat_class_weight", with_labels_swapped),
        (10, "multilabel", "loss", reduction, "places_of_labels", with_weights_of_the_image),
        (8, "wide", "maps", neighborhoods, "offsets", of_narrow_windows),
    ],
)
def test_a_wrong_formula_is_found(
    number: int, kind: str, result: str, where: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passes() -> bool:
        errors, allowed = fuzz.compare(case, answer, fuzz.run(case, "reference", "cpu"))
        return errors[result] <= allowed

    case = fuzz.make_case(number, kind)
    (answer,) = fuzz.oracle([case])
    assert passes()
    monkeypatch.setattr(where, name, mutant)
    assert not passes()


def test_a_run_is_resumed(tmp_path: Path) -> None:
    fuzz.fuzz(5, 0, "cpu", tmp_path / "errors.json")
    number, errors = fuzz.resume(tmp_path / "errors.json")
    assert (number, errors) == (5, {})
    fuzz.check(fuzz.make_case(4), "cpu", errors, verbose=False)
    fuzz.save(tmp_path / "errors.json", 5, errors)
    assert fuzz.resume(tmp_path / "errors.json") == (5, errors)


def test_an_interrupted_run_prints_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(case: fuzz.Case, *_: Any, **__: Any) -> list[str]:
        if case.number == 7:
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr(fuzz, "check", interrupted)
    assert fuzz.fuzz(5, 1, "cpu", tmp_path / "errors.json") == 130
    printed = capsys.readouterr()
    assert printed.err == "fuzz.py: interrupted at 7; the figures so far:\n"
    assert printed.out.endswith("\n2 numbers from 5 on, 0 calls, 0 failed\n")
    assert not list(tmp_path.iterdir())  # of whole cases alone


def test_a_number_replays_its_cases() -> None:
    first, again = ([call for case in fuzz.make_cases(8) for call in fuzz.make_calls(case)] for _ in range(2))
    assert [a.describe() for a in first] == [b.describe() for b in again]
    assert all(torch.equal(a.x.nan_to_num(), b.x.nan_to_num()) for a, b in zip(first, again, strict=True))
    assert {call.kind for call in first} == set(fuzz.KINDS)
    assert fuzz.make_case(9).describe() != first[0].describe()
