"""The loss by a single read of the logits: CUDA kernels that form the gradient with the terms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_kinds import ON_CUDA, STEPPED, Kernels
from pairwise import pairwise
from torch import Tensor

from edgeloss import fused
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.parametrize("kernels", [*ON_CUDA, STEPPED], indirect=True)

Read = dict[str, Any]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Return the single reads so far: which gradient was there, and whether one and the terms were wanted."""
    found: list[Read] = []
    read_once = fused._read_once

    def record(factors: Tensor, given: Any, logits: Tensor, labels: Any, gradient: Any, sums: Any) -> None:
        read_once(factors, given, logits, labels, gradient, sums)
        found.append({"given": given is not None, "gradient": gradient is not None, "terms": sums is not None})

    monkeypatch.setattr(fused, "_read_once", record)
    return found


def scene(kernels: Kernels, classes: int, size: tuple[int, int], scale: float = 4.0) -> tuple[Tensor, Tensor]:
    """Return logits and labels in blocks of 2 × 2 pixels, whose corners have edges to several classes."""
    x = torch.randn(2, classes, *size) * scale
    y = torch.randint(classes, (2, *(-(-n // 2) for n in size))).repeat_interleave(2, 1).repeat_interleave(2, 2)
    y = y[:, : size[0], : size[1]].contiguous()
    y[torch.rand(y.shape) < 0.1] = 255
    return x.to(kernels.device), y.to(kernels.device)


def results(x: Tensor, y: Tensor, derivative: float = 1.0, **options: Any) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    loss = edge_aware_loss(x, y, ignore_index=255, **options)
    return loss.detach(), torch.autograd.grad(loss * derivative, x)[0]


# A pixel; a row and a column; sizes around those of a tile, of each shape; several tiles. Groups of four classes that
# are full, and that are not, and as many as a thread has registers for. Logits so large that the sum of all classes but
# one has lost digits, and that it underflows.
@pytest.mark.parametrize(
    ("size", "classes", "scale", "weighted", "derivative", "options"),
    pairwise(
        [(1, 1), (1, 9), (9, 1), (7, 13), (33, 35), (70, 36), (9, 132), (18, 66)],
        [6, 8, 9, 19, 20, 21, 32],
        [4.0, 40.0, 400.0],
        [False, True],
        [1.0, -0.3],
        [{}, {"edge_weight": 0.0}, {"same_side_weight": 0.3, "reduction": "sum"}],
    ),
)
def test_equals_the_reference(
    kernels: Kernels,
    reads: list[Read],
    size: tuple[int, int],
    classes: int,
    scale: float,
    weighted: bool,
    derivative: float,
    options: dict[str, Any],
) -> None:
    x, y = scene(kernels, classes, size, scale)
    u = torch.rand(classes).to(kernels.device) if weighted else None
    loss, gradient = results(x, y, derivative, edge_class_weight=u, backend="fused", **options)
    u = None if u is None else u.double()
    expected, exact = results(x.double(), y, derivative, edge_class_weight=u, backend="reference", **options)
    assert len(reads) == 2
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    # Rounding is that of numbers as large as the factors of the pixels.
    largest = max(float(exact.abs().max()), 1 / y.numel())
    torch.testing.assert_close(gradient.double(), exact, rtol=2e-7, atol=4e-6 * largest)


def test_terms_and_counts(kernels: Kernels, reads: list[Read]) -> None:
    x, y = scene(kernels, 7, (33, 40))
    options: dict[str, Any] = {"ignore_index": 255, "return_terms": True, "edge_class_weight": torch.rand(7).to(x)}
    _, terms = edge_aware_loss(x, y, backend="fused", **options)
    _, expected = edge_aware_loss(x, y, backend="reference", **options)
    assert reads
    torch.testing.assert_close(terms, expected)


# Others take two reads, and so do calls whose shapes and dtypes do not fit.
@pytest.mark.parametrize(
    "options",
    [
        {"power": 1.0},
        {"radius": 2},
        {"decay": 1.0},
        {"label_smoothing": 0.1},
        {"weight": torch.ones(6)},
        {"pixel_weight": torch.ones(2, 8, 9)},
        {"return_maps": True},
        {"reduction": "none"},
        {"upsample": True, "shape": (2, 6, 4, 5)},
        {"shape": (2, 33, 8, 9)},
        {"shape": (2, 5, 8, 9)},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64},
    ],
    ids=str,
)
def test_what_does_not_fit_takes_two_reads(kernels: Kernels, reads: list[Read], options: dict[str, Any]) -> None:
    options = {name: v.to(kernels.device) if isinstance(v, Tensor) else v for name, v in options.items()}
    shape, dtype = options.pop("shape", (2, 6, 8, 9)), options.pop("dtype", torch.float32)
    x, y = torch.randn(shape, dtype=dtype).to(kernels.device), scene(kernels, 2, (8, 9))[1]
    edge_aware_loss(x, y, ignore_index=255, backend="fused", **options)
    assert not reads


def test_channels_last_takes_two_reads(kernels: Kernels, reads: list[Read]) -> None:
    x, y = scene(kernels, 6, (8, 9))
    edge_aware_loss(x.to(memory_format=torch.channels_last), y, ignore_index=255, backend="fused")
    assert not reads


def test_logits_within_a_larger_tensor(kernels: Kernels, reads: list[Read]) -> None:
    whole, y = scene(kernels, 14, (8, 9))
    y[y != 255] %= 6
    for x in (whole[:, 2:8], whole[:, ::2][:, :6]):
        loss, gradient = results(x, y, backend="fused")
        torch.testing.assert_close((loss, gradient), results(x, y, backend="reference"))
    assert len(reads) == 4


def test_no_gradient_is_formed_where_none_is_needed(kernels: Kernels, reads: list[Read]) -> None:
    x, y = scene(kernels, 19, (17, 33))
    expected, _ = results(x, y, backend="fused")
    losses = [edge_aware_loss(x, y, ignore_index=255, backend="fused")]
    with torch.no_grad():
        losses.append(edge_aware_loss(x.requires_grad_(), y, ignore_index=255, backend="fused"))
    assert [read["gradient"] for read in reads] == [True, True, False, False]
    assert all(torch.equal(loss, expected) for loss in losses)


def test_backward_leaves_the_gradient_of_forward_where_it_is_right(kernels: Kernels) -> None:
    x, y = scene(kernels, 19, (17, 33))
    x.requires_grad_()
    for derivative in (1.0, 2.0):
        loss = edge_aware_loss(x, y, ignore_index=255, backend="fused")
        formed = loss.grad_fn.gradient  # type: ignore[union-attr]
        expected = derivative * formed
        formed[0, 0, 0, 0] = 7.0  # not seen where the kernel forms it again
        (gradient,) = torch.autograd.grad(loss * derivative, x)
        assert (gradient[0, 0, 0, 0] == 7.0) == (derivative == 1.0)
        expected[0, 0, 0, 0] = gradient[0, 0, 0, 0]
        assert torch.equal(gradient, expected)  # a power of two
        assert gradient.data_ptr() == formed.data_ptr()


def test_a_second_backward_pass_leaves_the_gradient_of_the_first(kernels: Kernels) -> None:
    x, y = scene(kernels, 19, (17, 33))
    loss = edge_aware_loss(x.requires_grad_(), y, ignore_index=255, backend="fused")
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(loss * 2, x, retain_graph=True)
    assert torch.equal(first, kept)
    first.zero_()  # it is the caller's
    (third,) = torch.autograd.grad(loss, x)
    assert torch.equal(second, 2 * kept)
    assert torch.equal(third, kept)


def test_same_bits_for_any_content_of_new_memory(kernels: Kernels) -> None:
    x, y = scene(kernels, 19, (17, 33))
    found = []
    for deterministic in (False, True, False):  # torch then fills new tensors with nan
        torch.use_deterministic_algorithms(deterministic)
        try:
            found.append(results(x, y, backend="fused"))
        finally:
            torch.use_deterministic_algorithms(False)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_double_backward_is_refused(kernels: Kernels) -> None:
    x, y = scene(kernels, 6, (5, 6))
    loss = edge_aware_loss(x.requires_grad_(), y, ignore_index=255, backend="fused")
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated twice; pass backend='reference'"):
        torch.autograd.grad(gradient.sum(), x)


def test_wrong_labels_are_reported_and_ignored(kernels: Kernels, reads: list[Read]) -> None:
    x, y = scene(kernels, 6, (5, 6))
    y[1, 2, 3] = 6
    with pytest.raises(ValueError, match=r"labels 0 to 5, or ignore_index=255, but got 6 at \[1, 2, 3\]"):
        edge_aware_loss(x, y, ignore_index=255, validate="sync", backend="fused")
    loss = edge_aware_loss(x, y, ignore_index=255, validate="never", backend="fused")
    y[1, 2, 3] = 255
    assert torch.equal(loss, edge_aware_loss(x, y, ignore_index=255, backend="fused"))
    assert reads


def test_an_empty_batch(kernels: Kernels, reads: list[Read]) -> None:
    x, y = torch.zeros(0, 6, 5, 6).to(kernels.device), torch.zeros(0, 5, 6).long().to(kernels.device)
    loss, gradient = results(x, y, backend="fused")
    assert loss == 0
    assert gradient.shape == x.shape
    assert reads


def test_operators_match_their_registration(kernels: Kernels) -> None:
    x, y = scene(kernels, 3, (5, 6))
    tests = ("test_schema", "test_faketensor")
    u = torch.rand(3).to(x)
    given = (x, y, u, 255, True, False, 1, 1)
    torch.library.opcheck(kernels.operators.count_labels, given, test_utils=tests)
    sums, _, label, edge_list = kernels.operators.count_labels(*given)
    factors = torch.ones(4).to(sums)
    read = (factors, None, x, u, label, edge_list, torch.empty_like(x), sums, 1)
    torch.library.opcheck(kernels.operators.single_read, read, test_utils=tests)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, torch.ones(4), "factors: expected the dtype Double, but got Float"),
        (1, torch.ones(3).double(), r"assumed: expected 4 contiguous elements, but got \[3\]"),
        (2, torch.zeros(2, 3, 5, 6).double(), "logits: expected the dtype Float, but got Double"),
        (2, torch.zeros(2, 2, 5, 6), "logits: expected .* with 3 to 32 classes"),
        (2, torch.zeros(2, 33, 5, 6), "logits: expected .* with 3 to 32 classes"),
        (2, torch.zeros(2, 3, 4, 5, 6), "radius: expected 3 numbers"),
        (2, torch.zeros(2, 5, 6, 3).movedim(3, 1), "logits: expected the pixels of a class side by side"),
        (3, torch.ones(4), r"edge_class_weight: expected \[3\], but got \[4\]"),
        (4, torch.zeros(2, 5, 7).short(), r"label: expected \[2, 5, 6\], but got \[2, 5, 7\]"),
        (5, torch.zeros(7).byte(), r"edge_list: expected \d+ contiguous elements, but got \[7\]"),
        (6, torch.zeros(2, 3, 5, 7), r"gradient: expected \[2, 3, 5, 6\], but got \[2, 3, 5, 7\]"),
        (6, torch.zeros(2, 5, 6, 3).movedim(3, 1), "gradient: expected the pixels of a class side by side"),
        (7, torch.zeros(8).double(), r"sums: expected 9 contiguous elements, but got \[8\]"),
        (8, 3, "tables: expected a divisor of the batch, 2, but got 3"),
    ],
)
def test_wrong_arguments(kernels: Kernels, position: int, value: Any, message: str) -> None:
    x, y = torch.zeros(2, 3, 5, 6).to(kernels.device), torch.zeros(2, 5, 6).long().to(kernels.device)
    sums, _, label, edge_list = kernels.operators.count_labels(x, y, None, 255, True, False, 0, 1)
    arguments = [torch.ones(4).to(sums), None, x, None, label, edge_list, torch.empty_like(x), sums, 1]
    kernels.operators.single_read(*arguments)
    arguments[position] = value.to(kernels.device) if isinstance(value, Tensor) else value
    with pytest.raises(RuntimeError, match=message):
        kernels.operators.single_read(*arguments)


def test_labels_of_another_size(kernels: Kernels) -> None:
    x, y = torch.zeros(2, 3, 5, 6).to(kernels.device), torch.zeros(2, 5, 7).long().to(kernels.device)
    with pytest.raises(RuntimeError, match=r"target: expected \[2, 5, 6\], but got \[2, 5, 7\]"):
        kernels.operators.count_labels(x, y, None, 255, True, False, 0, 1)
