"""Losses of other authors and negative controls: against their formulas, one pixel at a time or by hand."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from baselines.boundary_dou import boundary_dou
from baselines.control import edge_weights
from baselines.frequencies import class_pixels, class_prior, median_frequency_weight
from baselines.recipes import Progress, make
from baselines.regions import cldice, dice
from baselines.rmi import rmi
from baselines.soft_labels import relaxed_cross_entropy, smoothed_cross_entropy
from baselines.unet_weights import unet_weights
from edgeloss.functional import edge_aware_loss

VOID = 255
LN = math.log


@pytest.fixture
def scene() -> tuple[Tensor, Tensor]:
    """Return logits and labels of two images with three classes and void."""
    target = torch.zeros(2, 14, 11, dtype=torch.int64)
    target[0, 3:8, 2:7] = 1
    target[0, 9:, 5:] = 2
    target[1, :, 6:] = torch.randint(3, (14, 5))
    target[:, :2, :3] = VOID
    return 2 * torch.randn(2, 3, 14, 11), target


def test_frequencies() -> None:
    # Class 0 has 3 and 4 pixels, class 1 has 1 in the first image alone, and class 2 has none.
    targets = [torch.tensor([[[0, 0, 0, 1, VOID]]]), torch.tensor([[[0, 0, 0, 0]]])]
    pixels = class_pixels(iter(targets), 3, VOID)
    torch.testing.assert_close(class_prior(pixels), torch.tensor([7.0, 1.0, 1.0]) / 9)
    # f = 7/8 and 1/4, with the median 9/16.
    torch.testing.assert_close(median_frequency_weight(pixels), torch.tensor([9 / 14, 9 / 4, 1]))
    logits = torch.tensor([[[[0.0]], [[LN(3)]]]])  # p = 1/4, 3/4
    loss = make("median_frequency", {}, VOID, targets=targets, num_classes=3)
    pixels = torch.cat([torch.cat([logits, logits], 3), torch.full((1, 1, 1, 2), -100.0)], 1)
    value = loss(pixels, torch.tensor([[[0, 1]]]), Progress()).item()
    assert value == pytest.approx((9 / 14 * LN(4) + 9 / 4 * LN(4 / 3)) / (9 / 14 + 9 / 4))


def test_logit_adjustment() -> None:
    # p ∝ (1, 3) · (3/4, 1/4)^τ
    targets = [torch.tensor([[[0, 0, 0, 1]]])]
    logits, target = torch.tensor([[[[0.0]], [[LN(3)]]]]), torch.tensor([[[1]]])
    for tau, p in ((1.0, 1 / 2), (2.0, 1 / 4), (0.0, 3 / 4)):
        loss = make("logit_adjusted", {"tau": tau}, VOID, targets=targets, num_classes=2)
        assert loss(logits, target, Progress()).item() == pytest.approx(-LN(p))


def test_frequencies_and_balance_share_the_labels() -> None:
    target = torch.tensor([[[0, 0, 0, 1]]])
    options = {"k": 3, "class_balance": 1}
    logits = torch.randn(1, 2, 1, 4)
    once, twice = (
        make("logit_adjusted", options, VOID, targets=targets, num_classes=2)(logits, target, Progress())
        for targets in (iter([target]), [target])
    )
    assert once == twice


@pytest.mark.parametrize("size", [(20, 17), (6, 9, 8)])
def test_unet_weights(size: tuple[int, ...]) -> None:
    # Of each pixel to each component of the other classes, by comparing all pixels.
    from scipy import ndimage

    labels = np.random.default_rng(0).choice(3, p=[0.92, 0.04, 0.04], size=size)
    labels.flat[:3] = VOID
    expected = np.zeros(size)
    for here in map(tuple, np.argwhere(labels != VOID).tolist()):
        for label in {0, 1, 2} - {labels[here]}:
            components, count = ndimage.label(labels == label, np.ones((3,) * len(size)))
            places = (np.argwhere(components == number) for number in range(1, count + 1))
            nearest = sorted(np.linalg.norm(place - here, axis=1).min() for place in places)
            if count > 1:
                expected[here] = max(expected[here], 10 * math.exp(-((nearest[0] + nearest[1]) ** 2) / (2 * 1.5**2)))
    assert (expected > 0.1).sum() > 20
    weights = unet_weights(torch.from_numpy(labels)[None], ignore_index=VOID, num_classes=3, w0=10, sigma=1.5)[0]
    torch.testing.assert_close(weights, torch.from_numpy(expected).float(), rtol=1e-5, atol=10 * math.exp(-8))


def neighbors(target: Tensor) -> Tensor:
    """Return the labels of the 3 × 3 neighbors [B, 9, H, W]; outside, those of the border."""
    padded = F.pad(target[:, None].double(), [1] * 4, mode="replicate")
    return F.unfold(padded, 3).view(len(target), 9, *target.shape[1:]).long()


def test_relaxed_labels(scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    near = torch.stack([(neighbors(target) == c).any(1) for c in range(3)], 1)
    expected = -(logits.softmax(1) * near).sum(1).log().masked_fill(target == VOID, 0)
    actual = relaxed_cross_entropy(logits, target, ignore_index=VOID)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_spatially_varying_label_smoothing(scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    weight = torch.exp(-torch.tensor([2, 1, 2, 1, 0, 1, 2, 1, 2]) / 2)
    weight /= weight.sum()
    weight[4] = 1 - weight[4]  # the sum of the others in the center
    soft = torch.stack([((neighbors(target) == c) * weight[:, None, None]).sum(1) for c in range(3)], 1)
    expected = -(soft / soft.sum(1, keepdim=True) * logits.log_softmax(1)).sum(1).masked_fill(target == VOID, 0)
    actual = smoothed_cross_entropy(logits, target, ignore_index=VOID, sigma=1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_boundary_dou(scene: tuple[Tensor, Tensor]) -> None:
    # As the authors: zeros around the image, a pixel is on the border if the cross of 5 pixels has not the sum 5.
    logits, _ = scene
    target = torch.zeros(2, 14, 11, dtype=torch.int64)
    target[0, 3:8, 2:7] = 1
    target[1, 5:7, 2:5] = 2
    p, t = logits.softmax(1), torch.stack([target == c for c in range(3)], 1).float()
    cross = torch.tensor([[0.0, 1, 0], [1, 1, 1], [0, 1, 0]]).expand(3, 1, 3, 3)
    is_border = (t > 0) & (F.conv2d(t, cross, padding=1, groups=3) != 5)
    border, area, squares, shared = (x.sum((0, 2, 3)) for x in (is_border, t, p**2 + t, p * t))
    alpha = (2 * (1 - (border + 1e-5) / (area + 1e-5)) - 1).clamp(max=0.8)
    expected = ((squares - 2 * shared + 1e-5) / (squares - (1 + alpha) * shared + 1e-5)).mean()
    torch.testing.assert_close(boundary_dou(logits, target, ignore_index=VOID), expected)
    # Next to void there is no border: of class 0 the pixel at its end, of class 1 none but those at the ends.
    target = torch.tensor([[[0, 0, VOID, 1, 1, 1]] * 3])
    perfect = 1000.0 * torch.stack([target == 0, target == 1], 1)
    assert boundary_dou(perfect, target, ignore_index=VOID).item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("size", [(14, 11), (8, 14, 11)])
def test_region_mutual_information(size: tuple[int, ...]) -> None:
    target = torch.randint(3, (2, *size))
    target[0, 2:4] = VOID
    logits = torch.randn(2, 3, *size) + 2 * torch.stack([target == c for c in range(3)], 1)
    p = torch.where((target == VOID)[:, None], 0, logits.sigmoid()).numpy().astype(float) + 1e-6
    t = torch.stack([target == c for c in range(3)], 1).numpy().astype(float)

    def regions(full: np.ndarray) -> np.ndarray:
        side, axes = (3,) * full.ndim, tuple(range(-full.ndim, 0))
        pooled = sliding_window_view(np.pad(full, 1), side)[(slice(None, None, 3),) * full.ndim].mean(axes)
        found = sliding_window_view(pooled, side).reshape(-1, 3**full.ndim)
        return (found - found.mean(0)).T

    expected, d = 0.0, 3 ** len(size)
    for image, c in product(range(2), range(3)):
        y, x = regions(t[image, c]), regions(p[image, c])
        inverse = np.linalg.inv(x @ x.T + 5e-4 * np.eye(d))
        matrix = y @ y.T - y @ x.T @ inverse @ x @ y.T + 5e-4 * np.eye(d)
        expected += 0.5 * np.linalg.slogdet(matrix)[1] / d / 2  # over d dimensions; the mean of two images
    assert rmi(logits, target, ignore_index=VOID).item() == pytest.approx(expected, rel=1e-4)


def test_terms_next_to_the_module(scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    alone, both = (make("module", options, VOID) for options in ({}, {"dice": 2}))
    added = 2 * dice(logits, target, ignore_index=VOID)
    torch.testing.assert_close(both(logits, target, Progress()), alone(logits, target, Progress()) + added)


def test_cldice_by_hand() -> None:
    # A line of 7 pixels, of which the prediction has 3. Both are their own skeletons: precision (3 + 1) / (3 + 1),
    # sensitivity (3 + 1) / (7 + 1). Dice: 1 - (2 · 3 + 1) / (3 + 7 + 1).
    target = torch.zeros(1, 7, 7, dtype=torch.int64)
    target[0, 3] = 1
    found = torch.zeros(1, 7, 7)
    found[0, 3, 2:5] = 1
    logits = 100 * torch.stack([1 - found, found], 1)
    loss = cldice(logits, target, ignore_index=VOID, thin_class=1)
    expected = (1 - 2 * 0.5 / 1.5 + 4 / 11) / 2
    assert loss.item() == pytest.approx(expected, abs=1e-4)
    assert cldice(logits, target, ignore_index=VOID) != loss  # with the background


def test_random_weights_change_with_the_step(scene: tuple[Tensor, Tensor]) -> None:
    _, target = scene
    loss = make("random", {"k": 4}, VOID)
    values = [loss(*scene, Progress(step, 10)) for step in (0, 0, 1)]
    assert values[0] == values[1] != values[2]
    edges = edge_weights(target, ignore_index=VOID, k=4)
    drawn = [edge_weights(target, ignore_index=VOID, k=4, draw=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], edges)
    assert torch.equal((drawn[0] == 5).sum((1, 2)), (edges == 5).sum((1, 2)))
    assert torch.equal(drawn[0] == 0, target == VOID)


def test_shifted_edges(scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    options = {"edge_weight": 2.0, "class_balance": 1}
    labels = {"targets": [target], "num_classes": 3}
    unmoved = make("shifted", {**options, "shift": 0}, VOID, **labels)(logits, target, Progress())
    torch.testing.assert_close(unmoved, make("ours", options, VOID, **labels)(logits, target, Progress()))
    moved = target.clone()
    moved[:, 1:, 1:] = target[:, :-1, :-1]
    moved[:, 1:, 0], moved[:, 0, 1:] = target[:, :-1, 0], target[:, 0, :-1]
    moved[target == VOID] = VOID
    alone: dict[str, Any] = {"ignore_index": VOID, "edge_class_weight": None, "edge_focus": 0, "region_weight": 0}
    expected = edge_aware_loss(logits, target, edge_weight=0, **alone)
    expected += edge_aware_loss(logits, moved, ce_weight=0, **alone)
    torch.testing.assert_close(make("shifted", {}, VOID)(logits, target, Progress()), expected)
