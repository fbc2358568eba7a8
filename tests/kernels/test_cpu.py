"""What the CPU kernels alone do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pairwise import pairwise
from recorded import operators_of

from edgeloss import backends
from edgeloss.functional import edge_aware_loss, normalizers

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")


# Rows of classes that begin with a line of the cache, or not.
@pytest.mark.parametrize(
    ("counts", "size", "dtype"),
    pairwise([(19, 4), (1, 80), (2, 40)], [(192, 180), (191, 179)], [torch.float32, torch.bfloat16]),
)
@pytest.mark.slow
def test_a_gradient_beyond_the_cache_is_that_of_its_images(
    counts: tuple[int, int], size: tuple[int, int], dtype: torch.dtype
) -> None:
    classes, batch = counts
    x = torch.randn(batch * 4 // dtype.itemsize, classes, *size, dtype=dtype).requires_grad_()
    y = torch.randint(max(2, classes), (len(x), 24, 23)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    y = y[:, : size[0], : size[1]]
    assert x.nbytes > 1 << 23
    call: dict[str, Any] = {"reduction": "sum", "backend": "fused", "normalizer": normalizers(y, max(2, classes))}
    whole = edge_aware_loss(x, y, **call)
    parts = sum(edge_aware_loss(*image, **call) for image in zip(x.split(1), y.split(1), strict=True))
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (whole, parts)))


def test_all_that_forward_returns_is_written() -> None:
    # The slopes of the region term, of which classes without pixels have none: their maps take 74 kB each, and memory
    # that was used before is not 0.
    x, y = torch.randn(1, 20, 408, 408, requires_grad=True), torch.zeros(1, 408, 408, dtype=torch.int64)
    y[:, 100:200] = 7
    operator, arguments = operators_of(lambda: edge_aware_loss(x, y, backend="fused").detach())[0]
    returned = []
    for value in (1, 255):
        used = [torch.full((1 << 20,), value, dtype=torch.uint8) for _ in range(8)]
        del used
        returned.append(operator(**arguments))
    assert returned[0][-1].numel() > 20 * 136**2 * 4
    assert all(torch.equal(a, b) for a, b in zip(*returned, strict=True))


@pytest.mark.slow  # collects the agreement suite in a process of its own
def test_memory_is_not_read_before_it_is_written() -> None:
    # glibc fills new memory: what is read before it is set is no class then.
    test = Path(__file__).parents[1] / "loss/test_agreement.py::test_every_column_agrees_with_long_doubles"
    env = os.environ | {"MALLOC_PERTURB_": "170", "OMP_NUM_THREADS": "1"}
    rows = [f"{test}[{i}-fused]" for i in range(0, 96, 8)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *rows]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
