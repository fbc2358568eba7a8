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
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss._reference import terms as reference
from edgeloss.debug import Report, diagnose
from edgeloss.debug.calls import LossCall
from edgeloss.debug.findings import evaluate_terms


def test_the_report_as_text() -> None:
    x, y = scene()
    text = str(diagnose(leaky_edges, x, y))
    verdict, findings, values = text.split("\n\n")
    assert verdict == "diagnose(leaky_edges): NOT OK, 1 error"
    assert findings.startswith("error    gradient: ")
    lines = [line.split() for line in values.splitlines()]
    assert lines[0] == ["values"]
    assert lines[1] == ["├──", "inputs"]
    assert lines[2][:8] == ["│", "├──", "logits", "float32", "[2,", "3,", "8,", "8]"]
    assert lines[3][-6:] == ["zeros", "110", "·", "values", "0,", "1"]
    assert [line[:4] for line in lines[5:7]] == [["│", "├──", "float32", "float32"], ["│", "└──", "float64", "float64"]]
    assert "nan" in lines[9]  # below the numbers of the gradient
    assert text == repr(diagnose(leaky_edges, x, y))


def test_warnings_come_first_and_lines_are_short() -> None:
    """A float16 gradient that underflows: finite, but not ok."""
    torch.manual_seed(0)
    x, y = 8 * torch.randn(1, 3, 64, 64).half(), torch.randint(3, (1, 64, 64))
    text = str(diagnose(EdgeAwareLoss(reduction="mean"), x, y))
    verdict, findings, values = text.split("\n\n")
    assert verdict == "diagnose(EdgeAwareLoss): finite, but 1 warning"
    assert findings.startswith("warning  gradient: ")
    assert max(map(len, text.splitlines())) <= 110
    # The constructor of the loss goes on below its name, within the lines of the tree.
    at = next(at for at, line in enumerate(values.splitlines()) if "loss_fn" in line)
    begin, *more = values.splitlines()[at : at + 3]
    assert all(line.startswith("│ ") for line in more)
    assert {line[4:].index(line[4:].strip()) for line in more} == {begin[4:].index("EdgeAwareLoss")}


def test_to_dict_is_strict_json() -> None:
    x, y = scene()
    x[0, 0, 0, 0] = math.inf
    plain = json.loads(json.dumps(diagnose(EdgeAwareLoss(), x, y).to_dict(), allow_nan=False))
    assert list(plain) == ["ok", "name", "findings", "origin", "inputs", "loss", "gradient", "terms", "gradient_norms"]
    assert None in plain["gradient_norms"].values()
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
    report = diagnose(leaky_edges, *scene())
    assert report.gradient is not None
    bad = (~report.gradient.isfinite().all(1)).sum((1, 2)).tolist()
    shown = [text.split(" · ")[-1] for text in captions(report).values()]
    assert shown == [f"{count} not finite" for count in bad]
    figure = report.figure()
    assert figure.texts[0].get_text() == "|gradient| of leaky_edges"
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not finite"]


