"""The class balance that the module counts as it goes, ``edge_class_weight="running"``."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from batches import IGNORE, C, steps
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss, reduction
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, normalizers
from edgeloss.reduction import balanced_weight


def running(**options: Any) -> EdgeAwareLoss:
    return stateless_loss(edge_class_weight="running", ignore_index=IGNORE, **options)


def edge_pixels(y: Tensor, classes: int = C) -> Tensor:
    """Return n by one-hot weights, independently of the counts."""
    rows = torch.eye(classes, dtype=torch.float64)
    return torch.stack([normalizers(y, edge_class_weight=row, ignore_index=IGNORE)[1] for row in rows])


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    ("size", "classes", "options"),
    [
        ((9, 11), C, {}),
        ((9, 11), 300, {"reduction": "sum"}),
        ((9, 11), 1, {"reduction": "none"}),
        ((3, 5, 6), 3, {"decay": 1.0, "power": 1.0}),
        ((9, 11), C, {"edge_weight": 0.0}),
    ],
)
def test_weights_come_from_the_steps_before(size: tuple[int, ...], classes: int, options: dict[str, Any]) -> None:
    criterion, n = running(**options), torch.zeros(max(2, classes), dtype=torch.float64)
    assert criterion.current_edge_class_weight is None
    for step, (x, y) in enumerate(steps(4, size, classes)):
        u = criterion.current_edge_class_weight
        if step:
            prior = n.sum() / (step * len(n))
            expected = torch.where(n > 0, 1 / (n + prior), 0)
            expected *= n.sum() / (n * expected).sum()
            torch.testing.assert_close(u, torch.where(n > 0, expected, 1.0).float())
        loss = criterion(x, y)
        torch.testing.assert_close(
            loss, edge_aware_loss(x, y, edge_class_weight=u, ignore_index=IGNORE, **options), rtol=0, atol=0
        )
        n += edge_pixels(y, len(n))
        assert torch.equal(criterion.edge_counts, n.long())
        assert criterion.counted_steps == step + 1


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("counts", [[5, 0, 12345678901, 1], [0, 0], [[3, 0], [2, 9]]], ids=str)
@pytest.mark.parametrize(("exponent", "steps"), [(1.0, torch.tensor(3)), (0.5, None)], ids=str)
def test_a_device_has_the_same_weights(
    counts: list[Any], exponent: float, steps: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed from floats here, and by torch where reading them would wait for a device."""
    weight = balanced_weight(torch.tensor(counts), exponent=exponent, steps=steps)
    monkeypatch.setattr(reduction, "_are_at_hand", lambda _: False)
    by_torch = balanced_weight(torch.tensor(counts), exponent=exponent, steps=steps)
    torch.testing.assert_close(weight, by_torch, rtol=1e-7, atol=0.0)


def test_counts_at_the_resolution_of_the_labels() -> None:
    criterion, y = running(upsample=True), steps(1)[0][1]
    criterion(torch.randn(3, C, 3, 4), y)
    assert torch.equal(criterion.edge_counts, edge_pixels(y).long())


def test_converges_to_the_balance_of_the_labels() -> None:
    y = torch.zeros(1, 40, 40, dtype=torch.long)
    y[:, 20:], y[:, 3, 3:9], y[:, 30, 30] = 1, 2, 3
    expected = balanced_edge_class_weight([y], 5)
    criterion, errors = running(edge_weight=0.0), []
    for _ in range(3):
        for _ in range(100):
            criterion(torch.zeros(1, 5, 40, 40), y)
        errors.append(float((criterion.current_edge_class_weight / expected - 1).abs().max()))
    assert errors[0] > 1.8 * errors[1] > 2.4 * errors[2]  # by one over the number of steps
    criterion.counted_steps.fill_(10**9)
    torch.testing.assert_close(criterion.current_edge_class_weight, expected)


