"""One list of cases, whose values, terms, maps and gradients agree however they are computed."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import brute_force
import pytest
import torch
from cases import ROWS, SMALL_ROWS, TRITON_ROWS, Row, interpolated, make_case
from columns import INTERPRETED, Column, each_column
from roundings import LIMITS, Case, compare, run
from oracle import Answer
from pairwise import EXHAUSTIVE
from torch import Tensor

from edgeloss import fused, reference

# Triton's kernels are for power 0, and return sums.
OF_SUMS = [row for row in ROWS + SMALL_ROWS if row.power == 0 and row.reduction != "none"]
# Some of them at every change, as each takes seconds.
OF_TRITON = TRITON_ROWS + OF_SUMS if EXHAUSTIVE else TRITON_ROWS[:: 2 if os.environ.get("CI") == "true" else 10]
AGREEING = OF_TRITON if INTERPRETED else ROWS + SMALL_ROWS
# Logits that nothing may read, and what is asked of a call: outside CI some, as each is a call more.
CALLS: list[tuple[float, tuple[str, ...]]] = [(torch.nan, ()), (-torch.inf, ("terms",))]
if EXHAUSTIVE or (os.environ.get("CI") == "true" and not INTERPRETED):
    CALLS += [(torch.inf, ()), (0.0, ("terms",))]
# The kernels of nvcc are for other powers, and no column of this suite.
WITH_POWER = [] if INTERPRETED else [row for row in ROWS + SMALL_ROWS if row.power]
SLACK = 2  # times the limits of the fuzzer, which draws fewer classes for large images
LOOSE = 10**6  # roundings of loops, which subtract and exponentiate without care


@cache
def solved(row: Row) -> tuple[Case, Answer]:
    """Return the case of a row, and what the oracle answers."""
    case = make_case(row)
    return case, case.answer()


def check(row: Row, column: Column, *more: str) -> None:
    """Compare the results of a column with the answer of the oracle, whatever the logits are that nothing may read."""
    case, answer = solved(row)
    for unread, returns in CALLS:
        found = run(replace(case, unread=unread, returns=(*more, *returns)), answer.is_read, column.loss)
        errors = compare(case, answer, found, by_torch=column.is_plain(case.options))
        assert max(errors.values()) <= SLACK * LIMITS[case.upstream.dtype], f"{errors}, in roundings, of {row}"


@each_column
@pytest.mark.parametrize("row", AGREEING, ids=[*range(len(AGREEING))])
def test_every_column_agrees_with_long_doubles(row: Row, column: Column) -> None:
    check(row, column, *["maps"] * (column == Column("reference")))


@pytest.mark.parametrize("row", WITH_POWER, ids=[*range(len(WITH_POWER))])
def test_the_edge_terms_of_cuda_agree(row: Row, stepped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    solved(row)
    monkeypatch.setattr(fused, "operators", stepped)
    monkeypatch.setattr(reference, "edge_terms", fused.gathered_terms)
    check(row, Column("reference"))


@pytest.mark.parametrize("row", SMALL_ROWS, ids=[*range(len(SMALL_ROWS))])
def test_long_doubles_agree_with_loops(row: Row) -> None:
    case, answer = solved(row)
    size = case.y.shape[2 - case.x.dim() :]
    x = case.x.masked_fill(~torch.from_numpy(answer.is_read.copy()), 0.0)
    options = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in case.options.items()}
    x = interpolated(x, size) if options.pop("upsample") else x
    radius = options.pop("radius")
    radius = [radius] * len(size) if isinstance(radius, int) else radius
    options["radius"] = tuple(min(r, n) for r, n in zip(radius, size, strict=True))
    loss, terms, maps = brute_force.loss(x.numpy(), case.y.long().numpy(), **options)
    found = {
        "loss": torch.from_numpy(loss),
        "terms": {name: torch.tensor(term, dtype=torch.float64) for name, term in terms.items()},
        "maps": {name: torch.from_numpy(values) for name, values in maps.items()},
    }
    errors = compare(case, answer._replace(maps={name: answer.maps[name] for name in maps}), found, by_torch=True)
    assert max(errors.values()) <= LOOSE, f"{errors}, in roundings, of {row}"
