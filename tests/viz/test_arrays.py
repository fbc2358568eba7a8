"""The numbers behind the figures: predictions, gradients, most probable classes and neighbors."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scenes import examined, patches, scene

from edgeloss import EdgeAwareLoss
from edgeloss.viz import arrays, compute_arrays, panel


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


def test_binary_is_the_two_class_case() -> None:
    logit, target = scene(classes=2)
    logit = logit[:, :1]
    one = compute_arrays(logit, target)
    two = compute_arrays(torch.cat([torch.zeros_like(logit), logit], dim=1), target)
    assert one.classes == 2
    np.testing.assert_array_equal(one.prediction, two.prediction)
    for name in ("cross_entropy", "edge"):
        np.testing.assert_allclose(one.maps[name], two.maps[name], rtol=1e-5)
    names = [text.get_text() for text in panel(logit, target, class_names=["ground", "box"]).legends[0].get_texts()]
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
    criterion = EdgeAwareLoss(reduction=reduction).eval()
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
    loss, terms = EdgeAwareLoss(ce_weight=0, edge_weight=0, region_weight=3).eval()(leaf, target, return_terms=True)
    loss.backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(full.region, leaf.grad.double().norm(dim=1), rtol=1e-5)
    assert full.terms["region"] == pytest.approx(float(terms["region"]))
    assert (np.abs(full.gradient - without.gradient) <= full.region * (1 + 1e-4)).all()


@pytest.mark.parametrize("classes", [3, 300])
def test_the_first_of_equal_logits_is_the_class(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    monkeypatch.setattr(arrays, "_CHUNK", 3 * 8 * classes)
    logits = torch.randn(1, classes, 12, 8).round()
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


@pytest.mark.parametrize("options", [{}, {"decay": 2.0, "radius": 2}, {"upsample": True}, {"power": -1.0}])
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
    np.testing.assert_array_equal(found.others, details.others)
    np.testing.assert_allclose(found.probabilities, details.probabilities, rtol=1e-6)
