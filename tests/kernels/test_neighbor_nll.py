"""``neighbor_nll`` compared with the line of the write-up, plus the ``gtind[:, None]`` that batches need."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from kernel_kinds import Kernels
from pairwise import pairwise
from torch import Tensor

from edgeloss import library
from edgeloss.functional import loss_maps, neighbor_nll
from edgeloss.neighbor_nll import by_kernels

each_backend = pytest.mark.usefixtures("each_backend")

OFFSETS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]


def neighbors(values: Tensor) -> Tensor:
    """[B, *, H, W] → [B, 8, *, H, W], 0 outside."""
    height, width = values.shape[-2:]
    padded = F.pad(values, (1, 1, 1, 1))
    return torch.stack([padded[..., 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width] for dy, dx in OFFSETS], 1)


def literal(prob: Tensor, gtind: Tensor, gtdf: Tensor, edge: Tensor) -> Tensor:
    """Evaluate the line; gtdf is 0 for neighbors outside of the image."""
    probnb = neighbors(prob)
    line = -torch.log(((probnb * gtind[:, None]).sum(-3) * gtdf).sum(-3) / gtdf.sum(-3))
    return torch.where(edge, line, 0.0)


def inside(batch: int, height: int, width: int) -> Tensor:
    return neighbors(torch.ones(batch, height, width, dtype=torch.float64))


@each_backend
@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("weighted", [False, True])
def test_other_side_is_the_line_with_flipped_one_hot(batch: int, weighted: bool) -> None:
    x = torch.randn(batch, 2, 6, 7, dtype=torch.float64) * 3
    y = torch.randint(2, (batch, 6, 7))
    field = torch.rand(batch, 6, 7, dtype=torch.float64) * 4
    flipped = F.one_hot(1 - y, 2).movedim(-1, 1).double()
    differs = neighbors(y.double()) != y[:, None]
    w = neighbors((-field / 1.5).exp()) if weighted else 1.0
    gtdf = differs * inside(batch, 6, 7) * w
    own: dict[str, Any] = {"decay": 1.5, "distance": field} if weighted else {}
    maps = loss_maps(x, y, power=1.0, **own)
    assert maps.edge_mask.any()
    expected = literal(x.softmax(1), flipped, gtdf, maps.edge_mask)
    torch.testing.assert_close(maps.other_side, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(neighbor_nll(x, 1 - y, gtdf), expected, rtol=1e-12, atol=1e-12)


@each_backend
def test_three_dimensions_and_radius() -> None:
    x = torch.randn(1, 3, 2, 3, 4, dtype=torch.float64)
    y = torch.randint(3, (1, 2, 3, 4))
    count = 3 * 5 * 1 - 1
    weight = torch.rand(1, count, 2, 3, 4, dtype=torch.float64)
    value = neighbor_nll(x, y, weight, radius=(1, 2, 0))
    p = x.softmax(1)
    offsets = [(a, b) for a in (-1, 0, 1) for b in (-2, -1, 0, 1, 2) if (a, b) != (0, 0)]
    i = (1, 1, 2)
    pairs = [(k, (i[0] + a, i[1] + b, i[2])) for k, (a, b) in enumerate(offsets)]
    pairs = [(k, n) for k, n in pairs if 0 <= n[0] < 2 and 0 <= n[1] < 3]
    w = torch.stack([weight[(0, k, *i)] for k, _ in pairs])
    terms = torch.stack([p[(0, y[(0, *i)], *n)] for _, n in pairs])
    torch.testing.assert_close(value[(0, *i)], -((w * terms).sum() / w.sum()).log())


@each_backend
@pytest.mark.parametrize("factor", [1e-50, 1e50])
def test_only_the_ratios_of_the_weights_count(factor: float) -> None:
    x, y = torch.randn(2, 3, 5, 5), torch.randint(3, (2, 5, 5))
    weight = torch.rand(2, 8, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(neighbor_nll(x, y, weight * factor), neighbor_nll(x, y, weight))


@each_backend
def test_an_index_is_read_on_the_mask_only() -> None:
    x = torch.randn(1, 3, 1, 1)  # its neighbors are all outside
    assert neighbor_nll(x, torch.full((1, 1, 1), 7), torch.ones(1, 8, 1, 1)) == 0


@each_backend
def test_weights_are_not_differentiable() -> None:
    x, y = torch.randn(1, 3, 5, 5, requires_grad=True), torch.randint(3, (1, 5, 5))
    weight = torch.rand(1, 8, 5, 5, requires_grad=True)
    neighbor_nll(x, y, weight).sum().backward()
    assert weight.grad is None


def scene(
    size: tuple[int, ...], classes: int, count: int, kind: str, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return float64 logits, an index or indicator, and weights of ``count`` neighbors, a third of them 0."""
    x = torch.randn(2, classes, *size, dtype=torch.float64) * 4
    index = torch.randint(classes, (2, *size))
    if kind != "index":
        index = F.one_hot(index, classes).movedim(-1, 1).bool()
    if kind == "several classes":
        index = index | (torch.rand(index.shape) < 0.4)
    weight = torch.rand(2, count, *size, dtype=torch.float64)
    weight[torch.rand_like(weight) < 0.3] = 0
    return x.to(device), index.to(device), weight.to(device)


