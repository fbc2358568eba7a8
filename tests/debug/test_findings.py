"""Findings: values that are not finite with their origin, or probably wrong; and calls of any loss."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debug_losses import leaky_edges, line_of, scene
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss._reference import neighborhoods
from edgeloss.debug import Finding, Report, diagnose
from edgeloss.functional import edge_aware_loss


def only(report: Report, level: str) -> Finding:
    """Return the single finding of a report."""
    (finding,) = report.findings
    assert finding.level == level
    assert report.ok == (level != "error")
    return finding


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
GROUND, BETWEEN = torch.where(Y == 1, 255, 0), Y.clone()
BETWEEN[:, 3, :4], BETWEEN[:, :4, 3] = 255, 255  # a rim of one pixel around the object
VOID_LOSS, WIDE_LOSS = EdgeAwareLoss(ignore_index=255), EdgeAwareLoss(ignore_index=255, radius=2)
OBJECT = torch.where(Y == 1, 255, 0)
OVERLAP, OVERLAPS = torch.randn(2, 3, 8, 8), torch.arange(384).view(2, 3, 8, 8) % 2
OVERLAPS[0, 1, 4:], OVERLAPS[1, 2] = 255, 0
MULTILABEL, LOSS, CE = EdgeAwareLoss(multilabel=True, ignore_index=255), EdgeAwareLoss(), F.cross_entropy
NO_PATH = "gradient: none, since no differentiable path leads from the logits to the loss."
UNCHECKED = EdgeAwareLoss(ignore_index=255, validate="never")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
        (LOSS, X, ONE_IMAGE, "note", "target: no edge in images [1]; the edge terms are 0 there.", ""),
        (MULTILABEL, OVERLAP, OVERLAPS, "note", "target: no edge in [image, class] [[1, 2]];", ""),
        (
            VOID_LOSS,
            X,
            GROUND,
            "warning",
            "target: 14.1% of the pixels ignored, and all others of class 0, so",
            "index",
        ),
        (nn.CrossEntropyLoss(ignore_index=255), X, GROUND, "warning", "and all others of class 0", "Check that ignore"),
        (VOID_LOSS, X, BETWEEN, "warning", "target: 10.9% of the pixels ignored, between all classes", "pass a radius"),
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
        *((EdgeAwareLoss(upsample=True), X[..., ::2, ::2].to(dtype), Y) for dtype in DTYPES),
        (LOSS, X[:0], Y[:0]),
        (WIDE_LOSS, X, BETWEEN),
        (nn.CrossEntropyLoss(ignore_index=255), X, BETWEEN),
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
    assert report.gradient is not None
    assert report.gradient.dtype == logits.dtype
    if not report.findings:
        assert ": the loss is healthy: all values finite, " in str(report)


def own_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Overflow for logits beyond 11 in float16 and 88 in float32."""
    partition = logits.exp().sum(1)
    return (partition.log() - logits.gather(1, target[:, None]).squeeze(1)).mean()


ONES = torch.ones(1, 4, 4, dtype=torch.int64)
HOT = torch.zeros(1, 2, 4, 4).index_put((torch.tensor([0]),) * 4, torch.tensor(1.0))
BAD, IGNORED, UNDER, WRONG = X.clone(), Y.clone(), X.clone(), Y.clone()
BAD[0, 1, 2, 3], BAD[1, 0, 0, 0], IGNORED[0, 0, 0], UNDER[0, :, 0, 0] = math.nan, math.inf, -100, math.nan
WRONG[0, 4, 5], WRONG[1, 0, 0], WRONG[1, 0, 1] = 7, 255, 7
RAISED = [
    ("error", "loss: ", "Fix what the message reports; the loss was not computed."),
    ("warning", "target: labels outside the classes 0 to 2 at 3 of 128 pixels: 7, 255; first at [0, 4, 5].", "ignore"),
]


def overflow(advice: str) -> list[tuple[str, str, str]]:
    message = "loss is +inf; finite in float64, so the cause is the precision, not the formula. It starts with exp (+"
    return [("error", message, advice), ("note", "; this follows from the loss.", "")]


