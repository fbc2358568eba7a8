"""Learning rate and weight of the edge terms over a training."""

from __future__ import annotations

import doctest
import math
from itertools import pairwise
from typing import Any

import pytest

from segkit import schedule
from segkit.schedule import edge_weight, lr_factor


def test_example() -> None:
    assert doctest.testmod(schedule).failed == 0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0.07, 0.5, 1.0])  # 0.07 · 100 is 7.000000000000001
def test_rises_to_the_weight_and_stays(kind: Any, warmup: float) -> None:
    weights = [edge_weight(step, 100, weight=2.0, kind=kind, warmup=warmup) for step in range(102)]
    over = round(warmup * 100)
    assert weights[0] == 0
    assert all(before < after for before, after in pairwise(weights[: over + 1]))
    assert set(weights[over:]) == {2.0}


def test_without_a_rise_it_is_the_full_weight_at_once() -> None:
    for kind, warmup in (("constant", 0.5), ("linear", 0.0), ("cosine", 0.0)):
        assert {edge_weight(step, 7, weight=0.3, kind=kind, warmup=warmup) for step in range(8)} == {0.3}
    for warmup in (-0.1, 500.0, math.nan):
        with pytest.raises(ValueError, match=r"edge_warmup: expected a share of all steps in \[0, 1\], but got"):
            edge_weight(0, 10, weight=1.0, kind="linear", warmup=warmup)


def test_lr_rises_then_falls_to_zero() -> None:
    factors = [lr_factor(step, total=100, warmup=10, power=0.9) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors.index(max(factors)) == 9
    assert factors[100] == lr_factor(101, total=100, warmup=10, power=0.9) == 0
    assert factors[50] == pytest.approx(0.5**0.9)
    assert math.isclose(lr_factor(0, total=5, warmup=0, power=1.0), 1.0)
