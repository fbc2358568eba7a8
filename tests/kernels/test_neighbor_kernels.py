"""The operators that CPUs and CUDA share: ``neighbor_nll`` and ``pair_terms``.

``neighbor_nll`` is compared with the line of the write-up, plus the ``gtind[:, None]`` that batches need. The values of
the terms of pairs are compared by the agreement suite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pairwise import pairwise
from recorded import check_registration
from roundings import laid_out
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from edgeloss._checks import inputs
from edgeloss._kernels import backends, evaluate, operators
from edgeloss._kernels.evaluate import neighbor_nll as by_kernels
from edgeloss._reference import terms as reference
from edgeloss.functional import edge_aware_loss, neighbor_nll

each_kind = pytest.mark.parametrize("kind", ["index", "several classes"])


# ---------------------------------------------------------------------------------------------------------- the line


def neighbors(values: Tensor, radius: Sequence[int]) -> Tensor:
    """Return the values of the neighbors, [B, *, *S] → [B, K, *, *S], 0 outside."""
    size = values.shape[-len(radius) :]
    padded = F.pad(values, [r for r in reversed(radius) for _ in range(2)])
    corners = [corner for corner in itertools.product(*(range(2 * r + 1) for r in radius)) if corner != tuple(radius)]
    windows = [tuple(slice(i, i + n) for i, n in zip(corner, size, strict=True)) for corner in corners]
    return torch.stack([padded[(..., *window)] for window in windows], 1)


def literal(prob: Tensor, gtind: Tensor, gtdf: Tensor, edge: Tensor, radius: Sequence[int] = (1, 1)) -> Tensor:
    """Evaluate the line; gtdf is 0 for neighbors outside of the image."""
    probnb = neighbors(prob, radius)
    line = -torch.log(((probnb * gtind[:, None]).sum(2) * gtdf).sum(1) / gtdf.sum(1))
    return torch.where(edge, line, 0.0)


def scene(
    size: tuple[int, ...], classes: int, kind: str, device: str = "cpu", radius: Sequence[int] = (1, 1)
) -> tuple[Tensor, Tensor, Tensor]:
    """Return float64 logits, an index or indicator, and weights of the neighbors, a third of them 0."""
    x = torch.randn(2, classes, *size, dtype=torch.float64) * 4
    index = torch.randint(classes, (2, *size))
    if kind != "index":
        index = F.one_hot(index, classes).movedim(-1, 1).bool()
    if kind == "several classes":
        index = index | (torch.rand(index.shape) < 0.4)
    weight = torch.rand(2, math.prod(2 * r + 1 for r in radius) - 1, *size, dtype=torch.float64)
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
LAYOUTS = ["contiguous", "channels last", "transposed", "constant"]
ROWS = pairwise(
    SIZES,
    [2, 19, 40],  # 40: more than one block of sums
    ["index", "one-hot", "several classes"],
    LAYOUTS[:3],
    LAYOUTS,
    [torch.float64, torch.float32, torch.bfloat16, torch.float16],
    [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool],
    [False, True],
)


@pytest.mark.parametrize("row", ROWS, ids=[*range(len(ROWS))])
def test_the_line(row: tuple[Any, ...], device: str) -> None:
    (size, radius), classes, kind, layout, of_weight, dtype, of_index, has_mask = row
    x, index, weight = scene(size, classes, kind, device, radius)
    x = laid_out(x.to(dtype), layout)
    weight = laid_out(weight.float() if dtype == torch.float32 else weight, of_weight)
    index = laid_out((index % 2 if kind == "index" and of_index == torch.bool else index).to(of_index), layout)
    used = weight.double() * neighbors(torch.ones_like(weight[:, 0]), radius)
    mask, exact = used.sum(1) > 0, x.double().requires_grad_()
    given = []
    if has_mask:
        mask &= torch.rand(mask.shape, device=device) < 0.5
        given = [mask.mT.contiguous().mT]
    pixels = torch.zeros_like(used[:, 0], requires_grad=True)
    is_read = torch.autograd.grad((neighbors(pixels, radius) * used * mask[:, None]).sum(), pixels)[0] > 0
    x = x.masked_fill(~is_read[:, None], torch.nan).requires_grad_()
    gtind = F.one_hot(index.long(), classes).movedim(-1, 1) if kind == "index" else index.double()
    expected = literal(exact.softmax(1), gtind, torch.where(mask[:, None], used, 1.0), mask, radius)
    if given and kind == "index" and of_index != torch.bool:
        index = index.masked_fill(~mask, 77)  # these are not read either
    value = neighbor_nll(x, index, weight, *given, radius=radius)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    rtol, atol = (1e-10, 1e-12) if dtype == torch.float64 else (1e-5, 4e-6)
    torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=atol)
    upstream = torch.randn_like(expected)  # not the last layer
    (gradient,) = torch.autograd.grad(value, x, upstream.to(value))
    (expected,) = torch.autograd.grad(expected, exact, upstream)
    rtol = max(rtol, 2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(gradient.double(), expected, rtol=rtol, atol=atol)
    assert not gradient.movedim(1, -1)[~is_read].any()


# ------------------------------------------------------------------------------------------------- the kernels alone


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_extremes_are_near_the_reference(dtype: torch.dtype, kind: str, kernels: str) -> None:
    # Logits: gaps so large that probabilities underflow, ties, and an offset. Weights: of all magnitudes.
    largest = 65504.0 if dtype == torch.float16 else 1e30
    for scale, smallest in itertools.product((largest, 1e4, 300.0, 95.0, 20.0), (0.0, -30.0, -44.0)):
        x, index, weight = scene((6, 7), 5, kind, kernels)
        x = (torch.sign(x) * scale * torch.rand_like(x) ** 4).to(dtype)
        exponent = smallest + torch.rand_like(weight) * (min(-smallest, 38.0) - smallest)
        weight = torch.where(weight > 0, 10.0**exponent, 0.0).float()  # 1e-44 is subnormal
        near, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        value = neighbor_nll(near, index, weight, backend="fused")
        expected = neighbor_nll(exact, index, weight.double(), backend="reference")
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
        gradients = torch.autograd.grad(value.sum(), near), torch.autograd.grad(expected.sum(), exact)
        # With a probability of e^-400 and a large weight, float32 resolves the exponent of their product to 3e-5.
        rtol = max(1e-5, 2 * torch.finfo(dtype).eps)
        torch.testing.assert_close(gradients[0][0].double(), gradients[1][0], rtol=rtol, atol=1e-4)


@each_kind
@pytest.mark.parametrize(
    ("gap", "dtype"), [(gap, torch.float32) for gap in (40.0, 1e3, 1e8)] + [(1e30, torch.bfloat16)]
)
def test_gradient_at_any_gap(gap: float, dtype: torch.dtype, kind: str, device: str) -> None:
    # The neighbor is sure of class 0. Others share what is taken from it, as by a softmax over those that are chosen.
    others = torch.tensor([0.3, -2.0, 0.3, 1.7, -0.4], dtype=dtype)
    x = torch.zeros(1, 6, 1, 2, dtype=dtype, device=device)
    x[0, 0], x[0, 1:, 0, 1] = gap, others.to(device)
    chosen, index = torch.arange(6).view(1, 6, 1, 1).expand(1, 6, 1, 2) > 0, torch.ones(1, 1, 2, dtype=torch.long)
    mask, of_class = torch.tensor([[[True, False]]], device=device), kind == "index"
    weight, index = torch.ones(1, 8, 1, 2, device=device), (index if of_class else chosen).to(device)
    (gradient,) = torch.autograd.grad(neighbor_nll(x.requires_grad_(), index, weight, mask).sum(), x)
    shares = torch.eye(5, dtype=torch.float64)[0] if of_class else others.double().softmax(0)
    expected, digits = torch.cat([torch.ones(1), -shares]), max(3e-6, torch.finfo(dtype).eps)
    torch.testing.assert_close(gradient[0, :, 0, 1].double().cpu(), expected, rtol=digits, atol=digits)


@pytest.mark.parametrize("kind", ["index", "one-hot"])
def test_values_that_python_would_refuse_leave_a_neighbor_or_a_center_out(kind: str, kernels: str) -> None:
    x, index, weight = scene((5, 6), 3, kind, kernels)
    expected = neighbor_nll(x.requires_grad_(), index, weight, backend="reference")
    for wrong in (-1.0, torch.nan, -torch.inf):
        value = by_kernels(x, index, torch.where(weight > 0, weight, wrong), None, [1, 1])
        torch.testing.assert_close(value, expected)
    for factor in (1e-50, 1e50):  # only the ratios of weights count
        torch.testing.assert_close(neighbor_nll(x, index, weight * factor, backend="fused"), expected)
    mask, where = torch.ones(2, 5, 6, dtype=torch.bool, device=kernels), ([0, 1, 1], [2, 0, 4], [3, 0, 5])
    if kind == "index":
        index[where] = torch.tensor([-1, 3, 2**62], device=kernels)
    else:
        index.movedim(1, -1)[where] = False
    mask[where] = False
    expected = neighbor_nll(x, index, torch.ones_like(weight), mask, backend="reference")
    value = by_kernels(x, index, torch.ones_like(weight), None, [1, 1])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), x), torch.autograd.grad(expected.sum(), x))


# --------------------------------------------------------------------------------------- the kernels and the reference


def test_nan_and_a_probability_of_zero(device: str) -> None:
    x, index, weight = scene((3, 3), 3, "index", device)
    x[0, 1, 1, 1] = torch.nan
    value = neighbor_nll(x, index, torch.ones_like(weight))
    assert value[0].isnan().tolist() == [[True] * 3, [True, False, True], [True] * 3]
    assert value[1].isfinite().all()
    x, index = torch.zeros(1, 2, 1, 3, device=device), torch.zeros(1, 1, 3, dtype=torch.long, device=device)
    x[0, 0, 0, 0] = -torch.inf  # p = (0, 1) there, and (1/2, 1/2) elsewhere
    for chosen in (index, F.one_hot(index, 2).movedim(-1, 1)):
        value = neighbor_nll(x, chosen, torch.ones(1, 8, 1, 3, device=device))
        assert value[0, 0, 1].item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0), (0, 3, 2, 4, 5), (2, 3, 1, 1)])
def test_nothing_at_all(shape: tuple[int, ...], device: str) -> None:
    x = torch.zeros(shape, requires_grad=True, device=device)
    batch, _, *size = shape
    index = torch.full((batch, *size), 7, device=device)  # not read: a single pixel has no neighbor
    value = neighbor_nll(x, index, torch.ones(batch, 3 ** len(size) - 1, *size, device=device))
    assert value.shape == (batch, *size)
    assert not value.any()
    assert not torch.autograd.grad(value.sum(), x)[0].any()


@each_kind
@pytest.mark.slow
def test_autograd(kind: str, kernels: str) -> None:
    x, index, weight = scene((5, 9), 19, kind, kernels)
    x, weight = x.to(memory_format=torch.channels_last).requires_grad_(), weight.requires_grad_()
    value = neighbor_nll(x, index, weight, backend="fused")
    gradient, of_weight = torch.autograd.grad(value.sum(), (x, weight), create_graph=True, allow_unused=True)
    assert of_weight is None
    assert gradient.stride() == x.stride()
    mask = torch.ones(2, 5, 9, dtype=torch.bool, device=kernels)
    if kind == "index":  # of the reference; torch.func has no hooks, by which the other one saves memory
        found = torch.func.grad(lambda logits: neighbor_nll(logits, index, weight, mask).sum())(x.detach())
        torch.testing.assert_close(found, gradient.detach())
    operator, weight = operators.of_library.neighbor_nll, weight.detach()
    state = operator(x.detach().float(), index, weight.float(), None, [1, 1])
    assert sum(result.nbytes for result in state) <= 32 * 2 * 5 * 9
    for each in (None, mask):
        check_registration(operator.default, (x, index, weight, each, [1, 1]))


@each_kind
def test_second_derivatives_of_the_reference(kind: str) -> None:
    x, index, weight = scene((3, 4), 3, kind)
    assert torch.autograd.gradgradcheck(
        lambda x: neighbor_nll(x, index, weight, backend="reference"), x.requires_grad_(), fast_mode=True
    )


def test_a_call_that_kernels_do_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "why_no_neighbor_nll", lambda logits: "there is a reason")
    with pytest.raises(RuntimeError, match="'fused' does not support this call: there is a reason; pass 'auto' or"):
        neighbor_nll(*scene((4, 4), 3, "index"), backend="fused")


# ---------------------------------------------------------------------------------- gathered terms, stepped on the host


@pytest.fixture
def _stepped(stepped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "of_library", stepped)


@pytest.mark.usefixtures("_stepped")
@pytest.mark.parametrize("options", [{}, {"decay": 1.0, "distance": True}, {"reduction": "none"}])
def test_pair_terms_read_nothing_back(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have no values to read: with these kernels a call does not wait for its device."""
    with FakeTensorMode():
        x = torch.randn(2, 5, 8, 9, requires_grad=True)
        y, v = torch.zeros(2, 8, 9, dtype=torch.long), torch.rand(2, 8, 9)
        options = {name: v if value is True else value for name, value in options.items()}
        options |= {"power": 1.0, "pixel_weight": v, "validate": "never", "backend": "reference"}
        monkeypatch.setattr(inputs, "may_read", lambda values, validate: validate == "sync")
        with pytest.raises(DynamicOutputShapeException):
            edge_aware_loss(x, y, **options)
        monkeypatch.setattr(reference, "edge_terms", evaluate.pair_terms)
        edge_aware_loss(x, y, **options).sum().backward()  # type: ignore[union-attr]


