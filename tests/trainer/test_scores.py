"""Figures of a run: those of a validation set, and gradient shares of the terms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from edgeloss import EdgeAwareLoss, metrics
from edgeloss.viz.run_page import BY_CLASS
from segkit.scores import flatten, gradient_shares, loss_figures, validation_metrics

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
    collection = validation_metrics(4, VOID)
    for one in range(3):
        collection.update(logits[one : one + 1].argmax(1), target[one : one + 1])
    figures = flatten(collection.compute(), CLASSES)

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
    assert figures["miou"] == pytest.approx(sum(figures[f"iou/{name}"] for name in "abc") / 3)
    assert all(figures[f"{kind}/never"].isnan() for kind in BY_CLASS)
    assert figures.keys() == {"miou", *expected} | {f"{kind}/{name}" for kind in BY_CLASS for name in CLASSES}
    collection.reset()
    collection.update(torch.zeros(1, 8, 8, dtype=torch.int64), torch.full((1, 8, 8), VOID))
    assert all(figure.isnan() for figure in flatten(collection.compute(), CLASSES).values())  # nothing is measured


@pytest.mark.parametrize("options", [{}, {"edge_weight": 2.0, "same_side_weight": 0.3}, {"decay": 2.0}])
def test_shares_are_the_norms_of_the_weighted_terms(options: dict[str, Any]) -> None:
    logits, target = scene()
    leaf = logits.double().requires_grad_()
    gradients: list[Tensor] = []
    names = ["cross_entropy", "edge_focused", "region"]
    for change in ({"edge_weight": 0.0, "region_weight": 0.0}, {"region_weight": 0.0}, {}):  # each has one term more
        loss = EdgeAwareLoss(ignore_index=VOID, **(options | change))(leaf, target)
        gradients.append(torch.autograd.grad(loss, leaf)[0] - sum(gradients))
    norms = {name: float(gradient.norm()) for name, gradient in zip(names, gradients, strict=True)}
    shares = gradient_shares(EdgeAwareLoss(ignore_index=VOID, **options), logits, target)
    assert list(shares) == list(norms)
    assert shares == pytest.approx({name: norm / sum(norms.values()) for name, norm in norms.items()}, rel=1e-4)


def test_shares_leave_everything_as_it_is_and_may_be_0() -> None:
    logits, target = scene()
    logits = logits.half().requires_grad_()
    criterion = EdgeAwareLoss(ignore_index=VOID, sync_normalizer=True)
    before = criterion.options()
    with torch.no_grad():
        assert sum(gradient_shares(criterion, logits, target).values()) == pytest.approx(1)
    assert logits.grad is None
    assert criterion.options() == before
    assert set(gradient_shares(criterion, logits, torch.full_like(target, VOID)).values()) == {0.0}
    plain = gradient_shares(EdgeAwareLoss(ignore_index=VOID, edge_weight=0.0, region_weight=0.0), logits, target)
    assert plain == {"cross_entropy": 1.0, "edge_focused": 0.0, "region": 0.0}


def mean_figures(criterion: EdgeAwareLoss, *batches: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Return the weighted means of the figures of batches."""
    results = [loss_figures(criterion, *batch) for batch in batches]
    sums = {name: sum(float(f[name][0].nan_to_num() * f[name][1]) for f in results) for name in results[0]}
    return {name: total / max(float(sum(f[name][1] for f in results)), 1e-9) for name, total in sums.items()}


@pytest.mark.parametrize("options", [{}, {"radius": (2, 1), "decay": 1.0, "spacing": (3.0, 1.0)}])
def test_loss_figures_are_those_of_the_whole_set(options: dict[str, Any]) -> None:
    logits, target = scene(batch=5)
    target[3] = 1  # an image without an edge
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    criterion = EdgeAwareLoss(weight, edge_class_weight=None, ignore_index=VOID, **options)
    figures = mean_figures(criterion, (logits[:2], target[:2]), (logits[2:], target[2:]))
    _, terms = criterion(logits, target, return_terms=True)
    # The region term is averaged over images, which have their own numbers of pixels.
    assert figures == pytest.approx(figures | {k: float(v) for k, v in terms.items() if k != "region"}, rel=1e-5)
    correct, valid = logits.argmax(1) == target, target != VOID
    assert figures["accuracy"] == pytest.approx(float(correct[valid].double().mean()))
    nothing = loss_figures(criterion, logits, torch.full_like(target, VOID))
    assert {float(weight) for _, weight in nothing.values()} == {0.0}


def test_spacing_reaches_the_metrics_of_volumes() -> None:
    """Planes are three times as far apart as voxels within a plane: radii are in units of the shortest side."""
    labels, target = torch.randint(3, (2, 1, 5, 8, 6))
    scores = [validation_metrics(3, VOID, spacing) for spacing in ((3.0, 1.0, 1.5), (3e3, 1e3, 1.5e3))]
    for one in scores:
        one.update(labels, target)
    figures, same = (flatten(one.compute(), ["a", "b", "c"]) for one in scores)
    assert figures == same
    score = metrics.boundary_f1(labels, target, 3, radius=1, ignore_index=VOID, spacing=(3.0, 1.0, 1.5))
    assert figures["boundary_f1_1"] == pytest.approx(float(score))
