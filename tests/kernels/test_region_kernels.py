"""The fused kernels of the region term compared with the reference, and called directly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agreement import DTYPES, LAST, scene
from pairwise import pairwise
from torch import Tensor

from edgeloss import backends
from edgeloss.functional import edge_aware_loss

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")

ALONE: dict[str, Any] = {"ce_weight": 0.0, "edge_weight": 0.0, "region_weight": 1.0, "ignore_index": 255}
# By the remainder of a size by 3, the last pixel has an average of its own, shares one, or has none. One place of a
# region along an axis, two, and more than the offsets of a region; rows that are read in vectors, with what is left.
FLAT = [(7, 10), (8, 11), (9, 12), (10, 9), (12, 31), (21, 22), (30, 27), (31, 8), (11, 100)]
VOLUMES = [(7, 8, 10), (9, 7, 10), (8, 12, 7), (12, 9, 26)]
CLASSES = [1, 2, 3, 19]
LEAST_STEP = dict.fromkeys(DTYPES, 0.0) | {torch.float16: 2**-24}  # between numbers next to 0; of others far less
OPTIONS: list[dict[str, Any]] = [
    {},
    {"edge_weight": 0.0},
    {"radius": 2, "power": 1.0},
    {"ce_weight": 0.0, "edge_weight": 0.0},
]
ROWS = pairwise([*FLAT, *VOLUMES], CLASSES, LAST, DTYPES, OPTIONS)


def results(x: Tensor, y: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the loss, by default of the region term alone, and the gradient of its sum, in float64."""
    x = x.detach().requires_grad_()
    loss = edge_aware_loss(x, y, **ALONE | options)
    return loss.detach().double(), torch.autograd.grad(loss.sum(), x)[0].double()


