"""Figures besides the loss: scores of a set, gradient shares of the terms, and the worst images."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss, metrics
from segkit.scores import BY_CLASS, ImageFigures, WorstImages, flatten, gradient_shares, validation_metrics

VOID = 255
CLASSES = ["a", "b", "c", "never"]


def scene(batch: int = 3) -> tuple[Tensor, Tensor]:
    """Return logits of 4 classes, of which the last never occurs, and a target with void pixels and edges."""
    target = torch.randint(3, (batch, 4, 5)).repeat_interleave(6, 1).repeat_interleave(6, 2)
    target[:, :2] = VOID
    logits = 2 * torch.randn(batch, 4, 24, 30)
    logits[:, 3] = -20
    return logits, target


def test_validation_metrics_are_those_of_the_whole_set() -> None:
    logits, target = scene()
    found = validation_metrics(4, VOID)
    for one in range(3):
        found.update(logits[one : one + 1].argmax(1), target[one : one + 1])
    figures = flatten(found.compute(), CLASSES)

    options: dict[str, Any] = {"num_classes": 4, "ignore_index": VOID}
    expected = {
        "boundary_iou": metrics.boundary_iou(logits, target, **options),
        "boundary_iou_narrow": metrics.boundary_iou(logits, target, ratio=0.005, **options),
        "trimap_iou_3": metrics.trimap_iou(logits, target, radius=3, **options),
        **{f"boundary_f1_{r}": metrics.boundary_f1(logits, target, radius=r, **options) for r in (1, 3, 5)},
    }
    for name, value in expected.items():
        assert figures[name] == pytest.approx(float(value)), name
    labels, valid = logits.argmax(1), target != VOID
    for k, name in enumerate(CLASSES[:3]):
        there, given = (target == k) & valid, (labels == k) & valid
        assert figures[f"iou/{name}"] == pytest.approx(float((there & given).sum() / (there | given).sum()))
    assert figures["miou"] == pytest.approx(sum(figures[f"iou/{name}"] or 0.0 for name in "abc") / 3)
    assert [figures[f"{kind}/never"] for kind in BY_CLASS] == [None] * 3
    assert figures.keys() == {"miou", *expected} | {f"{kind}/{name}" for kind in BY_CLASS for name in CLASSES}


def test_nothing_to_measure_is_none() -> None:
    found = validation_metrics(4, VOID)
    found.update(torch.zeros(1, 8, 8, dtype=torch.int64), torch.full((1, 8, 8), VOID))
    assert set(flatten(found.compute(), CLASSES).values()) == {None}


@pytest.mark.parametrize("options", [{}, {"edge_weight": 2.0, "same_side_weight": 0.3}, {"decay": 2.0}])
def test_shares_are_the_norms_of_the_weighted_terms(options: dict[str, Any]) -> None:
    logits, target = scene()
    leaf = logits.double().requires_grad_()
    gradients: list[Tensor] = []
    names = ["cross_entropy", "same_side", "other_side", "region"]
    without: list[dict[str, float]] = [{"edge_weight": 0.0}, {"other_side_weight": 0.0}, {}]
    for change in [*({"region_weight": 0.0} | change for change in without), {}]:  # each loss has one term more
        loss = EdgeAwareLoss(ignore_index=VOID, **(options | change))(leaf, target)
        gradients.append(torch.autograd.grad(loss, leaf)[0] - sum(gradients))
    norms = {name: float(gradient.norm()) for name, gradient in zip(names, gradients, strict=True)}
    found = gradient_shares(EdgeAwareLoss(ignore_index=VOID, **options), logits, target)
    assert list(found) == list(norms)
    assert found == pytest.approx({name: norm / sum(norms.values()) for name, norm in norms.items()}, rel=1e-4)


def test_shares_of_terms_without_a_gradient() -> None:
    logits, target = scene()
    plain = gradient_shares(EdgeAwareLoss(ignore_index=VOID, edge_weight=0.0, region_weight=0.0), logits, target)
    assert plain == {"cross_entropy": 1.0, "same_side": 0.0, "other_side": 0.0}
    nothing = gradient_shares(EdgeAwareLoss(ignore_index=VOID), logits, torch.full_like(target, VOID))
    assert set(nothing.values()) == {0.0}


def test_shares_leave_everything_as_it_is() -> None:
    logits, target = scene()
    logits = logits.half().requires_grad_()
    criterion = EdgeAwareLoss(ignore_index=VOID, sync_normalizer=True)
    before, state = criterion.options(), copy.deepcopy(criterion.state_dict())
    found = gradient_shares(criterion, logits, target)
    with torch.no_grad():
        assert gradient_shares(criterion, logits, target) == found
    assert sum(found.values()) == pytest.approx(1)
    assert logits.grad is None
    assert criterion.options() == before
    assert criterion.training
    torch.testing.assert_close(criterion.state_dict(), state, rtol=0, atol=0)  # the step counts


def test_worst_images_and_their_figures() -> None:
    logits, target = scene(batch=5)
    target[3] = 1  # an image without an edge
    criterion = stateless_loss(ignore_index=VOID, weight=torch.tensor([1.0, 2.0, 0.5, 1.0]))
    worst = WorstImages(criterion, 4, 3)
    for names, part in ((["i0", "i1"], slice(0, 2)), (["i2", "i3", "i4"], slice(2, 5))):
        _, maps = criterion(logits[part], target[part], return_maps=True)
        worst.update(names, maps, logits[part].argmax(1), target[part])
    worst.update([], maps, logits.argmax(1), target)  # an empty batch that keeps this rank in step with others

    expected = {}
    for i in (0, 1, 2, 4):
        _, terms = criterion(logits[i : i + 1], target[i : i + 1], return_terms=True)
        score = validation_metrics(4, VOID)
        score.update(logits[i : i + 1].argmax(1), target[i : i + 1])
        miou = flatten(score.compute(), CLASSES)["miou"]
        expected[f"i{i}"] = (float(terms["edge"]), float(terms["cross_entropy"]), miou)
    ranked = sorted(expected, key=lambda name: -expected[name][0])[:3]
    found = worst.ranked()
    assert [image.name for image in found] == ranked
    for name, *figures in found:
        assert figures == pytest.approx(expected[name], rel=1e-5)


def test_losses_that_are_not_finite_come_first_and_ties_go_by_name() -> None:
    logits, target = scene(batch=1)
    criterion = EdgeAwareLoss(ignore_index=VOID)
    worst = WorstImages(criterion, 4, 3)
    for name in ("z", "a", "m"):
        x = torch.full_like(logits, math.nan) if name == "m" else logits
        _, maps = criterion(x, target, return_maps=True)
        worst.update([name], maps, logits.argmax(1), target)
    assert [image.name for image in worst.ranked()] == ["m", "a", "z"]


def one_rank(rank: int, folder: Path) -> None:
    """Each rank has three of five images, one of them on both; for the shares, two and three."""
    torch.manual_seed(0)
    logits, target = scene(batch=5)
    criterion = stateless_loss(ignore_index=VOID)
    synced, mine = stateless_loss(ignore_index=VOID, sync_normalizer=True), slice(2) if rank == 0 else slice(2, 5)
    shares = gradient_shares(synced, logits[mine], target[mine])
    worst = WorstImages(criterion, 4, 4)
    for i in (0, 1, 2) if rank == 0 else (2, 3, 4):
        _, maps = criterion(logits[i : i + 1], target[i : i + 1], return_maps=True)
        worst.update([f"i{i}"], maps, logits[i : i + 1].argmax(1), target[i : i + 1])
    torch.save([shares, [tuple(image) for image in worst.ranked()]], folder / f"{rank}.pt")


@pytest.mark.slow
def test_ranks_measure_as_one(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, one_rank, tmp_path)
    torch.manual_seed(0)
    logits, target = scene(batch=5)
    criterion = stateless_loss(ignore_index=VOID)
    alone = WorstImages(criterion, 4, 4)
    _, maps = criterion(logits, target, return_maps=True)
    alone.update([f"i{i}" for i in range(5)], maps, logits.argmax(1), target)
    for rank in range(2):
        shares, images = torch.load(tmp_path / f"{rank}.pt")
        assert shares == pytest.approx(gradient_shares(criterion, logits, target), rel=1e-5)
        found = [ImageFigures(*image) for image in images]
        assert [image.name for image in found] == [image.name for image in alone.ranked()]
        for image, other in zip(found, alone.ranked(), strict=True):
            assert image[1:] == pytest.approx(other[1:])
