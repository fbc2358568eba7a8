"""The region term: its values, properties and limits, of the fused kernels and in plain PyTorch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import brute_force
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import backends, parts
from edgeloss.functional import edge_aware_loss

VOID = 255
ALONE: dict[str, Any] = {"ce_weight": 0.0, "edge_weight": 0.0, "region_weight": 1.0, "ignore_index": VOID}
# 9, 12 and 15 have a last pixel without an average; with 7 pixels an axis has one place of a region.
SIZES = [(7, 22), (12, 15), (16, 11), (7, 8, 13), (9, 11, 10)]
BACKENDS = [
    "reference",
    pytest.param("fused", marks=pytest.mark.skipif(backends()["cpu"] != "available", reason="no fused kernels")),
]

by_backend = pytest.mark.parametrize("backend", BACKENDS)


def scene(size: tuple[int, ...], classes: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Return logits that tend to the labels, and labels of which a tenth is ignored."""
    y = torch.randint(max(2, classes), (batch, *size))
    x = 2 * torch.randn(batch, classes, *size, dtype=torch.float64)
    is_class = y[:, None] == (torch.arange(classes) if classes > 1 else torch.ones(1)).view(-1, *[1] * len(size))
    y[torch.rand(y.shape) < 0.1] = VOID
    return x + 2 * is_class, y


