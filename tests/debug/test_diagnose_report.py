"""The report of a diagnosis as text, as JSON and as a figure, and the terms of EdgeAwareLoss in it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from debug_losses import leaky_edges, line_of, scene
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss, reference
from edgeloss.debug import Report, diagnose


def test_the_report_as_text() -> None:
    x, y = scene()
    text = str(diagnose(leaky_edges, x, y))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["diagnose(leaky_edges)", "NOT", "OK"]
    assert lines[1] == ["├──", "inputs"]
    assert lines[2][:8] == ["│", "├──", "logits", "float32", "[2,", "3,", "8,", "8]"]
    assert lines[3][-6:] == ["zeros", "110", "·", "values", "0,", "1"]
    assert [line[:4] for line in lines[5:7]] == [["│", "├──", "float32", "float32"], ["│", "└──", "float64", "float64"]]
    assert "nan" in lines[8]
    assert text == repr(diagnose(leaky_edges, x, y))
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 110


def test_to_dict_is_strict_json() -> None:
    x, y = scene()
    x[0, 0, 0, 0] = math.inf
    plain = json.loads(json.dumps(diagnose(EdgeAwareLoss(), x, y).to_dict(), allow_nan=False))
    assert list(plain) == ["ok", "name", "findings", "origin", "inputs", "loss", "gradient", "terms"]
    assert plain["ok"] is False
    assert plain["inputs"]["logits"]["posinf"] == 1
    assert plain["inputs"]["logits"]["first_bad"] == [0, 0, 0, 0]
    assert plain["inputs"]["target"]["values"] == [0, 1]
    assert list(plain["loss"]) == ["float32", "float64"]
    assert plain["loss"]["float32"]["mean"] is None
    assert {"level", "message", "advice"} == set(plain["findings"][0])
    origin = json.loads(json.dumps(diagnose(leaky_edges, *scene()).to_dict(), allow_nan=False))["origin"]
    assert origin["cause"]["operation"] == "div"


def captions(report: Report) -> dict[str, str]:
    axes = [axes for axes in report.figure().axes if axes.get_title(loc="left")]
    return {one.get_title(loc="left"): one.texts[0].get_text() for one in axes}


def test_figure_counts_what_is_not_finite() -> None:
    x, y = scene()
    y[0, -1] = -100
    report = diagnose(leaky_edges, x, y.clamp(min=0))
    assert report.gradient is not None
    bad = (~report.gradient.isfinite().all(1)).sum((1, 2)).tolist()
    assert list(captions(report)) == ["image 0", "image 1"]
    assert [text.split(" · ")[-1] for text in captions(report).values()] == [f"{count} not finite" for count in bad]
    figure = report.figure()
    assert figure.texts[0].get_text() == "|gradient| of leaky_edges"
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not finite"]


def test_figure_shows_the_norm_in_decades() -> None:
    x, y = scene()
    y[0, -1] = -100
    report = diagnose(F.cross_entropy, x, y)
    assert report.gradient is not None
    figure = report.figure()
    values = np.ma.asarray(figure.axes[0].images[0].get_array())
    norm = report.gradient[0].double().norm(dim=0).numpy()
    np.testing.assert_allclose(values[:-1], np.log10(norm[:-1]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ignored"]


def test_ignored_pixels_of_a_higher_resolution_are_in_the_figure() -> None:
    x, y = torch.randn(1, 2, 8, 8), torch.randint(2, (1, 32, 32))
    y[:, 12:28, 12:28] = -100
    figure = diagnose(EdgeAwareLoss(upsample=True), x, y).figure()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ignored"]


def test_figure_of_a_volume_shows_the_worst_slice() -> None:
    x, y = scene(size=(5, 8, 8))

    def bad_slice(logits: Tensor, target: Tensor) -> Tensor:
        loss = logits.square()
        loss[1, :, 3, :2] /= 0.0
        return loss.mean()

    assert list(captions(diagnose(bad_slice, x, y))) == ["image 0, slice 2 of 5", "image 1, slice 3 of 5"]


# ----------------------------------------------------------------------------------- the terms of an EdgeAwareLoss


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
