"""One list of cases, whose values, terms, maps and gradients agree however they are computed."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import brute_force
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from calls import CHOICES, ON_GPU, Row, make_case
from columns import INTERPRETED, Column, each_column
from oracle import Answer
from pairwise import EXHAUSTIVE, pairwise
from roundings import LIMITS, Case, compare, run
from torch import Tensor

from edgeloss._kernels import evaluate, operators
from edgeloss._reference import neighborhoods, parts
from edgeloss._reference import terms as reference
from edgeloss.functional import edge_weights


def rows(**choices: Any) -> list[Row]:
    """Return rows of these choices, and of all of the other properties, in which every pair of choices meets."""
    asked = {"unread": [0.0], "returns": [()], "has_gradient": [True]}  # by the tests
    lists = {name: [*values] for name, values in (CHOICES | asked | choices).items()}
    return [dict(zip(lists, row, strict=True)) for row in pairwise(*lists.values(), exhaustive=False)]


# Many classes around a pixel; windows wider than a row of pixels that is computed at once; more classes than pixels.
MANY: Row = {
    "size": ((12, 12), (15, 15)),
    "batch": 2,
    "channels": 150,
    "multilabel": False,
    "logits_by_classes": 10**9,
    "dtype": torch.float32,
    "labels": "noise",
    "void": 0.1,
    "logits": "normal",
    "resolution": "same",
    "radius": 15,
    "decay": 2.0,
    "edge_weight": 1.0,
    "reduction": "mean",
}
WIDE = MANY | {"size": ((3, 3), (300, 300)), "channels": 3, "labels": "halves", "radius": 150}
# A step between two labels, as far as groups of 8 pixels see, and further.
STEP = MANY | {"size": ((4, 4), (33, 33)), "channels": 3, "labels": "halves", "void": 0.0, "batch": 1}
LARGE = MANY | {"size": ((34, 34), (65, 65)), "channels": 19, "radius": 9, "decay": None}
ROWS = rows()
ROWS += [ROWS[0] | given | {"power": power} for given in (MANY, WIDE) for power in (0.0, -1.0)]
ROWS += [ROWS[0] | STEP | {"power": 0.0, "radius": radius} for radius in (4, 5, 7, 8, 9, 16, 17)]
# Groups of 8 pixels that are wider than the image, behind which there is nothing, next to pixels of two classes.
ROWS += [ROWS[0] | STEP | {"size": ((2, 2), (73, 73)), "power": 0.0, "radius": 11}]
ROWS += [ROWS[1] | LARGE]
# Tables of each class of each image: of more classes than an image has pixels, and of more images than there are cores.
FOCUSED = MANY | {"radius": 1, "decay": None, "power": 0.0, "edge_class_weight": "balanced", "edge_focus": 8.0}
CLASSES = FOCUSED | {"channels": 1000, "size": ((12, 12), (14, 14)), "normalizer": None}
IMAGES = FOCUSED | {"batch": 1024, "size": ((7, 7), (5, 8)), "channels": 3, "normalizer": None}
ROWS += [
    ROWS[2] | CLASSES | {"normalizer": n, "dtype": d} for n, d in ((None, torch.float32), ("counts", torch.float64))
]
ROWS += [ROWS[3] | IMAGES | {"reduction": reduction} for reduction in ("mean", "sum", "none")]
ROWS += [ROWS[4] | IMAGES | {"multilabel": True, "channels": 2}]
# A gradient that half precision holds only after a gradient scaler's factor.
SCALED = MANY | {"size": ((24, 24), (30, 30)), "channels": 5, "dtype": torch.float16, "radius": 1}
ROWS += [ROWS[0] | SCALED | {"upstream": 65536.0, "power": 0.0, "region_weight": 3.0}]
EMPTY = itertools.cycle([(0, 5), (4, 0), (0, 0), (0, 3, 3), (2, 0, 3), (2, 3, 0)])
ROWS += [row | {"size": [(n, n) for n in size], "batch": 2} for row, size in zip(ROWS[::4], EMPTY, strict=False)]
ROWS += [ROWS[0] | {"channels": n, "labels": "halves", "void": 0.0, "target": torch.bool} for n in (1, 2)]
# Where loops over pixels take little time.
SMALL_ROWS = rows(
    size=[((1, 3), (1, 9)), ((5, 6), (5, 7)), ((7, 9), (15, 22)), ((1, 3), (1, 3), (1, 4)), ((7, 7), (8, 8), (8, 10))],
    channels=[1, 2, 3, 5],
    dtype=[torch.float64],
    logits=["normal", "rounded", "sure"],
    gap=[12.0],
)
# The kernels of GPUs in Triton's interpreter, which takes seconds for each: a few of what they serve.
TRITON_ROWS = rows(
    size=[((7, 7), (8, 8)), ((12, 12), (14, 14)), ((7, 7), (7, 8), (8, 10))],
    channels=[1, 2, 4],
    dtype=[torch.float32, torch.bfloat16, torch.float64, torch.float16],
    labels=["noise", "areas"],
    layout=["contiguous", "channels last", "transposed"],
    target_layout=["contiguous"],
    radius=["near"],
    **ON_GPU,
)
IN_CI = EXHAUSTIVE or os.environ.get("CI") == "true"
# Some of them at every change, as each takes seconds.
OF_TRITON = TRITON_ROWS if EXHAUSTIVE else TRITON_ROWS[:: 4 if IN_CI else 20]
# Averages of three rows have a part without any, and the class that is ignored has neither maps nor a term.
THREE = MANY | {"size": ((9, 9), (12, 12)), "batch": 1, "channels": 4, "void": 0.0, "radius": "near", "decay": None}
OF_TRITON += [TRITON_ROWS[0] | THREE | {"ignore_index": 1, "region_weight": 3.0, "validate": "sync"}]
if IN_CI:  # the interpreter takes a second for each class or image
    OF_TRITON += [TRITON_ROWS[1] | CLASSES | {"channels": 33, "size": ((7, 7), (8, 8)), "batch": 1}]
    OF_TRITON += [TRITON_ROWS[2] | IMAGES | {"batch": 20, "size": ((3, 3), (4, 4))}]
AGREEING = OF_TRITON if INTERPRETED else (ROWS + SMALL_ROWS)[:: 1 if IN_CI else 3]
# Logits that nothing may read, and what is asked of a call: outside CI some, as each is a call more.
CALLS: list[dict[str, Any]] = [{"unread": torch.nan}, {"unread": -torch.inf, "returns": ("terms",)}]
if EXHAUSTIVE or (IN_CI and not INTERPRETED):
    CALLS += [{"unread": torch.inf}, {"returns": ("terms",), "has_gradient": False}]
# The kernels of nvcc are for other powers, and no column of this suite.
WITH_POWER = [] if INTERPRETED else [i for i, row in enumerate(AGREEING) if row["power"]]
SLACK = 2  # times the limits of the fuzzer, which draws fewer classes for large images
MAPS = "cross_entropy", "same_side", "other_side", "edge_mask"
LOOSE = 1e-10  # loops subtract and exponentiate without care


@cache
def solved(number: int) -> tuple[Case, Callable[[int], Answer]]:
    """Return the case of a row of those that agree, and what the oracle answers."""
    case = make_case(AGREEING[number])
    return case, cache(case.answer)


def check(number: int, column: Column, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the results of a column with the oracle, for several values of the logits of ignored pixels."""
    case, answer = solved(number)
    if case.x.numel() < 5000:  # values and pairs at once, in plain PyTorch
        monkeypatch.setattr(parts, "PART", (parts.PART, 1, 400)[number % 3])
        monkeypatch.setattr(neighborhoods, "PART", (neighborhoods.PART, 3000)[number % 2])
    for asked in CALLS:
        returns = (*["maps"] * (column == Column("reference")), *asked.get("returns", ()))
        found = run(replace(case, **asked | {"returns": returns}), answer(0).is_read, column.loss)
        errors = compare(case, answer, found, by_torch=column.is_plain(case.options))
        assert max(errors.values()) <= SLACK * LIMITS[case.upstream.dtype], f"{errors}, in roundings, of\n{case}"