# One pixel, without neighbors; odd sizes; more than a tile of 64 pixels, and than a chunk of 4096; a radius larger
# than the image, and 0 along one axis; a volume, and a single slice.
SIZES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1, 1), (1, 1)),
    ((5, 9), (1, 1)),
    ((3, 70), (2, 1)),
    ((45, 100), (1, 1)),
    ((4, 5), (7, 0)),
    ((3, 4, 5), (1, 1, 1)),
    ((1, 3, 4), (1, 2, 0)),
]


@pytest.mark.parametrize(
    ("size_and_radius", "classes", "kind", "last", "dtype", "of_index"),
    pairwise(
        SIZES,
        [2, 19, 40],  # 40: more than one block of sums
        ["index", "one-hot", "several classes"],
        [False, True],
        [torch.float64, torch.float32, torch.bfloat16, torch.float16],
        [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool],
    ),
)
def test_fused_equals_reference(
    kernels: Kernels,
    size_and_radius: tuple[tuple[int, ...], tuple[int, ...]],
    classes: int,
    kind: str,
    last: bool,
    dtype: torch.dtype,
    of_index: torch.dtype,
) -> None:
    size, radius = size_and_radius
    x, index, weight = scene(size, classes, math.prod(2 * r + 1 for r in radius) - 1, kind, kernels.device)
    x, index = x.to(dtype), (index % 2 if kind == "index" and of_index == torch.bool else index).to(of_index)
    if last:
        x = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    if dtype == torch.float32:  # weights in both dtypes
        weight = weight.float()
    fused, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    value = neighbor_nll(fused, index, weight, radius=radius, backend="fused")
    expected = neighbor_nll(exact, index, weight.double(), radius=radius, backend="reference")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if wide == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    assert value.dtype == wide
    torch.testing.assert_close(value.double(), expected, **tolerance)
    upstream = torch.randn_like(expected)  # not the last layer
    value.backward(upstream.to(wide))
    expected.backward(upstream)
    assert fused.grad is not None
    assert exact.grad is not None
    assert fused.grad.stride() == x.stride()
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-12 if wide == torch.float64 else 4e-6}
    torch.testing.assert_close(fused.grad.double(), exact.grad, **tolerance)


def test_any_strides(kernels: Kernels) -> None:
    x, index, weight = scene((5, 9), 4, 8, "several classes", kernels.device)
    x = x.transpose(2, 3).contiguous().transpose(2, 3)
    index = index.transpose(2, 3).contiguous().transpose(2, 3)
    for w in (weight.transpose(2, 3).contiguous().transpose(2, 3), weight[:, :, :1, :1].expand(2, 8, 5, 9)):
        fused, exact = x.clone().requires_grad_(), x.clone().requires_grad_()
        mask = torch.rand(9, 2, 5, device=kernels.device).permute(1, 2, 0) < 0.5
        value = neighbor_nll(fused, index, w, mask, backend="fused")
        expected = neighbor_nll(exact, index, w, mask, backend="reference")
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(torch.autograd.grad(value.sum(), fused), torch.autograd.grad(expected.sum(), exact))


