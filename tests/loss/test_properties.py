"""Properties that hold for random inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.usefixtures("each_backend")

IGNORE = 255


@st.composite
def scenes(draw: st.DrawFn, max_classes: int = 5, min_classes: int = 2) -> tuple[Tensor, Tensor]:
    """Draw float64 logits, and labels with ignored pixels: noise or one region, 2-D or 3-D, down to one pixel."""
    size = draw(st.one_of(*(st.tuples(*[st.integers(1, most)] * dims) for dims, most in ((2, 12), (3, 5)))))
    classes, batch = draw(st.integers(min_classes, max_classes)), draw(st.integers(1, 2))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(batch, classes, *size, generator=random, dtype=torch.float64) * draw(
        st.sampled_from([0.1, 2.0, 30.0])
    )
    y = torch.randint(draw(st.integers(1, classes)), (batch, *size), generator=random)
    y[torch.rand(batch, *size, generator=random) < draw(st.sampled_from([0.0, 0.2, 0.9]))] = IGNORE
    return x, y


def options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "radius": st.sampled_from([1, 2]),
            "power": st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
            "decay": st.sampled_from([None, 0.1, 2.0]),
            "label_smoothing": st.sampled_from([0.0, 0.1]),
            "region_weight": st.sampled_from([0.0, 3.0]),
        }
    )


def grad_of(loss: Tensor, x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, x)
    return gradient


@given(
    scenes(),
    st.sampled_from(["mean", "sum", "none"]),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_without_edge_weight_it_is_cross_entropy(
    scene: tuple[Tensor, Tensor], reduction: str, weighted: bool, smoothing: float, dtype: torch.dtype
) -> None:
    x, y = scene
    x = x.to(dtype).requires_grad_()
    weight = torch.linspace(0.2, 3.0, x.shape[1], dtype=dtype) if weighted else None
    loss = edge_aware_loss(
        x, y, weight=weight, ignore_index=IGNORE, label_smoothing=smoothing, reduction=reduction, edge_weight=0.0
    )
    expected = F.cross_entropy(x, y, weight=weight, ignore_index=IGNORE, label_smoothing=smoothing, reduction=reduction)
    if reduction == "mean" and not (y != IGNORE).any():
        assert loss == 0  # where torch gives nan
        assert not grad_of(loss, x).any()
        return
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad_of(loss.sum(), x), grad_of(expected.sum(), x), rtol=1e-6, atol=1e-6)


@given(scenes(), options(), st.sampled_from(["mean", "sum", "none"]))
def test_finite_and_never_negative(scene: tuple[Tensor, Tensor], options: dict[str, Any], reduction: str) -> None:
    x, y = scene
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        logits = x.to(dtype).requires_grad_()
        loss, terms = edge_aware_loss(logits, y, ignore_index=IGNORE, reduction=reduction, return_terms=True, **options)
        assert loss.isfinite().all()
        assert (loss >= 0).all()
        assert grad_of(loss.sum(), logits).isfinite().all()
        assert all(value >= 0 for name, value in terms.items() if name != "region")
        assert terms["region"] <= (1 + 1e-6) * (y != IGNORE).sum()


def edge_terms(x: Tensor, y: Tensor, **options: Any) -> Tensor:
    terms = edge_aware_loss(x, y, ignore_index=IGNORE, return_terms=True, **options)[1]
    return torch.stack([terms["same_side"], terms["other_side"]])


@given(scenes(), st.sampled_from([None, 0.5]), st.floats(-3, 3), st.floats(0.01, 3))
def test_terms_fall_as_power_rises(
    scene: tuple[Tensor, Tensor], decay: float | None, power: float, step: float
) -> None:
    assume(abs(power) > 1e-3)
    assume(abs(power + step) > 1e-3)
    low, high = (edge_terms(*scene, decay=decay, power=each) for each in (power, power + step))
    assert (high <= low + 1e-9).all()


@given(scenes(), st.sampled_from([None, 0.5]), st.sampled_from([-1.0, 1.0]))
def test_power_zero_is_the_limit(scene: tuple[Tensor, Tensor], decay: float | None, sign: float) -> None:
    at, near = (edge_terms(*scene, decay=decay, power=power) for power in (0.0, sign * 1e-7))
    # The difference is q/2 times the variance of the logarithms.
    torch.testing.assert_close(near, at, rtol=1e-5, atol=1e-9)
