"""Properties that hold for random inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from edgeloss.functional import edge_aware_loss, loss_maps, neighbor_nll
from edgeloss.neighborhoods import Grid, offsets

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
        loss, maps = edge_aware_loss(logits, y, ignore_index=IGNORE, reduction=reduction, return_maps=True, **options)
        assert loss.isfinite().all()
        assert (loss >= 0).all()
        assert grad_of(loss.sum(), logits).isfinite().all()
        assert all((value >= 0).all() for value in maps[:5])


@given(scenes(), options(), st.floats(-1e4, 1e4))
def test_adding_a_constant_to_a_pixel_changes_nothing(
    scene: tuple[Tensor, Tensor], options: dict[str, Any], constant: float
) -> None:
    x, y = scene
    shift = torch.linspace(-1, 1, y.numel(), dtype=x.dtype).view_as(y)[:, None] * constant
    # The tolerance is the rounding of x + shift itself.
    torch.testing.assert_close(
        edge_aware_loss(x + shift, y, ignore_index=IGNORE, **options),
        edge_aware_loss(x, y, ignore_index=IGNORE, **options),
        rtol=1e-9,
        atol=1e-9,
    )


@given(scenes(), options(), st.randoms(use_true_random=False))
def test_permuting_classes_changes_nothing(scene: tuple[Tensor, Tensor], options: dict[str, Any], random: Any) -> None:
    x, y = scene
    weight = torch.linspace(0.5, 2.0, x.shape[1], dtype=x.dtype)
    order = torch.tensor(random.sample(range(x.shape[1]), x.shape[1]))
    place = torch.argsort(order)
    renamed = torch.where(y == IGNORE, IGNORE, place[torch.where(y == IGNORE, 0, y)])
    torch.testing.assert_close(
        edge_aware_loss(
            x[:, order],
            renamed,
            weight=weight[order],
            edge_class_weight=weight.flip(0)[order],
            ignore_index=IGNORE,
            **options,
        ),
        edge_aware_loss(x, y, weight=weight, edge_class_weight=weight.flip(0), ignore_index=IGNORE, **options),
    )


@given(scenes(), options(), st.sampled_from(["flip", "turn"]))
def test_flips_and_turns_turn_the_maps(scene: tuple[Tensor, Tensor], options: dict[str, Any], move: str) -> None:
    x, y = scene

    def moved(values: Tensor) -> Tensor:
        return values.flip(-1) if move == "flip" else torch.rot90(values, 1, (-2, -1))

    def maps(x: Tensor, y: Tensor) -> Any:
        return edge_aware_loss(x, y, ignore_index=IGNORE, return_maps=True, **options)[1]

    for value, other in zip(maps(x, y), maps(moved(x), moved(y)), strict=True):
        if value is not None:
            torch.testing.assert_close(other, moved(value))


@given(scenes(), options())
def test_sums_over_a_batch_add_up(scene: tuple[Tensor, Tensor], options: dict[str, Any]) -> None:
    x, y = scene

    def total(a: Tensor, b: Tensor) -> Tensor:
        return edge_aware_loss(a, b, ignore_index=IGNORE, reduction="sum", **options)

    torch.testing.assert_close(sum(total(x[i : i + 1], y[i : i + 1]) for i in range(len(x))), total(x, y))


@given(scenes(max_classes=2), st.sampled_from([1, 2]))
def test_other_side_is_the_writeups_line_for_two_classes(scene: tuple[Tensor, Tensor], radius: int) -> None:
    x, y = scene
    radii = [radius] * (y.dim() - 1)
    grid, weight = Grid(y != IGNORE, radii), torch.zeros(len(y), len(offsets(radii)), y[0].numel(), dtype=x.dtype)
    center = (y != IGNORE).flatten().nonzero().squeeze(1)
    for k, offset in enumerate(offsets(radii)):
        row, n = grid.neighbors(grid.place(center), offset)
        i = center[row][y.flatten()[center[row]] != y.flatten()[n]]
        weight[i // y[0].numel(), k, i % y[0].numel()] = 1
    flipped = torch.where(y == IGNORE, 0, 1 - y)
    line = neighbor_nll(x, flipped, weight.view(len(y), -1, *y.shape[1:]), radius=radius)
    maps = loss_maps(x, y, ignore_index=IGNORE, radius=radius, power=1.0)
    torch.testing.assert_close(maps.other_side, line, rtol=1e-12, atol=1e-12)


@given(scenes(), st.sampled_from([None, 0.5]), st.floats(-3, 3), st.floats(0.01, 3))
def test_terms_fall_as_power_rises(
    scene: tuple[Tensor, Tensor], decay: float | None, power: float, step: float
) -> None:
    x, y = scene
    assume(abs(power) > 1e-3)
    assume(abs(power + step) > 1e-3)
    low = loss_maps(x, y, ignore_index=IGNORE, decay=decay, power=power)
    high = loss_maps(x, y, ignore_index=IGNORE, decay=decay, power=power + step)
    assert (high.same_side <= low.same_side + 1e-9).all()
    assert (high.other_side <= low.other_side + 1e-9).all()


@given(scenes(), st.sampled_from([None, 0.5]), st.sampled_from([-1.0, 1.0]))
def test_power_zero_is_the_limit(scene: tuple[Tensor, Tensor], decay: float | None, sign: float) -> None:
    x, y = scene
    at = loss_maps(x, y, ignore_index=IGNORE, decay=decay, power=0.0)
    near = loss_maps(x, y, ignore_index=IGNORE, decay=decay, power=sign * 1e-7)
    # The difference is q/2 times the variance of the logarithms.
    torch.testing.assert_close(near.edge, at.edge, rtol=1e-5, atol=1e-9)


@given(scenes(), st.floats(-3, 3), st.sampled_from([None, 0.5]))
def test_equal_neighbors_give_the_same_for_every_power(
    scene: tuple[Tensor, Tensor], power: float, decay: float | None
) -> None:
    x, y = scene
    assume(abs(power) > 1e-3)
    x = x.flatten(2)[..., :1].expand(-1, -1, y[0].numel()).view_as(x)  # one logit vector for all pixels
    every = loss_maps(x, y, ignore_index=IGNORE, power=power, decay=decay)
    zero = loss_maps(x, y, ignore_index=IGNORE, power=0.0, decay=decay)
    torch.testing.assert_close(every.edge, zero.edge, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [(6, 7), (3, 4, 5)])
def test_void_grows_no_edges(size: tuple[int, ...]) -> None:
    y = torch.zeros(1, *size, dtype=torch.long)
    y[..., 2:4] = IGNORE  # wider than the radius
    y[..., 4:] = 1
    assert not loss_maps(torch.randn(1, 3, *size), y, ignore_index=IGNORE).edge_mask.any()
    assert loss_maps(torch.randn(1, 3, *size), y, ignore_index=IGNORE, radius=3).edge_mask.any()
