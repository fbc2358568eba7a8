"""What the module keeps from step to step: the counts of the running weights, and the sums of ``edge_focus``."""

from __future__ import annotations

import copy
import io
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from batches import IGNORE, C, run, steps
from stateless import stateless_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgeloss import EdgeAwareLoss

pytestmark = pytest.mark.filterwarnings("error")

KEPT: list[dict[str, Any]] = [
    {"edge_class_weight": "running"},
    {"edge_focus": 0.7},
    {"edge_class_weight": "running", "edge_focus": 0.7},
]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    "options", [*KEPT, {}, {"edge_class_weight": torch.tensor([0.3, 1.0, 0.7, 2.0])}, {"region_weight": 0.7}]
)
def test_accumulated_steps_equal_those_of_whole_batches(options: dict[str, Any]) -> None:
    weight = torch.rand(C)
    whole, parts = (stateless_loss(weight, ignore_index=IGNORE, radius=2, **options) for _ in range(2))
    for x, y in steps(4):
        v = torch.rand(y.shape, dtype=torch.float64)
        expected = whole(x, y, pixel_weight=v)
        total = parts.step_normalizer((part for part in y.split(1)), v.split(1))
        crops = zip(x.split(1), y.split(1), v.split(1), strict=True)
        loss = sum(parts(a, b, pixel_weight=c, normalizer=total) for a, b, c in crops)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        gradients = torch.autograd.grad(loss, x), torch.autograd.grad(expected, x)
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-17)  # those of the region term nearly cancel
        torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("options", KEPT)
def test_a_resumed_run_goes_on_exactly(options: dict[str, Any]) -> None:
    batches, stored = steps(5), io.BytesIO()
    criterion, loaded, inner = (stateless_loss(ignore_index=IGNORE, **options) for _ in range(3))
    for batch in batches[:3]:
        criterion(*batch)
    torch.save(criterion.state_dict(), stored)
    stored.seek(0)
    loaded.load_state_dict(torch.load(stored))
    wrapper = nn.ModuleDict({"loss": inner})
    wrapper.load_state_dict({f"loss.{name}": value for name, value in criterion.state_dict().items()})
    copies = [copy.deepcopy(criterion) for _ in range(3)]
    twins = [loaded, inner, copies[0], copies[1].double(), copies[2].half(), pickle.loads(pickle.dumps(criterion))]
    for batch in batches[3:]:
        expected = run(criterion, *batch)
        for twin in twins:
            assert all(torch.equal(a, b) for a, b in zip(run(twin, *batch), expected, strict=True))
    for twin in twins:
        torch.testing.assert_close(twin.state_dict(), criterion.state_dict(), rtol=0, atol=0)