@pytest.mark.parametrize(
    ("loss_fn", "logits", "target", "expected"),
    [
        (CE, X, WRONG, RAISED),
        (LOSS, X, WRONG, RAISED),
        (
            lambda x, y: ((x * 1e-3 + 1e4) - 1e4).square().mean(), X, Y,
            [("warning", f"{part}: differs from float64 by", "a difference of large") for part in ("loss", "gradient")],
        ),
        (
            nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, math.inf])), X, Y,  # class 2 does not occur
            [("warning", "loss_fn.weight: 1 of 3 values (33.33%) are not finite: +inf 1; first at [2].", "never")],
        ),
        (CE, X, Y * 0 - 100, [("error", "loss is nan", "a mean over nothing is 0 / 0"), ("warning", "no valid", "")]),
        # Beyond the range of the exponential in each precision, and within that of float64.
        (own_cross_entropy, (HOT * 20).half(), ONES, overflow("in float32, loss_fn(logits.float(), target)")),
        (own_cross_entropy, (HOT * 200).bfloat16(), ONES, overflow("Compute the loss in float32")),
        (own_cross_entropy, HOT * 200, ONES, overflow("Subtract the largest logit before the exponential")),
        (
            CE, BAD, Y,
            [
                ("error", "logits: 2 of 384 values (0.52%) are not finite: nan 1, +inf 1; first at [0, 1, 2, 3].", ""),
                ("note", "loss is nan; this follows from the inputs.", ""),
                ("note", "all of them where the logits are not finite; this follows from the loss.", ""),
            ],
        ),
        (LOSS, UNDER, IGNORED, [("error", "logits: 3 of 384", "")]),  # loss and gradient are finite
    ],
)  # fmt: skip
def test_several_findings(loss_fn: Any, logits: Tensor, target: Tensor, expected: list[tuple[str, str, str]]) -> None:
    report = diagnose(loss_fn, logits, target)
    for finding, (level, message, advice) in zip(report.findings, expected, strict=True):
        assert finding.level == level
        assert message in finding.message
        assert advice in finding.advice
    assert report.ok == (expected[0][0] != "error")
    assert " at edgeloss" not in report.findings[0].message  # no line of the package
    if report.gradient is None:
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


# ------------------------------------------------------------------------------- the origin of non-finite values


def test_masked_division_is_reported_with_operation_and_line() -> None:
    # An image with a single edge: the gradient is nan everywhere else.
    x, y = torch.randn(1, 2, 64, 64), torch.zeros(1, 64, 64, dtype=torch.int64)
    y[0, 0, 0] = 1
    report = diagnose(leaky_edges, x, y)
    finding, origin = only(report, "error"), report.origin
    assert origin is not None
    assert origin.operation == "LogBackward0"
    assert origin.file == inspect.getsourcefile(leaky_edges)
    assert origin.line == line_of(leaky_edges, "torch.log(mean)")
    assert origin.source == "loss_map = -torch.log(mean)"
    assert origin.cause is not None
    assert (origin.cause.operation, origin.cause.made) == ("div", "nan 4092")
    assert origin.cause.line == line_of(leaky_edges, "/ weight.sum(1)")
    assert "8190 of 8192 values (99.98%) are not finite: nan 8190; first at [0, 0, 0, 1]" in finding.message
    assert "not finite in float64 either, so the cause is the formula, not the precision" in finding.message
    assert finding.advice.startswith("Select the elements with a non-zero denominator before the division")
    assert f"div (nan 4092) at tests/debug/debug_losses.py:{origin.cause.line}" in finding.message


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


LATE, ENDS, RATIO = "Compute the logarithm from the logits", "Its derivative is infinite", "Select the elements"


