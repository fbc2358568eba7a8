"""One list of cases, whose values, terms, maps and gradients agree however they are computed."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import brute_force
import numpy as np
import pytest
import torch
from cases import PARTS, ROWS, SMALL_ROWS, TRITON_ROWS, Row, interpolated, make_case
from columns import INTERPRETED, Column, each_column
from oracle import Answer
from pairwise import EXHAUSTIVE
from roundings import LIMITS, Case, compare, run
from torch import Tensor

from edgeloss import fused, reference, weights
from edgeloss.functional import edge_weights

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
LOOSE = 1e-10  # loops subtract and exponentiate without care


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


# -------------------------------------------------------------------------------------------------------------- loops


@pytest.mark.parametrize("row", SMALL_ROWS, ids=[*range(len(SMALL_ROWS))])
def test_maps_of_long_doubles_are_those_of_loops(row: Row) -> None:
    case, answer = solved(row)
    x, y, options = case.arguments()
    multilabel, size = options["multilabel"], y.shape[2 - x.ndim :]
    x = interpolated(torch.from_numpy(np.where(answer.is_read, x, 0)), size).numpy()
    given = {name: options[name] for name in ("ignore_index", "power", "decay", "spacing", "label_smoothing")}
    given["radius"] = tuple(min(r, n) for r, n in zip(options["radius"], size, strict=True))
    for image in np.ndindex(y.shape[: 1 + multilabel]):
        weight = np.ones(max(2, x.shape[1])) if options["weight"] is None else options["weight"]
        weight = np.broadcast_to(weight[image[1:]] if multilabel and weight.ndim > 1 else weight, max(2, x.shape[1]))
        distance = None if options["distance"] is None else options["distance"][image]
        maps = brute_force.maps(
            x[image][None] if multilabel else x[image], y[image], weight=weight.tolist(), distance=distance, **given
        )
        for name, values in maps.items():
            exact, unit = (part[image] for part in answer.maps[name])
            assert (abs(values - exact) <= LOOSE * (unit + 1)).all(), f"{name} of {row}"


@pytest.mark.parametrize("row", [row for row in SMALL_ROWS if "region_weight" in PARTS[row.parts]])
def test_regions_of_long_doubles_are_those_of_loops(row: Row) -> None:
    case = make_case(row)
    given = {name: case.options[name] for name in ("ignore_index", "multilabel")}
    size = case.y.shape[2 - case.x.dim() :]
    for x, y in zip(interpolated(case.x, size).split(1), case.y.split(1), strict=True):
        answer = Case(x, y, {"region_weight": 1.0, **given}, torch.ones((), dtype=torch.float64)).answer()
        expected = brute_force.region(x[0].numpy(), y[0].numpy(), **given)
        assert float(answer.terms["region"][0]) == pytest.approx(expected, rel=1e-9, abs=1e-11)


# ------------------------------------------------------------------------------------------------------------- weights


def of_weights(x: Tensor, y: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the mean of the edge terms by the weights that labels give to pixels."""
    names = (
        "edge_class_weight",
        "ignore_index",
        "multilabel",
        "radius",
        "decay",
        "spacing",
        "pixel_weight",
        "distance",
    )
    given = {name: options[name] for name in names if name in options}
    multilabel = options["multilabel"]
    a, n, k, b, total = edge_weights(y, x.shape[1] if multilabel else max(2, x.shape[1]), **given)
    x = x.flatten(0, 1)[:, None] if multilabel else x
    x = torch.cat([torch.zeros_like(x), x], 1) if x.shape[1] == 1 else x
    assert ((n * x.shape[1] + k).diff() > 0).all()  # each pair once
    log_p = x.movedim(1, -1).flatten(0, -2).log_softmax(1)
    own = a.flatten().nonzero().squeeze(1)
    same_side = torch.dot(a.flatten()[own], log_p[own, y.flatten()[own].long()])
    other_side = torch.dot(b, log_p[n].scatter(1, k[:, None], -torch.inf).logsumexp(1))
    sums = options.get("same_side_weight", 1.0) * same_side + options.get("other_side_weight", 1.0) * other_side
    return -options.get("edge_weight", 1.0) * sums / total.clamp(min=1e-300)


@pytest.mark.parametrize("row", [row for row in SMALL_ROWS if row.power == 0])
def test_weights_from_labels_give_the_edge_terms(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PART", 3 if math.prod(row.size) < 50 else weights.PART)  # pairs at a time
    pixels = "none" if row.pixels == "normalizer" else "pixel_weight"
    case = make_case(row._replace(logits="normal", resolution="same", reduction="mean", pixels=pixels))
    case.options |= {"ce_weight": 0.0, "region_weight": 0.0}
    answer = case.answer()
    found = run(case, answer.is_read, lambda x, y, **options: of_weights(x, y, options))
    errors = compare(case, answer, found, by_torch=True)
    assert max(errors.values()) <= 1e6, f"{errors}, in roundings, of {row}"
