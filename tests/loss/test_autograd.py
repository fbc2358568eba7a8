"""The loss in autograd: backward passes in any order and number, hooks, checkpoints, threads and operators."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from columns import Column, each_column
from pairwise import pairwise
from recorded import check_registration, operators_of
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from edgeloss._reference import parts
from edgeloss.functional import edge_aware_loss, neighbor_nll

FUSED = Column("fused")
# Classes, sizes of logits and labels, dtype, and options of each way through the library.
CALLS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, dict[str, Any]]] = {
    "defaults": (19, (34, 45), (34, 45), torch.float32, {}),
    "without regions": (5, (34, 45), (34, 45), torch.float64, {"region_weight": 0.0}),
    "half precision": (4, (34, 45), (34, 45), torch.bfloat16, {}),
    "one logit": (1, (34, 45), (34, 45), torch.float32, {"radius": 3, "decay": 2.0}),
    "power": (4, (34, 45), (34, 45), torch.float32, {"power": -1.0, "decay": 1.5, "radius": 2}),
    "upsampled": (4, (9, 12), (36, 48), torch.float32, {"upsample": True}),
    "multilabel": (3, (20, 21), (20, 21), torch.float32, {"multilabel": True}),
    "volume": (3, (7, 12, 13), (7, 12, 13), torch.float32, {"label_smoothing": 0.1}),
    "map": (4, (20, 21), (20, 21), torch.float32, {"reduction": "none"}),
    "neighbor_nll": (5, (34, 45), (34, 45), torch.float32, {"index": True}),
    "neighbor_nll, several classes": (19, (34, 45), (34, 45), torch.float64, {"index": False}),
}
each_call = pytest.mark.parametrize("call", CALLS)
Loss = Callable[[Tensor], Tensor]


def loss_of(call: str, column: Column = FUSED, **more: Any) -> tuple[Tensor, Loss]:
    """Return logits, and the loss as a function of them, the sum of a map."""
    classes, low, size, dtype, options = CALLS[call]
    x = torch.randn(2, classes, *low, dtype=dtype, requires_grad=True)
    multilabel = "multilabel" in options
    y = torch.randint(2 if multilabel else max(2, classes), (2, *([classes] * multilabel), *size))
    y[..., : size[-1] // 2] = 0
    y[torch.rand(y.shape) < 0.1] = 255

    def loss(logits: Tensor) -> Any:
        value = column.loss(logits, y, ignore_index=255, **options, **more)
        return value.sum() if isinstance(value, Tensor) else value

    def of_neighbors(logits: Tensor) -> Any:
        value = neighbor_nll(logits, index, weight, backend=column.backend).sum()
        return (value, {}) if more else value

    index, weight = y % classes, torch.rand(2, 8, *size).relu()
    if not options.get("index", True):
        index = torch.nn.functional.one_hot(index, classes).movedim(-1, 1) | (torch.rand(x.shape) < 0.4)
    return x, of_neighbors if "index" in options else loss


def gradient(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), x)[0]


@each_column
@each_call
def test_backward_twice_with_other_factors(call: str, column: Column) -> None:
    x, loss_of_logits = loss_of(call, column)
    loss, before = loss_of_logits(x), x.detach().clone()
    (once,) = torch.autograd.grad(loss, x, retain_graph=True)
    (again,) = torch.autograd.grad(loss, x, torch.full_like(loss, 4.0), retain_graph=True)
    torch.testing.assert_close(again, 4 * once, rtol=1e-6 if x.dtype.itemsize > 2 else 1e-2, atol=0)
    loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    assert torch.equal(x, before)
    assert torch.equal(gradient(loss_of_logits(x), x), once)


SECOND: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "defaults": ((7, 13), {}),
    "power": ((4, 5), {"power": 1.0, "decay": 1.0, "radius": 2}),
    "smoothing": ((4, 5), {"power": -1.0, "label_smoothing": 0.1}),
    "upsampled": ((4, 4), {"upsample": True}),
    "volume": ((2, 3, 3), {"power": 1.0, "decay": 0.7}),
    "regions": ((7, 13), {"region_weight": 1.0, "edge_weight": 0.0}),
}


@pytest.mark.parametrize(("call", "classes", "part"), pairwise([*SECOND], [1, 3], [1, parts.PART]))
def test_second_derivatives(call: str, classes: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", part)
    size, options = SECOND[call]
    x = torch.randn(1, classes, *((2, 3) if call == "upsampled" else size), dtype=torch.float64, requires_grad=True)
    y = torch.randint(max(2, classes), (1, *size))
    y[..., 0] = 255
    loss = partial(edge_aware_loss, target=y, ignore_index=255, reduction="sum", backend="reference", **options)
    # Compared along random directions, but for the smallest call: of each element it takes seconds.
    assert torch.autograd.gradgradcheck(loss, x, fast_mode=call != "upsampled", atol=1e-5)


@each_call
def test_derivatives_of_gradients_are_refused(call: str) -> None:
    x, loss = loss_of(call)
    (slope,) = torch.autograd.grad(loss(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated twice; pass backend='reference'"):
        slope.sum().backward()


@each_call
def test_what_is_saved_may_live_elsewhere(call: str) -> None:
    x, loss = loss_of(call)
    value = loss(x)
    expected = gradient(value, x)
    # Hooks may return copies, also of tensors that the backward pass would change.
    with saved_tensors_hooks(torch.clone, torch.clone):
        copied = loss(x)
    with save_on_cpu():
        moved = loss(x)
    again = checkpoint(loss, x, use_reentrant=False)
    for found in (copied, moved, again):
        torch.testing.assert_close(torch.autograd.grad(found, x, retain_graph=True)[0], expected, rtol=0, atol=0)
        torch.testing.assert_close((found, gradient(found, x)), (value, expected), rtol=0, atol=0)
    checkpoint(loss, x, use_reentrant=True).backward()
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=0)


def test_heads_whose_backward_passes_run_last() -> None:
    heads = [loss_of(call) for call in CALLS]
    expected = [gradient(loss(x), x) for x, loss in heads]
    losses = [loss(x) for x, loss in heads]
    for i in torch.randperm(len(CALLS)).tolist():
        assert torch.equal(gradient(losses[i], heads[i][0]), expected[i])
    sum(loss(x).double() for x, loss in heads).backward()  # type: ignore[union-attr]
    torch.testing.assert_close([x.grad for x, _ in heads], expected, rtol=0, atol=0)


@each_column
@pytest.mark.parametrize("call", [*CALLS][:-1])  # torch.utils.checkpoint, by which the last one saves memory, saves
def test_nothing_is_saved_without_a_gradient(call: str, column: Column) -> None:
    x, loss = loss_of(call, column)
    saved = []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor), lambda nothing: nothing):
        assert not loss(x.detach()).requires_grad
        with torch.no_grad():
            assert not loss(x).requires_grad
        with torch.inference_mode():
            loss(x)
    assert not saved


@each_call
def test_logits_that_change_before_the_backward_pass_are_refused(call: str) -> None:
    x, loss = loss_of(call)
    logits = x * 1
    value = loss(logits)
    logits.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@each_call
def test_bits_do_not_depend_on_threads_or_new_memory(call: str) -> None:
    x, loss = loss_of(call, return_terms=True)
    results = []
    # Where deterministic algorithms are on, torch fills new tensors with nan.
    for threads, deterministic in ((1, False), (2, True), (3, False)):
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        try:
            value, terms = loss(x)
            results.append((value.detach(), gradient(value, x), *terms.values()))
        finally:
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as pool:
        value, terms = pool.submit(loss, x).result()
    results.append((value.detach(), gradient(value, x), *terms.values()))
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.slow
@each_call
def test_operators_match_their_registration(call: str) -> None:
    x, loss = loss_of(call)
    calls = operators_of(lambda: gradient(loss(x), x))
    forward = "edgeloss::neighbor_nll" if "neighbor_nll" in call else "edgeloss::edge_loss"
    assert {operator._schema.name for operator, _ in calls} >= {forward, f"{forward}_backward"}
    for operator, arguments in calls:
        given = [value.detach() if isinstance(value, Tensor) else value for value in arguments.values()]
        if not operator._schema.name.endswith("backward"):
            given[0] = given[0].requires_grad_()
        check_registration(operator, given)


# The first use of forward mode in a process scripts torch's own decompositions.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("region_weight", [0.0, 3.0])
def test_transforms_and_forward_mode_get_the_reference(region_weight: float) -> None:
    x, tangent = torch.randn(2, 2, 3, 12, 13, dtype=torch.float64).unbind()
    y = torch.randint(3, (2, 12, 13))

    def loss(x: Tensor, **options: Any) -> Any:
        return edge_aware_loss(x, y, region_weight=region_weight, **options)

    leaf = x.clone().requires_grad_()
    expected = gradient(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    _, slope = torch.func.jvp(loss, (x,), (tangent,))
    torch.testing.assert_close(slope, (expected * tangent).sum())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        torch.testing.assert_close(forward_ad.unpack_dual(loss(dual)).tangent, slope)
        with pytest.raises(RuntimeError, match="forward-mode differentiation; pass 'auto' or 'reference'"):
            loss(dual, backend="fused")
