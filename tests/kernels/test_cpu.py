"""What the CPU kernels alone do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from edgeloss import backends
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")


# Rows of classes that begin with a line of the cache, or not.
@pytest.mark.parametrize("size", [(192, 180), (191, 179)])
@pytest.mark.parametrize(("classes", "batch"), [(19, 4), (1, 80), (2, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_beyond_the_cache_is_that_of_its_images(
    classes: int, batch: int, size: tuple[int, int], dtype: torch.dtype
) -> None:
    batch = batch * 4 // dtype.itemsize
    x = torch.randn(batch, classes, *size, dtype=dtype)
    y = torch.randint(max(2, classes), (batch, size[0] // 8 + 1, size[1] // 8 + 1))
    y = y.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, : size[0], : size[1]]

    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        edge_aware_loss(x, y, reduction="sum", backend="fused").backward()
        assert x.grad is not None
        return x.grad

    assert x.nbytes > 1 << 23
    parts = [gradient(image, labels) for image, labels in zip(x.split(1), y.split(1), strict=True)]
    torch.testing.assert_close(gradient(x, y), torch.cat(parts))


def test_a_class_that_cannot_be_does_not_count_in_upsampled_logits() -> None:
    x = torch.randn(1, 3, 6, 6)
    x[:, 2] = -torch.inf
    y = torch.randint(2, (1, 24, 24))
    fused = edge_aware_loss(x, y, upsample=True, backend="fused")
    torch.testing.assert_close(fused, edge_aware_loss(x[:, :2], y, upsample=True, backend="fused"))


UNSEEN = """
import torch
from edgeloss.functional import edge_aware_loss
torch.manual_seed(0)
for size, low, options in (
    ((18, 9, 10), (18, 9, 10), {"radius": 2, "power": 1.0, "decay": 1.0}),
    ((18, 9, 10), (18, 9, 10), {"radius": 2, "decay": 1.0, "region_weight": 3.0}),
    ((40, 44), (10, 11), {"upsample": True, "region_weight": 3.0}),
):
    x, y = torch.randn(2, 4, *low, requires_grad=True), torch.randint(4, (2, *size))
    for backend in ("fused", "reference"):
        loss = edge_aware_loss(x, y, backend=backend, **options)
        print(loss.item(), torch.autograd.grad(loss, x)[0].double().square().sum().item())
"""


def test_memory_is_not_read_before_it_is_written() -> None:
    # glibc fills new memory: what is read before it is set is no class then.
    env = os.environ | {"MALLOC_PERTURB_": "170", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", UNSEEN], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    values = [[float(value) for value in line.split()] for line in run.stdout.splitlines()]
    assert len(values) == 6
    for fused, exact in zip(values[::2], values[1::2], strict=True):
        assert fused == pytest.approx(exact, rel=1e-5)
