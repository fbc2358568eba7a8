"""What the module takes from the steps before: the balance of the classes, and the weight of the edge terms."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batches import IGNORE, KEPT, C, average, balance, edge_pixels, error_sums, run, steps
from pairwise import pairwise
from stateless import stateless_loss

from edgeloss import EdgeAwareLoss, reduction
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss
from edgeloss.reduction import OF_STEP, EdgeSum

GAMMA, STEPS = 0.7, EdgeSum.STEPS
PLANE = (9, 11)


def focused(**options: Any) -> EdgeAwareLoss:
    return stateless_loss(**{"edge_focus": GAMMA, "ignore_index": IGNORE} | options)


# Sizes, classes, and options of the maps and of the rest.
Call = tuple[tuple[int, ...], int, dict[str, Any], dict[str, Any]]
CALLS: list[Call] = [
    (PLANE, C, {}, {}),
    (PLANE, C, {"other_side_weight": 0.3, "same_side_weight": 2.0}, {"reduction": "sum", "edge_weight": 0.5}),
    (PLANE, 1, {}, {"reduction": "none"}),
    (PLANE, 300, {"upsample": True}, {}),
    ((3, 5, 6), 3, {"decay": 1.0, "power": 1.0}, {}),
    (PLANE, 3, {"multilabel": True}, {"edge_weight": 0.0}),
]
RUNNING: list[dict[str, Any]] = [
    *KEPT[:2],
    {"edge_class_weight": "running", "edge_focus": 8.0, "region_weight": 3.0},
]


@pytest.mark.parametrize(
    ("each_backend", "kept", "call"), pairwise(["reference", "fused"], RUNNING, CALLS), indirect=["each_backend"]
)
def test_weights_come_from_the_steps_before(each_backend: str, kept: dict[str, Any], call: Call) -> None:
    size, classes, of_maps, others = call
    criterion = stateless_loss(ignore_index=IGNORE, **kept, **of_maps, **others)
    fixed = {"edge_class_weight": None, "region_weight": 0.0} | kept | {"ignore_index": IGNORE} | of_maps | others
    gamma, multilabel = fixed.pop("edge_focus", 0.0), "multilabel" in of_maps
    n, sums = torch.zeros((classes, 2) if multilabel else max(2, classes), dtype=torch.float64), list[list[float]]()
    for step, (x, y) in enumerate(steps(4, size, classes, multilabel=multilabel)):
        if "upsample" in of_maps:
            x = x.detach()[..., ::2, ::3].clone().requires_grad_()
        v, u = torch.rand(y.shape, dtype=torch.float64), criterion.current_edge_class_weight
        if "edge_class_weight" in kept and step:
            torch.testing.assert_close(u, balance(n, step))
        else:
            assert u is None
        edge_weight = others.get("edge_weight", 1.0) * average(sums) ** gamma
        assert float(criterion.current_edge_weight) == pytest.approx(edge_weight, rel=1e-6)
        given = fixed | {"edge_class_weight": u, "edge_weight": edge_weight, "pixel_weight": v}
        expected = run(lambda x, y, given=given: edge_aware_loss(x, y, **given), x, y)
        found = run(lambda x, y, v=v: criterion(x, y, pixel_weight=v), x, y)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)  # the weights have no gradient
        if "edge_class_weight" in kept:
            n += edge_pixels(y, n.shape)
            assert torch.equal(criterion.edge_counts, n.long())
            assert criterion.counted_steps == step + 1
        if gamma:
            place = y.where(y != IGNORE, 0) + (2 * torch.arange(classes).view(-1, 1, 1) if multilabel else 0)
            sums.append(error_sums(x, y, v if u is None else v * u.flatten()[place], **of_maps))
            expected_sums = torch.tensor(sums[-1], dtype=torch.float64)
            torch.testing.assert_close(criterion.edge_sums[OF_STEP], expected_sums, rtol=1e-6, atol=0)


@pytest.mark.parametrize("classes", [C, 300])
def test_a_device_has_the_same_weights(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # They are computed from floats here, and by torch where reading them would wait for a device.
    criterion, by_torch = (stateless_loss(ignore_index=IGNORE, **KEPT[2]) for _ in range(2))
    wrong = torch.full((1, classes, 2, 2), torch.nan), torch.tensor([[[0, 1], [1, 0]]])
    for x, y in [*steps(3, classes=classes), wrong, *steps(1, classes=classes)]:
        criterion(x, y)
        found = [criterion.current_edge_weight, criterion.current_edge_class_weight]
        found += [balanced_edge_class_weight([y], classes, exponent=0.5, ignore_index=IGNORE)]
        with monkeypatch.context() as patch:
            patch.setattr(reduction, "_are_at_hand", lambda _: False)
            by_torch(x, y)
            expected = [by_torch.current_edge_weight, by_torch.current_edge_class_weight]
            expected += [balanced_edge_class_weight([y], classes, exponent=0.5, ignore_index=IGNORE)]
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(by_torch.edge_sums, criterion.edge_sums, rtol=1e-14, atol=0)


@pytest.mark.parametrize("multilabel", [False, True])
def test_another_number_of_classes(multilabel: bool) -> None:
    criterion, other = (EdgeAwareLoss(multilabel=multilabel, ignore_index=IGNORE) for _ in range(2))
    binary = EdgeAwareLoss(ignore_index=IGNORE)  # of one logit or two
    criterion(*steps(1, multilabel=multilabel)[0])
    with pytest.raises(ValueError, match="expected 4 classes, as edge_class_weight='running' has counted, but got 7"):
        criterion(*steps(1, classes=7, multilabel=multilabel)[0])
    fresh = EdgeAwareLoss(multilabel=multilabel)
    fresh.load_state_dict(criterion.state_dict())
    torch.testing.assert_close(fresh.state_dict(), criterion.state_dict(), rtol=0, atol=0)
    other(*steps(1, classes=7, multilabel=multilabel)[0])
    for loss in (other, EdgeAwareLoss(multilabel=not multilabel)):
        with pytest.raises(RuntimeError, match="size mismatch for edge_counts"):
            loss.load_state_dict(criterion.state_dict())
    for classes in (1, 2):
        binary(*steps(1, classes=classes)[0])


@pytest.mark.usefixtures("each_backend")
def test_learned_edges_have_no_weight_and_wrong_ones_that_of_unlearned_ones() -> None:
    y = torch.arange(8).div(4, rounding_mode="floor").expand(2, 6, 8)
    right = 60.0 * F.one_hot(y, 2).movedim(-1, 1).double()
    for x, f in ((right, 0.0), (0.0 * right, 1.0), (-right, 1.0), (right / 1.5, None)):
        criterion = focused()
        criterion(x, y)
        error, _, weight = criterion.edge_sums[OF_STEP].tolist()
        if f is None:  # 1 - e^-error would be 0
            assert 0 < error / weight < 1e-16
            f = (2 * error / weight) ** GAMMA
        assert criterion.current_edge_weight.item() == pytest.approx(f, rel=1e-12, abs=1e-13)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_weight_may_be_zero(reduction: Any) -> None:
    criterion, ((first, y), (x, empty)) = focused(reduction=reduction), steps(2)
    criterion(1e9 * F.one_hot(y.where(y != IGNORE, 0), C).movedim(-1, 1).double(), y)
    assert criterion.current_edge_weight == 0
    plain = stateless_loss(edge_weight=0.0, reduction=reduction, ignore_index=IGNORE)
    for batch in ((x, empty), (first, y)):
        torch.testing.assert_close(run(criterion, *batch), run(plain, *batch), rtol=0, atol=0)


@pytest.mark.usefixtures("each_backend")
def test_steps_without_edges_or_finite_logits_keep_the_weight() -> None:
    criterion, ((x, y), empty) = focused(), steps(2)
    criterion(*empty)
    assert criterion.current_edge_weight == 1
    criterion(x, y)
    before, wrong = criterion.current_edge_weight, torch.full_like(x, torch.nan)
    for batch in (empty, (wrong, y), empty):
        criterion(*batch)
        assert criterion.current_edge_weight == before
        assert criterion.edge_sums[STEPS] == 1
    total = criterion.step_normalizer([y, y])
    for logits in (x, wrong):
        criterion(logits, y, normalizer=total)
    assert criterion.current_edge_weight == before  # as of both parts in one batch
    criterion(x, y)
    assert criterion.edge_sums.isfinite().all()
    no_sides = focused(other_side_weight=0.0, same_side_weight=0.0)
    assert no_sides(x, y) == no_sides(x, y)
    assert no_sides.current_edge_weight == 1


@pytest.mark.parametrize("steps_before", [0, 1, 400])
def test_states_of_version_0_2_load(steps_before: int) -> None:
    # They have sums of all steps, which decay by 0.99 per step.
    error, uniform, weight = 0.2, math.log(4) + math.log(4 / 3), 2.0
    decayed = (1 - 0.99**steps_before) / (1 - 0.99)
    old = torch.tensor([error, uniform, weight], dtype=torch.float64) * decayed
    criterion, (x, y) = focused(), steps(1)[0]
    criterion.load_state_dict({"edge_sums": old})
    mean = average([[error, uniform, weight]]) if steps_before else 1.0
    assert criterion.current_edge_weight.item() == pytest.approx(mean**GAMMA)
    assert criterion.edge_sums.tolist() == pytest.approx([0, 0, 0, mean, 100 if steps_before else 0])
    criterion(x, y)
    share = average([criterion.edge_sums[OF_STEP].tolist()])
    expected = mean + 0.01 * (share - mean) if steps_before else share
    assert criterion.current_edge_weight.item() == pytest.approx(expected**GAMMA)


def test_terms_and_maps_are_those_without_it() -> None:
    criterion, (x, y) = focused(edge_weight=0.0), steps(1)[0]
    twin = copy.deepcopy(criterion)
    for _ in range(3):
        _, maps, terms = criterion(x, y, return_maps=True, return_terms=True)
        twin(x, y)
    _, *expected = edge_aware_loss(x, y, ignore_index=IGNORE, return_maps=True, return_terms=True)
    torch.testing.assert_close([maps._asdict(), terms], [expected[0]._asdict(), expected[1]], rtol=0, atol=0)
    torch.testing.assert_close(criterion.edge_sums, twin.edge_sums)  # with maps and terms or without


def test_it_may_be_set_later() -> None:
    later, twin = focused(edge_focus=0), focused()
    later.edge_focus = GAMMA
    for batch in steps(2):
        assert later(*batch) == twin(*batch)
    assert later.current_edge_weight == twin.current_edge_weight != 1
