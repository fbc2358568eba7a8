"""The weight of the edge terms that falls as the edges are learned, ``edge_focus``."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batches import IGNORE, C, run, steps
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss, reduction
from edgeloss.cli.options import with_shared_options
from edgeloss.functional import edge_aware_loss, loss_maps
from edgeloss.reduction import OF_STEP, EdgeSum
from edgeloss.viz.arrays import compute_arrays

GAMMA, STEPS = 0.7, EdgeSum.STEPS


def focused(**options: Any) -> EdgeAwareLoss:
    return stateless_loss(**{"edge_focus": GAMMA, "ignore_index": IGNORE} | options)


def error_sums(x: Tensor, y: Tensor, vu: Tensor, **options: Any) -> list[float]:
    """Return the edge term over all edge pixels, that of a uniform prediction, and its weight, from the maps."""
    maps, uniform = (loss_maps(values, y, ignore_index=IGNORE, **options) for values in (x, torch.zeros_like(x)))
    sides = options.get("other_side_weight", 1.0) + options.get("same_side_weight", 1.0)
    return [
        float((vu * maps.edge).sum()),
        # There is no same-side term where all neighbors are across the edge: its weight is that of both sides anyway.
        float((vu * uniform.edge.amax() * maps.edge_mask).sum()),
        sides * float((vu * maps.edge_mask).sum()),
    ]


def average(steps: list[list[float]]) -> float:
    """Return the average error of steps, from the sums of each."""
    mean, found = 1.0, [sums for sums in steps if sums[2]]
    for t, (error, uniform, weight) in enumerate(found, start=1):
        ratio = (1 - math.exp(-error / weight)) / (1 - math.exp(-uniform / weight))
        mean += max(1 / t, 0.01) * (min(1.0, ratio) - mean)
    return mean


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    ("size", "classes", "maps_options", "options"),
    [
        ((9, 11), C, {}, {}),
        ((9, 11), C, {"other_side_weight": 0.3, "same_side_weight": 2.0}, {"reduction": "sum", "edge_weight": 0.5}),
        ((9, 11), 1, {}, {"reduction": "none"}),
        ((3, 5, 6), 3, {"decay": 1.0, "power": 1.0}, {"edge_class_weight": torch.tensor([0.5, 1.0, 2.0])}),
        ((9, 11), C, {}, {"edge_class_weight": "running"}),
        ((9, 11), C, {"upsample": True}, {}),
        ((9, 11), C, {}, {"edge_weight": 0.0}),
    ],
)
def test_the_weight_comes_from_the_steps_before(
    size: tuple[int, ...], classes: int, maps_options: dict[str, Any], options: dict[str, Any]
) -> None:
    criterion = focused(**maps_options, **options)
    weight = options.pop("edge_weight", 1.0)
    sums: list[list[float]] = []
    for x, y in steps(5, size, classes):
        if "upsample" in maps_options:
            x = x.detach()[..., ::2, ::3].clone().requires_grad_()
        v = torch.rand(y.shape, dtype=torch.float64)
        u = options["edge_class_weight"] = criterion.current_edge_class_weight
        f = average(sums) ** GAMMA
        assert criterion.current_edge_weight.item() == pytest.approx(weight * f, rel=1e-6)
        found = run(lambda x, y, v=v: criterion(x, y, pixel_weight=v), x, y)
        keywords = maps_options | options | {"edge_weight": weight * f, "ignore_index": IGNORE, "pixel_weight": v}
        expected = run(lambda x, y, keywords=keywords: edge_aware_loss(x, y, **keywords), x, y)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)  # f has no gradient
        vu = v if u is None else v * u[y.where(y != IGNORE, 0)]
        sums.append(error_sums(x, y, vu, **maps_options))
        expected_sums = torch.tensor(sums[-1], dtype=torch.float64)
        torch.testing.assert_close(criterion.edge_sums[OF_STEP], expected_sums, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("each_backend")
def test_learned_edges_have_no_weight_and_wrong_ones_that_of_unlearned_ones() -> None:
    y = torch.arange(8).div(4, rounding_mode="floor").expand(2, 6, 8)
    right = 60.0 * F.one_hot(y, 2).movedim(-1, 1).double()
    for x, f in ((right, 0.0), (0.0 * right, 1.0), (-right, 1.0)):
        criterion = focused()
        criterion(x, y)
        assert criterion.current_edge_weight.item() == pytest.approx(f, rel=1e-12, abs=1e-12)
    criterion = focused()
    criterion(right / 1.5, y)
    error, _, weight = criterion.edge_sums[OF_STEP].tolist()
    assert 0 < error / weight < 1e-16  # 1 - e^-error would be 0
    assert criterion.current_edge_weight.item() == pytest.approx((2 * error / weight) ** GAMMA)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_weight_may_be_zero(reduction: Any) -> None:
    criterion, ((first, y), (x, empty)) = focused(reduction=reduction), steps(2)
    criterion(1e9 * F.one_hot(y.where(y != IGNORE, 0), C).movedim(-1, 1).double(), y)
    assert criterion.current_edge_weight == 0
    for logits, target in ((x, empty), (first, y)):
        plain = stateless_loss(edge_weight=0.0, reduction=reduction, ignore_index=IGNORE)
        assert all(
            torch.equal(a, b) for a, b in zip(run(criterion, logits, target), run(plain, logits, target), strict=True)
        )


def test_steps_without_edges_keep_the_weight() -> None:
    criterion, (first, empty) = focused(), steps(2)
    criterion(*empty)
    assert criterion.current_edge_weight == 1
    criterion(*first)
    before = criterion.current_edge_weight
    for _ in range(2):
        criterion(*empty)
        assert criterion.current_edge_weight == before
        assert criterion.edge_sums[STEPS] == 1
    no_sides = focused(other_side_weight=0.0, same_side_weight=0.0)
    assert no_sides(*first) == no_sides(*first)
    assert no_sides.current_edge_weight == 1


@pytest.mark.usefixtures("each_backend")
def test_logits_that_are_not_finite_do_not_stay() -> None:
    criterion, ((x, y), _) = focused(), steps(2)
    criterion(x, y)
    before = criterion.current_edge_weight
    for _ in range(2):
        assert not criterion(torch.full_like(x, torch.nan), y).isfinite()
        assert criterion.current_edge_weight == before
    total = criterion.step_normalizer([y, y])
    for logits in (x, torch.full_like(x, torch.nan)):
        criterion(logits, y, normalizer=total)
    assert criterion.current_edge_weight == before  # as of both parts in one batch
    criterion(x, y)
    assert criterion.edge_sums.isfinite().all()


@pytest.mark.parametrize("contrast", [1.0, 3.0])
def test_one_step_of_noise_is_forgotten(contrast: float) -> None:
    y = torch.zeros(2, 12, 16, dtype=torch.long)
    y[:, 3:, 5:], y[:, :, 11:] = 1, 2
    good = contrast * F.one_hot(y, 3).movedim(-1, 1).double()
    criterion, weights = EdgeAwareLoss(region_weight=0), []
    for step in range(310):
        criterion(1000 * torch.randn_like(good) if step == 300 else good, y)
        weights.append(criterion.current_edge_weight.item())
    assert weights[299] < 0.03
    assert weights[299] < min(weights[300:]) <= max(weights[300:]) < weights[299] + 0.002  # 1 % of the average is noise


def test_a_device_has_the_same_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed from floats here, and by torch where reading them would wait for a device."""
    criterion, by_torch = focused(), focused()
    batches = [*steps(3), (torch.full((1, C, 2, 2), torch.nan), torch.tensor([[[0, 1], [1, 0]]])), *steps(1)]
    for batch in batches:
        criterion(*batch)
        with monkeypatch.context() as patch:
            patch.setattr(reduction, "_are_at_hand", lambda _: False)
            by_torch(*batch)
            weight = by_torch.current_edge_weight
        torch.testing.assert_close(weight, criterion.current_edge_weight, rtol=1e-14, atol=0)
    torch.testing.assert_close(by_torch.edge_sums, criterion.edge_sums, rtol=1e-14, atol=0)


