"""The fused kernels compared with the reference, and under torch.compile, torch.func and opcheck."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from agreement import DTYPES, LAST, compare, scene
from pairwise import pairwise
from stateless import stateless_loss
from torch.autograd import forward_ad as fwAD

from edgeloss import EdgeAwareLoss, backends
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")

# Each size takes a different path: one pixel; a row and a column; odd sizes; two chunks of rows; rows wider than a tile
# of 256 pixels, and not a multiple of it; a volume, and a single slice.
FLAT = [(1, 1), (1, 9), (9, 1), (7, 13), (70, 90), (3, 700)]
VOLUMES = [(3, 5, 6), (1, 5, 6)]
# One logit; two classes; few; the largest and smaller tile widths; more than a block of sums; more than a tile can hold
# in cache.
CLASSES = [1, 2, 3, 19, 150, 1000]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"radius": 2, "power": 1.0},
    {"power": 0.0, "decay": 0.7},
    {"radius": 3, "power": -1.0, "decay": 1.5},
    {"power": 1.0, "decay": 0.3, "label_smoothing": 0.1},
]
OTHER_CASES = [
    (FLAT[-1], CLASSES[-1]),
    ((64, 128), 12),  # with this layout the tiles of the classes would evict each other from the cache
    *itertools.product(VOLUMES, (1, 4)),
]
ROWS = [
    *pairwise(FLAT[:-1], CLASSES[:-1], LAST, DTYPES, OPTIONS),
    *((*case, *others) for case, *others in pairwise(OTHER_CASES, LAST, DTYPES, OPTIONS)),
]


@pytest.mark.parametrize(("size", "classes", "last", "dtype", "options"), ROWS)
def test_fused_equals_reference(
    size: tuple[int, ...], classes: int, last: bool, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    x, y = scene(size, classes)
    compare(x.to(dtype), y, options, last=last)


@pytest.mark.parametrize("power", [0.0, 1.0, 0.5])
def test_an_infinite_gradient_at_an_ignored_pixel_goes_nowhere(power: float) -> None:
    x, y = scene((12, 14), 3)
    y[y != 255] = 0
    y[..., 10:][y[..., 10:] != 255] = 1
    gradients = []
    for backend in ("fused", "reference"):
        logits = x.clone().requires_grad_()
        loss = edge_aware_loss(logits, y, ignore_index=255, power=power, reduction="none", backend=backend)
        assert (loss == 0).any()
        gradients += torch.autograd.grad(loss.sqrt().sum(), logits)  # sqrt has no slope at 0
    assert gradients[1].isfinite().all()
    torch.testing.assert_close(*gradients)


def test_every_pixel_an_edge() -> None:
    x = torch.randn(1, 3, 40, 50, dtype=torch.float64).requires_grad_()
    y = (torch.arange(40)[:, None] + torch.arange(50)).remainder(2)[None]
    fused = edge_aware_loss(x, y, backend="fused", radius=2)
    reference = edge_aware_loss(x, y, backend="reference", radius=2)
    torch.testing.assert_close(fused, reference)
    torch.testing.assert_close(torch.autograd.grad(fused, x), torch.autograd.grad(reference, x))


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
def test_more_classes_around_a_pixel_than_are_collected_at_a_time(power: float) -> None:
    # Up to 47 others in the window of radius 3; the logits make some of them likely, and some sums underflow.
    x = (torch.randn(1, 60, 7, 13, dtype=torch.float64) * 400).requires_grad_()
    y = torch.randint(60, (1, 7, 13))
    options: dict[str, Any] = {"radius": 3, "power": power, "decay": 2.0, "reduction": "sum"}
    fused = edge_aware_loss(x, y, backend="fused", **options)
    reference = edge_aware_loss(x, y, backend="reference", **options)
    torch.testing.assert_close(fused, reference)
    torch.testing.assert_close(torch.autograd.grad(fused, x), torch.autograd.grad(reference, x))


@pytest.mark.parametrize(
    ("size", "classes", "dtype", "weighted"),
    pairwise([(7, 13), (5, 12), (9, 132), (34, 36)], [1, 2, 3, 19], DTYPES, [False, True]),
)
def test_the_defaults_without_weights_of_pixels(
    size: tuple[int, ...],
    classes: int,
    dtype: torch.dtype,
    *,
    weighted: bool,
) -> None:
    # Two classes have kernels of their own.
    x = (torch.randn(2, classes, *size, dtype=torch.float64) * 4).to(dtype)
    y = torch.randint(max(2, classes), (2, *(-(-n // 3) for n in size)))
    y = y.repeat_interleave(3, 1).repeat_interleave(3, 2)[:, : size[0], : size[1]].contiguous()
    y[torch.rand(y.shape) < 0.1] = 255
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    u = torch.rand(max(2, classes), dtype=wide) if weighted else None
    results = []
    for logits, weight, backend in ((x, u, "fused"), (x.double(), None if u is None else u.double(), "reference")):
        logits.requires_grad_()
        # The sum: half precision has few digits for the gradient of a mean.
        options: dict[str, Any] = {"ignore_index": 255, "edge_class_weight": weight, "reduction": "sum"}
        loss = edge_aware_loss(logits, y, backend=backend, **options)
        results.append((loss.double(), *(part.double() for part in torch.autograd.grad(loss, logits))))
    (loss, gradient), (expected_loss, expected) = results
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(loss, expected_loss, **close)
    largest = float(expected.abs().max())
    torch.testing.assert_close(gradient, expected, rtol=2 * torch.finfo(dtype).eps, atol=max(1e-12, 4e-6 * largest))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool])
def test_labels_of_every_dtype(dtype: torch.dtype) -> None:
    x, y = torch.randn(1, 2, 5, 6), torch.randint(2, (1, 5, 6))
    expected = edge_aware_loss(x, y, backend="reference")
    torch.testing.assert_close(edge_aware_loss(x, y.to(dtype), backend="fused"), expected)


def test_logits_within_a_larger_tensor() -> None:
    whole = torch.randn(2, 9, 5, 6, dtype=torch.float64)
    y = torch.randint(4, (2, 5, 6))
    for x in (whole[:, 2:6], whole[:, ::2][:, :4], whole.transpose(2, 3)[:, :4].transpose(2, 3)):
        x = x.detach().requires_grad_()
        fused, reference = (edge_aware_loss(x, y, backend=backend) for backend in ("fused", "reference"))
        torch.testing.assert_close(fused, reference)
        torch.testing.assert_close(torch.autograd.grad(fused, x), torch.autograd.grad(reference, x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_at_any_address(dtype: torch.dtype) -> None:
    x, y = scene((5, 12), 9)
    y = y
    expected = edge_aware_loss(x.to(dtype).double(), y, ignore_index=255, backend="reference")
    gradients = []
    for offset in range(4):  # of them, one is a multiple of a vector's length
        moved = torch.empty(x.numel() + offset, dtype=dtype)[offset:].view(x.shape)
        moved = moved.copy_(x).requires_grad_()
        loss = edge_aware_loss(moved, y, ignore_index=255, backend="fused")
        torch.testing.assert_close(loss.double(), expected)
        gradients += torch.autograd.grad(loss, moved)
        torch.testing.assert_close(gradients[-1], gradients[0])


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_a_window_wider_than_a_tile(power: float) -> None:
    x, y = scene((3, 420), 3)
    y[..., :200][y[..., :200] != 255] = 0
    y[..., 200:][y[..., 200:] != 255] = 1
    x.requires_grad_()
    options: dict[str, Any] = {"radius": (1, 150), "power": power, "ignore_index": 255}
    fused, reference = (edge_aware_loss(x, y, backend=backend, **options) for backend in ("fused", "reference"))
    torch.testing.assert_close(fused, reference)
    torch.testing.assert_close(torch.autograd.grad(fused, x), torch.autograd.grad(reference, x))


@pytest.mark.parametrize("options", OPTIONS)
def test_same_bits_for_any_content_of_new_memory(options: dict[str, Any]) -> None:
    x, y = scene((17, 33), 19)
    x = x.float().requires_grad_()
    results = []
    for deterministic in (False, True, False):  # torch then fills new tensors with nan
        torch.use_deterministic_algorithms(deterministic)
        try:
            loss, maps = edge_aware_loss(x, y, ignore_index=255, backend="fused", return_maps=True, **options)
            found = loss.detach(), *torch.autograd.grad(loss, x), *(m for m in maps if m is not None)
            results.append(found)
        finally:
            torch.use_deterministic_algorithms(False)
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_same_bits_for_every_number_of_threads(options: dict[str, Any]) -> None:
    x, y = scene((70, 90), 19)
    results = []
    for threads in (1, 2, 3, 1):
        torch.set_num_threads(threads)
        logits = x.float().requires_grad_()
        loss = edge_aware_loss(logits, y, ignore_index=255, backend="fused", **options)
        results.append((loss.detach(), *torch.autograd.grad(loss, logits)))
    torch.set_num_threads(1)
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_same_counts_for_every_number_of_threads() -> None:
    x, y = scene((70, 90), 19)
    found = []
    for threads, backend in ((1, "reference"), (1, "fused"), (2, "fused"), (3, "fused")):
        torch.set_num_threads(threads)
        criterion = EdgeAwareLoss(edge_class_weight="running", ignore_index=255, radius=2, backend=backend)
        criterion(x, y)
        found.append(criterion.edge_counts)
    torch.set_num_threads(1)
    assert all(torch.equal(counts, found[0]) for counts in found)


def test_double_backward_is_refused() -> None:
    x, y = scene((5, 6), 3)
    (gradient,) = torch.autograd.grad(
        edge_aware_loss(x.requires_grad_(), y, ignore_index=255, backend="fused"), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="can't be differentiated twice; pass backend='reference'"):
        torch.autograd.grad(gradient.sum(), x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")  # torch's forward mode uses torch.jit
def test_transforms_of_torch_func_get_the_reference() -> None:
    x, y = scene((5, 6), 3)
    criterion = stateless_loss(ignore_index=255)
    expected = torch.autograd.grad(criterion(x.requires_grad_(), y), x)[0]
    torch.testing.assert_close(torch.func.grad(criterion)(x.detach(), y), expected)
    _, directional = torch.func.jvp(lambda logits: criterion(logits, y), (x.detach(),), (torch.ones_like(x),))
    torch.testing.assert_close(directional, expected.sum())


def test_inputs_are_left_alone() -> None:
    x, y = scene((7, 13), 3)
    before = x.clone(), y.clone()
    edge_aware_loss(x.requires_grad_(), y, ignore_index=255, backend="fused").backward()
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_a_worker_thread() -> None:
    x, y = scene((7, 13), 3)
    x.requires_grad_()

    def work() -> tuple[torch.Tensor, ...]:
        loss = edge_aware_loss(x, y, ignore_index=255, backend="fused")
        return loss.detach(), *torch.autograd.grad(loss, x)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(work).result()
    assert all(torch.equal(a, b) for a, b in zip(found, work(), strict=True))


def test_one_graph_for_every_size() -> None:
    torch._dynamo.reset()
    criterion = stateless_loss(ignore_index=255, radius=2, decay=1.0, backend="fused")
    compiled = torch.compile(criterion, fullgraph=True, dynamic=True, backend="aot_eager")
    torch._dynamo.config.error_on_recompile = True
    try:
        for size in ((7, 13), (20, 9), (33, 40)):
            x, y = scene(size, 3)
            x.requires_grad_()
            loss, expected = compiled(x, y), criterion(x, y)
            torch.testing.assert_close(loss, expected)
            torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))
    finally:
        torch._dynamo.config.error_on_recompile = False
    with pytest.raises(ValueError, match=r"expected labels 0 to 2, or ignore_index=255, but got 7 at 91 pixels"):
        compiled(*(torch.zeros(1, 3, 7, 13), torch.full((1, 7, 13), 7)))


@pytest.mark.parametrize("power", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.7])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("maps", [False, True])
def test_operators_match_their_registration(edges: bool, maps: bool, decay: float, power: float) -> None:
    x, y = scene((5, 6), 3)
    options = (255, 0.1, [1, 1], power, decay, [1.0, 1.0], edges, False, maps, edges, 1, 1)
    # Not compared between eager and compiled, as test_aot_dispatch_dynamic would: the state that forward leaves to
    # backward is filled only where backward reads it.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.edgeloss.edge_loss,
        (x.requires_grad_(), y, None, None, torch.rand(3).to(x), None, *options),
        test_utils=tests,
    )


# The first use of forward mode in a process scripts torch's own decompositions.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_takes_the_reference() -> None:
    x, tangent = torch.randn(2, 2, 3, 5, 6, dtype=torch.float64).unbind()
    y = torch.randint(3, (2, 5, 6))
    with fwAD.dual_level():
        loss = edge_aware_loss(fwAD.make_dual(x, tangent), y)
        slope = fwAD.unpack_dual(loss).tangent
        with pytest.raises(RuntimeError, match="forward-mode differentiation; pass 'auto' or 'reference'"):
            edge_aware_loss(fwAD.make_dual(x, tangent), y, backend="fused")
    (gradient,) = torch.autograd.grad(edge_aware_loss(leaf := x.clone().requires_grad_(), y), leaf)
    torch.testing.assert_close(slope, (gradient * tangent).sum())


TENSORS: dict[str, tuple[Any, Any, str]] = {
    "weight": (torch.rand(3), -torch.ones(3), "weight: expected finite values ≥ 0"),
    "edge_class_weight": (torch.rand(3), torch.full((3,), torch.nan), "edge_class_weight: expected finite values"),
    "pixel_weight": (torch.rand(2, 5, 6), torch.full((2, 5, 6), 1e30), "pixel_weight: expected finite values ≥ 0"),
    "distance": (torch.rand(2, 5, 6), -torch.ones(2, 5, 6), "distance: expected finite values ≥ 0"),
    "normalizer": (
        (torch.tensor(3.0), torch.tensor(4.0)),
        (torch.tensor(-1.0), torch.tensor(1.0)),
        "normalizer: expected 0, or finite numbers",
    ),
}


class WithTensors(torch.nn.Module):
    """The loss as a module that can be exported."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, **tensors: Any) -> Any:
        return edge_aware_loss(x, y, decay=2.0, spacing=(1.0, 2.0), **tensors)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", ["compile", "export"])
def test_graphs_with_every_tensor_check_as_strictly(how: str) -> None:
    x, y = torch.randn(2, 3, 5, 6), torch.randint(3, (2, 5, 6))
    given, eager = {name: good for name, (good, _, _) in TENSORS.items()}, WithTensors()
    if how == "compile":
        torch._dynamo.reset()
        graph = torch.compile(eager, fullgraph=True, backend="aot_eager")
    else:
        graph = torch.export.export(eager, (x, y), kwargs=given).module()
    assert graph(x, y, **given) == eager(x, y, **given)
    for name, (_, bad, message) in TENSORS.items():
        with pytest.raises(RuntimeError, match=message):
            graph(x, y, **(given | {name: bad}))
    with pytest.raises(ValueError, match="target: expected labels 0 to 2"):
        graph(x, torch.full_like(y, 7), **given)
