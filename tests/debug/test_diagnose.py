"""The diagnosis: that it blames the right thing, names operation and line, and changes nothing."""

from __future__ import annotations

import functools
import inspect
import io
import json
import math
import re
import subprocess
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss, reference
from edgeloss.debug import Finding, Report, diagnose, format_tree, tree


def scene(classes: int = 3, size: tuple[int, ...] = (8, 8), batch: int = 2) -> tuple[Tensor, Tensor]:
    """Logits, and a target of one block on a background: pixels on edges and off them."""
    target = torch.zeros(batch, *size, dtype=torch.int64)
    target[..., :3, :3] = 1
    return torch.randn(batch, classes, *size), target


def levels(report: Report, level: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.level == level]


def line_of(function: Callable[..., Any], text: str) -> int:
    """The number of the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


# ------------------------------------------------------------------------------------------------- losses that go wrong


def leaky_edges(logits: Tensor, target: Tensor) -> Tensor:
    """An edge loss that computes everywhere and masks afterwards."""
    classes = logits.shape[1]
    prob = F.pad(logits.softmax(1), (1, 1, 1, 1))
    window = F.unfold(F.pad(target[:, None].to(logits.dtype), (1, 1, 1, 1), value=-1), 3)
    window = window.view(len(target), 9, *target.shape[1:])
    weight = ((window != target[:, None]) & (window >= 0)).to(logits.dtype)
    other = 1 - F.one_hot(target, classes).movedim(-1, 1)
    neighbours = F.unfold(prob, 3).view(len(target), classes, 9, *target.shape[1:])
    mean = ((neighbours * other[:, :, None]).sum(1) * weight).sum(1) / weight.sum(1)
    loss_map = -torch.log(mean)
    return torch.where(weight.sum(1) > 0, loss_map, 0.0).sum()


def masked_length(logits: Tensor, target: Tensor) -> Tensor:
    """A root whose slope is infinite where the mask is 0."""
    off = (logits.softmax(1)[:, 1] * (target != 0)).square()
    length = torch.sqrt(off)
    return (length * (target != 0)).mean()


def own_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Overflows beyond logits of 11 in float16 and 88 in float32."""
    partition = logits.exp().sum(1)
    return (partition.log() - logits.gather(1, target[:, None]).squeeze(1)).mean()


def test_masked_division_is_named_with_operation_and_line() -> None:
    # One edge in an image that has nearly none: all else of the gradient is nan.
    x, y = torch.randn(1, 2, 64, 64), torch.zeros(1, 64, 64, dtype=torch.int64)
    y[0, 0, 0] = 1
    report = diagnose(leaky_edges, x, y)
    assert not report.ok
    assert report.gradient is not None
    assert report.gradient.isnan().float().mean() > 0.999

    origin = report.origin
    assert origin is not None
    assert origin.operation == "LogBackward0"
    assert origin.file == __file__
    assert origin.line == line_of(leaky_edges, "torch.log(mean)")
    assert origin.source == "loss_map = -torch.log(mean)"
    assert origin.cause is not None
    assert (origin.cause.operation, origin.cause.made) == ("div", "nan 4092")
    assert origin.cause.line == line_of(leaky_edges, "/ weight.sum(1)")

    (finding,) = report.findings
    assert "8190 of 8192 values (99.98%) are not finite: nan 8190; first at [0, 0, 0, 1]" in finding.message
    assert "not finite in float64 either, so the cause is the formula, not the precision" in finding.message
    assert finding.advice.startswith("Select the elements with a non-zero denominator before the division")
    assert f"div (nan 4092) at tests/debug/test_diagnose.py:{origin.cause.line}" in finding.message


def test_masked_root_is_named_with_operation_and_line() -> None:
    x, y = scene()
    report = diagnose(masked_length, x, y)
    assert report.origin is not None
    assert (report.origin.operation, report.origin.cause) == ("SqrtBackward0", None)
    assert report.origin.line == line_of(masked_length, "torch.sqrt")
    (finding,) = report.findings
    assert "Its derivative is infinite at the end of its domain" in finding.advice


