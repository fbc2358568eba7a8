"""The numbers behind the figures: predictions, gradients, most probable classes and neighbors of edge pixels."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scenes import examined, key_of, patches, scene
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.debug import diagnose
from edgeloss.viz import arrays, compute_arrays, panel, report
from edgeloss.viz.arrays import Details


def test_an_ignore_index_may_be_a_class() -> None:
    logits, target = scene()
    target = target.clamp(min=0)
    computed = compute_arrays(logits, target, EdgeAwareLoss(ignore_index=0))
    np.testing.assert_array_equal(computed.target, target.where(target > 0, torch.tensor(-1)))


def test_one_image_needs_no_batch() -> None:
    logits, target = scene()
    # Compare booleans, labels and dicts of arrays by their bytes.
    one, other = compute_arrays(logits[0], target[0]), compute_arrays(logits, target)
    assert pickle.dumps(one) == pickle.dumps(other)


@pytest.mark.parametrize(
    "criterion",
    [
        EdgeAwareLoss(torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1),
        EdgeAwareLoss(edge_class_weight=torch.tensor([0.3, 1.0, 4.0]), edge_focus=2, reduction="sum"),
        EdgeAwareLoss(edge_class_weight=None, edge_focus=0, region_weight=0, power=-1, radius=2),
        EdgeAwareLoss(validate="never", decay=2.0),
    ],
)
def test_the_loss_and_its_terms_are_those_of_the_call(criterion: EdgeAwareLoss) -> None:
    logits, target = patches(batch=2)
    logits[1] *= 4
    if criterion.validate == "never":
        target[:, 8:12, 8:12] = 7  # ignored
    for _ in range(2):
        computed = compute_arrays(logits, target, criterion)
        loss, terms = criterion(logits, target, return_terms=True)
        expected = {"loss": loss, **terms}
        if not criterion.region_weight:
            del expected["region"]
        assert computed.terms == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-5)
        assert ((computed.target < 0) == ((target == -100) | (target == 7)).numpy()).all()


def test_shares_of_the_edge_terms() -> None:
    """Those of the map of the loss, which adds up to the edge terms with their class weights and focus."""
    logits, target = patches(batch=2)
    logits[1] *= 4
    criterion = EdgeAwareLoss(ce_weight=0, region_weight=0, reduction="none")
    edges = criterion(logits, target)
    expected = torch.stack([(edges * (target == k)).sum((1, 2)) for k in range(3)], 1).double()
    expected /= expected.sum(1, keepdim=True)
    np.testing.assert_allclose(compute_arrays(logits, target, criterion).edge_shares, expected, rtol=1e-5)
    nothing = compute_arrays(logits[:1], torch.ones_like(target[:1]), criterion)
    assert np.isnan(nothing.edge_shares).all()


@pytest.mark.parametrize("draw", [compute_arrays, panel, report, diagnose])
def test_labels_out_of_range_are_named_by_the_loss(draw: Any) -> None:
    logits, target = patches(batch=2)
    target[1, 20, 30], criterion = 9, EdgeAwareLoss()
    with pytest.raises(
        ValueError, match=r"target: expected labels 0 to 2, .*9 at 1 pixel, first at \[1, 20, 30\]"
    ) as of:
        criterion(logits, target)
    if draw is diagnose:
        found = [finding.message for finding in diagnose(criterion, logits, target).findings]
        assert f"loss: ValueError: {of.value}." in found
        return
    with pytest.raises(ValueError, match=re.escape(str(of.value))):
        draw(logits, target, criterion=criterion)


def test_binary_is_the_two_class_case() -> None:
    logit, target = scene(classes=2)
    logit = logit[:, :1]
    one = compute_arrays(logit, target)
    two = compute_arrays(torch.cat([torch.zeros_like(logit), logit], dim=1), target)
    assert one.classes == 2
    np.testing.assert_array_equal(one.prediction, two.prediction)
    for name in ("cross_entropy", "edge"):
        np.testing.assert_allclose(one.maps[name], two.maps[name], rtol=1e-5)
    names = key_of(panel(logit, target, class_names=["ground", "box"]))
    assert names[:2] == ["ground", "box"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_differentiated_in_single(dtype: torch.dtype) -> None:
    logits, target = scene(64, 64)
    logits = (logits * 8).to(dtype)
    half, single = compute_arrays(logits, target), compute_arrays(logits.float(), target)
    np.testing.assert_array_equal(half.gradient, single.gradient)
    assert 0 < half.gradient[half.target >= 0].min() < 1e-8  # 0 in float16


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_reduction_has_a_gradient(reduction: Literal["mean", "sum", "none"]) -> None:
    logits, target = scene()
    logits = logits.double()  # arrays come from plain PyTorch, the loss from kernels, which round otherwise
    criterion = EdgeAwareLoss(reduction=reduction)
    leaf = logits.clone().requires_grad_()
    criterion(leaf, target).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(compute_arrays(logits, target, criterion).gradient, leaf.grad.norm(dim=1), rtol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(mode: Callable[[], AbstractContextManager[None]]) -> None:
    logits, target = scene()
    expected = compute_arrays(logits, target)
    with mode():
        without = compute_arrays(logits * 1, target * 1)
    np.testing.assert_array_equal(without.gradient, expected.gradient)


def test_top_classes() -> None:
    logits, target = patches(classes=5, batch=2)
    logits[0, :, 8, 8] = torch.nan
    computed, details = examined(logits, target)
    classes, probabilities = np.concatenate([computed.prediction[None], details.others]), details.probabilities
    p = logits.softmax(1)
    best = p.nan_to_num(-1).topk(3, dim=1)
    np.testing.assert_allclose(probabilities[:, 0, 8, 8], math.nan)
    assert (classes[:, 0, 8, 8] == -1).all()
    ok = ~p.isnan().any(1).numpy()
    np.testing.assert_array_equal(classes[:, ok], best.indices.movedim(1, 0).numpy()[:, ok])
    np.testing.assert_allclose(probabilities[:, ok], best.values.movedim(1, 0).numpy()[:, ok], rtol=1e-6)
    _, details = examined(logits[:, :1], (target > 0).long())
    assert len(details.probabilities) == 2  # one logit: two classes


def test_a_class_of_probability_0_is_not_among_the_most_probable() -> None:
    logits, target = patches(classes=3)
    logits[:, :2] = -torch.inf
    _, details = examined(logits, target, EdgeAwareLoss(region_weight=0))
    assert (details.others == -1).all()
    assert (details.probabilities[1:] == 0).all()


def test_the_gradient_of_the_region_term_is_a_part_of_that_of_the_loss() -> None:
    logits, target = scene(30, 40)
    full, without = (compute_arrays(logits, target, EdgeAwareLoss(region_weight=w)) for w in (3.0, 0.0))
    assert without.region is None
    assert full.region is not None
    leaf = logits.clone().requires_grad_()
    loss, terms = EdgeAwareLoss(ce_weight=0, edge_weight=0, region_weight=3)(leaf, target, return_terms=True)
    loss.backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(full.region, leaf.grad.double().norm(dim=1), rtol=1e-5)
    assert full.terms["region"] == pytest.approx(float(terms["region"]))
    assert (np.abs(full.gradient - without.gradient) <= full.region * (1 + 1e-4)).all()


def test_the_first_of_equal_logits_is_the_class() -> None:
    logits = torch.randn(1, 30, 12, 8).round()
    logits[0, :, 3, 3] = torch.inf
    _, target = patches(12, 8, classes=2)
    criterion = EdgeAwareLoss(region_weight=0)
    computed, details = examined(logits, target, criterion)
    np.testing.assert_array_equal(computed.prediction[0], logits.max(1).indices[0])
    np.testing.assert_array_equal(compute_arrays(logits, target, criterion).prediction, computed.prediction)
    shown = details.probabilities[1:, 0][details.others[:, 0] >= 0]
    assert (shown > 0).sum() == np.isfinite(shown).sum()


def test_threads_do_not_change_what_torch_uses() -> None:
    threads = torch.get_num_threads()
    with arrays.workers() as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "options", [{}, {"decay": 2.0, "radius": (1, 3), "power": 0.5}, {"upsample": True}, {"power": -1.0}]
)
def test_a_picture_may_be_looked_at_band_by_band(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    logits, target = patches(61, 36)
    criterion = EdgeAwareLoss(**options)
    logits = logits[:, :, ::3, ::2] if criterion.upsample else logits
    said: list[str] = []
    whole, details = examined(logits, target, criterion)
    monkeypatch.setattr(arrays, "_BAND", 3 * 36 * 7)
    parts, found = examined(logits, target, criterion, said=said.append)
    steps = [text for text in said if text.startswith("maps, row ")]
    assert steps[-1] == "maps, row 61 of 61"
    assert len(set(steps)) > 2
    np.testing.assert_array_equal(parts.prediction, whole.prediction)
    for name, values in whole.maps.items():
        np.testing.assert_allclose(parts.maps[name], values, rtol=1e-6)
    for given, expected in zip(found, details, strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6)


WIDE = """
import resource, torch
from edgeloss import EdgeAwareLoss
from edgeloss.viz import panel, report

