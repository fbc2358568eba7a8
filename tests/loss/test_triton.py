"""The operators of Triton's kernels, in its interpreter: what torch knows of them, and that they repeat their bits."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from columns import INTERPRETED, Column
from recorded import check_registration, operators_of
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from edgeloss import EdgeAwareLoss, check, fused, library
from edgeloss.functional import edge_aware_loss
from edgeloss.triton import operators

TRITON = Column("fused", interpreted=True)
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="make test runs it in a process with TRITON_INTERPRET=1")


def call(
    classes: int, size: tuple[int, int] = (12, 14), **options: Any
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return logits, labels and options of a call with edges and regions."""
    random = torch.Generator().manual_seed(0)
    y = torch.randint(max(2, classes), (1, *size), generator=random)
    x = torch.randn(1, classes, *size, generator=random, requires_grad=True)
    return x, y, {"region_weight": 3.0, "ignore_index": 1 if classes > 2 else None, **options}


@pytest.mark.parametrize(("classes", "decay"), [(3, None), pytest.param(1, 1.5, marks=pytest.mark.slow)])
def test_operators_are_as_torch_expects_them(classes: int, decay: float | None) -> None:
    x, y, options = call(classes, (7, 8), decay=decay)
    calls = operators_of(lambda: TRITON.loss(x, y, **options).backward())
    assert len(calls) == 2
    for operator, arguments in calls:
        check_registration(operator, [*arguments.values()])


@pytest.mark.slow
def test_one_graph_has_the_bits_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, options = call(3)
    monkeypatch.setattr(library, "interprets", True)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return edge_aware_loss(x, y, backend="fused", validate="never", **options)

    results = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        value = function(x, y)
        results.append((value, *torch.autograd.grad(value, x)))
    assert all(torch.equal(eager, compiled) for eager, compiled in zip(*results, strict=True))


@pytest.mark.slow
def test_bits_repeat_and_a_graph_may_be_used_twice() -> None:
    x, y, options = call(4)
    first, second = (TRITON.loss(x, y, **options) for _ in range(2))
    assert torch.equal(first, second)
    (gradient,) = torch.autograd.grad(first, x, retain_graph=True)
    (doubled,) = torch.autograd.grad(2 * first, x)
    assert torch.equal(gradient, torch.autograd.grad(second, x)[0])
    assert torch.equal(doubled, 2 * gradient)
    (gradient,) = torch.autograd.grad(TRITON.loss(x, y, **options), x, create_graph=True)
    with pytest.raises(RuntimeError, match="the fused loss can't be differentiated twice; pass backend='reference'"):
        gradient.sum().backward()


def test_without_a_gradient_nothing_is_left_to_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeloss.triton import tiles

    x, y, options = call(4, (9, 12))
    expected, kernels = TRITON.loss(x, y, **options), []
    launch = tiles.launch

    def record(compiled: Any, kernel: Any, *args: Any, **named: Any) -> None:
        kernels.append(kernel.fn.__name__)
        launch(compiled, kernel, *args, **named)

    monkeypatch.setattr(tiles, "launch", record)
    with torch.no_grad():
        assert torch.equal(TRITON.loss(x, y, **options), expected)
    assert kernels[-4:] == ["products_kernel", "solve_kernel", "means_kernel", "weigh_kernel"]


def test_kernels_launched_again_are_those_of_triton() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, Path(__file__).with_name("launches.py"), "40"], check=True, env=environment)


def test_distances_of_nan_reach_the_loss() -> None:
    """Nothing checks them; edge pixels that have them write what their neighbors read."""
    x, y, options = call(3, (7, 8), decay=1.5, validate="never", distance=torch.full((1, 7, 8), torch.nan))
    loss, terms = TRITON.loss(x, y, return_terms=True, **options)
    _, expected = Column("reference").loss(x, y, return_terms=True, **options)
    assert loss.isnan()
    assert terms["edge_fraction"] == expected["edge_fraction"] > 0


