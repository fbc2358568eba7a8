"""Compare the fused kernels with the reference in float64, after F.interpolate where they upsample."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import LossMaps
from edgeloss.functional import edge_aware_loss

LAST = [False, True]  # channels last, or contiguous
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def scene(low: tuple[int, ...], classes: int, high: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """Return random logits [2, C, *low] and labels [2, *high], by default of the same size; a fifth is ignored."""
    high = high or low
    x = torch.randn(2, classes, *low, dtype=torch.float64) * 4
    y = torch.randint(max(2, min(classes, 40)), (2, *high))
    y[torch.rand(2, *high) < 0.2] = 255
    return x, y


def interpolated(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return logits at the resolution of the labels by F.interpolate, in float32 or float64."""
    mode = "bilinear" if len(size) == 2 else "trilinear"
    return F.interpolate(x if x.dtype == torch.float64 else x.float(), size, mode=mode, align_corners=False)


def compare(x: Tensor, y: Tensor, options: dict[str, Any], *, last: bool = False) -> LossMaps:
    """Compare loss, maps and gradient of the fused kernels with the reference, with all weights; return the maps."""
    size, classes, dtype = tuple(y.shape[1:]), x.shape[1], x.dtype
    upsample = x.shape[2:] != y.shape[1:]
    if last:
        x = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weight = torch.rand(max(2, classes), dtype=wide)
    u = torch.rand(max(2, classes), dtype=wide)
    v = torch.rand(2, *size, dtype=wide)
    fused, plain = x.clone().requires_grad_(), x.to(wide, copy=True).requires_grad_()
    shared: dict[str, Any] = options | {"ignore_index": 255, "return_maps": True}
    weights = {"weight": weight, "edge_class_weight": u, "pixel_weight": v}
    loss, maps = edge_aware_loss(fused, y, **weights, upsample=upsample, backend="fused", **shared)
    weights = {name: values.double() for name, values in weights.items()}
    exact = (interpolated(plain, size) if upsample else plain).double()
    expected, expected_maps = edge_aware_loss(exact, y, **weights, backend="reference", **shared)
    # Interpolation in float32 rounds too.
    rough = {"rtol": 2e-5, "atol": 2e-5} if upsample else {"rtol": 1e-5, "atol": 1e-6}
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else rough
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
        fused.grad.double(), plain.grad.double(), rtol=2 * torch.finfo(dtype).eps, atol=max(1e-7, 4e-6 * largest)
    )
    return maps
