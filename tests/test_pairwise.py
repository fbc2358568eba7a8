"""The rows of `pairwise`."""

from __future__ import annotations

import itertools

import pytest
from pairwise import pairwise


@pytest.mark.parametrize("lengths", [(2, 3), (1, 4, 1), (5, 5, 2, 4, 5), (3, 13, 6)])
def test_every_pair_is_in_a_row(lengths: tuple[int, ...]) -> None:
    axes = [[f"{axis}: {value}" for value in range(length)] for axis, length in enumerate(lengths)]
    rows = pairwise(*axes, exhaustive=False)
    assert {pair for row in rows for pair in itertools.combinations(row, 2)} == {
        pair for one, other in itertools.combinations(axes, 2) for pair in itertools.product(one, other)
    }
    longest, second = sorted(lengths)[:-3:-1]
    assert len(rows) <= 1.3 * longest * second
    assert rows == pairwise(*axes, exhaustive=False)
    assert pairwise(*axes, exhaustive=True) == list(itertools.product(*axes))
