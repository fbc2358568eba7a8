"""Findings about finite values that are probably wrong, and about losses of any kind."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debug_losses import only, scene
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss.debug import diagnose


def single_only(logits: Tensor, target: Tensor) -> Tensor:
    if logits.dtype == torch.float64:
        raise NotImplementedError("no kernel for float64")
    return F.cross_entropy(logits, target)


torch.manual_seed(0)
X, Y = scene()
SOFT = scene(19)[0].softmax(1)
LARGE = X.index_put((torch.tensor(0),) * 4, torch.tensor(-7e4))
VOID, ONE_IMAGE, STRANGE = Y.clone(), Y.clone(), Y.clone()
VOID[0, 4:], ONE_IMAGE[1], STRANGE[0, 4:], STRANGE[0, 0, 0] = 255, 2, 255, 9
OBJECT = torch.where(Y == 1, 255, 0)
OVERLAP, OVERLAPS = torch.randn(2, 3, 8, 8), torch.arange(384).view(2, 3, 8, 8) % 2
OVERLAPS[0, 1, 4:], OVERLAPS[1, 2] = 255, 0
MULTILABEL, LOSS, CE = EdgeAwareLoss(multilabel=True, ignore_index=255), EdgeAwareLoss(), F.cross_entropy
NO_PATH = "gradient: none, since no differentiable path leads from the logits to the loss."
UNCHECKED = EdgeAwareLoss(ignore_index=255, validate="never")


# A loss and its arguments; the level of the only finding, and parts of its message and of its advice.
@pytest.mark.parametrize(
    ("loss_fn", "logits", "target", "level", "message", "advice"),
    [
        (CE, SOFT, Y, "warning", "so they are probabilities", "before the softmax"),
        (CE, SOFT.half(), Y, "warning", "so they are probabilities", "before the softmax"),
        (CE, SOFT.bfloat16(), Y, "warning", "so they are probabilities", "before the softmax"),
        (LOSS, X[:, :1].sigmoid(), Y, "warning", "look like probabilities", "before the sigmoid"),
        (LOSS, X.sigmoid(), Y, "warning", "may be the output of a sigmoid", "before the sigmoid"),
        (CE, LARGE, Y, "warning", "logits: up to 7e+04 in magnitude; float16 overflows at 65504.", "outside autocast"),
        (UNCHECKED, X, STRANGE, "warning", "at 1 of 128 pixels: 9; first at [0, 0, 0]", "pass ignore_index"),
        (LOSS, X, Y * 0 - 100, "warning", "target: no valid label, so there is nothing to learn from.", "data loader"),
        (LOSS, X, ONE_IMAGE, "note", "target: no edge in images [1]; only their cross-entropy counts.", ""),
        (MULTILABEL, OVERLAP, OVERLAPS, "note", "target: no edge in [image, class] [[1, 2]];", ""),
        (UNCHECKED, X[:, :1], OBJECT, "warning", "target: only 0 and 255, which is ignored.", "Pass target == 255 as"),
        (lambda x, y: F.relu(-x.abs()).sum(), X, Y, "warning", "gradient: 0 everywhere", "Look for a clamp"),
        (lambda x, y: CE(x, y) * 1e-5, X.half(), Y, "warning", "underflow to 0 in float16", "GradScaler"),
        (lambda x, y: (x.argmax(1) != y).sum(), X, Y, "warning", NO_PATH, "Look for argmax"),
        (lambda x, y: x.detach().sum(), X, Y, "warning", NO_PATH, ".detach()"),
        (lambda x, y: torch.ones(()), X, Y, "warning", NO_PATH, ""),
        (lambda x, y: CE(x, y, reduction="none"), X, Y, "note", "loss: a map [2, 8, 8], summed for the gradient.", ""),
        (lambda x, y: (CE(x, y), {"ce": 1.0}), X, Y, "note", "loss: the first tensor of the returned tuple.", ""),
        (lambda x, y: {"loss": CE(x, y), "x": x}, X, Y, "note", "loss: the first tensor of the returned dict.", ""),
        (lambda x, y: CE(x, y).item(), X, Y, "error", "TypeError: expected a loss that returns a tensor, but got", ""),
        (single_only, X, Y, "note", "float64: failed; NotImplementedError: no kernel for float64", ""),
    ],
)
def test_the_only_finding(loss_fn: Any, logits: Tensor, target: Tensor, level: str, message: str, advice: str) -> None:
    report = diagnose(loss_fn, logits, target)
    finding = only(report, level)
    assert message in finding.message
    assert advice in finding.advice
    if message == NO_PATH:
        assert report.gradient is None
        assert report.to_dict()["gradient"] == "none"
    elif "returned" in message and level == "note":
        assert report.to_dict()["loss"]["float32"]["mean"] == pytest.approx(CE(X, Y).item())


@pytest.mark.parametrize(
    ("loss_fn", "logits", "target"),
    [
        (CE, X, Y),
        (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5])), X, Y),
        (EdgeAwareLoss(decay=1.0), X, Y),
        (LOSS, X[:0], Y[:0]),
        (nn.CrossEntropyLoss(ignore_index=255), X, VOID),
        (functools.partial(CE, ignore_index=255), X, VOID),
        (lambda x, y: CE(x, y, ignore_index=255), X, VOID),
        (MULTILABEL, OVERLAP[:1], OVERLAPS[:1]),
        (UNCHECKED, X[:, :1], OBJECT == 255),
        (lambda x, y: 2e3 * x.square(), X.half(), Y),  # its sum overflows, but is not needed
        (nn.BCEWithLogitsLoss(), X[:, :1], Y[:, None].float()),
        (lambda x, ys: sum(F.mse_loss(x, y) for y in ys), X, [X * 2, X * 3]),
        (CE, torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])),
    ],
)
def test_good_calls_have_no_finding(loss_fn: Any, logits: Tensor, target: Any) -> None:
    report = diagnose(loss_fn, logits, target)
    assert report.ok
    assert report.origin is None
    assert all(finding.level == "note" for finding in report.findings)
    if not report.findings:
        assert "All values are finite, and nothing looks wrong." in str(report)


@pytest.mark.parametrize("loss_fn", [CE, LOSS])
def test_labels_out_of_range(loss_fn: Any) -> None:
    x, y = scene()
    y[0, 4, 5], y[1, 0, 0], y[1, 0, 1] = 7, 255, 7
    report = diagnose(loss_fn, x, y)
    assert not report.ok
    error, labels = report.findings
    assert error.level == "error"
    assert error.message.startswith("loss: ")
    assert " at edgeloss" not in error.message  # no line of the package
    expected = "target: labels outside the classes 0 to 2 at 3 of 128 pixels: 7, 255; first at [0, 4, 5]."
    assert labels.message == expected
    assert "ignore_index" in labels.advice
    assert report.gradient is None
    with pytest.raises(ValueError, match="gradient: expected one to draw, but got none from"):
        report.figure()


def test_labels_of_classes_that_overlap() -> None:
    labels = OVERLAPS.clone()
    labels[1, 0, 3, 2] = 7
    message = "target: labels outside the classes 0 to 1 at 1 of 384 pixels: 7; first at [1, 0, 3, 2]."
    assert message in [finding.message for finding in diagnose(MULTILABEL, OVERLAP, labels).findings]
    nan = torch.where(OVERLAPS == 255, torch.nan, OVERLAP)  # where they are not read
    assert not any(one.message.startswith("gradient") for one in diagnose(MULTILABEL, nan, OVERLAPS).findings)
    findings = diagnose(EdgeAwareLoss(multilabel=True, ignore_index=None), OVERLAP, OVERLAPS).findings
    outside = "target: labels outside the classes 0 to 1 at 32 of 384 pixels: 255; first at [0, 1, 4, 0]."
    assert outside in [finding.message for finding in findings]


def test_lost_digits() -> None:
    report = diagnose(lambda x, y: ((x * 1e-3 + 1e4) - 1e4).square().mean(), X, Y)
    assert report.ok
    assert [finding.message.split(" by ")[0] for finding in report.findings] == [
        "loss: differs from float64",
        "gradient: differs from float64",
    ]


def test_non_finite_arguments() -> None:
    weight = nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, math.inf]))  # class 2 does not occur
    (warning,) = [finding for finding in diagnose(weight, X, Y).findings if finding.level == "warning"]
    assert warning.message == "loss_fn.weight: 1 of 3 values (33.33%) are not finite: +inf 1; first at [2]."
    target = diagnose(nn.MSELoss(), X, torch.full_like(X, math.nan)).findings[0]
    assert target.message.startswith("target: 384 of 384 values (100.00%) are not finite")
    assert "a mean over nothing is 0 / 0" in diagnose(CE, X, torch.full_like(Y, -100)).findings[0].advice