def test_what_the_bad_pixels_share() -> None:
    x, y = scene()
    off_edges = ~reference.edge_mask(y, y >= 0, [1, 1])

    def poisoned(logits: Tensor, target: Tensor, where: Tensor) -> Tensor:
        return torch.where(where[:, None], logits / (~where[:, None]), 0.0).nan_to_num(0, 0, 0).sum()

    def message(where: Tensor, logits: Tensor = x, target: Tensor = y) -> str:
        return diagnose(poisoned, logits, target, where=where).findings[0].message

    assert "all of them off the edges" in message(off_edges)
    assert "all of them on edges" in message(~off_edges)
    assert "all of them" not in message(off_edges & (torch.rand(y.shape) < 0.2))  # a few of them only
    assert "all of them" not in message(torch.ones_like(off_edges))
    one_class = torch.cat([y[:1], torch.zeros_like(y[:1])])
    assert "all of them in images without an edge" in message(
        torch.tensor([[[False]], [[True]]]).expand(2, 8, 8), x, one_class
    )
    ignored = y.masked_fill(y == 1, -100)
    assert "all of them on ignored pixels" in message(ignored < 0, x, ignored)


# Beyond the range of the exponential in each precision, and within that of float64.
@pytest.mark.parametrize(
    ("dtype", "scale", "advice"),
    [
        (torch.float16, 20, "Compute the loss in float32, loss_fn(logits.float(), target)"),
        (torch.bfloat16, 200, "Compute the loss in float32"),
        (torch.float32, 200, "Subtract the largest logit before the exponential"),
    ],
)
def test_overflow_is_precision_and_not_formula(dtype: torch.dtype, scale: float, advice: str) -> None:
    x = torch.zeros(1, 2, 4, 4, dtype=dtype)
    x[0, 0, 1, 2] = scale
    report = diagnose(own_cross_entropy, x, torch.ones(1, 4, 4, dtype=torch.int64))
    assert not report.ok
    loss, gradient = report.findings
    assert loss.message.startswith("loss is +inf; finite in float64, so the cause is the precision, not the formula")
    assert loss.advice.startswith(advice)
    assert gradient.message.endswith("this follows from the loss.")
    assert report.origin is not None
    assert (report.origin.operation, report.origin.made) == ("exp", "+inf 1")
    assert report.origin.line == line_of(own_cross_entropy, "logits.exp()")


@pytest.mark.parametrize(
    ("loss_fn", "operation", "cause"),
    [
        (lambda x, y: (1 / (x * 0)).mean(), "mean", "reciprocal"),  # of +inf and -inf
        (lambda x, y: (x.abs() / 0).mean(), "div", None),
        (lambda x, y: x.abs().div_(0).mean(), "div_", None),
        (lambda x, y: ((x.abs() / 0) * 0).mean(), "mul", "div"),
        (lambda x, y: torch.where(y[:, None] > 9, x / 0, 1.0).sum() + (x - x).log().mean(), "log", None),
        (lambda x, y: x[0].log().mean(), "log", None),  # through a view
        (lambda x, y: (x - x.detach()).abs().pow(0.5).sum(), "PowBackward0", None),  # an infinity before any nan
        (lambda x, y: F.cross_entropy(x, y * 0 - 100), "nll_loss2d_forward", None),
    ],
)
def test_origin(loss_fn: Callable[..., Tensor], operation: str, cause: str | None) -> None:
    origin = diagnose(loss_fn, *scene()).origin
    assert origin is not None
    assert origin.operation == operation
    assert (origin.cause.operation if origin.cause else None) == cause
    assert origin.file == __file__  # and not the lines of torch that it calls
    assert loss_fn.__code__.co_firstlineno == origin.line


def test_origin_without_a_line_of_the_user() -> None:
    x, y = scene()
    origin = diagnose(nn.CrossEntropyLoss(), x, torch.full_like(y, -100)).origin
    assert origin is not None
    assert origin.file.endswith("functional.py")
    assert "at torch/nn/functional.py:" in str(origin)