def test_the_second_step_stays_near_one_for_images_of_any_size() -> None:
    y = torch.zeros(1, 4, 8, dtype=torch.long)
    y[:, :, 4:], y[:, 0, 0] = 1, 2
    found = []
    for images in (1, 64):
        criterion = running()
        criterion(torch.zeros(images, C, 4, 8), y.repeat(images, 1, 1))
        found.append(criterion.current_edge_class_weight)
    torch.testing.assert_close(found[0], found[1])
    u = found[0]
    assert 1 < u[2] / u.min() < C + 1
    assert u[3] == 1  # not seen yet, as in balanced_edge_class_weight


def test_eval_applies_the_weights_and_does_not_count() -> None:
    criterion, batches = running(), steps(3)
    criterion(*batches[0])
    u = criterion.current_edge_class_weight
    criterion.eval()
    for x, y in batches:
        assert criterion(x, y) == edge_aware_loss(x, y, edge_class_weight=u, ignore_index=IGNORE)
        total = criterion.step_normalizer([y])
        torch.testing.assert_close(criterion(x, y, normalizer=total), criterion(x, y))
    criterion.train()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert criterion(*batches[2]) == edge_aware_loss(*batches[2], edge_class_weight=u, ignore_index=IGNORE)
    assert criterion.counted_steps == 1
    assert torch.equal(criterion.current_edge_class_weight, u)
    fresh = running().eval()
    assert fresh(*batches[0]) == edge_aware_loss(*batches[0], ignore_index=IGNORE)
    assert fresh.current_edge_class_weight is None


def test_calls_of_a_step_count_nothing_more() -> None:
    criterion, ((x, y), _, (other, labels)) = running(), steps(3)
    criterion(x, y)
    total = criterion.step_normalizer([labels])
    before = copy.deepcopy(criterion.state_dict())
    first = criterion(other, labels, normalizer=total)
    assert criterion(other, labels, normalizer=total) == first
    torch.testing.assert_close(criterion.state_dict(), before, rtol=0, atol=0)
    criterion(x, y)  # ends the step
    with pytest.raises(ValueError, match=r"normalizer: expected that of criterion\.step_normalizer\(targets\)"):
        criterion(x, y, normalizer=total)
    with pytest.raises(ValueError, match="targets: expected the labels of at least one call, but got none"):
        criterion.step_normalizer([])


def test_a_state_without_counts() -> None:
    criterion, fresh = running(), running()
    assert list(fresh.state_dict()) == ["edge_counts", "counted_steps"]
    fresh.load_state_dict(copy.deepcopy(fresh).state_dict())
    assert pickle.loads(pickle.dumps(fresh)).current_edge_class_weight is None
    criterion(*steps(1)[0])
    criterion.load_state_dict(fresh.state_dict())
    assert criterion.current_edge_class_weight is None
    assert criterion.to("meta").edge_counts.is_meta


def test_another_number_of_classes() -> None:
    criterion = running()
    criterion(*steps(1)[0])
    with pytest.raises(ValueError, match="expected 4 classes, as edge_class_weight='running' has counted, but got 7"):
        criterion(*steps(1, classes=7)[0])
    other = running()
    other(*steps(1, classes=7)[0])
    with pytest.raises(RuntimeError, match="size mismatch for edge_counts"):
        other.load_state_dict(criterion.state_dict())


def test_a_failed_call_counts_nothing() -> None:
    criterion, (x, y) = running(), steps(1)[0]
    with pytest.raises(ValueError, match="target: expected labels"):
        criterion(x, y + 3)
    assert not criterion.counted_steps
    assert criterion.current_edge_class_weight is None


def test_only_the_module_takes_running() -> None:
    x, y = steps(1)[0]
    message = "edge_class_weight: expected a tensor .* but got 'running'; only EdgeAwareLoss takes"
    for function, arguments in ((edge_aware_loss, (x, y)), (normalizers, (y,))):
        with pytest.raises(TypeError, match=message):
            function(*arguments, edge_class_weight="running", ignore_index=IGNORE)
    with pytest.raises(ValueError, match="edge_class_weight: expected a tensor, 'running' or None, but got 'balanced'"):
        EdgeAwareLoss(edge_class_weight="balanced")  # type: ignore[arg-type]
    assert repr(running()).startswith("EdgeAwareLoss(edge_class_weight='running', ignore_index=255")