@pytest.mark.parametrize("options", [{}, {"multilabel": True}, {"edge_focus": 0.0}, {"edge_class_weight": None}])
def test_steps_are_those_of_the_reference(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = call(3, (10, 11))
    y = (y[:, None] == torch.arange(3).view(1, 3, 1, 1)).long() if "multilabel" in options else y
    results = []
    for interprets in (False, True):
        monkeypatch.setattr(library, "interprets", interprets)
        criterion = EdgeAwareLoss(ignore_index=255, backend="fused" if interprets else "reference", **options)
        values: list[torch.Tensor] = []
        for step in range(3):
            loss = criterion(x.double(), y.roll(step, -1))
            values += [loss, *torch.autograd.grad(2 * loss, x), *(kept.clone() for kept in criterion.buffers())]
        results.append(values)
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("classes", "slices", "options"),
    [(3, 0, {"radius": (2, 1)}), (3, 0, {"decay": 2.0}), (40, 0, {}), (3, 3, {"radius": 1, "region_weight": 0.0})],
)
def test_tiles_as_small_as_those_of_a_device_agree(
    classes: int, slices: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most have labels of one class within reach, and are skipped where pixels get the weights of edges.

    Of 40 classes most are in no image; those that are, and those around pixels, get their gradient last. In a volume,
    slices of one class are out of reach of the labels, or in reach of what these give to their neighbors, or of them.
    """
    from edgeloss.triton import call

    monkeypatch.setattr(call, "INTERPRETED", False)
    monkeypatch.setattr(call, "COLUMNS", 8)
    monkeypatch.setattr(call, "tile_of", lambda _, on_device: 64 if on_device == call.OF_LABELS else 1024)
    y = torch.zeros(1, 19, 27, dtype=torch.int64)
    y[:, 9, 9], y[:, 12:, 18:], y[:, :3, 22:] = 1, 2, -100
    y[:, 9, 10] = 2
    y = torch.stack([*torch.zeros(slices, *y.shape, dtype=y.dtype), y], 1) if slices else y
    x = torch.randn(1, classes, *y.shape[1:], generator=torch.Generator().manual_seed(0), requires_grad=True)
    results = []
    for column in (TRITON, Column("reference")):
        value, terms = column.loss(x, y, return_terms=True, **options)
        results.append((value, *terms.values(), *torch.autograd.grad(value, x)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-9)


def test_labels_out_of_range_are_ignored_and_recorded() -> None:
    x, y, options = call(4)
    wrong = y.masked_fill(y == 0, 77)
    ignored = TRITON.loss(x, y.masked_fill(y == 0, 1), **options)
    assert torch.equal(TRITON.loss(x, wrong, validate="never", **options), ignored)
    check()
    with pytest.raises(ValueError, match="expected labels 0 to 3, or ignore_index=1, but got 77"):
        TRITON.loss(x, wrong, **options)


@pytest.mark.parametrize("options", [{}, {"upsample": True}, {"decay": 1.5, "region_weight": 0.0}])
def test_a_step_reads_no_value_of_a_device(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On fake tensors, which have no values, but for the tables that a first call of a size makes."""
    from edgeloss.triton import call as calls
    from edgeloss.triton import region, tiles, upsampled

    kernels = []
    monkeypatch.setattr(tiles, "launch", lambda _, kernel, *__, **___: kernels.append(kernel.fn.__name__))
    monkeypatch.setattr(operators.operators.edge_loss, "default", calls.forward)
    monkeypatch.setattr(operators.operators.edge_loss_backward, "default", calls.backward)
    mode = FakeTensorMode()
    for module, name in ((region, "_parts"), (upsampled, "_along")):

        def made_before(*args: Any, make: Any) -> Any:
            with unset_fake_temporarily():
                made = make(*args)
            return tree_map_only(torch.Tensor, mode.from_tensor, made)

        monkeypatch.setattr(module, name, partial(made_before, make=getattr(module, name)))
    for name in ("cpu", "numpy", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a step read values"))
    monkeypatch.setattr(library, "interprets", True)
    monkeypatch.setattr(library, "_WRONG", {})
    monkeypatch.setattr(fused, "check_labels_of", lambda *_: None)  # of labels on a CPU
    with mode:
        x, y, given = call(4)
        x = x.detach()[..., :: 2 if "upsample" in options else 1, :].contiguous().requires_grad_()
        loss = edge_aware_loss(x, y, backend="fused", **{**given, **options})
        loss.backward()
        with pytest.raises(DataDependentOutputException):  # such a read is noticed
            loss.item()
    assert {"forward_kernel", "backward_kernel"} < {*kernels}
    assert ("adjoint_kernel" in kernels) == ("upsample" in options)
