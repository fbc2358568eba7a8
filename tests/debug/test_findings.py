"""Findings about finite values that are probably wrong."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debug_losses import levels, only, scene
from torch import nn

from edgeloss import EdgeAwareLoss
from edgeloss.debug import diagnose


def test_clean_losses_are_ok() -> None:
    x, y = scene()
    for loss_fn in (F.cross_entropy, nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5])), EdgeAwareLoss(decay=1.0)):
        report = diagnose(loss_fn, x, y)
        assert report.ok, report
        assert not report.findings
        assert report.origin is None
        assert "All values are finite, and nothing looks wrong." in str(report)
    assert diagnose(EdgeAwareLoss(), x[:0], y[:0]).ok


def test_softmax_twice() -> None:
    x, y = scene(19)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        finding = only(diagnose(F.cross_entropy, x.softmax(1).to(dtype), y))
        assert "so they are probabilities" in finding.message
        assert "before the softmax" in finding.advice
    assert "look like probabilities" in only(diagnose(EdgeAwareLoss(), x[:, :1].sigmoid(), y)).message
    assert "may be the output of a sigmoid" in only(diagnose(EdgeAwareLoss(), x.sigmoid(), y)).message
    assert not diagnose(F.cross_entropy, torch.zeros(1, 1, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64)).findings[1:]


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, EdgeAwareLoss()])
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


def test_ignored_labels_are_not_a_finding() -> None:
    x, y = scene()
    y[0, 4:] = 255
    for loss_fn in (
        nn.CrossEntropyLoss(ignore_index=255),
        functools.partial(F.cross_entropy, ignore_index=255),
        lambda x, y: F.cross_entropy(x, y, ignore_index=255),
    ):
        assert not diagnose(loss_fn, x, y).findings
    assert not diagnose(F.cross_entropy, x, y, ignore_index=255).findings
    y[0, 0, 0] = 9
    finding = only(diagnose(EdgeAwareLoss(ignore_index=255, validate="never"), x, y))
    assert "at 1 of 128 pixels: 9; first at [0, 0, 0]" in finding.message


def test_labels_of_classes_that_overlap() -> None:
    x = torch.randn(2, 3, 8, 8)
    y = (torch.rand(x.shape) < 0.5).long()
    y[0, 1, 4:] = 255
    criterion = EdgeAwareLoss(multilabel=True, ignore_index=255)
    assert not diagnose(criterion, x, y).findings
    y[1, 2] = 0
    assert only(diagnose(criterion, x, y), "note").message.startswith("target: no edge in [image, class] [[1, 2]];")
    y[1, 0, 3, 2] = 7
    message = "target: labels outside the classes 0 to 1 at 1 of 384 pixels: 7; first at [1, 0, 3, 2]."
    assert message in [finding.message for finding in diagnose(criterion, x, y).findings]
    y[1, 0, 3, 2] = 1
    nan = torch.where(y == 255, torch.nan, x)  # where they are not read
    assert not [finding for finding in diagnose(criterion, nan, y).findings if finding.message.startswith("gradient")]
    messages = [
        finding.message for finding in diagnose(EdgeAwareLoss(multilabel=True, ignore_index=None), x, y).findings
    ]
    outside = "target: labels outside the classes 0 to 1 at 32 of 384 pixels: 255; first at [0, 1, 4, 0]."
    assert outside in messages


def test_nothing_to_learn_from() -> None:
    x, y = scene()
    finding = only(diagnose(EdgeAwareLoss(), x, torch.full_like(y, -100)))
    assert finding.message == "target: no valid label, so there is nothing to learn from."
    nan = diagnose(F.cross_entropy, x, torch.full_like(y, -100))
    assert "a mean over nothing is 0 / 0" in nan.findings[0].advice
    y[1] = 2
    assert only(diagnose(EdgeAwareLoss(), x, y), "note").message.startswith("target: no edge in images [1];")


def test_a_mask_of_0_and_255_whose_object_is_ignored() -> None:
    mask = torch.zeros(1, 8, 8, dtype=torch.uint8)
    mask[:, 2:5, 2:5] = 255
    criterion, x = EdgeAwareLoss(ignore_index=255), torch.randn(1, 1, 8, 8)
    finding = only(diagnose(criterion, x, mask))
    assert finding.message == "target: only 0 and 255, which is ignored."
    assert finding.advice.startswith("Pass target == 255 as the labels")
    assert not diagnose(criterion, x, mask == 255).findings


def test_gradients_that_are_dead_lost_or_missing() -> None:
    x, y = scene()
    assert "0 everywhere" in only(diagnose(lambda x, y: F.relu(-x.abs()).sum(), x, y)).message
    lost = only(diagnose(lambda x, y: F.cross_entropy(x, y) * 1e-5, x.half(), y))
    assert "underflow to 0 in float16" in lost.message
    assert "GradScaler" in lost.advice
    for loss_fn in (lambda x, y: (x.argmax(1) != y).sum(), lambda x, y: x.detach().sum(), lambda x, y: torch.ones(())):
        report = diagnose(loss_fn, x, y)
        assert only(report).message.startswith("gradient: none, since no differentiable path")
        assert report.gradient is None
        assert report.to_dict()["gradient"] == "none"


def test_lost_digits() -> None:
    x, y = scene()
    report = diagnose(lambda x, y: ((x * 1e-3 + 1e4) - 1e4).square().mean(), x, y)
    assert report.ok
    assert [finding.message.split(" by ")[0] for finding in report.findings] == [
        "loss: differs from float64",
        "gradient: differs from float64",
    ]


def test_logits_beyond_half_precision() -> None:
    x, y = scene()
    x[0, 0, 0, 0] = -7e4
    finding = only(diagnose(F.cross_entropy, x, y))
    assert finding.message == "logits: up to 7e+04 in magnitude; float16 overflows at 65504."


def test_non_finite_weights_are_a_warning() -> None:
    x, y = scene()
    loss_fn = nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, math.inf]))
    (loss_fn_warning,) = levels(diagnose(loss_fn, x, y), "warning")  # class 2 does not occur
    assert loss_fn_warning.message == "loss_fn.weight: 1 of 3 values (33.33%) are not finite: +inf 1; first at [2]."
