"""One list of cases, whose values, terms and gradients agree however they are computed."""

from __future__ import annotations

import os
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from cases import ROWS, SMALL_ROWS, TRITON_ROWS, Case, Row, make_case, with_unread
from columns import INTERPRETED, Column, Results, direction_of, each_column, exact, of_loops, results_of
from pairwise import EXHAUSTIVE

from edgeloss import fused, reference

# Triton's kernels are for power 0, and return sums.
OF_SUMS = [row for row in ROWS + SMALL_ROWS if row.power == 0 and row.reduction != "none"]
# Some of them at every change, as each takes seconds.
OF_TRITON = TRITON_ROWS + OF_SUMS if EXHAUSTIVE else TRITON_ROWS[:: 2 if os.environ.get("CI") == "true" else 10]
AGREEING = OF_TRITON if INTERPRETED else ROWS + SMALL_ROWS
# What no one may read: outside CI of one kind, as each is a call more.
EVERY = EXHAUSTIVE or (os.environ.get("CI") == "true" and not INTERPRETED)
BAD = (torch.nan, torch.inf, -torch.inf) if EVERY else (torch.nan,)
# The kernels of nvcc are for other powers, and no column of this suite.
WITH_POWER = [] if INTERPRETED else [row for row in ROWS + SMALL_ROWS if row.power]


@cache
def exact_results(row: Row) -> Results:
    return results_of(exact(make_case(row)), Column("reference"))


def assert_agree(found: Results, expected: Results, case: Case) -> None:
    """Compare results with exact ones, within the rounding of the dtypes of the case."""
    dtype, options = case.logits.dtype, case.options
    exactly = dtype == torch.float64
    rtol, atol = (1e-10, 1e-12) if exactly else (2e-5, 2e-6)
    if options["upsample"] and not exactly:  # interpolation rounds in proportion to the logits
        rtol, atol = (tolerance * (1 + float(case.logits.abs().max())) for tolerance in (rtol, atol))
    assert found.keys() == expected.keys()
    for name, value in found.items():
        is_gradient, eps = name.startswith("gradient"), torch.finfo(dtype).eps
        # What adds up in a gradient is of the order of its largest element, or of the weight of a pixel.
        unit = max(float(expected[name].abs().max()), 1 / case.target.numel()) if is_gradient else 1.0
        assert value.dtype == (dtype if is_gradient or exactly else torch.float32)
        torch.testing.assert_close(
            value.double(),
            expected[name],
            rtol=rtol + is_gradient * eps,
            atol=atol * unit + is_gradient * float(torch.finfo(dtype).smallest_normal),
            msg=lambda text, name=name: f"{name}: {text}\n{case.options}",
        )


def check(row: Row, column: Column, *, is_expected: bool = False) -> None:
    """Compare the results of a column with exact ones, whatever the logits are that nothing may read.

    Args:
        row: the case.
        column: what computes it.
        is_expected: whether the column has computed what is expected, with logits of 0 that nothing may read.
    """
    case, expected = make_case(row), exact_results(row)
    if not is_expected and not (case.unread.any() and len(BAD) == 1):
        assert_agree(results_of(case, column), expected, case)
    if not case.unread.any():
        return
    found = results_of(with_unread(case, BAD[0]), column)
    assert_agree(found, expected, case)
    for bad, return_terms in zip(BAD[1:], (False, True), strict=False):
        others = results_of(with_unread(case, bad), column, (return_terms,))
        assert all(torch.equal(value, found[name]) for name, value in others.items())
        found |= others
    assert not any(value[case.unread].any() for name, value in found.items() if name.startswith("gradient"))


@each_column
@pytest.mark.parametrize("row", AGREEING, ids=[*range(len(AGREEING))])
def test_every_column_agrees_with_the_reference_in_float64(row: Row, column: Column) -> None:
    check(row, column, is_expected=column == Column("reference") and row.dtype == torch.float64)


@pytest.mark.parametrize("row", WITH_POWER, ids=[*range(len(WITH_POWER))])
def test_the_edge_terms_of_cuda_agree(row: Row, stepped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    exact_results(row)
    monkeypatch.setattr(fused, "operators", stepped)
    monkeypatch.setattr(reference, "edge_terms", fused.gathered_terms)
    check(row, Column("reference"))


@pytest.mark.parametrize("row", SMALL_ROWS, ids=[*range(len(SMALL_ROWS))])
def test_the_reference_in_float64_agrees_with_loops(row: Row) -> None:
    case, expected = make_case(row), dict(exact_results(row))
    found = of_loops(case)
    slope = (direction_of(case) * expected["gradient"]).sum()
    torch.testing.assert_close(found.pop("slope"), slope, rtol=1e-6, atol=1e-7)
    _, maps = Column("reference").loss(exact(case).logits, case.target, return_maps=True, **case.options)
    expected |= {f"map {name}": values.double() for name, values in maps._asdict().items() if values is not None}
    assert len(found) == 12
    for name, value in found.items():
        torch.testing.assert_close(
            value, expected[name], rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}\n{row}"
        )