@pytest.mark.parametrize("kind", ["index", "several classes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_extremes_are_near_the_reference(dtype: torch.dtype, kind: str, kernels: Kernels) -> None:
    # Logits: gaps so large that probabilities underflow, ties, and an offset. Weights: of all magnitudes.
    largest = 65504.0 if dtype == torch.float16 else 1e30
    for scale in (largest, 1e4, 300.0, 95.0, 20.0):
        for smallest in (0.0, -30.0, -44.0):
            x, index, weight = scene((6, 7), 5, 8, kind, kernels.device)
            x = (torch.sign(x) * scale * torch.rand_like(x) ** 4).to(dtype)
            exponent = smallest + torch.rand_like(weight) * (min(-smallest, 38.0) - smallest)
            weight = torch.where(weight > 0, 10.0**exponent, 0.0).float()  # 1e-44 is subnormal
            fused, exact = x.clone().requires_grad_(), x.double().requires_grad_()
            value = neighbor_nll(fused, index, weight, backend="fused")
            expected = neighbor_nll(exact, index, weight.double(), backend="reference")
            assert value.isfinite().all()
            torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
            (gradient,) = torch.autograd.grad(value.sum(), fused)
            (expected_gradient,) = torch.autograd.grad(expected.sum(), exact)
            assert gradient.isfinite().all()
            # With a probability of e^-400 and a large weight, float32 resolves the exponent of their product to 3e-5.
            tolerance = max(1e-5, 2 * torch.finfo(dtype).eps)
            torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=1e-4)


@each_backend
@given(data=st.data())
def test_the_line_at_random(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    batch, height, width = (data.draw(st.integers(1, limit)) for limit in (3, 6, 9))
    classes, scale = data.draw(st.integers(2, 6)), data.draw(st.floats(0.0, 10.0))
    x = (torch.randn(batch, classes, height, width, dtype=torch.float64) * scale).requires_grad_()
    indicator = torch.rand(batch, classes, height, width) < data.draw(st.floats(0.1, 0.9))
    indicator[:, 0] |= ~indicator.any(1)
    index = torch.randint(classes, (batch, height, width))
    if data.draw(st.booleans()):
        indicator = F.one_hot(index, classes).movedim(-1, 1).bool()
    else:
        index = indicator
    weight = 10.0 ** (torch.rand(batch, 8, height, width, dtype=torch.float64) * 4)
    weight[torch.rand_like(weight) < data.draw(st.floats(0.0, 1.0))] = 0
    used = weight * inside(batch, height, width)
    mask = (used.sum(1) > 0) & (torch.rand(batch, height, width) < data.draw(st.floats(0.0, 1.0)))
    value = neighbor_nll(x, index, weight, mask)
    expected = literal(x.softmax(1), indicator.double(), torch.where(mask[:, None], used, 1.0), mask)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    upstream = torch.randn_like(value)
    (gradient,) = torch.autograd.grad(value, x, upstream)
    (expected_gradient,) = torch.autograd.grad(expected, x, upstream)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-11)


@each_backend
@pytest.mark.parametrize("kind", ["index", "several classes"])
def test_what_is_not_read_is_not_touched(kind: str) -> None:
    x, index, weight = scene((6, 7), 3, 8, kind)
    mask = torch.zeros(2, 6, 7, dtype=torch.bool)
    mask[:, 1, 1] = True
    weight[:, :, 1, 1] = torch.tensor([0.0, 1, 1, 1, 0, 1, 1, 1])
    read = torch.zeros(6, 7, dtype=torch.bool)
    read[:3, :3] = True
    read[0, 0] = read[1, 1] = read[1, 2] = False  # two without weight, and the center
    x = torch.where(read, x, torch.nan).requires_grad_()
    weight = torch.where(mask[:, None], weight, torch.rand_like(weight))
    value = neighbor_nll(x, index, weight, mask)
    assert value.isfinite().all()
    assert not value[~mask].any()
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert gradient[:, :, read].isfinite().all()
    assert (gradient[:, :, ~read] == 0).all()


@each_backend
def test_a_nan_that_is_read_is_not_hidden() -> None:
    x, index, weight = scene((3, 3), 3, 8, "index")
    x[0, 1, 1, 1] = torch.nan
    value = neighbor_nll(x, index, torch.ones_like(weight))
    assert torch.equal(value[0].isnan(), torch.tensor([[True] * 3, [True, False, True], [True] * 3]))
    assert value[1].isfinite().all()


@each_backend
def test_a_probability_of_zero_next_to_others() -> None:
    x = torch.zeros(1, 2, 1, 3)
    x[0, 0, 0, 0] = -torch.inf  # p = (0, 1) there, and (1/2, 1/2) elsewhere
    index = torch.zeros(1, 1, 3, dtype=torch.long)
    for chosen in (index, F.one_hot(index, 2).movedim(-1, 1)):
        value = neighbor_nll(x, chosen, torch.ones(1, 8, 1, 3))
        torch.testing.assert_close(value[0, 0, 1], torch.tensor(4.0).log())


@pytest.mark.parametrize("kind", ["index", "one-hot"])
def test_a_center_without_a_class_does_not_count(kind: str, kernels: Kernels) -> None:
    # The public function raises where it may read the values.
    x, index, weight = scene((5, 6), 3, 8, kind, kernels.device)
    weight = torch.ones_like(weight)
    if kind == "index":
        index[0, 2, 3], index[1, 0, 0], index[1, 4, 5] = -1, 3, 2**62
    else:
        index[0, :, 2, 3] = index[1, :, 0, 0] = index[1, :, 4, 5] = False
    mask = torch.ones(2, 5, 6, dtype=torch.bool, device=kernels.device)
    mask[0, 2, 3] = mask[1, 0, 0] = mask[1, 4, 5] = False
    exact = x.clone().requires_grad_()
    expected = neighbor_nll(exact, index.clamp(0, 2) if kind == "index" else index, weight, mask, backend="reference")
    value = by_kernels(x.requires_grad_(), index, weight, None, [1, 1])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), x), torch.autograd.grad(expected.sum(), exact))