def arguments(x: Tensor, label: Tensor) -> dict[str, Any]:
    return {
        "logits": x,
        "label": label,
        "edge": torch.ones_like(label, dtype=torch.bool),
        "distance": None,
        "power": 1.0,
        "radius": [1, 1],
    }


def test_pair_terms_of_labels_out_of_range_read_nothing(stepped: SimpleNamespace) -> None:
    label = torch.tensor([[[0, 1, 2**15 - 1], [-5, 0, 3]]], dtype=torch.int16)
    given = arguments(torch.randn(1, 3, 2, 3, dtype=torch.float64), label)
    terms, stats, sides = stepped.pair_terms(**given)
    assert not terms[:, (label < 0) | (label >= 3)].any()
    assert terms.isfinite().all()
    gradient = stepped.pair_terms_backward(torch.ones_like(terms), stats=stats, sides=sides, **given)
    assert gradient.isfinite().all()
    assert not gradient[:, :, 1, 0].any()


@pytest.mark.usefixtures("_stepped")
def test_pair_terms_match_their_registration(stepped: SimpleNamespace) -> None:
    given = arguments(torch.randn(1, 3, 4, 5, requires_grad=True), torch.randint(3, (1, 4, 5), dtype=torch.int16))
    check_registration(stepped.pair_terms.default, [*given.values()])
    terms = stepped.pair_terms(**given)[0]
    (gradient,) = torch.autograd.grad(terms.sum(), given["logits"], create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated twice; pass backend='reference'"):
        gradient.sum().backward()
