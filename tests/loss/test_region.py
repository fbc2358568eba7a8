"""The region term: its properties and limits; the agreement suite compares its values and gradients with loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pairwise import pairwise
from torch import Tensor

from edgeloss.functional import edge_aware_loss

VOID = 255
ALONE: dict[str, Any] = {"ce_weight": 0.0, "edge_weight": 0.0, "region_weight": 1.0, "ignore_index": VOID}
by_backend = pytest.mark.usefixtures("each_backend")


def alone(x: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Return the region term, without the others."""
    return edge_aware_loss(x, y, **ALONE | options)


@by_backend
@pytest.mark.parametrize(("classes", "size"), [(2, 64), (4, 128), pytest.param(19, 256, marks=pytest.mark.slow)])
def test_scale_is_that_of_shares_at_any_size(size: int, classes: int) -> None:
    y = torch.randint(classes, (1, size // 8, size // 8)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    noise = torch.randn(1, classes, size, size, dtype=torch.float64)
    right = F.one_hot(y, classes).movedim(-1, 1).double()
    cases = {"labels": 60 * right, "clear": 20 * right, "good": 3 * right + noise, "moved": 30 * right.roll(2, 3)}
    cases |= {"inverted": -20 * right, "noise": noise, "constant": 0 * noise}
    values = {name: alone(x, y).item() for name, x in cases.items()}
    assert values["labels"] == pytest.approx(0, abs=1e-6)
    assert values["clear"] == pytest.approx(0, abs=1e-4)
    assert 0.6 < values["good"] < 0.85
    assert values["moved"] > 0.1  # by two pixels
    assert 1.2 < values["inverted"] < 2  # a linear map turns it around, and the sign tells it from the labels
    assert 0.99 < values["noise"] < 1.01
    assert 0.99 < values["constant"] <= 1.001  # not constant by the zeros around the image


@by_backend
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_the_term_falls_from_inverted_to_right(classes: int) -> None:
    y = torch.randint(max(2, classes), (1, 8, 8)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    right = F.one_hot(y, max(2, classes)).movedim(-1, 1).double()
    right = right[:, 1:] - 0.5 if classes == 1 else right
    values = [alone(gap * right, y).item() for gap in (-60.0, -6.0, -1.0, -0.2, 0.2, 1.0, 6.0, 60.0)]
    assert values == sorted(values, reverse=True)
    assert values[3] > 1 > values[4]  # with little contrast, too
    assert values[-1] == pytest.approx(0, abs=1e-6)


@by_backend
@pytest.mark.parametrize(("size", "multilabel"), pairwise([(7, 7), (12, 13), (40, 30), (7, 8, 9)], [False, True]))
def test_range(size: tuple[int, ...], multilabel: bool) -> None:
    cases = torch.tensor([*itertools.product((-30.0, -1.0, 0.0, 1.0, 30.0), (0.0, 1.0, 10.0))], dtype=torch.float64)
    y = torch.randint(2 if multilabel else 3, (8 * len(cases), *[3] * multilabel, *size))
    label = (2 * y - 1).double() if multilabel else F.one_hot(y, 3).movedim(-1, 1).double()
    gap, noise = cases.repeat(8, 1).view(-1, 2, *(1,) * (label.dim() - 1)).unbind(1)
    values = alone(gap * label + noise * torch.randn_like(label), y, multilabel=multilabel, reduction="none")
    assert (values >= 0).all()
    assert (values <= 2).all()


@by_backend
@pytest.mark.parametrize("shape", ["pixel", "line"])
def test_more_contrast_than_the_labels_hides_nothing(shape: str) -> None:
    # A pixel or a line, of any place below the averages, drawn three pixels wide: with equal noise the term is -0.26.
    places = [*itertools.product(range(30, 33), range(21, 24))]
    y = torch.zeros(len(places), 60, 50, dtype=torch.int64)
    for image, (row, column) in zip(y, places, strict=True):
        image[row if shape == "pixel" else slice(5, 50), column] = 1
    thick = F.max_pool2d(y[:, None].double(), 3, 1, 1)
    for high in (-2.0, 1.0, 8.0, 30.0):
        assert (alone(torch.where(thick > 0, high, -8.0), y, reduction="none") > 0).all()


@by_backend
@pytest.mark.parametrize("size", [(7, 10), (10, 13), (7, 7, 10)])
def test_a_single_pixel_has_a_whole_term_or_none(size: tuple[int, ...]) -> None:
    places = [place for place in np.ndindex(size) if len(size) == 2 or sum(place) % 3 == 0]
    y = torch.zeros(len(places), *size, dtype=torch.int64)
    for image, place in zip(y, places, strict=True):
        image[place] = 1
    values = alone(torch.full_like(y[:, None], -1e3, dtype=torch.float64), y, reduction="none").flatten(1).mean(1)
    assert ((values - 1).abs().minimum(values.abs()) < 1e-12).all()
    assert (values > 0.5).sum() > len(y) / 2


def shapes(size: int) -> Tensor:
    """Return labels of squares in a corner, lines, a pixel and a ring, [N, size, size]."""
    y = torch.zeros(7, size, size, dtype=torch.int64)
    y[0, :3, :3] = 1
    y[1, 0] = 1
    y[2, size // 2] = 1
    y[3, 6, 7] = 1
    y[4].diagonal()[2:] = 1
    y[5, 3:13, 4:12] = 1
    y[5, 5:11, 6:10] = 0
    y[6, size // 2 :] = 1
    return y


# Pixels of the first three, wrong at a minimum below the labels of a term that may be less than 0.
LOWER = {0: [(0, 0), (2, 3)], 1: [(0, 0), (0, 14)], 2: [(8, 0), (8, 1)]}


def drawings(right: Tensor, count: int) -> Tensor:
    """Return labels, drawn thicker and thinner, and with one to four pixels wrong, most of them around edges."""
    thick, thin = (F.max_pool2d(y[None].double(), 3, 1, 1)[0].long() for y in (right, 1 - right))
    around = (thick + thin - 1 + 0.02).flatten().expand(count, -1)
    wrong = torch.zeros(count, right.numel(), dtype=torch.int64)
    for rows in range(1, 5):
        wrong[rows - 1 :: 4].scatter_(1, around[rows - 1 :: 4].multinomial(rows), 1)
    return torch.cat([torch.stack([right, thick, 1 - thin]), right ^ wrong.view(count, *right.shape)])


@by_backend
@pytest.mark.parametrize("gap", [8.0, 16.0, 30.0])
def test_no_labelling_that_is_sure_is_below_the_labels(gap: float) -> None:
    # Of labels that are not sure themselves, such as with a gap of 4, more contrast in wrong places may be better.
    for shape, right in enumerate(shapes(16)):
        drawn = drawings(right, 150)
        for place in LOWER.get(shape, []):
            drawn[-1][place] = 1 - right[place]
        x, y = gap * (2.0 * drawn[:, None].double() - 1), right.expand_as(drawn)
        values = edge_aware_loss(x, y, reduction="none").flatten(1).sum(1)
        assert values[1:].min() > values[0]


@by_backend
@pytest.mark.parametrize(("gap", "is_above"), [(6.0, False), (8.0, False), (10.0, True), (16.0, True)])
def test_a_wrong_pixel_next_to_an_isolated_one_in_a_large_image(gap: float, is_above: bool) -> None:
    # docs/loss.md names them. Both pixels are in one average, and both have twice the contrast.
    y = torch.zeros(1, 256, 256, dtype=torch.int64)
    y[0, 85, 85] = 1
    wrong = y.clone()
    wrong[0, 83, 83] = 1
    of_labels, of_wrong = (
        edge_aware_loss(gap * F.one_hot(drawn, 2).movedim(-1, 1).double(), y) for drawn in (y, wrong)
    )
    assert (of_wrong > of_labels) == is_above
    if gap == 6:
        assert (round(of_labels.item(), 2), round(of_wrong.item(), 2)) == (0.08, 0.02)


@by_backend
@pytest.mark.parametrize(("size", "gap"), pairwise([(510, 511), (31, 2048), (22, 64, 90)], [0.0, 10.0, 20.0]))
@pytest.mark.slow
def test_large_images_in_float32(size: tuple[int, ...], gap: float) -> None:
    y = torch.zeros(1, *size, dtype=torch.int64).masked_fill(torch.rand(1, *size) < 0.03, 1)
    x = (gap * (2.0 * y - 1) + torch.randn(y.shape))[:, None]
    x[..., ::5] *= -1  # wrong ones are among them
    results = []
    for logits, backend in ((x.double(), "reference"), (x, "auto")):
        value = alone(logits.requires_grad_(), y, backend=backend)
        results.append((value.double(), *(each.double() for each in torch.autograd.grad(value, logits))))
    (expected, slopes), (value, found) = results
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, slopes, rtol=1e-4, atol=1e-6 * float(slopes.abs().max()))
