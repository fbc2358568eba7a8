"""Tests that need a CUDA device: streams, graphs, synchronization, memory."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from kernel_kinds import CUDA, ON_CUDA, Kernels
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss

if not ON_CUDA:
    pytest.skip("no CUDA device", allow_module_level=True)

pytestmark = pytest.mark.parametrize("kernels", [CUDA], indirect=True)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"power": 1.0},
    {"radius": 2, "power": -1.0, "decay": 1.0},
]


@pytest.fixture(autouse=True)
def _start(kernels: Kernels) -> Iterator[None]:
    # The first call allocates what later ones share, and a graph's capture may not.
    run(stateless_loss(ignore_index=255, backend="fused"), *scene())
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()


def scene() -> tuple[Tensor, Tensor]:
    x, y = torch.randn(2, 19, 128, 160, device="cuda"), torch.randint(19, (2, 8, 10), device="cuda")
    y = y.repeat_interleave(16, 1).repeat_interleave(16, 2)
    y[torch.rand(y.shape, device="cuda") < 0.1] = 255
    return x.requires_grad_(), y


def run(criterion: EdgeAwareLoss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    loss = criterion(x, y)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Raise an error where torch waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", OPTIONS)
def test_side_stream(options: dict[str, Any]) -> None:
    criterion, (x, y) = stateless_loss(ignore_index=255, backend="fused", **options), scene()
    expected = run(criterion, x, y)
    stream = torch.cuda.Stream()
    late = torch.empty_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # Work on another stream would run before the copy, and read values that are not there yet.
        torch.cuda._sleep(50_000_000)
        late.copy_(x.detach())
        found = run(criterion, late.requires_grad_(), y)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_graph_replays(options: dict[str, Any]) -> None:
    criterion, (x, y) = stateless_loss(ignore_index=255, backend="fused", **options), scene()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(criterion, x, y)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(criterion, x, y)
    other, labels = scene()
    with torch.no_grad():
        x.copy_(other)
        y.copy_(labels)
    graph.replay()
    torch.cuda.synchronize()
    expected = run(criterion, other, labels)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_nothing_waits_for_the_device(options: dict[str, Any]) -> None:
    criterion, (x, y) = stateless_loss(ignore_index=255, backend="fused", **options), scene()
    with nothing_waits():
        run(criterion, x, y)
    # The mode above detects synchronization by torch only. The call must return while the device sleeps.
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    run(criterion, x, y)
    assert not torch.cuda.current_stream().query()


# The first call of a process with validate="async" allocates memory that the host shares: also inside a capture.
FIRST_CALL = """
import torch
from edgeloss.functional import edge_aware_loss
x, y = torch.randn(1, 3, 16, 16, device="cuda"), torch.randint(3, (1, 16, 16), device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = edge_aware_loss(x, y, backend="fused")
graph.replay()
torch.testing.assert_close(loss, edge_aware_loss(x, y, backend="reference"))
"""


def test_first_call_inside_a_capture() -> None:
    subprocess.run([sys.executable, "-c", FIRST_CALL], check=True, timeout=120)


def test_counted_weights_wait_for_nothing_and_replay() -> None:
    options: dict[str, Any] = {"edge_class_weight": "running", "edge_focus": 1.0, "ignore_index": 255}
    criterion, (x, y) = EdgeAwareLoss(**options, backend="fused"), scene()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with nothing_waits(), torch.cuda.stream(stream):
        for _ in range(3):
            run(criterion, x, y)
    torch.cuda.current_stream().wait_stream(stream)
    twin, graph = copy.deepcopy(criterion), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(criterion, x, y)
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, run(twin, x, y), strict=True))
    assert torch.equal(criterion.edge_counts, twin.edge_counts)
    assert torch.equal(criterion.edge_sums, twin.edge_sums)
    assert twin.counted_steps == criterion.counted_steps == 6


@pytest.mark.parametrize("options", OPTIONS)
def test_deterministic(options: dict[str, Any]) -> None:
    criterion, (x, y) = stateless_loss(ignore_index=255, backend="fused", **options), scene()
    expected = run(criterion, x, y)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(run(criterion, x, y), expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_worker_thread_uses_its_own_stream() -> None:
    criterion, (x, y) = stateless_loss(ignore_index=255, backend="fused"), scene()
    expected = run(criterion, x, y)

    def work() -> tuple[Tensor, Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(50_000_000)
            found = run(criterion, x, y)
            torch.cuda.current_stream().synchronize()
        return found

    torch.cuda.synchronize()
    with ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(work) for _ in range(4)]:
            assert all(torch.equal(a, b) for a, b in zip(found.result(), expected, strict=True))


def test_sync_waits_for_its_own_labels(kernels: Kernels) -> None:
    x, y = scene()
    torch.cuda._sleep(500_000_000)  # the labels are not read yet as the call returns from launching
    with pytest.raises(ValueError, match=r"^target: expected labels 0 to 18, or ignore_index=255, but got 77"):
        edge_aware_loss(x, torch.full_like(y, 77), ignore_index=255, validate="sync", backend="fused")
    kernels.raise_label_errors()


def test_tensors_of_another_device_are_refused() -> None:
    x, y = scene()
    options = (255, 0.0, [1, 1], 0.0, 0.0, [1.0, 1.0], True, False, False, False, 0, 1)
    for others in ((y.cpu(), None), (y, torch.ones(19))):
        with pytest.raises(RuntimeError, match="expected a tensor on the logits' device"):
            torch.ops.edgeloss.edge_loss(x, others[0], others[1], None, None, None, *options)


def test_the_first_of_two_label_records_stays(kernels: Kernels) -> None:
    x, y = scene()
    torch.cuda._sleep(500_000_000)  # the second call comes before the first is checked
    for label in (77, 88):
        edge_aware_loss(x, torch.full_like(y, label), ignore_index=255, backend="fused")
    torch.cuda.synchronize()
    with pytest.raises(ValueError, match=r"but got 77 at \[0, 0, 0\], the first of 40960 pixels"):
        kernels.raise_label_errors()
    kernels.raise_label_errors()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # inductor's advice
def test_compiles_to_one_graph() -> None:
    criterion, (x, y) = stateless_loss(ignore_index=255, backend="fused"), scene()
    found = run(torch.compile(criterion, fullgraph=True), x, y)
    torch.testing.assert_close(found, run(criterion, x, y))


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({}, 3),
        ({"edge_weight": 0}, 2),
        ({"label_smoothing": 0.1}, 29),
        ({"power": -1.0}, 37),
        ({"decay": 1.0}, 41),
        ({"decay": 1.0, "power": -1.0}, 49),
        ({"edge_weight": 0, "label_smoothing": 0.1}, 10),
    ],
)
def test_memory(options: dict[str, Any], state: int) -> None:
    pixels = 4 * 512 * 512
    x = torch.randn(4, 8, 512, 512, device="cuda", requires_grad=True)
    y = torch.randint(8, (4, 512, 512), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = edge_aware_loss(x, y, validate="never", backend="fused", **options)
    (gradient,) = torch.autograd.grad(loss, x)
    peak = torch.cuda.max_memory_allocated() - before - gradient.numel() * gradient.element_size()
    assert peak / pixels < state + 1  # and the sums of the tiles, 0.07 bytes per pixel


@pytest.mark.slow
def test_more_than_2_31_logits() -> None:
    if torch.cuda.get_device_properties(0).total_memory < 24 * 2**30:
        pytest.skip("needs a device of 24 GB")
    # Constant logits: the loss of every pixel is known.
    x = torch.zeros(1, 33, 8192, 8192, dtype=torch.float16, device="cuda", requires_grad=True)
    y = torch.zeros(1, 8192, 8192, dtype=torch.uint8, device="cuda")
    y[:, -1, -1] = 32
    loss = edge_aware_loss(x, y, edge_weight=0.0, backend="fused")
    torch.testing.assert_close(loss.cpu(), torch.tensor(33.0).log())
    (gradient,) = torch.autograd.grad(loss * y.numel(), x)
    torch.testing.assert_close(gradient[0, 32, -1, -1].float().cpu(), torch.tensor(1 / 33 - 1), rtol=1e-3, atol=0.0)
