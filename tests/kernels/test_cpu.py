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
@pytest.mark.parametrize("smoothing", [0.0, 0.1])  # two classes without have kernels of their own
def test_a_gradient_beyond_the_cache_is_that_of_its_images(
    classes: int, batch: int, size: tuple[int, int], dtype: torch.dtype, smoothing: float
) -> None:
    batch = batch * 4 // dtype.itemsize
    x = torch.randn(batch, classes, *size, dtype=dtype)
    y = torch.randint(max(2, classes), (batch, size[0] // 8 + 1, size[1] // 8 + 1))
    y = y.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, : size[0], : size[1]]

    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        edge_aware_loss(x, y, reduction="sum", label_smoothing=smoothing, backend="fused").backward()
        assert x.grad is not None
        return x.grad

    assert x.nbytes > 1 << 23  # the gradient of the batch is written past the cache, those of its images are not
    parts = [gradient(image, labels) for image, labels in zip(x.split(1), y.split(1), strict=True)]
    torch.testing.assert_close(gradient(x, y), torch.cat(parts))


@pytest.mark.parametrize("width", [1, 7, 8, 9, 30])  # vectors hold 8 pixels of a row, or 4
@pytest.mark.parametrize("depth", [None, 3])
@pytest.mark.parametrize(("classes", "radius"), [(1, 1), (2, 9), (5, 1), (5, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_windows_end_with_rows_and_see_several_classes(
    dtype: torch.dtype, classes: int, radius: int, depth: int | None, width: int
) -> None:
    shape = (6, width) if depth is None else (depth, 6, width)
    logits = torch.randn(2, classes, *shape, dtype=dtype, requires_grad=True)
    labels = torch.randint(max(2, classes), (2, *shape))
    labels[torch.rand(labels.shape) < 0.1] = 255

    def loss_and_gradient(backend: str) -> tuple[torch.Tensor, torch.Tensor]:
        loss = edge_aware_loss(logits, labels, radius=radius, ignore_index=255, edge_weight=2.0, backend=backend)
        return loss, torch.autograd.grad(loss, logits)[0]

    torch.testing.assert_close(loss_and_gradient("fused"), loss_and_gradient("reference"))


@pytest.mark.parametrize("width", [63, 64, 65, 130])  # edges of two classes are found 64 pixels at a time
@pytest.mark.parametrize("depth", [None, 3])
@pytest.mark.parametrize(("classes", "radius"), [(1, 1), (2, 1), (2, 3)])
def test_edges_of_two_classes_are_found_across_words(classes: int, radius: int, depth: int | None, width: int) -> None:
    shape = (7, width) if depth is None else (depth, 7, width)
    logits = torch.randn(2, classes, *shape, dtype=torch.float64)
    labels = (torch.rand(2, *shape) < 0.02).long()
    labels[torch.rand(labels.shape) < 0.01] = 255

    def terms_of(backend: str) -> torch.Tensor:
        _, terms = edge_aware_loss(logits, labels, radius=radius, ignore_index=255, backend=backend, return_terms=True)
        return torch.stack(list(terms.values()))

    torch.testing.assert_close(terms_of("fused"), terms_of("reference"))