@pytest.mark.parametrize("steps_before", [0, 1, 400])
def test_states_of_version_0_2_load(steps_before: int) -> None:
    """They have sums of all steps, which decay by 0.99 per step."""
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


@pytest.mark.usefixtures("each_backend")
def test_eval_has_the_full_weight_and_adds_nothing() -> None:
    criterion, batches = focused(), steps(3)
    criterion(*batches[0])
    weight, sums = criterion.current_edge_weight, criterion.edge_sums.clone()
    assert weight != 1
    in_full: dict[str, Any] = {"ignore_index": IGNORE}
    options = in_full | {"edge_weight": weight.item()}
    assert criterion.options(training=False) == stateless_loss(**in_full).options()
    criterion.eval()
    assert criterion.options() == criterion.options(training=False)
    assert criterion.options(training=True) == stateless_loss(**options).options()
    for x, y in batches:
        assert criterion(x, y) == edge_aware_loss(x, y, **in_full)
        total = criterion.step_normalizer([y])
        torch.testing.assert_close(criterion(x, y, normalizer=total), criterion(x, y))
    criterion.train()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(
                criterion(*batches[2]), edge_aware_loss(*batches[2], **options), rtol=1e-14, atol=0
            )
    x, y = batches[0]
    for mode, keywords in ((True, options), (False, in_full)):
        drawn = compute_arrays(x.detach(), y, criterion.train(mode)).terms["loss"]
        assert drawn == pytest.approx(edge_aware_loss(x, y, **keywords).item())
    criterion.train()
    assert torch.equal(criterion.edge_sums, sums)
    assert criterion.options() == stateless_loss(**options).options()
    torch.testing.assert_close(edge_aware_loss(*batches[0], **criterion.options()), criterion(*batches[0]))


