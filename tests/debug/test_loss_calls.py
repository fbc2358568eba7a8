"""Calls of any loss: exceptions, modes and precisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debug_losses import line_of, only, scene
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss.debug import diagnose

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
    assert f"at tests/debug/test_loss_calls.py:{line_of(broken, 'nll_loss')} `return F.nll_loss(" in message


def test_an_exception_in_backward_is_reported_with_operation_and_line() -> None:
    def overwritten(logits: Tensor, target: Tensor) -> Tensor:
        p = logits.sigmoid()
        loss = p.sum()
        p.zero_()
        return loss

    report = diagnose(overwritten, *scene())
    message = only(report, "error").message
    assert message.startswith("gradient: RuntimeError: one of the variables needed for gradient computation")
    assert f"in SigmoidBackward0 of tests/debug/test_loss_calls.py:{line_of(overwritten, 'sigmoid')} " in message
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


def test_a_gradient_of_another_shape_is_not_drawn() -> None:
    report = diagnose(F.cross_entropy, torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0]))
    with pytest.raises(ValueError, match=r"gradient: expected \[B, C, H, W\] or .*, but got \[5, 4\]"):
        report.figure()


@pytest.mark.parametrize(
    ("loss_fn", "logits", "message"),
    [
        (3, torch.zeros(1, 2, 4, 4), "loss_fn: expected a function or module, but got int"),
        (torch.zeros(1, 2, 4, 4), F.cross_entropy, "but got Tensor; pass the loss first, diagnose"),
        (F.cross_entropy, [1.0], "logits: expected a floating tensor, but got list"),
        (
            F.cross_entropy,
            {"out": torch.zeros(1)},
            r'floating tensor, but got dict; pass output\["out"\]',
        ),
        (
            F.cross_entropy,
            torch.zeros(1, 2, device="meta"),
            "logits: expected a tensor with values, but got one on the meta",
        ),
        (F.cross_entropy, torch.zeros(1, 2).to_sparse(), "logits: expected a dense tensor, but got a sparse_coo one"),
        (F.cross_entropy, torch.zeros(1, 2, 4, 4).long(), r"but got int64 \[1, 2, 4, 4\]"),
    ],
)
def test_wrong_input(loss_fn: Any, logits: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        diagnose(loss_fn, logits, torch.zeros(1, 4, 4).long())
