"""Out-of-range labels on CUDA: the kernels record them, and a later call raises; no device assert."""

from __future__ import annotations

import pytest
import torch
from kernel_kinds import ON_CUDA, STEPPED, Kernels
from torch import Tensor

from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.parametrize("kernels", [*ON_CUDA, STEPPED], indirect=True)

# More than one block of 256 threads.
SIZE = (2, 9, 40)


def batch(kernels: Kernels, wrong: dict[tuple[int, int, int], int], classes: int = 3) -> tuple[Tensor, Tensor]:
    x, y = torch.randn(SIZE[0], classes, *SIZE[1:]), torch.randint(max(2, classes), SIZE)
    for place, label in wrong.items():
        y[place] = label
    return x.to(kernels.device), y.to(kernels.device)


def finish(kernels: Kernels) -> None:
    if kernels.device == "cuda":
        torch.cuda.synchronize()


WRONG = {(1, 7, 39): -1, (0, 7, 3): 7, (1, 0, 0): 9}
MESSAGE = (
    r"expected labels 0 to 2, or ignore_index=255, but got 7 at \[0, 7, 3\], the first of 3 pixels with labels out of"
    r" range, which counted as ignored"
)


@pytest.mark.parametrize("validate", ["never", "async"])
def test_they_count_as_ignored(kernels: Kernels, validate: str) -> None:
    x, y = batch(kernels, WRONG)
    ignored = torch.where((y < 0) | (y > 2), 255, y)
    loss = edge_aware_loss(x, y, ignore_index=255, validate=validate, backend="fused")
    finish(kernels)
    if validate == "async":
        with pytest.raises(ValueError, match=f"target of an earlier call: {MESSAGE}"):
            kernels.raise_label_errors()
    kernels.raise_label_errors()  # there is no record left, if there was one
    assert torch.equal(loss, edge_aware_loss(x, ignored, ignore_index=255, backend="fused"))


def test_async_raises_at_the_next_call_once(kernels: Kernels) -> None:
    x, y = batch(kernels, WRONG)
    good = y.clamp(0, 2)
    edge_aware_loss(x, y, ignore_index=255, backend="fused")
    finish(kernels)
    edge_aware_loss(x, good, validate="never", backend="fused")  # neither reads nor clears it
    with pytest.raises(ValueError, match=f"target of an earlier call: {MESSAGE}"):
        edge_aware_loss(x, good, backend="fused")
    edge_aware_loss(x, good, backend="fused")


def test_async_raises_before_it_does_anything(kernels: Kernels) -> None:
    x, y = batch(kernels, {(0, 0, 0): 5})
    operator = kernels.operators.edge_loss
    options = (255, 0.0, [1, 1], 1.0, 0.0, [1.0, 1.0], True, False, False, False)
    operator(x, y, None, None, None, None, *options, 1, 1)
    finish(kernels)
    with pytest.raises(ValueError, match="but got 5"):
        operator(x, y, None, None, None, None, *options, 1, 1)
    finish(kernels)
    kernels.raise_label_errors()  # the second call left no record


def test_sync_raises_at_once(kernels: Kernels) -> None:
    x, y = batch(kernels, WRONG)
    with pytest.raises(ValueError, match=f"target: {MESSAGE}"):
        edge_aware_loss(x, y, ignore_index=255, validate="sync", backend="fused")
    edge_aware_loss(x, y.clamp(0, 2), ignore_index=255, validate="sync", backend="fused")


def test_message_of_one_logit_and_of_a_volume(kernels: Kernels) -> None:
    x, y = batch(kernels, {(1, 2, 3): 2}, classes=1)
    with pytest.raises(
        ValueError, match=r"expected labels 0 or 1 \(one logit per pixel is binary\).* got 2 at \[1, 2, 3"
    ):
        edge_aware_loss(x, y, validate="sync", backend="fused")
    x, y = torch.zeros(1, 3, 2, 4, 5, device=kernels.device), torch.zeros(1, 2, 4, 5, dtype=torch.uint8)
    y[0, 1, 2, 3] = 255
    with pytest.raises(ValueError, match=r"but got 255 at \[0, 1, 2, 3\], the first of 1 pixel with"):
        edge_aware_loss(x, y.to(kernels.device), validate="sync", backend="fused")