def test_bad_values_that_come_in_have_no_origin() -> None:
    x, y = scene()
    x[0, 1, 2, 3], x[1, 0, 0, 0] = math.nan, math.inf
    report = diagnose(F.cross_entropy, x, y)
    assert report.origin is None
    logits, loss, gradient = report.findings
    assert logits.message == "logits: 2 of 384 values (0.52%) are not finite: nan 1, +inf 1; first at [0, 1, 2, 3]."
    assert loss.message == "loss is nan."
    assert "all of them where the logits are not finite" in gradient.message
    assert loss.advice == "Fix the input first: no loss can be finite on it."


def test_bad_logits_under_ignored_pixels() -> None:
    x, y = scene()
    x[0, :, 0, 0], y[0, 0, 0] = math.nan, -100
    report = diagnose(EdgeAwareLoss(), x, y)
    assert not report.ok
    assert [finding.message.split(":")[0] for finding in report.findings] == ["logits"]  # loss and gradient are fine


def test_clean_losses_are_ok() -> None:
    x, y = scene()
    for loss_fn in (F.cross_entropy, nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5])), EdgeAwareLoss(decay=1.0)):
        report = diagnose(loss_fn, x, y)
        assert report.ok, report
        assert not report.findings
        assert report.origin is None
        assert "All values are finite, and nothing looks wrong." in str(report)
    assert diagnose(EdgeAwareLoss(), x[:0], y[:0]).ok


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
    found = json.loads(json.dumps(diagnose(EdgeAwareLoss(), x, y).to_dict(), allow_nan=False))
    assert list(found) == ["ok", "name", "findings", "origin", "inputs", "loss", "gradient", "terms"]
    assert found["ok"] is False
    assert found["inputs"]["logits"]["posinf"] == 1
    assert found["inputs"]["logits"]["first_bad"] == [0, 0, 0, 0]
    assert found["inputs"]["target"]["values"] == [0, 1]
    assert list(found["loss"]) == ["float32", "float64"]
    assert found["loss"]["float32"]["mean"] is None
    assert {"level", "message", "advice"} == set(found["findings"][0])
    origin = json.loads(json.dumps(diagnose(leaky_edges, *scene()).to_dict(), allow_nan=False))["origin"]
    assert origin["cause"]["operation"] == "div"


# ---------------------------------------------------------------------------------------------------- what looks odd


def only(report: Report, level: str = "warning") -> Finding:
    """The single finding of a report."""
    (finding,) = report.findings
    assert finding.level == level
    assert report.ok == (level != "error")
    return finding


def test_softmax_twice() -> None:
    x, y = scene(19)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        finding = only(diagnose(F.cross_entropy, x.softmax(1).to(dtype), y))
        assert "so they are probabilities" in finding.message
        assert "before the softmax" in finding.advice
    assert "look like probabilities" in only(diagnose(EdgeAwareLoss(), x[:, :1].sigmoid(), y)).message
    assert not diagnose(F.cross_entropy, torch.zeros(1, 1, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64)).findings[1:]
    assert diagnose(F.cross_entropy, x.sigmoid(), y).findings == ()  # no sum of 1


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, EdgeAwareLoss()])
def test_labels_out_of_range(loss_fn: Any) -> None:
    x, y = scene()
    y[0, 4, 5], y[1, 0, 0], y[1, 0, 1] = 7, 255, 7
    report = diagnose(loss_fn, x, y)
    assert not report.ok
    error, labels = report.findings
    assert error.level == "error"
    assert error.message.startswith("loss: ")
    assert " at edgeloss" not in error.message  # no line of the package: the caller can't change it
    expected = "target: labels outside the classes 0 to 2 at 3 of 128 pixels: 7, 255; first at [0, 4, 5]."
    assert labels.message == expected
    assert "ignore_index" in labels.advice
    assert report.gradient is None
    with pytest.raises(ValueError, match="gradient: expected one to draw, but got none from"):
        report.figure()


def test_labels_that_are_ignored_are_no_finding() -> None:
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