def test_terms_and_maps_are_those_without_it() -> None:
    criterion, (x, y) = focused(edge_weight=0.0), steps(1)[0]
    twin = copy.deepcopy(criterion)
    for _ in range(3):
        _, maps, terms = criterion(x, y, return_maps=True, return_terms=True)
        twin(x, y)
    _, *expected = edge_aware_loss(x, y, ignore_index=IGNORE, return_maps=True, return_terms=True)
    torch.testing.assert_close([maps._asdict(), terms], [expected[0]._asdict(), expected[1]], rtol=0, atol=0)
    torch.testing.assert_close(criterion.edge_sums, twin.edge_sums)  # with maps and terms or without


def test_the_state() -> None:
    criterion, (x, y) = focused(), steps(1)[0]
    assert list(criterion.state_dict()) == ["edge_sums"]
    assert EdgeAwareLoss(edge_weight=2).current_edge_weight == 2
    criterion(x, y)
    before = criterion.edge_sums.clone()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "edge_sums"'):
        criterion.load_state_dict({})
    criterion.load_state_dict({}, strict=False)
    assert torch.equal(criterion.edge_sums, before)
    assert criterion.to("meta").edge_sums.is_meta
    assert criterion.to_empty(device="cpu").current_edge_weight == 1


@pytest.mark.parametrize("gamma", [-0.1, math.nan, math.inf, "1"])
def test_wrong_exponents(gamma: Any) -> None:
    with pytest.raises(ValueError, match="edge_focus: expected a finite number ≥ 0, but got"):
        EdgeAwareLoss(edge_focus=gamma)


def test_it_may_be_set_later() -> None:
    later, batches = focused(edge_focus=0), steps(2)
    later.edge_focus = 0.7
    twin = focused()
    for x, y in batches:
        assert later(x, y) == twin(x, y)
    assert later.current_edge_weight == twin.current_edge_weight != 1


def test_only_the_module_has_it() -> None:
    x, y = steps(1)[0]
    with pytest.raises(TypeError, match="unexpected keyword argument 'edge_focus'"):
        edge_aware_loss(x, y, edge_focus=1.0)  # type: ignore[call-arg]
    command = with_shared_options(lambda source, loss: None)
    assert "edge_weight" in inspect.signature(command).parameters
    assert "edge_focus" not in inspect.signature(command).parameters
    assert "edge_focus=0.7" in repr(focused())