def test_figure_shows_the_norm_in_decades_but_for_ignored_pixels() -> None:
    x, y = torch.randn(1, 3, 8, 8), torch.randint(3, (1, 32, 32))
    y[:, 12:28, 12:28] = -100
    for factor in (1, 4):  # the second has labels of a higher resolution
        report = diagnose(EdgeAwareLoss(upsample=True), F.interpolate(x, scale_factor=4.0 / factor), y)
        figure = report.figure()
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ignored"]
        assert report.gradient is not None
        norm = report.gradient[0].double().norm(dim=0).numpy()
        values = np.ma.asarray(figure.axes[0].images[0].get_array())
        np.testing.assert_allclose(values[: 8 // factor, : 8 // factor], np.log10(norm[: 8 // factor, : 8 // factor]))


def test_figure_of_a_volume_shows_the_worst_slice() -> None:
    def bad_slice(logits: Tensor, target: Tensor) -> Tensor:
        loss = logits.square()
        loss[1, :, 3, :2] /= 0.0
        return loss.mean()

    assert list(captions(diagnose(bad_slice, *scene(size=(5, 8, 8))))) == [
        "image 0, slice 2 of 5",
        "image 1, slice 3 of 5",
    ]


# ----------------------------------------------------------------------------------- the terms of an EdgeAwareLoss


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("multilabel", [False, True])
def test_terms_add_up_to_the_loss(reduction: Any, multilabel: bool) -> None:
    x, y = scene()
    y = torch.randint(2, x.shape) if multilabel else y
    y[0, -2:] = 255
    criterion = EdgeAwareLoss(
        torch.rand(3, 2) if multilabel else torch.tensor([1.0, 2.0, 0.5]),
        edge_class_weight=torch.tensor([0.3, 1.0, 4.0]), edge_focus=0.0, region_weight=0.0, multilabel=multilabel,
        ignore_index=255, reduction=reduction, ce_weight=0.7, edge_weight=0.3,
        other_side_weight=1.5, same_side_weight=0.4,
        power=-1.0, decay=2.0, label_smoothing=0.1,
    )  # fmt: skip
    weights = {"cross_entropy": 0.7, "same_side": 0.3 * 0.4, "other_side": 0.3 * 1.5}
    for extra in ({}, {"pixel_weight": torch.rand(2, 8, 8)}, {"normalizer": (50.0, 20.0)}):
        report = diagnose(criterion, x, y, **extra)
        assert report.ok
        terms = report.to_dict()["terms"]
        assert list(terms) == list(weights)
        total = sum(weight * terms[name]["loss"]["mean"] for name, weight in weights.items())
        assert total == pytest.approx(criterion(x, y, **extra).item(), rel=1e-5)
    report.figure()
    criterion.same_side_weight = 0.0
    assert list(diagnose(criterion, x, y).to_dict()["terms"]) == ["cross_entropy", "other_side"]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"multilabel": True}, {"power": 1.0}])
def test_gradients_of_terms_are_parts_of_that_of_the_loss(reduction: Any, options: dict[str, Any]) -> None:
    """With the balance and the focus of the whole loss; and their values are those of the loss."""
    x, y = torch.randn(2, 3, 12, 12), torch.randint(3, (2, 3, 3)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    y[0, -2:] = 255
    if "multilabel" in options:
        y = (y[:, None] == torch.arange(3).view(3, 1, 1)).long()
    x[1] *= 4
    leaf = x.double().requires_grad_()
    criterion = EdgeAwareLoss(ignore_index=255, reduction=reduction, edge_weight=0.5, same_side_weight=2.0, **options)
    call = LossCall(criterion, x.double(), y, {"pixel_weight": torch.rand(2, 12, 12).double()})
    terms, values, norms = evaluate_terms(call, criterion)
    criterion(leaf, y, **call.kwargs).sum().backward()
    weights = {"cross_entropy": 1.0, "same_side": 1.0, "other_side": 0.5, "region": 3.0}
    assert list(terms) == list(weights)
    gradients = [weights[name] * term.gradient for name, term in terms.items() if term.gradient is not None]
    torch.testing.assert_close(torch.stack(gradients).sum(0), leaf.grad, rtol=1e-5, atol=1e-9)
    parts = {"cross_entropy": gradients[0], "edge_focused": gradients[1] + gradients[2], "region": gradients[3]}
    assert norms == pytest.approx({name: float(part.norm()) for name, part in parts.items()})
    criterion.reduction = "mean" if reduction == "mean" else "sum"
    _, named = criterion(leaf, y, **call.kwargs, return_terms=True)
    assert values == pytest.approx({name: float(value) for name, value in named.items()}, rel=1e-5)
    for name, term in terms.items():
        torch.testing.assert_close(term.loss, named[name], rtol=1e-5, atol=0.0)


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


def test_bad_logits_are_one_error() -> None:
    x, y = (values.repeat_interleave(2, -2).repeat_interleave(2, -1) for values in scene())
    x[0, 1, 15, 15] = math.nan  # far from the edge
    report = diagnose(EdgeAwareLoss(), x, y)
    assert report.verdict == "NOT OK, 1 error"
    assert [finding.message.partition(":")[0] for finding in report.findings] == [
        "logits",
        "loss is nan; this follows from the inputs.",
        "gradient",
    ]


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
