"""``multilabel=True``: C binary losses in one call, with labels, edges and class weights of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, normalizers
from edgeloss.viz import panel

IGNORE = 255


def scene(size: tuple[int, ...], classes: int, low: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """Return logits [2, C, *low or *size] and labels [2, C, *size] of regions that overlap; some pixels are ignored."""
    x = torch.randn(2, classes, *(low or size), dtype=torch.float64) * 3
    y = torch.randint(2, (2, classes, *size))
    y[:, :, : size[0] // 2] = 0  # another share of edges in each half
    y[torch.rand(y.shape) < 0.15] = IGNORE
    return x, y


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("classes", [1, 3])
def test_running_weights_of_each_label_of_each_class(classes: int) -> None:
    criterion = stateless_loss(edge_class_weight="running", multilabel=True, ignore_index=IGNORE)
    seen = []
    for _ in range(3):
        x, y = scene((7, 9), classes)
        u = criterion.current_edge_class_weight
        assert torch.equal(
            criterion(x, y), edge_aware_loss(x, y, multilabel=True, edge_class_weight=u, ignore_index=IGNORE)
        )
        seen.append(y)
    counts = torch.zeros(classes, 2)
    for c in range(classes):
        binary = stateless_loss(edge_class_weight="running", ignore_index=IGNORE)
        for y in seen:
            binary(torch.zeros(2, 1, 7, 9), y[:, c])
        counts[c] = binary.edge_counts
    assert torch.equal(criterion.edge_counts, counts.long())
    u = criterion.current_edge_class_weight
    assert u is not None
    prior = counts.mean() / 3
    torch.testing.assert_close(u, counts.sum() / (counts + prior) / (counts / (counts + prior)).sum())
    balanced = balanced_edge_class_weight(seen, classes, multilabel=True, ignore_index=IGNORE)
    torch.testing.assert_close(balanced, counts.sum() / counts / counts.numel())


@pytest.mark.usefixtures("each_backend")
def test_parts_of_a_step_add_up() -> None:
    whole, parts = (EdgeAwareLoss(multilabel=True, ignore_index=IGNORE, reduction="mean") for _ in range(2))
    for _ in range(3):
        x, y = scene((7, 9), 3)
        v = torch.rand(2, 7, 9)
        total = parts.step_normalizer(y.split(1), v.split(1))
        losses = [parts(x[i : i + 1], y[i : i + 1], pixel_weight=v[i : i + 1], normalizer=total) for i in range(2)]
        torch.testing.assert_close(torch.stack(losses).sum(), whole(x, y, pixel_weight=v))
        assert torch.equal(parts.edge_counts, whole.edge_counts)
        torch.testing.assert_close(parts.edge_sums, whole.edge_sums)
        assert 0 < float(whole.current_edge_weight) <= 1


def test_a_state_continues() -> None:
    criterion, other = (EdgeAwareLoss(multilabel=True, ignore_index=IGNORE) for _ in range(2))
    x, y = scene((7, 9), 3)
    criterion(x, y)
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other(x, y), criterion(x, y))
    with pytest.raises(RuntimeError, match="size mismatch for edge_counts"):
        EdgeAwareLoss().load_state_dict(criterion.state_dict())
    with pytest.raises(
        ValueError, match=r"logits: expected 3 classes, as edge_class_weight='running' has counted, but got 2"
    ):
        criterion(x[:, :2], y[:, :2])


def test_the_loss_of_one_class() -> None:
    x, y = scene((7, 9), 3)
    weight = torch.rand(3, 2)
    criterion = EdgeAwareLoss(weight, multilabel=True, ignore_index=IGNORE, reduction="sum")
    for _ in range(2):
        criterion(x, y)
    losses = [criterion.of_class(c)(x[:, c : c + 1], y[:, c]) for c in range(3)]
    torch.testing.assert_close(torch.stack(losses).sum(), criterion.eval()(x, y))
    criterion.of_class(0)(x[:, :1], y[:, 0])  # a call counts nothing
    assert criterion.counted_steps == 2
    with pytest.raises(ValueError, match=r"got multilabel=True; for class c pass .*criterion.of_class\(c\)"):
        panel(x, y, criterion=criterion)
    figure = panel(x[:, :1], y[:, 0], criterion=criterion.of_class(0), class_names=["other", "first"])
    assert figure.axes
    with pytest.raises(ValueError, match="multilabel: expected True for a loss of one class, but got False"):
        EdgeAwareLoss().of_class(0)


def test_wrong_targets_of_normalizers() -> None:
    with pytest.raises(
        ValueError, match=r"target: expected \[B, C, H, W\] or \[B, C, D, H, W\], but got \[3, 7, 9\]; .*unsqueeze"
    ):
        normalizers(torch.zeros(3, 7, 9, dtype=torch.long), multilabel=True)
    with pytest.raises(ValueError, match=r"targets: expected \[B, 2, \*S\], but got \[1, 3, 7, 9\]"):
        balanced_edge_class_weight([torch.zeros(1, 3, 7, 9, dtype=torch.long)], 2, multilabel=True)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("multilabel", [False, True])
def test_no_label_is_ignored(multilabel: bool) -> None:
    x, y = scene((7, 9), 3)
    y = y.clamp(max=1) if multilabel else y[:, 0].clamp(max=2)
    given: dict[str, Any] = {"multilabel": multilabel, "edge_class_weight": torch.tensor([1.0, 2.0, 0.5])}
    loss = edge_aware_loss(x, y, ignore_index=None, **given)
    assert torch.equal(loss, edge_aware_loss(x, y, **given))
    assert normalizers(y, ignore_index=None, **given) == normalizers(y, **given)
    u = balanced_edge_class_weight([y], 3, ignore_index=None, multilabel=multilabel)
    assert torch.equal(u, balanced_edge_class_weight([y], 3, multilabel=multilabel))
    criterion = stateless_loss(ignore_index=None, multilabel=multilabel)
    assert torch.equal(criterion(x, y), edge_aware_loss(x, y, multilabel=multilabel))
    y.view(-1)[5] = -100
    wanted = "0 or 1 .one logit per pixel is binary." if multilabel else "0 to 2"
    with pytest.raises(ValueError, match=f"target: expected labels {wanted}, but got -100 at "):
        edge_aware_loss(x, y, ignore_index=None, validate="sync", **given)
    with pytest.raises(ValueError, match=r"target: expected labels .*, but got -100 at 1 pixel"):
        normalizers(y, ignore_index=None, **given)
