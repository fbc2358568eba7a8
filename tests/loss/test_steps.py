"""The steps of the module: which step a call belongs to, what counts, what is stored, and what torch makes of it."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batches import IGNORE, KEPT, C, run, steps
from pairwise import pairwise
from stateless import stateless_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgeloss import EdgeAwareLoss
from edgeloss.debug import diagnose
from edgeloss.functional import edge_aware_loss, normalizers
from edgeloss.numerics import check_gradients
from edgeloss.viz import panel
from edgeloss.viz.arrays import compute_arrays

pytestmark = pytest.mark.filterwarnings("error")

DEFAULT = {**KEPT[2], "region_weight": 3.0}  # what EdgeAwareLoss() has, but for the exponent
each_kept = pytest.mark.parametrize("options", KEPT)


def assert_same_state(left: nn.Module, right: nn.Module) -> None:
    torch.testing.assert_close(left.state_dict(), right.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    "options", [*KEPT, {}, {"edge_class_weight": torch.tensor([0.3, 1.0, 0.7, 2.0])}, DEFAULT | {"multilabel": True}]
)
def test_accumulated_steps_equal_those_of_whole_batches(options: dict[str, Any]) -> None:
    multilabel = "multilabel" in options
    weight = torch.rand((C, 2) if multilabel else C)
    whole, parts = (stateless_loss(weight, ignore_index=IGNORE, radius=2, **options) for _ in range(2))
    for x, y in steps(4, multilabel=multilabel):
        v = torch.rand(3, 9, 11, dtype=torch.float64)
        v[y[:, 0] == IGNORE if multilabel else y == IGNORE] = torch.nan  # not read
        expected = whole(x, y, pixel_weight=v)
        total = parts.step_normalizer((part for part in y.split(1)), v.split(1))
        if not parts.state_dict().keys() - {"weight", "edge_class_weight"}:
            given: dict[str, Any] = {"ignore_index": IGNORE, "weight": weight, "radius": 2, **options}
            of_crops = [normalizers(a, **given, pixel_weight=b) for a, b in zip(y.split(1), v.split(1), strict=True)]
            torch.testing.assert_close(total, tuple(map(sum, zip(*of_crops, strict=True))))
            total = float(total[0]), float(total[1])
        crops = zip(x.split(1), y.split(1), v.split(1), strict=True)
        loss = sum(parts(a, b, pixel_weight=c, normalizer=total) for a, b, c in crops)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        gradients = torch.autograd.grad(loss, x), torch.autograd.grad(expected, x)
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)  # those of the region term nearly cancel
        torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-12, atol=0)


@each_kept
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
        assert_same_state(twin, criterion)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"edge_(counts|sums)\""):
        criterion.load_state_dict(stateless_loss().state_dict())
    criterion.load_state_dict(stateless_loss().state_dict(), strict=False)
    assert_same_state(criterion, loaded)


@each_kept
def test_without_values_it_begins_again(options: dict[str, Any]) -> None:
    batches, fresh = steps(2), stateless_loss(ignore_index=IGNORE, **options)
    counts, sums = ["edge_counts", "counted_steps"], ["edge_sums"]
    assert list(fresh.state_dict()) == counts * ("edge_class_weight" in options) + sums * ("edge_focus" in options)
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
    moved.load_state_dict(fresh.state_dict())
    assert_same_state(moved, fresh)


# -------------------------------------------------------------------------------------------------- what does not count


@pytest.mark.usefixtures("each_backend")
@each_kept
def test_eval_has_the_full_weight_and_adds_nothing(options: dict[str, Any]) -> None:
    criterion, batches = stateless_loss(ignore_index=IGNORE, **options), steps(3)
    assert criterion.eval()(*batches[0]) == edge_aware_loss(*batches[0], ignore_index=IGNORE)
    criterion.train()(*batches[0])
    before, (x, y) = copy.deepcopy(criterion), batches[2]
    in_full: dict[str, Any] = {"ignore_index": IGNORE, "edge_class_weight": criterion.current_edge_class_weight}
    weight = float(criterion.current_edge_weight)
    of_step = in_full | {"edge_weight": weight}
    assert (weight != 1) == ("edge_focus" in options)
    for mode, expected in ((True, of_step), (False, in_full)):
        looks = copy.deepcopy(before).train(mode)
        assert str(looks.options()) == str(stateless_loss(**expected).options())
        assert str(looks.options()) == str(criterion.options(training=mode))
        assert (f"current_edge_weight={weight:.4g}" in repr(looks)) == (mode and weight != 1)
        value = edge_aware_loss(x, y, **expected)
        assert compute_arrays(x.detach(), y, looks).terms["loss"] == pytest.approx(value.item())
        for context in (torch.no_grad(), torch.inference_mode(), *[contextlib.nullcontext()] * (not mode)):
            with context:
                torch.testing.assert_close(criterion.train(mode)(x, y), value, rtol=1e-14, atol=0)
    for total in (criterion.step_normalizer([y]), normalizers(y, **in_full)):
        torch.testing.assert_close(criterion(x, y, normalizer=total), edge_aware_loss(x, y, **in_full))
    assert_same_state(criterion, before)


def test_what_only_looks_changes_nothing() -> None:
    criterion, ((x, y), _) = EdgeAwareLoss(ignore_index=IGNORE), steps(2)
    criterion(x, y)
    before = copy.deepcopy(criterion)
    assert diagnose(criterion, x.detach(), y).ok
    panel(x.detach(), y, criterion=criterion)
    with pytest.raises(ValueError, match="target: expected labels"):
        criterion(x, y + 3)
    found = torch.func.grad(criterion)(x.detach(), y)
    assert check_gradients(criterion, x[..., :3, :4].detach(), y[..., :3, :4])
    assert criterion.training
    assert_same_state(criterion, before)
    torch.testing.assert_close(found, run(criterion, x, y)[1], rtol=1e-9, atol=1e-12)


@each_kept
def test_calls_of_a_step_count_nothing_more(options: dict[str, Any]) -> None:
    criterion, ((x, y), _, (other, labels)) = stateless_loss(ignore_index=IGNORE, **options), steps(3)
    criterion(x, y)
    total = criterion.step_normalizer([labels])
    counts = copy.deepcopy({name: values for name, values in criterion.state_dict().items() if "count" in name})
    first = criterion(other, labels, normalizer=total)
    assert criterion(other, labels, normalizer=total) == first
    assert all(torch.equal(criterion.state_dict()[name], values) for name, values in counts.items())
    criterion(x, y)  # ends the step
    message = r"expected that of criterion\.step_normalizer\(targets\).*edge_class_weight=None and edge_focus=0"
    with pytest.raises(ValueError, match=message):
        criterion(x, y, normalizer=total)


@each_kept
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


# ---------------------------------------------------------------------------------------------- calls that are repeated


def backward(loss: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and gradient; a reentrant checkpoint refuses ``torch.autograd.grad``."""
    x.grad = None
    loss.backward()
    assert x.grad is not None
    return loss.detach(), x.grad


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    ("options", "parts", "use_reentrant"), pairwise([*KEPT, {"region_weight": 1.0}, DEFAULT], [1, 3], [False, True])
)
def test_a_recomputed_call_belongs_to_its_step(options: dict[str, Any], parts: int, use_reentrant: bool) -> None:
    criterion, twin = (stateless_loss(ignore_index=IGNORE, **options) for _ in range(2))
    for x, y in steps(4):
        total, losses = criterion.step_normalizer(y.split(1)) if parts > 1 else None, []
        for part, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
            call = partial(lambda x, y, n: criterion(x.sin(), y, normalizer=n), n=total)
            losses.append(checkpoint(call, part, labels, use_reentrant=use_reentrant))
        found = backward(sum(losses, torch.zeros(())), x)
        torch.testing.assert_close(found, backward(twin(x.sin(), y), x), rtol=1e-12, atol=1e-17)
        torch.testing.assert_close(criterion.state_dict(), twin.state_dict(), rtol=1e-12, atol=0)
        with torch.no_grad():
            criterion(x, y)


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


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("options", [{"edge_weight": 0, "region_weight": 0, "label_smoothing": 0.1}, {"power": -1.0}])
def test_soft_labels(options: dict[str, Any]) -> None:
    """The recipes of docs/training.md, with another share for each image, and with one for all."""
    criterion = EdgeAwareLoss(**options)
    for _ in range(3):
        x, y = torch.randn(4, 3, 9, 11, dtype=torch.float64, requires_grad=True), torch.randint(3, (4, 9, 11))
        others, share = y[[1, 2, 3, 0]], torch.tensor(0.3) if "power" in options else torch.rand(4, 1, 1)
        share = share.double().expand(4, 9, 11)
        if "power" in options:
            given = {**criterion.options(), "edge_weight": criterion.current_edge_weight.item()}
            expected = 0.3 * edge_aware_loss(x, y, **given) + 0.7 * edge_aware_loss(x, others, **given)
        else:
            one_hot, other = (F.one_hot(labels, 3).movedim(-1, 1) for labels in (y, others))
            soft = share[:, None] * one_hot + (1 - share[:, None]) * other
            expected = F.cross_entropy(x, soft, label_smoothing=0.1)
        total = criterion.step_normalizer([y, others])
        loss = 2 * criterion(x, y, normalizer=total, pixel_weight=share)
        loss = loss + 2 * criterion(x, others, normalizer=total, pixel_weight=1 - share)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))
    assert criterion.counted_steps == 3