def test_nothing_to_learn_from() -> None:
    x, y = scene()
    finding = only(diagnose(EdgeAwareLoss(), x, torch.full_like(y, -100)))
    assert finding.message == "target: no valid label, so there is nothing to learn from."
    nan = diagnose(F.cross_entropy, x, torch.full_like(y, -100))
    assert "a mean over nothing is 0 / 0" in nan.findings[0].advice
    y[1] = 2
    assert only(diagnose(EdgeAwareLoss(), x, y), "note").message.startswith("target: no edge in images [1];")


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


# ------------------------------------------------------------------------------------------------------ any loss at all


def test_what_a_loss_may_return() -> None:
    x, y = scene()
    note = only(diagnose(lambda x, y: F.cross_entropy(x, y, reduction="none"), x, y), "note")
    assert note.message == "loss: a map [2, 8, 8], summed for the gradient."
    # Its sum is beyond float16, and nobody asked for it.
    assert diagnose(lambda x, y: 2e3 * x.square(), x.half(), y).ok
    for result in (lambda loss: (loss, {"ce": 1.0}), lambda loss: {"loss": loss, "other": loss * 2}):
        report = diagnose(lambda x, y, result=result: result(F.cross_entropy(x, y)), x, y)
        assert "the first tensor of the returned" in only(report, "note").message
        assert report.to_dict()["loss"]["float32"]["mean"] == pytest.approx(F.cross_entropy(x, y).item())
    error = only(diagnose(lambda x, y: F.cross_entropy(x, y).item(), x, y), "error")
    assert error.message.startswith("loss: TypeError: expected a loss that returns a tensor, but got")


def test_a_loss_that_raises_is_told_with_the_line() -> None:
    def broken(logits: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(logits.log_softmax(1), target[:, :2])

    message = only(diagnose(broken, *scene()), "error").message
    assert f"at tests/debug/test_diagnose.py:{line_of(broken, 'nll_loss')} `return F.nll_loss(" in message


def test_a_backward_pass_that_raises_is_told_with_operation_and_line() -> None:
    def overwritten(logits: Tensor, target: Tensor) -> Tensor:
        p = logits.sigmoid()
        loss = p.sum()
        p.zero_()
        return loss

    report = diagnose(overwritten, *scene())
    message = only(report, "error").message
    assert message.startswith("gradient: RuntimeError: one of the variables needed for gradient computation")
    assert f"in SigmoidBackward0 of tests/debug/test_diagnose.py:{line_of(overwritten, 'sigmoid')} " in message
    assert report.gradient is None


class Stateful(nn.Module):
    """Counts its calls, draws random numbers, and holds weights in single precision."""

    def __init__(self) -> None:
        """Start counting."""
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        logits.sub_(logits.amax(1, keepdim=True).detach())
        target[target == 1] = 2
        return F.cross_entropy(F.dropout(logits), target, self.weight)


def test_nothing_is_changed() -> None:
    x, y = scene()
    leaf = x.clone().requires_grad_()
    loss_fn, state, dtype = Stateful(), torch.get_rng_state(), torch.get_default_dtype()
    report = diagnose(loss_fn, leaf * 1, y)
    assert report.ok
    assert "not compared, since the loss draws random numbers" in only(report, "note").message
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == dtype
    assert not torch.is_anomaly_enabled()
    assert leaf.grad is None
    assert torch.equal(leaf, x)
    assert (y == 1).any()
    assert loss_fn.calls == 0
    assert loss_fn.weight.dtype == torch.float32
    loss_fn(leaf * 1, y.clone()).backward()  # with the same random numbers
    assert leaf.grad is not None
    assert report.gradient is not None
    torch.testing.assert_close(report.gradient, leaf.grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_in_every_mode(mode: Any) -> None:
    with mode():
        x, y = scene()
        report = diagnose(EdgeAwareLoss(torch.ones(3)), x * 1, y)
    assert report.ok
    assert report.gradient is not None
    assert report.gradient.any()


WEIGHT = torch.tensor([1.0, 2.0, 0.5])


# What each of them brings in single precision would be refused beside float64, or cost its digits.
@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda x, y: F.cross_entropy(x, y, WEIGHT),
        lambda x, y: F.cross_entropy(x.float(), y, torch.ones(3, dtype=torch.float32)),
        lambda x, y: F.cross_entropy(x.to(torch.float32) * torch.tensor([0.1, 0.2, 0.3])[:, None, None], y),
        lambda x, y: torch.zeros(2, dtype=torch.float32).index_add_(0, torch.tensor([0, 1]), x.mean((1, 2, 3))).sum(),
    ],
)
def test_float64_reaches_constants_and_casts(loss_fn: Any) -> None:
    x, y = scene()
    report = diagnose(loss_fn, x, y)
    assert not report.findings
    loss = report.to_dict()["loss"]
    assert loss["float64"]["dtype"] == "float64"
    assert loss["float64"]["mean"] != loss["float32"]["mean"]  # it has more digits
    assert loss["float64"]["mean"] == pytest.approx(loss["float32"]["mean"], rel=1e-5)