def test_wrong_weights_leave_the_neighbor_out(kernels: Kernels) -> None:
    x, index, weight = scene((5, 6), 3, 8, "index", kernels.device)
    expected = neighbor_nll(x, index, weight, backend="reference")
    for wrong in (-1.0, torch.nan, -torch.inf):
        value = by_kernels(x, index, torch.where(weight > 0, weight, wrong), None, [1, 1])
        torch.testing.assert_close(value, expected)


@each_backend
@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0), (0, 3, 2, 4, 5)])
def test_nothing_at_all(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    batch, _, *size = shape
    count = 3 ** len(size) - 1
    value = neighbor_nll(x, torch.zeros(batch, *size, dtype=torch.long), torch.ones(batch, count, *size))
    assert value.shape == (batch, *size)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert gradient.shape == shape


@pytest.mark.parametrize("kind", ["index", "several classes"])
def test_same_bits_for_every_number_of_threads(kind: str) -> None:
    x, index, weight = scene((70, 90), 19, 8, kind)
    results = []
    for threads in (1, 2, 3, 1):
        torch.set_num_threads(threads)
        logits = x.float().requires_grad_()
        value = neighbor_nll(logits, index, weight)
        results.append((value.detach(), *torch.autograd.grad(value.sum(), logits)))
    torch.set_num_threads(1)
    for value, gradient in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_autograd(kernels: Kernels) -> None:
    inputs = scene((5, 9), 19, 8, "index", kernels.device)
    before, (x, index, weight) = [value.clone() for value in inputs], inputs
    value = neighbor_nll(x.requires_grad_(), index, weight, backend="fused")
    (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated twice; pass backend='reference'"):
        torch.autograd.grad(gradient.sum(), x)
    assert all(torch.equal(value, other) for value, other in zip(inputs, before, strict=True))
    mask = torch.ones_like(index, dtype=torch.bool)
    found = torch.func.grad(lambda logits: neighbor_nll(logits, index, weight, mask).sum())(x.detach())
    torch.testing.assert_close(found, gradient.detach())  # of the reference
    state = kernels.operators.neighbor_nll(x.detach().float(), index, weight.float(), None, [1, 1])
    assert sum(result.nbytes for result in state) <= 32 * 2 * 5 * 9


@pytest.mark.parametrize("kind", ["index", "several classes"])
def test_operators_match_their_registration(kind: str, kernels: Kernels) -> None:
    x, index, weight = scene((5, 6), 3, 8, kind, kernels.device)
    # Not compared between eager and compiled, as test_aot_dispatch_dynamic would: the state that forward leaves to
    # backward is filled only where backward reads it.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for mask in (None, torch.rand(2, 5, 6, device=kernels.device) < 0.5):
        torch.library.opcheck(
            kernels.operators.neighbor_nll.default, (x.requires_grad_(), index, weight, mask, [1, 1]), test_utils=tests
        )


def test_the_choice_of_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"backend: expected one of .* but got 'fast'"):
        neighbor_nll(X, Y, W, backend="fast")  # type: ignore[arg-type]
    monkeypatch.setattr(library, "why_not_fused", lambda *arguments, **named: "there is a reason")
    message = "backend: 'fused' does not support this call: there is a reason; pass 'auto' or 'reference'"
    with pytest.raises(RuntimeError, match=message):
        neighbor_nll(X, Y, W, backend="fused")
    assert torch.equal(neighbor_nll(X, Y, W), neighbor_nll(X, Y, W, backend="reference"))


X = torch.zeros(1, 3, 4, 4)
Y = torch.zeros(1, 4, 4, dtype=torch.long)
W = torch.ones(1, 8, 4, 4)


@each_backend
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, Y, W[:, :7]), ValueError, r"weight: expected \[1, 8, 4, 4\], but got \[1, 7, 4, 4\]"),
        ((X, Y, -W), ValueError, r"weight: expected finite values ≥ 0, but got -1.0 at \[0, 0, 0, 0\]"),
        ((X, Y, W.long()), TypeError, r"weight: expected a floating tensor, but got int64"),
        ((X, Y + 3, W), ValueError, r"index: expected labels 0 to 2, but got 3 at 16 pixels"),
        ((X, Y.float(), W), TypeError, r"index: expected class indices .* but got float32"),
        ((X, Y[:, None].expand(1, 3, 4, 4) + 2, W), ValueError, r"index: expected an indicator .* of 0 and 1"),
        ((X, Y[:, None].expand(1, 3, 4, 4), W), ValueError, r"index: expected at least one class"),
        ((X, Y, W, W[:, 0]), ValueError, r"mask: expected bool \[1, 4, 4\] on cpu, but got float32 \[1, 4, 4\]"),
        ((X, Y, W, [True]), TypeError, r"mask: expected a bool tensor, but got list"),
        ((X, Y, W, (W[:, 0] > 0).to_sparse()), TypeError, r"mask: expected a dense tensor, but got a sparse_coo one"),
        ((X, [0], W), TypeError, r"index: expected a tensor of class indices, but got list"),
        ((X, Y.to("meta"), W), ValueError, r"index: expected device cpu, as the logits, but got meta"),
        ((X[:, :1], Y, W), ValueError, r"logits: expected at least 2 classes"),
        ((X[0], Y, W), ValueError, r"logits: expected \[B, C, H, W\]"),
    ],
)
def test_wrong_input(arguments: tuple[Tensor, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        neighbor_nll(*arguments)