def alone(x: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Return the region term, without the others."""
    return edge_aware_loss(x, y, **ALONE | options)


def gradient(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), x)[0]


def by_loops(x: Tensor, y: Tensor) -> list[float]:
    return [brute_force.region(a.detach().numpy(), b.numpy(), ignore_index=VOID) for a, b in zip(x, y, strict=True)]


# ---------------------------------------------------------------------------------------------------------- the values


@by_backend
@pytest.mark.parametrize("present", ["all", "some"])
@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("size", SIZES)
def test_values(size: tuple[int, ...], classes: int, present: str, backend: str) -> None:
    x, y = scene(size, classes)
    if present == "some":  # one image lacks a class, and one has a single pixel of another one
        y[0][y[0] == classes - 1] = 0
        y[1] = 0
        y[(1, *(3 for _ in size))] = 1
    expected, valid = by_loops(x, y), (y != VOID).flatten(1).sum(1).tolist()
    assert max(expected) > 0.005
    mean = sum(n * r for n, r in zip(valid, expected, strict=True)) / sum(valid)
    assert alone(x, y, backend=backend).item() == pytest.approx(mean, rel=1e-9)


@by_backend
@pytest.mark.parametrize("contrast", [0.5, 3.0])
def test_two_regions_by_hand(contrast: float, backend: str) -> None:
    # One region above the other would be equal; the two next to each other differ by the vectors δ of q and z, so that
    # each scatter matrix has one eigenvalue ½|δ|². Rows average 2/3, 1 and 2/3 of what is in the image. The labels have
    # one column of class 1, below the last average, and the prediction has some of the three below the one before it.
    y = torch.zeros(1, 7, 10, dtype=torch.int64)
    y[..., 9] = 1
    x = torch.full((1, 1, 7, 10), -1e3, dtype=torch.float64)
    x[..., 5:8] = math.log(contrast / 4 / (1 - contrast / 4))
    rows, a = (4 + 9 + 4) / 9, 5e-4
    of_z = rows * (1 / 3) ** 2 / 2  # 0, 0, 0 and 0, 0, 1/3 by column
    of_q = rows * 2 * (contrast / 4) ** 2 / 2  # 0, 0, s and 0, s, 0
    of_noise = a * max(1.0, of_q / of_z)
    left, known = math.log(1 + of_z / a * of_noise / (of_q + of_noise)), math.log(1 + of_z / a)
    floor = math.log(2 - a / (of_z + a))
    assert (of_q > of_z) == (contrast > 1)
    expected = (left - floor) / (known - floor)
    assert alone(x, y, backend=backend).item() == pytest.approx(expected, rel=1e-6)


def logits_of(y: Tensor, gap: float, classes: int) -> Tensor:
    """Return float64 logits that are larger by ``gap`` for the label."""
    return gap * F.one_hot(y, classes).movedim(-1, 1).double()


def blocks(size: int, classes: int, batch: int = 1) -> Tensor:
    """Return labels in squares of 8 × 8 pixels."""
    y = torch.randint(classes, (batch, size // 8, size // 8))
    return y.repeat_interleave(8, 1).repeat_interleave(8, 2)


@by_backend
@pytest.mark.parametrize("classes", [2, 4, 19])
@pytest.mark.parametrize("size", [64, 128, 256])
def test_scale_is_that_of_shares_at_any_size(size: int, classes: int, backend: str) -> None:
    y = blocks(size, classes)
    noise = torch.randn(1, classes, size, size, dtype=torch.float64)
    cases = {
        "labels": logits_of(y, 60, classes),
        "clear": logits_of(y, 20, classes),
        "good": logits_of(y, 3, classes) + noise,
        "noise": noise,
        "constant": torch.zeros_like(noise),
        "inverted": logits_of(y, -20, classes),
    }
    values = {name: alone(x, y, backend=backend).item() for name, x in cases.items()}
    assert values["labels"] == pytest.approx(0, abs=1e-6)
    assert values["clear"] == pytest.approx(0, abs=1e-4)
    assert 0.6 < values["good"] < 0.85
    assert 0.99 < values["noise"] < 1
    assert 0.99 < values["constant"] < 1  # not constant by the zeros around the image
    assert 0.1 < values["inverted"] < 0.8  # a linear map turns it around: the term is not a measure of correctness


@by_backend
def test_better_predictions_have_a_lower_value(backend: str) -> None:
    y = torch.zeros(1, 24, 30, dtype=torch.int64)
    y[0, 6:15, 8:21] = 1
    right = 2.0 * F.one_hot(y, 2).movedim(-1, 1).double() - 1
    noise = torch.randn(right.shape, dtype=torch.float64)
    values = [alone(3 * right * share + noise, y, backend=backend).item() for share in (0, 0.3, 0.6, 1, 3, 30)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.9
    assert values[-1] == pytest.approx(0, abs=1e-9)
    # Labels that the logits shift by two pixels are explained less.
    assert alone(30 * right.roll(2, 3), y, backend=backend) > 0.1


@by_backend
@pytest.mark.parametrize("shape", ["pixel", "line"])
def test_more_contrast_than_the_labels_hides_nothing(shape: str, backend: str) -> None:
    # A pixel or a line, of any place below the averages, drawn three pixels wide: with equal noise the term is -0.26.
    values = []
    for row, column in itertools.product(range(30, 33), range(21, 24)):
        y = torch.zeros(1, 60, 50, dtype=torch.int64)
        y[0, row if shape == "pixel" else slice(5, 50), column] = 1
        thick = F.max_pool2d(y[:, None].double(), 3, 1, 1)
        values += [
            alone(torch.where(thick > 0, high, -8.0), y, backend=backend).item() for high in (-2.0, 1.0, 8.0, 30.0)
        ]
    assert min(values) > -1e-4


def test_training_does_not_thicken_isolated_pixels() -> None:
    y = torch.zeros(1, 40, 46, dtype=torch.int64)
    for row, column in itertools.product(range(4, 36, 10), range(3, 43, 10)):
        y[0, row, column] = 1
    y[0, 22] = 1
    x = (8.0 * y[:, None].double() - 4).requires_grad_()
    optimizer = torch.optim.SGD([x], lr=0.5 * y.numel())
    for _ in range(200):
        optimizer.zero_grad()
        edge_aware_loss(x, y, edge_weight=0.0, region_weight=3.0).backward()
        optimizer.step()
    assert ((x[:, 0] > 0) == (y == 1)).all()


@by_backend
@pytest.mark.parametrize("size", [(13, 16), (7, 8, 10)])
def test_one_logit_equals_two_and_a_constant_changes_nothing(size: tuple[int, ...], backend: str) -> None:
    x, y = scene(size, 1)
    value = alone(x, y, backend=backend)
    assert value > 0.001
    two = torch.cat([torch.zeros_like(x), x], 1) + 5 * torch.randn(2, 1, *size, dtype=torch.float64)
    torch.testing.assert_close(alone(two, y, backend=backend), value, rtol=1e-9, atol=0)


@by_backend
@pytest.mark.parametrize("size", [(7, 10), (10, 13), (7, 7, 10)])
def test_a_single_pixel_has_a_whole_term_or_none(size: tuple[int, ...], backend: str) -> None:
    x = torch.full((1, 1, *size), -1e3, dtype=torch.float64)
    places = [place for place in np.ndindex(size) if len(size) == 2 or sum(place) % 3 == 0]
    y = torch.zeros(len(places), *size, dtype=torch.int64)
    for image, place in zip(y, places, strict=True):
        image[place] = 1
    values = torch.stack([alone(x, labels[None], backend=backend) for labels in y])
    assert ((values - 1).abs().minimum(values.abs()) < 1e-12).all()
    assert (values > 0.5).sum() > len(y) / 2


@by_backend
@pytest.mark.parametrize("size", [(9, 12), (12, 31), (7, 9, 12)])
def test_the_last_pixel_of_a_multiple_of_three_has_no_average(size: tuple[int, ...], backend: str) -> None:
    x, y = scene(size, 3)
    y[y == VOID] = 0
    x.requires_grad_()
    found = gradient(alone(x, y, backend=backend), x)
    for axis, length in enumerate(size, 2):
        assert found.select(axis, length - 1).any() == (length % 3 != 0)
        assert found.select(axis, length - 2).any()


# -------------------------------------------------------------------------------------------------------- the gradients


@by_backend
@pytest.mark.parametrize(("size", "classes"), [((8, 10), 1), ((9, 8), 3), ((7, 8, 10), 1)])
def test_gradcheck(size: tuple[int, ...], classes: int, backend: str) -> None:
    x, y = scene(size, classes, batch=1 if len(size) == 3 else 2)
    v = torch.rand(y.shape).double()
    # The whole Jacobian, not a random projection, in 2-D.
    assert torch.autograd.gradcheck(
        lambda x: alone(x, y, pixel_weight=v, backend=backend), x.requires_grad_(), fast_mode=len(size) == 3, atol=1e-7
    )


@pytest.mark.parametrize("part", [1, parts.PART])
def test_second_derivatives_of_the_reference(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", part)
    x, y = scene((7, 13), 2)
    x.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: alone(x, y, backend="reference"), x, fast_mode=True, atol=1e-5)


@by_backend
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("size", [(10, 13), (7, 8, 10)])
def test_parts_have_the_same_values_and_gradients(
    size: tuple[int, ...], classes: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = scene(size, classes, batch=5)
    results = []
    for part in (parts.PART, 1, 3 * 2 * y[0].numel()):  # all images at once, each of its own, pairs
        monkeypatch.setattr(parts, "PART", part)
        logits = x.clone().requires_grad_()
        value = edge_aware_loss(logits, y, ignore_index=VOID, region_weight=2.0, backend=backend)
        results.append((value.detach(), gradient(value, logits)))
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-12, atol=1e-18)


@by_backend
@pytest.mark.parametrize("size", [(1, 1), (6, 30), (30, 6), (6, 8, 9), (9, 8, 6), (7, 8, 9)])
def test_images_without_two_regions(size: tuple[int, ...], backend: str) -> None:
    x, y = scene(size, 3)
    value = alone(x.requires_grad_(), y, backend=backend)
    torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(value, x), torch.zeros_like(x), rtol=0, atol=1e-12)


@by_backend
@pytest.mark.parametrize("fill", [math.nan, 1e5])
def test_nan_on_a_valid_pixel_shows(fill: float, backend: str) -> None:
    x, y = scene((10, 13), 3)
    y[1] = VOID
    y[0, 4, 5] = 1
    x[0, 1, 4, 5] = fill
    terms = edge_aware_loss(x, y, **ALONE, backend=backend, return_terms=True)[1]
    assert terms["region"].isnan() == math.isnan(fill)
    assert alone(x.requires_grad_(), y, backend=backend).isnan() == math.isnan(fill)


@by_backend
def test_labels_out_of_range_are_ignored_or_raise(backend: str) -> None:
    x, y = scene((10, 13), 3)
    wrong = y.where(y != VOID, 7)
    given: dict[str, Any] = {"backend": backend, "ignore_index": None}
    with pytest.raises(ValueError, match="expected labels 0 to 2"):
        alone(x, wrong, **given)
    torch.testing.assert_close(alone(x, wrong, **given, validate="never"), alone(x, y, backend=backend), rtol=0, atol=0)
