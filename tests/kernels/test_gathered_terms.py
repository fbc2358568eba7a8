"""The CUDA kernels of the edge terms with ``power`` other than 0, stepped on the host.

The agreement suite and the fuzzer's tests compare their values.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from edgeloss import fused, inputs, library, reference
from edgeloss.functional import edge_aware_loss
from edgeloss.neighborhoods import find_edges

pytestmark = pytest.mark.skipif(bool(library.MISSING), reason=str(library.MISSING))


@pytest.fixture(autouse=True)
def _stepped(stepped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "operators", stepped)


def terms_and_gradient(function: Any, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Return both terms [2, B, *S], and the gradient of a weighted sum of them."""
    x = x.detach().requires_grad_()
    terms = torch.stack(function(x, *others))
    weight = torch.linspace(0.5, 1.5, terms.numel(), dtype=terms.dtype).view_as(terms)
    return terms.detach(), torch.autograd.grad(terms, x, weight)[0]


@pytest.mark.parametrize("gap", [12.0, 20.0, 60.0, 200.0, 1e30])
@pytest.mark.parametrize("power", [-1.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_sure_pixels(gap: float, power: float, dtype: torch.dtype) -> None:
    """Where a neighbor is sure of a class, its gradient has all digits, of that class and of the others."""
    y = torch.tensor([[[0, 1, 1], [0, 1, 2], [0, 2, 2]]])
    valid = torch.ones_like(y, dtype=torch.bool)
    for sure in range(3):
        x = torch.randn(1, 11, 3, 3, dtype=dtype)
        x[:, sure] += gap
        others = (y, valid, find_edges(y, valid, (1, 1)), None, (1, 1), power)
        terms, gradient = terms_and_gradient(fused.gathered_terms, x, *others)
        expected, expected_gradient = terms_and_gradient(reference.edge_terms, x.double(), *others)
        rtol = 1e-11 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(terms.double(), expected, rtol=rtol, atol=1e-30)
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=rtol, atol=1e-37)


@pytest.mark.parametrize("options", [{}, {"decay": 1.0, "distance": True}, {"reduction": "none"}])
def test_nothing_is_read_back(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have no values to read: with these kernels a call does not wait for its device."""
    with FakeTensorMode():
        x = torch.randn(2, 5, 8, 9, requires_grad=True)
        y, v = torch.zeros(2, 8, 9, dtype=torch.long), torch.rand(2, 8, 9)
        options = {name: v if value is True else value for name, value in options.items()}
        options |= {"power": 1.0, "pixel_weight": v, "validate": "never", "backend": "reference"}
        monkeypatch.setattr(inputs, "may_read", lambda values, validate: validate == "sync")
        with pytest.raises(DynamicOutputShapeException):
            edge_aware_loss(x, y, **options)
        monkeypatch.setattr(reference, "edge_terms", fused.gathered_terms)
        edge_aware_loss(x, y, **options).sum().backward()  # type: ignore[union-attr]


def arguments(x: Tensor, label: Tensor) -> dict[str, Any]:
    return {
        "logits": x,
        "label": label,
        "edge": torch.ones_like(label, dtype=torch.bool),
        "distance": None,
        "power": 1.0,
        "radius": [1, 1],
    }


def test_labels_out_of_range_read_nothing(stepped: SimpleNamespace) -> None:
    label = torch.tensor([[[0, 1, 2**15 - 1], [-5, 0, 3]]], dtype=torch.int16)
    given = arguments(torch.randn(1, 3, 2, 3, dtype=torch.float64), label)
    terms, stats, sides = stepped.gathered_terms(**given)
    assert not terms[:, (label < 0) | (label >= 3)].any()
    assert terms.isfinite().all()
    gradient = stepped.gathered_terms_backward(torch.ones_like(terms), stats=stats, sides=sides, **given)
    assert gradient.isfinite().all()
    assert not gradient[:, :, 1, 0].any()


def test_operator(stepped: SimpleNamespace) -> None:
    given = arguments(torch.randn(1, 3, 4, 5, requires_grad=True), torch.randint(3, (1, 4, 5), dtype=torch.int16))
    # Not test_aot_dispatch_dynamic: the state that forward leaves to backward is filled only where backward reads it.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(stepped.gathered_terms.default, tuple(given.values()), test_utils=tests)
    terms = stepped.gathered_terms(**given)[0]
    (gradient,) = torch.autograd.grad(terms.sum(), given["logits"], create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated twice; pass backend='reference'"):
        gradient.sum().backward()