def backward(loss: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and gradient; a reentrant checkpoint refuses ``torch.autograd.grad``."""
    x.grad = None
    loss.backward()
    assert x.grad is not None
    return loss.detach(), x.grad


def assert_same_state(left: nn.Module, right: nn.Module) -> None:
    torch.testing.assert_close(left.state_dict(), right.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("options", [*KEPT, {"region_weight": 1.0}])
def test_a_recomputed_call_belongs_to_its_step(options: dict[str, Any], use_reentrant: bool) -> None:
    criterion, twin = (stateless_loss(ignore_index=IGNORE, **options) for _ in range(2))

    def call(x: Tensor, y: Tensor) -> Tensor:
        return criterion(x.sin(), y)

    for x, y in steps(4):
        found = backward(checkpoint(call, x, y, use_reentrant=use_reentrant), x)
        torch.testing.assert_close(found, backward(twin(x.sin(), y), x), rtol=0, atol=0)
        assert_same_state(criterion, twin)
        with torch.no_grad():
            criterion(x, y)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_parts_belong_to_their_step(use_reentrant: bool) -> None:
    criterion, twin = (EdgeAwareLoss(ignore_index=IGNORE) for _ in range(2))
    for x, y in steps(4):
        total, losses = criterion.step_normalizer(y.split(1)), []
        for part, labels in zip(x.split(1), y.split(1), strict=True):
            call = partial(criterion, normalizer=total)
            losses.append(checkpoint(call, part, labels, use_reentrant=use_reentrant))
        found = backward(sum(losses, torch.zeros(())), x)
        torch.testing.assert_close(found, backward(twin(x, y), x), rtol=1e-12, atol=1e-17)
        torch.testing.assert_close(criterion.state_dict(), twin.state_dict(), rtol=1e-12, atol=0)


def test_what_happens_before_a_call_is_recomputed() -> None:
    (criterion, twin), (x, y), _, (_, labels) = (EdgeAwareLoss(ignore_index=IGNORE) for _ in range(2)), *steps(3)

    @torch.no_grad()
    def log(criterion: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        criterion.forward(*inputs)

    criterion.register_forward_pre_hook(log)
    loss, expected = checkpoint(criterion, x, y, use_reentrant=False), backward(twin(x, y), x)
    with torch.no_grad():
        criterion(x, y), criterion(x, labels)
    for _ in range(2):
        x.grad = None
        loss.backward(retain_graph=True)
        torch.testing.assert_close((loss.detach(), x.grad), expected, rtol=0, atol=0)
    assert_same_state(criterion, twin)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("same_labels", [False, True])
def test_only_the_last_step_can_be_recomputed(same_labels: bool, use_reentrant: bool) -> None:
    criterion, ((x, y), _, (_, labels)) = EdgeAwareLoss(ignore_index=IGNORE), steps(3)
    losses = [
        checkpoint(criterion, x, target, use_reentrant=use_reentrant) for target in (y, y if same_labels else labels)
    ]
    message = r"target: expected a call in a backward pass, .*to repeat the last step, but got {}; run backward\(\)"
    with pytest.raises(RuntimeError, match=message.format("a second one" if same_labels else "other labels")):
        torch.stack(losses).sum().backward()


@pytest.mark.parametrize("options", KEPT)
def test_steps_without_all_their_calls_are_reported(options: dict[str, Any]) -> None:
    (x, y), _, (other, labels) = steps(3)
    message = "but {} labels were in no call when the next step began; call step_normalizer once per"
    for calls in (0, 1):
        for is_plain in (False, True):
            criterion = stateless_loss(ignore_index=IGNORE, **options)
            total = criterion.step_normalizer([y, labels])
            for _ in range(calls):
                criterion(x, y, normalizer=total)
            with pytest.warns(UserWarning, match=message.format(y.numel() * (2 - calls))):
                criterion(x, y) if is_plain else criterion.step_normalizer([y])
    criterion = stateless_loss(ignore_index=IGNORE, **options)
    for _ in range(2):
        total = criterion.step_normalizer([torch.cat([y, labels])])  # of calls for each half
        with torch.no_grad():
            criterion(x, y, normalizer=total), criterion(x, y)  # no calls of the step
        criterion(x, y, normalizer=total), criterion(other, labels, normalizer=total)
    criterion(x, y)
    criterion.eval().step_normalizer([y])  # begins no step
    criterion.train()(x, y)


@pytest.mark.parametrize("options", KEPT)
def test_without_values_it_begins_again(options: dict[str, Any]) -> None:
    batches, fresh = steps(2), stateless_loss(ignore_index=IGNORE, **options)
    with torch.device("meta"):
        created = stateless_loss(ignore_index=IGNORE, **options)
    moved = copy.deepcopy(fresh)
    moved(*batches[0])
    stored = moved.state_dict()
    for empty in (created, copy.deepcopy(moved).to("meta")):
        assert all(value.is_meta for value in empty.state_dict().values())
        assert "current_edge_weight" not in repr(empty)
        with pytest.raises(RuntimeError, match=r"criterion: expected buffers with values, .*call criterion\.to_empty"):
            copy.deepcopy(empty)(*batches[0])
        loaded = copy.deepcopy(empty)
        loaded.load_state_dict(stored, assign=True)
        assert_same_state(loaded, moved)
        assert_same_state(empty.to_empty(device="cpu"), fresh)
        assert empty(*batches[0]) == copy.deepcopy(fresh)(*batches[0])
    assert_same_state(copy.deepcopy(moved).to_empty(device="cpu"), moved)


@pytest.mark.parametrize("options", [*KEPT, {"region_weight": 3.0, "edge_focus": 2.0, "ce_weight": 0.7}])
def test_a_reader_can_add_up_the_loss(options: dict[str, Any]) -> None:
    criterion = stateless_loss(ignore_index=IGNORE, **options, edge_weight=0.8, other_side_weight=0.5)
    for mode in (True, True, True, False):
        x, y = steps(1)[0]
        criterion.train(mode)
        weight = criterion.current_edge_weight if mode else criterion.edge_weight
        shown = dict(pair.split("=") for pair in repr(criterion).split("(", 1)[1][:-1].split(", "))
        edge_weight = float(shown.get("current_edge_weight", shown["edge_weight"]))
        assert edge_weight == pytest.approx(float(weight), rel=1e-3)
        loss, terms = criterion(x, y, return_terms=True)
        shares = {"cross_entropy": float(shown["ce_weight"]), "region": float(shown.get("region_weight", 0.0))}
        total = weight * terms["edge"] + sum(value * terms[name] for name, value in shares.items())
        torch.testing.assert_close(loss, total.to(loss), rtol=1e-12, atol=0)
        sides = [float(shown[f"{side}_weight"]) * terms[side] for side in ("same_side", "other_side")]
        torch.testing.assert_close(terms["edge"], sum(sides, torch.zeros(())).to(loss), rtol=1e-12, atol=0)


# Those of EdgeAwareLoss() are the last.
EVERY: list[dict[str, Any]] = [*KEPT, {**KEPT[1], "reduction": "none"}, {**KEPT[2], "region_weight": 3.0}]


@pytest.mark.parametrize("options", EVERY)
@pytest.mark.parametrize("is_first", [True, False])
def test_compiles_to_one_graph(is_first: bool, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    criterion, batches = stateless_loss(ignore_index=IGNORE, **options), steps(4)
    if not is_first:
        criterion(*batches[0])
    twin = copy.deepcopy(criterion)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    for step, (x, y) in enumerate(batches):
        with torch._dynamo.config.patch(error_on_recompile=step >= 2):  # the first step creates the counts
            torch.testing.assert_close(run(compiled, x, y), run(twin, x, y), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(criterion.state_dict(), twin.state_dict(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("options", EVERY)
@pytest.mark.parametrize("mode", [True, False])
def test_exports(mode: bool, options: dict[str, Any]) -> None:
    criterion, batches = stateless_loss(ignore_index=IGNORE, **options), [(x.detach(), y) for x, y in steps(3)]
    criterion.train(mode)
    if mode:
        if "edge_class_weight" in options:
            with pytest.raises(RuntimeError, match=r"call the loss before export, or export it in eval\(\)"):
                torch.export.export(criterion, batches[0])
        criterion(*batches[0])
    twin = copy.deepcopy(criterion)
    before = copy.deepcopy(twin.state_dict())
    exported = torch.export.export(criterion, batches[0]).module()
    for batch in batches:
        torch.testing.assert_close(exported(*batch), twin(*batch), rtol=1e-14, atol=0)
    assert mode == any(not torch.equal(value, before[name]) for name, value in twin.state_dict().items())


@pytest.mark.parametrize("options", EVERY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(dtype: torch.dtype, options: dict[str, Any]) -> None:
    criterion, twin = (stateless_loss(ignore_index=IGNORE, **options) for _ in range(2))
    for x, y in steps(3):
        expected = twin(x, y)
        with torch.autocast("cpu", dtype=dtype):
            assert torch.equal(criterion(x, y), expected)
