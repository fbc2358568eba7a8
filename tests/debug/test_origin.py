"""The origin of non-finite values: operation, line, cause and pixels."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from debug_losses import leaky_edges, line_of, scene
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss, neighborhoods
from edgeloss.debug import diagnose
from edgeloss.functional import edge_aware_loss


def masked_length(logits: Tensor, target: Tensor) -> Tensor:
    """Compute a root whose derivative is infinite where the mask is 0."""
    off = (logits.softmax(1)[:, 1] * (target != 0)).square()
    length = torch.sqrt(off)
    return (length * (target != 0)).mean()


def own_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Overflow for logits beyond 11 in float16 and 88 in float32."""
    partition = logits.exp().sum(1)
    return (partition.log() - logits.gather(1, target[:, None]).squeeze(1)).mean()


def test_masked_division_is_reported_with_operation_and_line() -> None:
    # An image with a single edge: the gradient is nan everywhere else.
    x, y = torch.randn(1, 2, 64, 64), torch.zeros(1, 64, 64, dtype=torch.int64)
    y[0, 0, 0] = 1
    report = diagnose(leaky_edges, x, y)
    assert not report.ok
    assert report.gradient is not None
    assert report.gradient.isnan().float().mean() > 0.999

    origin = report.origin
    assert origin is not None
    assert origin.operation == "LogBackward0"
    assert origin.file == inspect.getsourcefile(leaky_edges)
    assert origin.line == line_of(leaky_edges, "torch.log(mean)")
    assert origin.source == "loss_map = -torch.log(mean)"
    assert origin.cause is not None
    assert (origin.cause.operation, origin.cause.made) == ("div", "nan 4092")
    assert origin.cause.line == line_of(leaky_edges, "/ weight.sum(1)")

    (finding,) = report.findings
    assert "8190 of 8192 values (99.98%) are not finite: nan 8190; first at [0, 0, 0, 1]" in finding.message
    assert "not finite in float64 either, so the cause is the formula, not the precision" in finding.message
    assert finding.advice.startswith("Select the elements with a non-zero denominator before the division")
    assert f"div (nan 4092) at tests/debug/debug_losses.py:{origin.cause.line}" in finding.message


def test_masked_root_is_reported_with_operation_and_line() -> None:
    x, y = scene()
    report = diagnose(masked_length, x, y)
    assert report.origin is not None
    assert (report.origin.operation, report.origin.cause) == ("SqrtBackward0", None)
    assert report.origin.line == line_of(masked_length, "torch.sqrt")
    (finding,) = report.findings
    assert "Its derivative is infinite at the end of its domain" in finding.advice


def test_common_place_of_bad_pixels() -> None:
    x, y = scene()
    off_edges = ~neighborhoods.find_edges(y, y >= 0, [1, 1])

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
def test_overflow_is_blamed_on_the_precision(dtype: torch.dtype, scale: float, advice: str) -> None:
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
    assert origin.file == __file__  # not a line of torch below it
    assert loss_fn.__code__.co_firstlineno == origin.line


def test_origin_without_a_line_of_the_user() -> None:
    x, y = scene()
    origin = diagnose(nn.CrossEntropyLoss(), x, torch.full_like(y, -100)).origin
    assert origin is not None
    assert origin.file.endswith("functional.py")
    assert "at torch/nn/functional.py:" in str(origin)


def test_a_line_of_the_user_is_preferred_to_lines_of_the_package() -> None:
    def overflow(logits: Tensor, target: Tensor) -> Tensor:
        weight = torch.full((3,), 1e12)
        return edge_aware_loss(logits * 1e28, target, weight=weight, reduction="sum", backend="reference")

    origin = diagnose(overflow, *scene()).origin
    assert origin is not None
    assert (origin.file, origin.line) == (__file__, line_of(overflow, "return"))


def test_non_finite_inputs_have_no_origin() -> None:
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
    assert [finding.message.split(":")[0] for finding in report.findings] == ["logits"]  # loss and gradient are finite