@pytest.mark.parametrize(
    ("loss_fn", "operation", "cause", "advice"),
    [
        (lambda x, y: (1 / (x * 0)).mean(), "mean", "reciprocal", RATIO),  # of +inf and -inf
        (lambda x, y: (x.abs() / 0).mean(), "div", None, RATIO),
        (lambda x, y: x.abs().div_(0).mean(), "div_", None, RATIO),
        (lambda x, y: ((x.abs() / 0) * 0).mean(), "mul", "div", RATIO),
        (lambda x, y: torch.where(y[:, None] > 9, x / 0, 1.0).sum() + (x - x).log().mean(), "log", None, LATE),
        (lambda x, y: x[0].log().mean(), "log", None, LATE),  # through a view
        (lambda x, y: (x - x.detach()).abs().pow(0.5).sum(), "PowBackward0", None, ENDS),  # an infinity before any nan
        (lambda x, y: (((x * (y != 0)[:, None]) ** 2).sqrt() * (y != 0)[:, None]).mean(), "SqrtBackward0", None, ENDS),
        (lambda x, y: F.cross_entropy(x, y * 0 - 100), "nll_loss2d_forward", None, ""),
    ],
)
def test_origin(loss_fn: Any, operation: str, cause: str | None, advice: str) -> None:
    report = diagnose(loss_fn, *scene())
    origin = report.origin
    assert origin is not None
    assert origin.operation == operation
    assert (origin.cause.operation if origin.cause else None) == cause
    assert origin.file == __file__  # not a line of torch below it
    assert loss_fn.__code__.co_firstlineno == origin.line
    assert report.findings[0].advice.startswith(advice)


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


# ------------------------------------------------------------------------------------------- how a loss is called

WEIGHT = torch.tensor([1.0, 2.0, 0.5])


class Stateful(nn.Module):
    """Count calls, draw random numbers, and store float32 weights."""

    def __init__(self) -> None:
        """Start with no calls."""
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        logits.sub_(logits.amax(1, keepdim=True).detach())
        target[target == 1] = 2
        return F.cross_entropy(F.dropout(logits), target, self.weight)


def test_an_exception_is_reported_with_its_line() -> None:
    def broken(logits: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(logits.log_softmax(1), target[:, :2])

    message = only(diagnose(broken, *scene()), "error").message
    assert f"at tests/debug/test_findings.py:{line_of(broken, 'nll_loss')} `return F.nll_loss(" in message


def test_an_exception_in_backward_is_reported_with_operation_and_line() -> None:
    def overwritten(logits: Tensor, target: Tensor) -> Tensor:
        p = logits.sigmoid()
        loss = p.sum()
        p.zero_()
        return loss

    report = diagnose(overwritten, *scene())
    message = only(report, "error").message
    assert message.startswith("gradient: RuntimeError: one of the variables needed for gradient computation")
    assert f"in SigmoidBackward0 of tests/debug/test_findings.py:{line_of(overwritten, 'sigmoid')} " in message
    assert report.gradient is None


def test_arguments_and_state_are_unchanged() -> None:
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
def test_grad_modes(mode: Any) -> None:
    with mode():
        x, y = scene()
        report = diagnose(EdgeAwareLoss(torch.ones(3)), x * 1, y)
    assert report.ok
    assert report.gradient is not None
    assert report.gradient.any()


# Their float32 constants and casts would raise in float64, or lose digits.
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


@pytest.mark.parametrize(
    ("loss_fn", "logits", "message"),
    [
        (3, X, "loss_fn: expected a function or module, but got int"),
        (X, CE, "but got Tensor; pass the loss first, diagnose"),
        (CE, [1.0], "logits: expected a floating tensor, but got list"),
        (CE, {"out": X}, r'floating tensor, but got dict; pass output\["out"\]'),
        (CE, X.to("meta"), "logits: expected a tensor with values, but got one on the meta"),
        (CE, X[0, 0].to_sparse(), "logits: expected a dense tensor, but got a sparse_coo one"),
        (CE, X.long(), r"but got int64 \[2, 3, 8, 8\]"),
    ],
)
def test_wrong_input(loss_fn: Any, logits: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        diagnose(loss_fn, logits, Y)
