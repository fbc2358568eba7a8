"""The terms of EdgeAwareLoss in a diagnosis."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from debug_losses import line_of, scene
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss, reference
from edgeloss.debug import diagnose


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_terms_add_up_to_the_loss(reduction: Any) -> None:
    x, y = scene()
    y[0, -2:] = 255
    criterion = stateless_loss(
        torch.tensor([1.0, 2.0, 0.5]), edge_class_weight=torch.tensor([0.3, 1.0, 4.0]),
        ignore_index=255, reduction=reduction, ce_weight=0.7, edge_weight=0.3,
        other_side_weight=1.5, same_side_weight=0.4,
        power=-1.0, decay=2.0, label_smoothing=0.1,
    )  # fmt: skip
    weights = {"cross_entropy": 0.7, "same_side": 0.3 * 0.4, "other_side": 0.3 * 1.5}
    for extra in ({}, {"pixel_weight": torch.rand(y.shape)}, {"normalizer": (50.0, 20.0)}):
        result = diagnose(criterion, x, y, **extra).to_dict()
        assert list(result["terms"]) == list(weights)
        total = sum(weight * result["terms"][name]["loss"]["mean"] for name, weight in weights.items())
        assert total == pytest.approx(criterion(x, y, **extra).item(), rel=1e-5)
    criterion.same_side_weight = 0.0
    assert list(diagnose(criterion, x, y).to_dict()["terms"]) == ["cross_entropy", "other_side"]


def test_terms_of_classes_that_overlap() -> None:
    x, y = torch.randn(2, 3, 8, 8), torch.randint(2, (2, 3, 8, 8))
    y[0, 1, -2:] = 255
    criterion = stateless_loss(torch.rand(3, 2), edge_class_weight=torch.rand(3), ignore_index=255, multilabel=True)
    for extra in ({}, {"pixel_weight": torch.rand(2, 8, 8)}, {"normalizer": (50.0, 20.0)}):
        report = diagnose(criterion, x, y, **extra)
        terms = report.to_dict()["terms"]
        total = sum(terms[name]["loss"]["mean"] for name in ("cross_entropy", "same_side", "other_side"))
        assert total == pytest.approx(criterion(x, y, **extra).item(), rel=1e-5)
        assert report.ok
        report.figure()


def test_the_term_to_blame_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    edge_terms = reference.edge_terms

    def broken(x: Tensor, y: Tensor, valid: Tensor, mask: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        same, other = edge_terms(x, y, valid, mask, *rest)
        share = x.softmax(1)[:, 0] * mask
        return same, other + torch.where(mask, share / mask, 0.0)  # masked too late

    monkeypatch.setattr(reference, "edge_terms", broken)
    x, y = scene()
    report = diagnose(EdgeAwareLoss(power=1.0, backend="reference"), x, y)
    gradient, terms = report.findings
    assert terms.message == "terms: other_side not finite; cross_entropy, same_side, region finite."
    assert terms.advice == "Set the weight of other_side to 0 to continue without it."
    assert gradient.message.startswith("gradient: ")
    assert report.origin is not None
    assert report.origin.operation == "DivBackward0"
    assert report.origin.line == line_of(broken, "share / mask")


def test_terms_of_bad_logits() -> None:
    x, y = (values.repeat_interleave(2, -2).repeat_interleave(2, -1) for values in scene())
    x[0, 1, 15, 15] = math.nan  # far from the edge
    report = diagnose(EdgeAwareLoss(), x, y)
    assert report.findings[-1].message == "terms: cross_entropy, region not finite; same_side, other_side finite."
    assert report.findings[-1].advice == "The logits are not finite; fix them first."


def test_terms_that_cannot_be_evaluated() -> None:
    class Soft(EdgeAwareLoss):
        def forward(self, logits: Tensor, target: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
            return (logits.log() * target).sum()

    x, _ = scene()
    report = diagnose(Soft(), x, x.softmax(1))
    assert report.to_dict()["terms"].startswith("not evaluated; ")
    assert not any(finding.message.startswith("terms") for finding in report.findings)


def test_additions_of_a_subclass_are_not_a_term() -> None:
    class Ours(EdgeAwareLoss):
        def forward(self, logits: Tensor, target: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
            loss: Tensor = super().forward(logits, target, **kwargs)
            return loss + (logits - logits).square().sum().sqrt()

    report = diagnose(Ours(), *scene())
    assert report.name == "Ours"
    assert report.findings[-1].message == "terms: each of them is finite by itself in plain PyTorch."
    assert "what a subclass adds" in report.findings[-1].advice


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_edge_aware_loss_is_finite_in_every_precision(dtype: torch.dtype) -> None:
    x, y = scene()
    report = diagnose(EdgeAwareLoss(upsample=True), x[..., ::2, ::2].to(dtype), y)
    assert not report.findings
    assert report.gradient is not None
    assert report.gradient.dtype == dtype