@pytest.mark.parametrize(("size", "classes", "last", "dtype", "options"), ROWS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_equals_the_reference(
    reduction: str, size: tuple[int, ...], classes: int, last: bool, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    x, y = scene(size, classes)
    x = x.to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weights = {name: torch.rand(max(2, classes), dtype=wide) for name in ("weight", "edge_class_weight")}
    weights["pixel_weight"] = torch.rand(y.shape, dtype=wide)
    given: dict[str, Any] = {"ce_weight": 1.0, "edge_weight": 1.0, "reduction": reduction} | options
    value, gradient = results(x, y, backend="fused", **weights, **given)
    weights = {name: values.double() for name, values in weights.items()}
    expected, exact = results(x.double(), y, backend="reference", **weights, **given)
    tight = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(value, expected, **tight if wide == torch.float64 else {"rtol": 1e-5, "atol": 1e-6})
    # It is added to the gradient of the other terms, which is rounded before.
    given["region_weight"] = 0.0
    _, others = results(x.double(), y, backend="reference", **weights, **given)
    slack = 2 * torch.finfo(dtype).eps * (exact.abs() + others.abs())
    slack += (1e-11 if wide == torch.float64 else 4e-6) * exact.abs().max()
    slack += 2 * LEAST_STEP[dtype]
    assert exact.any()
    assert ((gradient - exact).abs() <= slack).all()


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("labels", [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool])
def test_labels_of_every_dtype(labels: torch.dtype, classes: int, reduction: str) -> None:
    x, y = torch.randn(2, classes, 11, 13, dtype=torch.float64), torch.randint(2, (2, 11, 13))
    expected = results(x, y, backend="reference", reduction=reduction)
    assert expected[0].sum() > 1
    torch.testing.assert_close(results(x, y.to(labels), backend="fused", reduction=reduction), expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_logits_within_a_larger_tensor(reduction: str) -> None:
    whole, y = torch.randn(2, 9, 11, 13, dtype=torch.float64), torch.randint(4, (2, 11, 13))
    wide = torch.randn(2, 4, 11, 20, dtype=torch.float64)
    for x in (whole[:, 2:6], whole[:, ::2][:, :4], whole.mT.contiguous().mT[:, :4], wide[..., :13], wide[..., 3:16]):
        expected = results(x, y, backend="reference", reduction=reduction)
        torch.testing.assert_close(results(x, y, backend="fused", reduction=reduction), expected)
    expected = results(whole[:, :4], y, backend="reference", reduction=reduction)
    spaced = y[..., None].expand(-1, -1, -1, 2).contiguous()[..., 0]
    torch.testing.assert_close(results(whole[:, :4], spaced, backend="fused", reduction=reduction), expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_saturated_logits(dtype: torch.dtype, reduction: str) -> None:
    # Around the exponents beyond which kernels bound them.
    _, y = scene((13, 16), 3)
    scale = torch.tensor([5, 28, 29, 30, 87, 88, 89, 229, 231, 700, 1e4])[torch.randint(11, (2, 3, 13, 16))]
    x = (scale * torch.randn(2, 3, 13, 16).sign() + torch.randn(2, 3, 13, 16)).to(dtype)
    value, gradient = results(x, y, backend="fused", reduction=reduction)
    expected, exact = results(x.double(), y, backend="reference", reduction=reduction)
    rough = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(value, expected, **({"rtol": 1e-9, "atol": 0} if dtype == torch.float64 else rough))
    atol = (1e-9 if dtype == torch.float64 else 1e-5) * float(exact.abs().max()) + LEAST_STEP[dtype]
    torch.testing.assert_close(gradient, exact, rtol=2 * torch.finfo(dtype).eps, atol=atol)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("size", "classes"), [((70, 90), 5), ((12, 14, 17), 1)])
def test_same_bits_for_every_number_of_threads(size: tuple[int, ...], classes: int, reduction: str) -> None:
    x, y = scene(size, classes)
    found = []
    for threads in (1, 2, 3, 1):
        torch.set_num_threads(threads)
        found.append(results(x.float(), y, backend="fused", reduction=reduction))
    torch.set_num_threads(1)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_same_bits_for_any_content_of_new_memory(reduction: str) -> None:
    x, y = scene((12, 31), 5)
    y[0][y[0] == 3] = 255  # a class that an image lacks leaves its state as it is
    found = []
    for deterministic in (False, True, False):  # torch then fills new tensors with nan
        torch.use_deterministic_algorithms(deterministic)
        try:
            found.append(results(x.float(), y, backend="fused", reduction=reduction))
        finally:
            torch.use_deterministic_algorithms(False)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_inputs_are_left_alone() -> None:
    x, y = scene((10, 13), 3)
    before = x.clone(), y.clone()
    results(x, y, backend="fused")
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


# ------------------------------------------------------------------------------------------------------- the operators


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("size", [(10, 13), (5, 6), (7, 8, 9)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_match_their_registration(dtype: torch.dtype, size: tuple[int, ...], classes: int) -> None:
    x, y = scene(size, classes)
    # Not compared between eager and compiled, as test_aot_dispatch_dynamic would: the state of a class that an image
    # lacks is not filled.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = x.to(dtype), y, 255
    torch.library.opcheck(torch.ops.edgeloss.region, (given[0].requires_grad_(), *given[1:]), test_utils=tests)
    value, _, slope, has_class = torch.ops.edgeloss.region(*given)
    state = value.detach(), given[0].detach(), y, slope, has_class, 255
    torch.library.opcheck(torch.ops.edgeloss.region_backward, (torch.zeros_like(state[1]), *state), test_utils=tests)


def test_values_and_state_of_the_operator() -> None:
    x, y = scene((10, 13), 3)
    y[0][y[0] == 2] = 1
    value, counts, slope, has_class = torch.ops.edgeloss.region(x, y, 255)
    assert counts.dtype == torch.float64
    assert counts.tolist() == [[int((labels == c).sum()) for c in range(3)] for labels in y]
    assert has_class.tolist() == [1, 1, 0, 1, 1, 1]
    assert slope.shape == (2 * 3 * 4 * 5,)
    expected = torch.cat([results(x[b : b + 1], y[b : b + 1], backend="reference")[0].view(1) for b in range(2)])
    torch.testing.assert_close(value, expected)
    gradient = torch.ones_like(x)
    weight = torch.tensor([1.0, -3.0], dtype=torch.float64)
    torch.ops.edgeloss.region_backward(gradient, weight, x, y, slope, has_class, 255)
    of_image = results(x, y, backend="reference", reduction="sum")[1] / counts.sum(1).view(2, 1, 1, 1)
    torch.testing.assert_close(gradient, 1 + weight.view(2, 1, 1, 1) * of_image)  # it adds


SIZE = (2, 3, 10, 13)
FORWARD: dict[str, Any] = {
    "logits": torch.zeros(SIZE),
    "target": torch.zeros(2, 10, 13, dtype=torch.int64),
    "ignore_index": 255,
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "logits",
            torch.zeros(2, 3, 10),
            r"logits: expected \[B, C, H, W\] or \[B, C, D, H, W\], but got \[2, 3, 10\]",
        ),
        ("logits", torch.zeros(SIZE).long(), "logits: expected the dtype Half, .*, but got Long"),
        ("logits", torch.zeros(2, 0, 10, 13), "logits: expected 1 to 32767 classes, but got 0"),
        ("logits", torch.zeros(2, 3, 10, 15)[..., :13], "logits: expected evenly spaced pixels"),
        ("logits", torch.zeros(2, 3, 5, 7), r"target: expected \[2, 5, 7\], but got \[2, 10, 13\]"),
        ("target", torch.zeros(2, 10, 12).long(), r"target: expected \[2, 10, 13\], but got \[2, 10, 12\]"),
        ("target", torch.zeros(1, 10, 13).long(), r"target: expected \[2, 10, 13\], but got \[1, 10, 13\]"),
        ("target", torch.zeros(2, 1, 10, 13).long(), r"but got \[2, 1, 10, 13\]"),
        ("target", torch.zeros(2, 10, 13), "target: expected the dtype Long, .*, but got Float"),
        ("target", torch.zeros(2, 13, 10).long().mT, "target: expected evenly spaced elements"),
    ],
)
def test_forward_refuses(name: str, value: Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.ops.edgeloss.region(**FORWARD | {name: value})


BACKWARD_REFUSALS = [
    ("grad_value", torch.ones(2), "expected the dtype Double, but got Float"),
    ("grad_value", torch.ones(3).double(), r"expected 2 contiguous elements, but got \[3\]"),
    ("slope", torch.zeros(119), r"slope: expected 120 contiguous elements, but got \[119\]"),
    ("slope", torch.zeros(120).double(), "slope: expected the dtype Float, but got Double"),
    ("classes", torch.zeros(6), "classes: expected the dtype Byte, but got Float"),
    ("classes", torch.zeros(7).byte(), r"classes: expected 6 contiguous elements, but got \[7\]"),
]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *BACKWARD_REFUSALS,
        ("gradient", torch.zeros(2, 3, 10, 12), r"gradient: expected \[2, 3, 10, 13\], but got \[2, 3, 10, 12\]"),
        ("gradient", torch.zeros(SIZE).half(), "gradient: expected the dtype Float, but got Half"),
        ("target", torch.zeros(2, 10, 12).long(), r"target: expected \[2, 10, 13\], but got \[2, 10, 12\]"),
    ],
)
def test_backward_refuses(name: str, value: Tensor, message: str) -> None:
    value_of_images, _, slope, classes = torch.ops.edgeloss.region(**FORWARD)
    given = FORWARD | {"grad_value": value_of_images, "slope": slope, "classes": classes}
    given |= {"gradient": torch.zeros(SIZE)}
    torch.ops.edgeloss.region_backward(**given)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.edgeloss.region_backward(**given | {name: value})