@each_column
@pytest.mark.parametrize("number", range(len(AGREEING)))
def test_every_column_agrees_with_long_doubles(number: int, column: Column, monkeypatch: pytest.MonkeyPatch) -> None:
    check(number, column, monkeypatch)


@pytest.mark.parametrize("number", WITH_POWER)
def test_the_edge_terms_of_cuda_agree(number: int, stepped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    solved(number)
    monkeypatch.setattr(operators, "of_library", stepped)
    monkeypatch.setattr(reference, "edge_terms", evaluate.pair_terms)
    check(number, Column("reference"), monkeypatch)


# -------------------------------------------------------------------------------------------------------------- loops


def class_weights(given: Any, shape: tuple[int, int]) -> Any:
    """Return class weights [T, K] of each table of classes; "balanced" as it is."""
    if isinstance(given, str):
        return given
    values = np.ones(1) if given is None else given
    return np.broadcast_to(values[:, None] if shape[0] > 1 and values.ndim == 1 else values, shape)


@pytest.mark.parametrize("row", SMALL_ROWS, ids=[*range(len(SMALL_ROWS))])
def test_long_doubles_agree_with_loops(row: Row) -> None:
    case = make_case(row)
    answer, (x, y, options) = case.answer(), case.arguments()
    multilabel, size = options["multilabel"], y.shape[2 - x.ndim :]
    low = torch.from_numpy(np.where(answer.is_read, x, 0))
    x = F.interpolate(low, size, mode="bilinear" if len(size) == 2 else "trilinear").numpy()
    shape = (x.shape[1], 2) if multilabel else (1, max(2, x.shape[1]))
    options["ignore_index"] = -100 if options["ignore_index"] is None else options["ignore_index"]
    y = np.where((y >= 0) & (y < shape[1]), y, options["ignore_index"])  # loops know no labels out of range
    given = {name: options[name] for name in ("ignore_index", "power", "decay", "spacing", "label_smoothing")}
    given["radius"] = tuple(min(r, n) for r, n in zip(options["radius"], size, strict=True))
    weight, images = class_weights(options["weight"], shape), [*np.ndindex(y.shape[: 1 + multilabel])]
    maps = [
        brute_force.maps(
            x[image][None] if multilabel else x[image],
            y[image],
            weight=weight[image[1] if multilabel else 0].tolist(),
            distance=None if options["distance"] is None else options["distance"][image],
            **given,
        )
        for image in images
    ]
    by_name = {name: np.reshape([each[name] for each in maps], y.shape) for name in MAPS}
    for name, values in by_name.items():
        exact, unit = answer.maps[name]
        assert (abs(values - exact) <= LOOSE * (unit + 1)).all(), f"{name} of\n{case}"
    given = {"ignore_index": options["ignore_index"], "multilabel": multilabel}
    regions = [brute_force.region(image, labels, **given) for image, labels in zip(x, y, strict=True)]
    one = torch.ones((), dtype=torch.float64)
    for image, labels, expected in zip(x, y, regions, strict=True):
        alone = Case(
            torch.from_numpy(image[None]), torch.from_numpy(labels[None]), {"region_weight": 1.0, **given}, one
        )
        assert float(alone.answer().terms["region"][0]) == pytest.approx(expected, rel=1e-9, abs=1e-11)
    split = (len(y), shape[0], *size)
    v = np.ones(1) if options["pixel_weight"] is None else options["pixel_weight"]
    loss = brute_force.loss(
        {name: values.reshape(split) for name, values in by_name.items()},
        regions if options["region_weight"] else [0.0] * len(y),
        y.reshape(split),
        v=np.broadcast_to(v if v.ndim == y.ndim else v[:, None] if v.ndim > 1 else v, y.shape).reshape(split),
        weight=weight,
        edge_class_weight=class_weights(options["edge_class_weight"], shape),
        options=options,
    )
    exact, unit = answer.loss
    assert (abs(np.reshape(loss, np.shape(exact)) - exact) <= LOOSE * (unit + 1)).all(), f"the loss of\n{case}"


# ------------------------------------------------------------------------------------------------------------- weights


def of_weights(x: Tensor, y: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the mean of the edge terms by the weights that labels give to pixels."""
    multilabel, count = options["multilabel"], x.shape[1] if options["multilabel"] else max(2, x.shape[1])
    given = {name: options[name] for name in inspect.signature(edge_weights).parameters if name in options}
    a, n, k, b, total = edge_weights(y, count, **given)
    torch.testing.assert_close(b.sum(), total)
    assert a.sum() <= total * (1 + 1e-9)  # less by edge pixels without a neighbor of their own class
    x = x.flatten(0, 1)[:, None] if multilabel else x
    x = torch.cat([torch.zeros_like(x), x], 1) if x.shape[1] == 1 else x
    assert ((n * x.shape[1] + k).diff() > 0).all()  # each pair once
    log_p = x.movedim(1, -1).flatten(0, -2).log_softmax(1)
    own = a.flatten().nonzero().squeeze(1)
    same_side = torch.dot(a.flatten()[own], log_p[own, y.flatten()[own].long()])
    other_side = torch.dot(b, log_p[n].scatter(1, k[:, None], -torch.inf).logsumexp(1))
    sums = options["same_side_weight"] * same_side + options["other_side_weight"] * other_side
    return -options["edge_weight"] * sums / total.clamp(min=1e-300)


@pytest.mark.parametrize("row", SMALL_ROWS[::2], ids=[*range(0, len(SMALL_ROWS), 2)])
def test_weights_from_labels_give_the_edge_terms(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"logits": "normal", "resolution": "same", "power": 0.0, "reduction": "mean", "normalizer": None}
    asked |= {"validate": "sync", "ce_weight": 0.0, "region_weight": 0.0, "edge_focus": 0.0}
    case = make_case(row | asked)
    monkeypatch.setattr(neighborhoods, "PART", 3 if case.y.numel() < 50 else neighborhoods.PART)  # pairs at a time
    found = run(case, case.answer().is_read, lambda x, y, **options: of_weights(x, y, options))
    errors = compare(case, case.answer, found, by_torch=True)
    assert max(errors.values()) <= 1e6, f"{errors}, in roundings, of\n{case}"