logits = torch.randn(3, 48, 64)
target = torch.randint(3, (3, 4)).repeat_interleave(16, 0).repeat_interleave(16, 1)
for draw in (panel, report):
    draw(logits, target)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, resource.RLIM_INFINITY))
    draw(logits, target, criterion=EdgeAwareLoss(radius=100))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no limits of the address space")
@pytest.mark.slow
def test_memory_of_a_wide_radius_is_not_that_of_all_pairs() -> None:
    """9 million pairs, of some hundred bytes each, in 512 MiB."""
    done = subprocess.run([sys.executable, "-c", WIDE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------------------------------------------- neighbors


def found_neighbors(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None, count: int = 8) -> Details:
    return examined(logits, target, criterion, neighbors=count)[1]


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("radius", [1, 2])
@pytest.mark.parametrize("decay", [None, 1.5])
def test_neighbors_by_hand(power: float, radius: int, decay: float | None) -> None:
    """The part of each neighbor; together they are the two terms and their gradient."""
    logits, target = patches(9, 11)
    logits, target = logits.double(), target[:, :, :].clone()
    criterion = EdgeAwareLoss(power=power, radius=radius, decay=decay)
    found = found_neighbors(logits, target, criterion, count=(2 * radius + 1) ** 2 - 1)
    computed = compute_arrays(logits, target, criterion)
    p = logits.softmax(1)[0].numpy()
    labels = target[0].numpy()
    for place, (y, x) in enumerate(np.argwhere(computed.maps["edge_mask"][0])):
        parts = {}
        steps = zip(*found.step[:, :, place], found.nll[:, place], found.share[:, place], strict=True)
        for down, right, nll, share in steps:
            if (down, right) != (0, 0):
                parts[int(down), int(right)] = nll, share
        expected = {
            (down, right)
            for down in range(-radius, radius + 1)
            for right in range(-radius, radius + 1)
            if (down or right) and 0 <= y + down < 9 and 0 <= x + right < 11 and labels[y + down, x + right] >= 0
        }
        assert set(parts) == expected
        for same, name in ((True, "same_side"), (False, "other_side")):
            side = {
                step: part for step, part in parts.items() if (labels[y + step[0], x + step[1]] == labels[y, x]) == same
            }
            if not side:
                continue
            for (down, right), (nll, _) in side.items():
                at_n = p[labels[y, x], y + down, x + right]
                assert nll == pytest.approx(-math.log(at_n if same else 1 - at_n))
            assert sum(share for _, share in side.values()) == pytest.approx(1)
            if power == 0:  # then the shares are the weights of the mean
                mean = sum(nll * share for nll, share in side.values())
                assert mean == pytest.approx(computed.maps[name][0, y, x])
            if decay is None and power:
                weights = {step: math.exp(-nll) ** power for step, (nll, _) in side.items()}
                for step, (_, share) in side.items():
                    assert share == pytest.approx(weights[step] / sum(weights.values()))


def test_neighbors_of_largest_weighted_loss_come_first() -> None:
    logits, target = patches()
    every, some = found_neighbors(logits, target), found_neighbors(logits, target, count=3)
    np.testing.assert_array_equal(some.nll, every.nll[:3])
    falls = np.diff(np.nan_to_num(every.nll, nan=-1), axis=0) <= 0
    assert falls.all()


def test_a_neighbor_that_is_not_finite_comes_first() -> None:
    logits, target = patches()
    logits[0, :, 5, 5] = torch.nan
    target[0, 4:7, 4:7] = torch.tensor([[0, 1, 0], [1, 1, 0], [0, 1, 1]])
    found = found_neighbors(logits, target, EdgeAwareLoss(radius=3))
    edges = np.argwhere(compute_arrays(logits, target, EdgeAwareLoss(radius=3)).maps["edge_mask"][0])
    place = int(np.flatnonzero((edges == (4, 4)).all(1))[0])
    assert found.step[:, 0, place].tolist() == [1, 1]
    assert math.isnan(found.nll[0, place])
    assert np.isfinite(found.nll[1:, place]).all()


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_edge_pixels_may_be_looked_at_part_by_part(monkeypatch: pytest.MonkeyPatch, power: float) -> None:
    logits, target = patches(22, 18)
    criterion = EdgeAwareLoss(radius=2, decay=3.0, power=power)
    whole, every = examined(logits, target, criterion, neighbors=8)
    monkeypatch.setattr(arrays, "_PAIRS", 100)
    parts, some = examined(logits, target, criterion, neighbors=8)
    assert pickle.dumps((whole.maps, every)) == pickle.dumps((parts.maps, some))


def test_all_edge_pixels_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = patches(22, 18)
    every = found_neighbors(logits, target)
    monkeypatch.setattr(arrays, "_BAND", 1)
    for most, expected in ((3 * every.nll.shape[1] + 1, 3), (1, 1)):
        _, details = examined(logits, target, neighbors=8, most_pairs=most)
        np.testing.assert_array_equal(details.nll, every.nll[:expected])
