"""The fused kernels on logits of lower resolution, compared with F.interpolate followed by the loss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import DTYPES, LAST, compare, interpolated, scene
from hypothesis import given
from hypothesis import strategies as st
from pairwise import pairwise
from stateless import stateless_loss

from edgeloss import EdgeAwareLoss, backends
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")

# (low, high) resolutions, each takes a different path: one cell; ratio 4 and 8; no integer; 1 along one axis; more
# pixels of a cell than fit in a tile of 256, and more cells than that; a row and a column; several chunks; volumes, one
# of them with ratio 1 along an axis.
FLAT = [
    *[((1, 1), (3, 5)), ((5, 7), (20, 28)), ((3, 9), (24, 72)), ((5, 9), (7, 24)), ((6, 5), (6, 17))],
    *[((7, 6), (13, 6)), ((1, 2), (2, 700)), ((2, 300), (5, 700)), ((1, 9), (1, 20)), ((9, 1), (31, 1))],
    ((19, 33), (75, 130)),
]
VOLUMES = [((2, 3, 3), (5, 7, 6)), ((3, 3, 4), (3, 12, 16)), ((9, 6, 5), (18, 9, 10))]
# One logit; two classes; few; wide and narrow tiles; more than the tile can hold in cache.
CLASSES = [1, 2, 3, 19, 150, 1000]
OTHER_CASES = [
    *[(FLAT[1], 150), (FLAT[3], 150), (FLAT[3], 1000), (FLAT[-1], 19)],
    *itertools.product(VOLUMES, (1, 4)),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"edge_weight": 0.0},
    {"radius": 2, "power": 1.0},
    {"radius": 3, "power": -1.0, "decay": 1.5},
    {"power": 1.0, "decay": 0.3, "label_smoothing": 0.1},
]
ROWS = [
    *pairwise(FLAT[:-1], CLASSES[:-2], LAST, DTYPES, OPTIONS),
    *((*case, *others) for case, *others in pairwise(OTHER_CASES, LAST, DTYPES, OPTIONS)),
]


@pytest.mark.parametrize(("sizes", "classes", "last", "dtype", "options"), ROWS)
def test_fused_equals_interpolate_and_reference(
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
    classes: int,
    last: bool,
    dtype: torch.dtype,
    options: dict[str, Any],
) -> None:
    x, y = scene(sizes[0], classes, sizes[1])
    compare(x.to(dtype), y, options, last=last)


@given(st.data())
def test_any_size(data: st.DataObject) -> None:
    # Up to 9 cells an axis, and up to 40 pixels: every ratio from 1 on, also above that of a tile's slots.
    dims = data.draw(st.integers(2, 3))
    low = tuple(data.draw(st.integers(1, 9 if dims == 2 else 4)) for _ in range(dims))
    high = tuple(data.draw(st.integers(n, 40 if dims == 2 else 9)) for n in low)
    classes = data.draw(st.integers(1, 5))
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    x, y = scene(low, classes, high)
    options: dict[str, Any] = {
        "ignore_index": 255,
        "radius": data.draw(st.integers(1, 3)),
        "power": data.draw(st.sampled_from([1.0, 0.0, -1.0])),
        "decay": data.draw(st.sampled_from([None, 1.0])),
    }
    x.requires_grad_()
    fused = edge_aware_loss(x, y, upsample=True, backend="fused", **options)
    plain = edge_aware_loss(interpolated(x, high), y, backend="reference", **options)
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(torch.autograd.grad(fused, x), torch.autograd.grad(plain, x))


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_extremes(scale: float) -> None:
    # Classes that are certain to within 1e-9 and beyond on both sides of the edge, and offsets that a rounded logsumexp
    # would drown in. The window's logits must be the tile's to the last bit, or 1 - p cancels.
    x = torch.randn(1, 3, 5, 6) * 30 + scale * torch.randn(1, 1, 5, 6)
    if scale == 1e30:
        x = torch.randn(1, 3, 5, 6) * scale
    y = torch.randint(3, (1, 17, 19))
    low = x.clone().requires_grad_()
    high = interpolated(x, (17, 19)).double().requires_grad_()
    for options in ({}, {"power": -1.0}):
        fused = edge_aware_loss(low, y, upsample=True, backend="fused", **options)
        plain = edge_aware_loss(high, y, backend="reference", **options)
        torch.testing.assert_close(fused.double(), plain, rtol=1e-4, atol=0)
        (gradient,) = torch.autograd.grad(fused, low)
        assert gradient.isfinite().all()
        if scale == 1e4:
            seen = torch.zeros_like(low).requires_grad_()
            (wanted,) = torch.autograd.grad(plain, high)
            (expected,) = torch.autograd.grad(interpolated(seen, (17, 19)), seen, wanted.float())
            # Logits of 1e4 are rounded to 1e-3, and the plain way rounds them elsewhere.
            torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))


def test_an_infinite_logit_far_from_the_border_counts_as_it_does_in_torch() -> None:
    x = torch.randn(1, 3, 6, 6)
    x[:, 2] = -torch.inf  # a class that cannot be
    y = torch.randint(2, (1, 24, 24))
    fused = edge_aware_loss(x, y, upsample=True, backend="fused")
    torch.testing.assert_close(fused, edge_aware_loss(x[:, :2], y, upsample=True, backend="fused"))


@pytest.mark.parametrize("options", OPTIONS)
def test_same_bits(options: dict[str, Any]) -> None:
    x, y = scene((9, 13), 19, (37, 51))
    x = x.float().requires_grad_()
    results = []
    for threads, deterministic in ((1, False), (2, True), (3, False)):  # True: torch fills new tensors with nan
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        try:
            loss, maps = edge_aware_loss(
                x, y, ignore_index=255, upsample=True, backend="fused", return_maps=True, **options
            )
            results.append((loss.detach(), *torch.autograd.grad(loss, x), *(m for m in maps if m is not None)))
        finally:
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(1)
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize(("low", "high"), [((3, 4), (5, 9)), ((2, 2, 3), (3, 4, 5))])
def test_gradcheck(low: tuple[int, ...], high: tuple[int, ...]) -> None:
    x, y = scene(low, 3, high)
    x.requires_grad_()
    criterion = stateless_loss(ignore_index=255, upsample=True, backend="fused", decay=1.0, reduction="none")
    assert torch.autograd.gradcheck(lambda logits: criterion(logits, y), x)


def test_without_edges_it_is_cross_entropy_of_the_upsampled_logits() -> None:
    x, y = scene((5, 7), 4, (20, 28))
    x = x.float().requires_grad_()
    fused = edge_aware_loss(x, y, ignore_index=255, edge_weight=0.0, upsample=True, backend="fused")
    plain = F.cross_entropy(interpolated(x, (20, 28)), y, ignore_index=255)
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(torch.autograd.grad(fused, x), torch.autograd.grad(plain, x))


def test_nothing_to_learn_from() -> None:
    criterion = EdgeAwareLoss(ignore_index=255, upsample=True, backend="fused")
    for batch in (0, 2):
        x = torch.full((batch, 3, 4, 5), torch.nan, requires_grad=True)
        loss = criterion(x, torch.full((batch, 9, 20), 255))
        (gradient,) = torch.autograd.grad(loss, x)
        assert loss == 0
        assert (gradient == 0).all()


def test_labels_out_of_range_are_reported() -> None:
    y = torch.zeros(1, 9, 20, dtype=torch.long)
    y[0, 3, 4] = 7
    with pytest.raises(
        ValueError, match=r"expected labels 0 to 2, or ignore_index=255, but got 7 at 1 pixel, first at"
    ):
        edge_aware_loss(torch.zeros(1, 3, 4, 5), y, ignore_index=255, upsample=True, backend="fused")


def test_one_graph_for_every_size() -> None:
    torch._dynamo.reset()
    criterion = stateless_loss(ignore_index=255, upsample=True, backend="fused")
    compiled = torch.compile(criterion, fullgraph=True, dynamic=True, backend="aot_eager")
    torch._dynamo.config.error_on_recompile = True
    try:
        for low, high in (((7, 13), (28, 52)), ((9, 5), (36, 20)), ((33, 40), (75, 130))):
            x, y = scene(low, 3, high)
            x.requires_grad_()
            loss, expected = compiled(x, y), criterion(x, y)
            torch.testing.assert_close(loss, expected)
            torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))
    finally:
        torch._dynamo.config.error_on_recompile = False


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("edges", [False, True])
def test_operators_match_their_registration(edges: bool, classes: int) -> None:
    x, y = scene((3, 4), classes, (5, 9))
    nothing = [None] * 4
    options = (255, 0.1, [1, 1], 1.0, 0.7, [1.0, 1.0], edges, edges, True, edges, 1, 1)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.edgeloss.edge_loss, (x.requires_grad_(), y, *nothing, *options), test_utils=tests)
