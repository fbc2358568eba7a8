"""What the CPU kernels alone do."""

from __future__ import annotations

import pytest
import torch

from edgeloss.functional import edge_aware_loss


@pytest.mark.parametrize(
    "size", [(192, 180), (191, 179)]
)  # rows of classes that begin with a line of the cache, or not
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
        edge_aware_loss(x, y, reduction="sum", label_smoothing=0.1, backend="fused").backward()
        assert x.grad is not None
        return x.grad

    assert x.nbytes > 1 << 23  # the gradient of the batch is written past the cache, those of its images are not
    parts = [gradient(image, labels) for image, labels in zip(x.split(1), y.split(1), strict=True)]
    torch.testing.assert_close(gradient(x, y), torch.cat(parts))