def test_float64_that_cannot_be_run() -> None:
    def single_only(logits: Tensor, target: Tensor) -> Tensor:
        if logits.dtype == torch.float64:
            raise NotImplementedError("no kernel for float64")
        return F.cross_entropy(logits, target)

    message = only(diagnose(single_only, *scene()), "note").message
    assert message.startswith("float64: failed; NotImplementedError: no kernel for float64")


def test_logits_and_targets_of_other_kinds() -> None:
    x, y = scene(1)
    assert diagnose(nn.BCEWithLogitsLoss(), x, y[:, None].float()).ok
    assert diagnose(lambda x, ys: sum(F.mse_loss(x, y) for y in ys), x, [x * 2, x * 3]).ok
    report = diagnose(F.cross_entropy, torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0]))
    assert report.ok
    with pytest.raises(ValueError, match=r"gradient: expected \[B, C, H, W\] or .*, but got \[5, 4\]"):
        report.figure()
    bad = diagnose(nn.MSELoss(), x, torch.full_like(x, math.nan))
    assert bad.findings[0].message.startswith("target: 128 of 128 values (100.00%) are not finite")


def test_bad_weights_are_a_warning_of_their_own() -> None:
    x, y = scene()
    loss_fn = nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, math.inf]))
    (loss_fn_warning,) = levels(diagnose(loss_fn, x, y), "warning")  # class 2 does not occur
    assert loss_fn_warning.message == "loss_fn.weight: 1 of 3 values (33.33%) are not finite: +inf 1; first at [2]."


