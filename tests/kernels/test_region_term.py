"""The region term of `csrc/region`, from maps of averages: its value and its slopes."""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import max_pool3d, pad

import toolchain
from edgeloss import region

Term = Callable[[Tensor, Tensor], tuple[bool, float, Tensor]]
FOLDER = Path(__file__).parents[2] / "csrc/region"
HARNESS = """
#include "region.h"
#define TERM(name, A) extern "C" __attribute__((visibility("default"))) bool name( \\
    const int64_t* n, bool is_volume, const A* z, const A* r, double* value, A* slope) { \\
  return edgeloss::region_term<A>({n[0], n[1], n[2], is_volume}, z, r, value, slope); \\
}
TERM(float32, float) TERM(float64, double)
"""
# One region along an axis, two, three, and more. 9, 12 and 15 pixels have a last one without an average.
SIZES = [(4, 9), (7, 7), (7, 10), (10, 22), (16, 7), (12, 15), (16, 31), (40, 52), (7, 8, 13), (9, 14, 10), (25, 16, 9)]
LARGE = [(510, 511), (31, 2048), (22, 64, 90)]
PREDICTIONS = ["noise", "good", "thick", 5.0, 20.0, 60.0]
CASES = [*itertools.product(SIZES, PREDICTIONS), *itertools.product(LARGE, ["noise", 10.0, 20.0])]


@pytest.fixture(scope="module")
def term(tmp_path_factory: pytest.TempPathFactory) -> Term:
    """Return a function of z and r that returns whether there is a term, its value and its slopes."""
    if (compiler := toolchain.find_compiler()) is None:
        pytest.skip("no C++ compiler to build the region term with")
    source = tmp_path_factory.mktemp("region") / "harness.cpp"
    source.write_text(HARNESS)
    files = map(str, [source, FOLDER / "region.cpp", "-o", source.with_suffix(".so")])
    subprocess.run([*compiler, *toolchain.HOST_FLAGS, "-shared", f"-I{FOLDER}", *files], check=True)
    library = ctypes.CDLL(str(source.with_suffix(".so")))

    def call(z: Tensor, r: Tensor) -> tuple[bool, float, Tensor]:
        function = getattr(library, str(r.dtype).removeprefix("torch."))
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_bool, *[ctypes.c_void_p] * 4], ctypes.c_bool
        size, z, slope = (ctypes.c_int64 * 3)(*[1] * (3 - r.dim()), *r.shape), z.to(r.dtype), torch.full_like(r, 7.0)
        value, alone = ctypes.c_double(7.0), ctypes.c_double(7.0)
        given = ctypes.addressof(size), r.dim() == 3, z.data_ptr(), r.data_ptr()
        has_term = function(*given, ctypes.addressof(value), slope.data_ptr())
        assert function(*given, ctypes.addressof(alone), None) == has_term  # without slopes
        assert math.isnan(value.value) or alone.value == value.value
        return has_term, value.value, slope

    return call


def scene(size: tuple[int, ...], prediction: str | float) -> tuple[Tensor, Tensor]:
    """Return logits [1, 1, *S] and labels [1, *S] of blobs, or of single pixels that the prediction draws larger."""
    torch.manual_seed(sum(size))

    def grown(y: Tensor, by: int) -> Tensor:
        widths = [2 * by * (n > 1) + 1 for n in y.shape[2:]]
        return max_pool3d(y, widths, 1, [w // 2 for w in widths])

    y = (torch.rand(1, 1, *[1] * (3 - len(size)), *size, dtype=torch.float64) < 0.03).double()
    y.view(-1)[y.numel() // 3] = 1
    noise = torch.randn(y.shape, dtype=torch.float64)
    if prediction == "thick":
        x = 8 * grown(y, 1) - 4 + 0.3 * noise
    else:
        y = grown(y, 2)
        x = (2 * y - 1) * (2 if prediction == "good" else prediction if prediction != "noise" else 0)
        x = x if isinstance(prediction, float) else x + noise
    return x.view(1, 1, *size), y.view(1, *size).long()


def maps(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of z and of r under each average."""
    z = region._label_averages(y, y >= 0, classes=2)[0, 0].double()
    return z, region._residual_averages(x.detach(), y, y >= 0)[0, 0]


@pytest.mark.parametrize(("size", "prediction"), CASES)
def test_plain_pytorch(term: Term, size: tuple[int, ...], prediction: str | float) -> None:
    x, y = scene(size, prediction)
    x.requires_grad_()
    expected = region.region_values(x, y, y >= 0, 1)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    has_term, value, slope = term(*maps(x, y))
    assert has_term == (math.prod((n + 2) // 3 - 2 for n in size) > 1)
    assert value == pytest.approx(expected.item(), abs=1e-11)
    # Pixel i is under average (i + 1) // 3; the last one may be under none.
    padded = pad(slope, [0, 1] * len(size))
    found = padded[torch.meshgrid(*((torch.arange(n) + 1) // 3 for n in size), indexing="ij")]
    by_q = gradient[0, 0] / (x.sigmoid() * (-x).sigmoid())[0, 0].detach()
    torch.testing.assert_close(found, by_q, rtol=1e-6, atol=1e-8 * by_q.abs().max().item() + 1e-11)


@pytest.mark.parametrize(("size", "prediction"), [*itertools.product(LARGE, PREDICTIONS), ((7, 7), "noise")])
def test_float_differs_by_its_rounding_alone(term: Term, size: tuple[int, ...], prediction: str | float) -> None:
    z, r = maps(*scene(size, prediction))
    exact, found = term(z, r.float().double()), term(z, r.float())
    assert found[:2] == exact[:2]
    assert torch.equal(found[2], exact[2].float())


@pytest.mark.parametrize("size", [(12, 15), (9, 14, 10)])
def test_nan_and_no_term(term: Term, size: tuple[int, ...]) -> None:
    z, r = maps(*scene(size, "good"))
    r[(0,) * len(size)] = math.nan
    has_term, value, slope = term(z, r)
    assert (has_term, math.isnan(value), slope.isnan().all().item()) == (True, True, True)
    has_term, value, slope = term(torch.full_like(z, 3.0), r)
    assert (has_term, value, slope.any().item()) == (False, 0.0, False)