# ---------------------------------------------------------------------------------------------------- graphs and dtypes

EVERY: list[dict[str, Any]] = [KEPT[0], {**KEPT[1], "reduction": "none"}, DEFAULT]  # each by itself, and both


@pytest.mark.parametrize(
    ("is_first", "options"),
    [
        (True, DEFAULT),
        *(pytest.param(True, options, marks=pytest.mark.slow) for options in EVERY[:2]),
        pytest.param(False, DEFAULT, marks=pytest.mark.slow),
    ],
)
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
    if mode and "edge_class_weight" in options:
        with pytest.raises(RuntimeError, match=r"call the loss before export, or export it in eval\(\)"):
            torch.export.export(criterion, batches[0])
    criterion(*batches[0])
    twin, before = copy.deepcopy(criterion), copy.deepcopy(criterion)
    exported = torch.export.export(criterion, batches[0]).module()
    for batch in batches:
        torch.testing.assert_close(exported(*batch), twin(*batch), rtol=1e-14, atol=0)
    assert mode == any(not torch.equal(a, b) for a, b in zip(twin.buffers(), before.buffers(), strict=True))


@pytest.mark.parametrize("options", EVERY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(dtype: torch.dtype, options: dict[str, Any]) -> None:
    criterion, twin = (stateless_loss(ignore_index=IGNORE, **options) for _ in range(2))
    for x, y in steps(3):
        expected = twin(x, y)
        with torch.autocast("cpu", dtype=dtype):
            assert torch.equal(criterion(x, y), expected)
