"""The fused kernels on logits of lower resolution, against the plain path: interpolate, then the loss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import CPU, CUDA, STEPPED, Kernels
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgeloss import EdgeAwareLoss, backends
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")

# (low, high) resolutions, each for a path of its own: one cell; ratio 4 and 8 of odd sizes; no integer; 1 along one
# axis; more pixels of a cell than fit in a tile of 256, and more cells than that; a row and a column; volumes.
FLAT = [
    *[
        ((1, 1), (3, 5)),
        ((5, 7), (20, 28)),
        ((3, 9), (24, 72)),
        ((5, 9), (7, 24)),
        ((6, 5), (6, 17)),
        ((7, 6), (13, 6)),
    ],
    *[((1, 2), (2, 700)), ((2, 300), (5, 700)), ((1, 9), (1, 20)), ((9, 1), (31, 1)), ((19, 33), (75, 130))],
]
VOLUMES = [((2, 3, 3), (5, 7, 6)), ((3, 3, 4), (3, 12, 16)), ((9, 6, 5), (18, 9, 10))]
# One logit; two classes; few; wide and narrow tiles; more than the tile can hold in cache.
CLASSES = [1, 2, 3, 19, 150, 1000]
CASES = [
    *itertools.product(FLAT[:-1], CLASSES[:-2]),
    *[(FLAT[1], 150), (FLAT[3], 150), (FLAT[3], 1000), (FLAT[-1], 19)],
    *itertools.product(VOLUMES, (1, 4)),
]
# Stepped threads are slow.
STEPPED_CASES = [(FLAT[0], 2), (FLAT[1], 3), (FLAT[3], 19), (FLAT[4], 1), (VOLUMES[0], 4)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"edge_weight": 0.0},
    {"radius": 2, "power": 0.0},
    {"radius": 3, "power": -1.0, "decay": 1.5},
    {"power": 1.0, "decay": 0.3, "label_smoothing": 0.1},
]


def scene(low: tuple[int, ...], high: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, classes, *low, dtype=torch.float64) * 4
    y = torch.randint(max(2, min(classes, 40)), (2, *high))
    y[torch.rand(2, *high) < 0.2] = 255
    return x, y


def interpolated(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """The plain way, in the arithmetic of the contract."""
    mode = "bilinear" if len(size) == 2 else "trilinear"
    return F.interpolate(x if x.dtype == torch.float64 else x.float(), size, mode=mode, align_corners=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("kernels", "sizes", "classes"),
    [*((name, *case) for name in (CPU, CUDA) for case in CASES), *((STEPPED, *case) for case in STEPPED_CASES)],
    indirect=["kernels"],
)
def test_fused_equals_the_plain_way(
    kernels: Kernels, sizes: tuple[tuple[int, ...], tuple[int, ...]], classes: int, last: bool, dtype: torch.dtype
) -> None:
    low, high = sizes
    for options in OPTIONS:
        x, y = scene(low, high, classes)
        x, y = x.to(kernels.device, dtype), y.to(kernels.device)
        if last:
            x = x.to(memory_format=torch.channels_last if len(low) == 2 else torch.channels_last_3d)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        weight = torch.rand(max(2, classes), dtype=wide).to(kernels.device)
        v = torch.rand(2, *high, dtype=wide).to(kernels.device)
        fused, plain = x.clone().requires_grad_(), x.clone().to(wide).requires_grad_()
        shared: dict[str, Any] = options | {"ignore_index": 255, "return_maps": True}
        loss, maps = edge_aware_loss(fused, y, weight=weight, pixel_weight=v, upsample=True, backend="fused", **shared)
        expected, expected_maps = edge_aware_loss(
            interpolated(plain, high).double(),
            y,
            weight=weight.double(),
            pixel_weight=v.double(),
            backend="reference",
            **shared,
        )
        tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-5}
        torch.testing.assert_close(loss.double(), expected, **tolerance)
        for value, other in zip(maps, expected_maps, strict=True):
            if value is not None:
                torch.testing.assert_close(value.double(), other.double(), **tolerance)
        loss.backward()
        expected.backward()
        assert fused.grad is not None
        assert plain.grad is not None
        assert fused.grad.dtype == dtype
        assert fused.grad.stride() == x.stride()
        largest = float(plain.grad.abs().max())
        torch.testing.assert_close(
            fused.grad.to(wide), plain.grad, rtol=2 * torch.finfo(dtype).eps, atol=max(1e-7, 4e-6 * largest)
        )