@pytest.mark.parametrize(
    ("loss_fn", "logits", "message"),
    [
        (3, torch.zeros(1, 2, 4, 4), "loss_fn: expected a function or module, but got int"),
        (F.cross_entropy, [1.0], "logits: expected a floating tensor, but got list"),
        (F.cross_entropy, torch.zeros(1, 2, 4, 4).long(), r"but got int64 \[1, 2, 4, 4\]"),
    ],
)
def test_wrong_input(loss_fn: Any, logits: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        diagnose(loss_fn, logits, torch.zeros(1, 4, 4).long())


# ---------------------------------------------------------------------------------------------------- EdgeAwareLoss


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_terms_add_up_to_the_loss(reduction: Any) -> None:
    x, y = scene()
    y[0, -2:] = 255
    criterion = EdgeAwareLoss(
        torch.tensor([1.0, 2.0, 0.5]), edge_class_weight=torch.tensor([0.3, 1.0, 4.0]),
        ignore_index=255, reduction=reduction, ce_weight=0.7, edge_weight=0.3,
        other_side_weight=1.5, same_side_weight=0.4, false_edge_weight=0.2,
        power=-1.0, decay=2.0, label_smoothing=0.1,
    )  # fmt: skip
    weights = {"cross_entropy": 0.7, "same_side": 0.3 * 0.4, "other_side": 0.3 * 1.5, "false_edge": 0.3 * 0.2}
    for extra in ({}, {"pixel_weight": torch.rand(y.shape)}, {"normalizer": (50.0, 20.0)}):
        found = diagnose(criterion, x, y, **extra).to_dict()
        assert list(found["terms"]) == list(weights)
        total = sum(weight * found["terms"][name]["loss"]["mean"] for name, weight in weights.items())
        assert total == pytest.approx(criterion(x, y, **extra).item(), rel=1e-5)
    criterion.same_side_weight = criterion.false_edge_weight = 0.0
    assert list(diagnose(criterion, x, y).to_dict()["terms"]) == ["cross_entropy", "other_side"]


def test_the_guilty_term_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    edge_terms = reference.edge_terms

    def broken(x: Tensor, y: Tensor, valid: Tensor, mask: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        same, other = edge_terms(x, y, valid, mask, *rest)
        share = x.softmax(1)[:, 0] * mask
        return same, other + torch.where(mask, share / mask, 0.0)  # masked too late

    monkeypatch.setattr(reference, "edge_terms", broken)
    x, y = scene()
    report = diagnose(EdgeAwareLoss(backend="reference"), x, y)
    gradient, terms = report.findings
    assert terms.message == "terms: other_side not finite; cross_entropy, same_side finite."
    assert terms.advice == "Set the weight of other_side to 0 to continue without it."
    assert gradient.message.startswith("gradient: ")
    assert report.origin is not None
    assert report.origin.operation == "DivBackward0"
    assert report.origin.line == line_of(broken, "share / mask")


def test_terms_of_bad_logits() -> None:
    x, y = scene()
    x[0, 1, 7, 7] = math.nan  # far from the edge
    report = diagnose(EdgeAwareLoss(), x, y)
    assert report.findings[-1].message == "terms: cross_entropy not finite; same_side, other_side finite."
    assert report.findings[-1].advice == "The logits are not finite; fix them first."


def test_terms_that_cannot_be_told_apart() -> None:
    class Soft(EdgeAwareLoss):
        def forward(self, logits: Tensor, target: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
            return (logits.log() * target).sum()

    x, _ = scene()
    report = diagnose(Soft(), x, x.softmax(1))
    assert report.to_dict()["terms"].startswith("not evaluated; ")
    assert not any(finding.message.startswith("terms") for finding in report.findings)


def test_what_a_subclass_adds_is_no_term() -> None:
    class Ours(EdgeAwareLoss):
        def forward(self, logits: Tensor, target: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
            loss: Tensor = super().forward(logits, target, **kwargs)
            return loss + (logits - logits).square().sum().sqrt()

    report = diagnose(Ours(), *scene())
    assert report.name == "Ours"
    assert report.findings[-1].message == "terms: each of them is finite by itself in plain PyTorch."
    assert "what a subclass adds" in report.findings[-1].advice


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_edge_aware_loss_is_fine_in_every_precision(dtype: torch.dtype) -> None:
    x, y = scene()
    report = diagnose(EdgeAwareLoss(upsample=True), x[..., ::2, ::2].to(dtype), y)
    assert not report.findings
    assert report.gradient is not None
    assert report.gradient.dtype == dtype


# ----------------------------------------------------------------------------------------------------------- the figure


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
    assert figure.texts[0].get_text() == "log10 |gradient| of leaky_edges"
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


def test_figure_of_a_volume_shows_the_worst_slice() -> None:
    x, y = scene(size=(5, 8, 8))

    def bad_slice(logits: Tensor, target: Tensor) -> Tensor:
        loss = logits.square()
        loss[1, :, 3, :2] /= 0.0
        return loss.mean()

    assert list(captions(diagnose(bad_slice, x, y))) == ["image 0, slice 2 of 5", "image 1, slice 3 of 5"]


# --------------------------------------------------------------------------------------------------------------- trees

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Batch:
    """A dataclass with tensors."""

    image: Tensor
    name: str


def line(obj: object) -> str:
    """The root's line, without alignment."""
    return " ".join(format_tree(obj, name="x").splitlines()[0].split())


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (
            torch.tensor([1.0, math.nan, math.inf, -math.inf, 0.0]),
            "x float32 [5] cpu min 0 mean 0.5 max 1 nan 1 · +inf 1 · -inf 1 · first bad [1] · zeros 1 · values 0, 1",
        ),
        (torch.full((3,), math.nan), "x float32 [3] cpu nan 3 · first bad [0]"),
        (torch.tensor(2.5), "x float32 [] cpu 2.5"),
        (torch.tensor(-math.inf), "x float32 [] cpu -inf"),
        (torch.empty(0, 3), "x float32 [0, 3] cpu"),
        # Sums that overflow the dtype.
        (torch.full((7000,), 65504.0).half(), "x float16 [7000] cpu min 65504 mean 65504 max 65504 values 65504"),
        (
            torch.full((4,), 1e308, dtype=torch.float64),
            "x float64 [4] cpu min 1e+308 mean 1e+308 max 1e+308 values 1e+308",
        ),
        (torch.full((3,), 255, dtype=torch.uint8), "x uint8 [3] cpu min 255 mean 255 max 255 values 255"),
        (torch.tensor([True, False, True]), "x bool [3] cpu min 0 mean 0.66667 max 1 zeros 1 · values 0, 1"),
        (torch.arange(11), "x int64 [11] cpu min 0 mean 5 max 10 zeros 1"),
        (torch.arange(10), "x int64 [10] cpu min 0 mean 4.5 max 9 zeros 1 · values 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (torch.tensor([3 + 4j, 0j]), "x complex64 [2] cpu min 0 mean 2.5 max 5 zeros 1 · values 0, 5 · of |z|"),
        (torch.tensor([complex(math.nan, 1)]), "x complex64 [1] cpu nan of |z|"),
        (torch.eye(3).to_sparse(), "x float32 [3, 3] cpu min 1 mean 1 max 1 values 1 · sparse_coo of 3 values"),
        (torch.empty(2, 2, device="meta"), "x float32 [2, 2] meta no values"),
        (torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), "x float8_e4m3fn [2] cpu min 1 mean 1.5 max 2 values 1, 2"),
        (np.arange(6.0).reshape(2, 3)[::-1], "x float64 [2, 3] numpy min 0 mean 2.5 max 5 zeros 1"),
        (np.array(["a", "b"]), "x <U1 [2] numpy"),
        (0.5, "x 0.5"),
        (None, "x None"),
        ("text", "x 'text'"),
        ([1, 2, 3], "x [1, 2, 3]"),
        ({1}, "x {1}"),
    ],
)
def test_tree_of_one(obj: object, expected: str) -> None:
    assert line(obj) == expected


def test_tree_of_many() -> None:
    linear = nn.Linear(2, 1)
    linear.weight.grad = torch.ones(1, 2)
    obj = OrderedDict(
        pair=Pair(torch.ones(2), 1), batch=Batch(torch.zeros(1), "cat"), model=nn.Sequential(linear), items=[{"a": 1}]
    )
    out = io.StringIO()
    tree(obj, file=out)
    names = [match[0] for match in re.finditer(r"^[ │├└─]*\S+", out.getvalue(), re.MULTILINE)]
    assert names == [
        "OrderedDict",
        "├── pair",
        "│   ├── first",
        "│   └── second",
        "├── batch",
        "│   ├── image",
        "│   └── name",
        "├── model",
        "│   └── 0",
        "│       ├── weight",
        "│       │   └── grad",
        "│       └── bias",
        "└── items",
        "    └── [0]",
        "        └── a",
    ]
    columns = {text.index("float32") for text in out.getvalue().splitlines() if "float32" in text}
    assert len(columns) == 1


def test_tree_prints(capsys: pytest.CaptureFixture[str]) -> None:
    tree({"a": 1})
    assert capsys.readouterr().out == "dict   dict of 1\n└── a  1\n"


def test_tree_ends() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = [loop, torch.ones(1)]
    assert "dict of 1: same object as above" in format_tree(loop)
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep, torch.ones(1)]
    assert len(format_tree(deep).splitlines()) < 60
    assert "960 more" in format_tree({i: i for i in range(1000)})
    assert len(format_tree(["x" * 10**6, torch.ones(1)])) < 300
    shared = torch.ones(2)
    assert "above" not in format_tree([shared, [shared]])


def test_tree_survives_what_cannot_be_shown() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Rude" in format_tree([Rude(), torch.ones(1)])


def test_import_is_light() -> None:
    code = "import sys, edgeloss.debug; print(sorted({'matplotlib', 'scipy', 'cv2', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
