"""Wide windows: the CPU sums them up over rows, and searches for distances row by row."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import compare
from torch import Tensor

from edgeloss.functional import edge_aware_loss


def regions(size: tuple[int, ...], classes: int) -> Tensor:
    """Return labels [2, *size] of regions a few pixels wide, of which a tenth of the pixels is ignored."""
    small = torch.randint(classes, (2, 1, *(n // 8 + 1 for n in size)))
    y = F.interpolate(small.double(), size, mode="nearest").long()[:, 0]
    y[torch.rand(y.shape) < 0.1] = 255
    return y


IMAGE, TALL, BROAD, VOLUME = (36, 28), (120, 6), (6, 120), (7, 20, 18)
WIDE: list[tuple[tuple[int, ...], int, torch.dtype, dict[str, Any]]] = [
    (IMAGE, 4, torch.float32, {"radius": 12}),
    (IMAGE, 4, torch.float64, {"radius": 14, "decay": 3.0}),
    (IMAGE, 4, torch.float32, {"radius": 12, "decay": 1.5, "spacing": (2.0, 0.5)}),
    (IMAGE, 4, torch.float32, {"radius": (40, 3), "decay": 3.0}),
    (BROAD, 4, torch.float32, {"radius": (0, 90)}),
    (TALL, 2, torch.float32, {"radius": (110, 0), "decay": 9.0}),
    (IMAGE, 2, torch.float32, {"radius": 12, "decay": 3.0}),
    (IMAGE, 1, torch.bfloat16, {"radius": 1000}),
    (VOLUME, 3, torch.float32, {"radius": 8}),
    (VOLUME, 4, torch.float64, {"radius": (2, 9, 5), "decay": 3.0}),
    (VOLUME, 2, torch.float32, {"radius": (0, 9, 9), "decay": 2.0, "spacing": (1.0, 2.0, 0.5)}),
    (IMAGE, 4, torch.float32, {"radius": 12, "power": 1.0}),
    (IMAGE, 2, torch.float32, {"radius": 14, "power": 1.0, "decay": 3.0}),
    (IMAGE, 4, torch.float32, {"radius": 14, "power": -1.0, "decay": 3.0}),
    (IMAGE, 2, torch.float32, {"radius": 12, "power": 3.0}),
    (IMAGE, 1, torch.bfloat16, {"radius": 1000, "power": 0.5}),
    (IMAGE, 4, torch.float32, {"radius": 12, "power": -1e-5}),
    (VOLUME, 3, torch.float64, {"radius": 8, "power": -1.0}),
]
OTHERS: list[tuple[tuple[int, ...], int, torch.dtype, dict[str, Any]]] = [
    (IMAGE, 4, torch.float32, {"radius": 12, "decay": 0.02}),  # weights underflow: those windows are summed one by one
    (IMAGE, 3, torch.float64, {"radius": 12, "power": 1.0, "decay": 0.02}),
]


@pytest.mark.parametrize(("size", "classes", "dtype", "options"), WIDE + OTHERS, ids=str)
def test_wide_windows_agree(size: tuple[int, ...], classes: int, dtype: torch.dtype, options: dict[str, Any]) -> None:
    x = (4 * torch.randn(2, classes, *size)).to(dtype)
    compare(x, regions(size, max(2, classes)), options)


@pytest.mark.parametrize(
    ("size", "classes", "options"), [(s, c, o) for s, c, dtype, o in WIDE if dtype == torch.float32], ids=str
)
def test_sums_over_rows_are_in_double(size: tuple[int, ...], classes: int, options: dict[str, Any]) -> None:
    """One by one, windows are summed in float32, and differ by more: it shows that rows are summed up."""
    x, y = 4 * torch.randn(2, classes, *size), regions(size, classes)
    _, maps = edge_aware_loss(x, y, ignore_index=255, return_maps=True, backend="fused", **options)
    _, exact = edge_aware_loss(x.double(), y, ignore_index=255, return_maps=True, backend="reference", **options)
    for value, expected in ((maps.same_side, exact.same_side), (maps.other_side, exact.other_side)):
        torch.testing.assert_close(value.double(), expected, rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize("power", [3.0, 1.0, -3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_windows_that_underflow_are_summed_one_by_one(power: float, dtype: torch.dtype) -> None:
    x = 300 * torch.randn(2, 3, *IMAGE, dtype=dtype)
    x[:, :, : IMAGE[0] // 2] *= 1e-3  # most windows reach exponents near 0 and others of thousands
    compare(x, regions(IMAGE, 3), {"radius": 9, "power": power})


@pytest.mark.parametrize("decay", [None, 3.0])
def test_upsampled_logits_agree(decay: float | None) -> None:
    compare(4 * torch.randn(2, 3, 12, 10), regions((36, 28), 3), {"radius": 12, "decay": decay})


def test_a_given_field_may_have_any_values() -> None:
    x, y = 4 * torch.randn(2, 3, 36, 28), regions((36, 28), 3)
    for scale in (1.0, 1e-3, 1e4):
        compare(x, y, {"radius": 12, "decay": 2.0, "distance": scale * torch.rand(y.shape, dtype=torch.float64)})


@pytest.mark.parametrize("power", [0.0, 1.0, 0.3, -2.0])
def test_nothing_cancels_next_to_large_terms(power: float) -> None:
    x, y = torch.randn(1, 3, 48, 40), torch.zeros(1, 48, 40, dtype=torch.long)
    y[..., 20:] = 1
    x[0, 2, 24, 10] = 1e30  # its terms are 1e30, those of all others about 1
    x.requires_grad_()
    far = torch.zeros(1, 48, 40)
    far[..., :4, :] = 1.0  # that pixel is in none of their windows
    values = []
    for backend in ("fused", "reference"):
        loss = edge_aware_loss(x, y, radius=17, power=power, ce_weight=0.0, pixel_weight=far, backend=backend)
        values.append((loss, *torch.autograd.grad(loss, x)))
    assert values[0][0] < 100
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-8)


def test_distances_end_where_the_search_does() -> None:
    y = torch.zeros(1, 60, 70, dtype=torch.long)
    y[0, 30, 35] = 1
    x = torch.zeros(1, 2, 60, 70)
    for options in ({"radius": 8}, {"radius": (9, 8), "spacing": (1.0, 1e-3)}):
        fields = []
        for backend in ("fused", "reference"):
            _, maps = edge_aware_loss(x, y, decay=1.0, backend=backend, return_maps=True, **options)
            fields.append(maps.distance)
        torch.testing.assert_close(*fields, rtol=1e-6, atol=0.0)
        assert fields[0].isinf().any()
        assert fields[0].isfinite().sum() > 100


UNSEEN = """
import torch
from edgeloss.functional import edge_aware_loss
torch.manual_seed(0)
x, y = torch.randn(2, 4, 18, 9, 10), torch.randint(4, (2, 18, 9, 10))
print(*(edge_aware_loss(x, y, radius=2, power=1.0, backend=backend).item() for backend in ("fused", "reference")))
"""


def test_rows_that_no_window_sees_are_not_read() -> None:
    # glibc fills new memory: what is read before it is set is no class then. A chunk has parts of several slices.
    env = os.environ | {"MALLOC_PERTURB_": "170", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", UNSEEN], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    fused, exact = map(float, run.stdout.split())
    assert fused == pytest.approx(exact, rel=1e-6)
