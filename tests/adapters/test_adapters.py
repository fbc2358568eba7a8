"""Labels in the forms of frameworks, and losses of several outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.adapters import Adapted, as_labels

LABELS = torch.tensor([[[0, 1, 2, 2], [2, 2, 0, 1], [1, 1, 1, 0]]])  # [1, 3, 4]
LOGITS = torch.randn(1, 3, 3, 4, generator=torch.Generator().manual_seed(0))
ONE_HOT = F.one_hot(LABELS, 3).movedim(-1, 1)


@pytest.mark.parametrize(
    "target",
    [
        LABELS,
        LABELS.byte(),
        LABELS.to(torch.int8),
        LABELS[:, None],
        LABELS[:, None].float(),
        LABELS.double(),
        ONE_HOT,
        ONE_HOT.bool(),
    ],
)
def test_forms_of_the_same_labels(target: Tensor) -> None:
    assert as_labels(target, LOGITS).equal(LABELS.to(as_labels(target, LOGITS).dtype))


def test_a_binary_target_has_one_channel_or_two() -> None:
    y = LABELS.clamp(max=1)
    for target in (y[:, None].float(), F.one_hot(y, 2).movedim(-1, 1)):
        assert as_labels(target, LOGITS[:, :1]).equal(y)


def test_a_depth_of_one_is_no_channel() -> None:
    assert as_labels(LABELS[:, None], torch.zeros(1, 3, 1, 3, 4)).shape == (1, 1, 3, 4)


def test_pixels_without_a_class_are_ignored_or_refused() -> None:
    target = ONE_HOT.clone()
    target[..., 0, 0] = 0
    assert as_labels(target, LOGITS, ignore_index=255)[0, 0].tolist() == [255, 1, 2, 2]
    assert as_labels(ONE_HOT, LOGITS, ignore_index=None).equal(LABELS)
    with pytest.raises(ValueError, match="expected a class for each pixel, but got one without; pass ignore_index"):
        as_labels(target, LOGITS, ignore_index=None)


def test_labels_of_classes_that_overlap() -> None:
    target = (torch.rand(LOGITS.shape) < 0.5).long()
    for form in (target, target.bool(), target.float()):
        assert as_labels(form, LOGITS, multilabel=True).long().equal(target)
    message = r"target: expected labels of each class \[B, 3, \*S\] for logits .* int64 \[1, 3, 4"
    with pytest.raises(ValueError, match=message):
        as_labels(LABELS, LOGITS, multilabel=True)
    expected = EdgeAwareLoss(multilabel=True)(LOGITS, target)
    assert Adapted(EdgeAwareLoss(multilabel=True))(LOGITS, target.float()).equal(expected)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (LABELS + 0.5, "target: expected whole numbers, but got fractions or nan"),
        (LABELS / torch.zeros(()), "target: expected whole numbers, but got fractions or nan"),
        (ONE_HOT * 0.5, "target: expected a one-hot indicator of 0 and 1"),
        (torch.ones(1, 3, 3, 4), "target: expected one class per pixel, but got a pixel with several"),
        (ONE_HOT[:, :2], r"target: expected \[B, \*S\], \[B, 1, \*S\] or one-hot \[B, 3, \*S\] for logits \[1, 3, 3"),
        (LABELS[0], r"target: expected \[B, \*S\]"),
    ],
)
def test_other_targets_are_refused(target: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_labels(target, LOGITS)


@pytest.mark.parametrize("output", [{"out": LOGITS, "aux": None}, SimpleNamespace(out=LOGITS)])
def test_outputs_with_names(output: Any) -> None:
    assert Adapted(EdgeAwareLoss(), key="out")(output, LABELS).equal(EdgeAwareLoss()(LOGITS, LABELS))


def test_deep_supervision_is_a_weighted_sum() -> None:
    small = F.avg_pool2d(LOGITS, 2)
    loss = EdgeAwareLoss(upsample=True)
    expected = loss(LOGITS, LABELS) + 0.25 * loss(small, LABELS)
    criterion = Adapted(loss, weights=[1, 0.25])
    assert criterion([LOGITS, small], LABELS[:, None].float()).equal(expected)
    stored = {f"criteria.{output}.edge_counts": torch.ones(3) for output in range(2)}  # by version 0.3
    criterion.load_state_dict(stored)
    assert not criterion.state_dict()


def test_a_target_for_each_output() -> None:
    outputs, targets = [LOGITS, LOGITS[..., :2]], [LABELS, LABELS[..., :2]]
    expected = EdgeAwareLoss()(outputs[0], targets[0]) + EdgeAwareLoss()(outputs[1], targets[1])
    assert Adapted(EdgeAwareLoss(), weights=[1, 1])(outputs, targets).equal(expected)
    with pytest.raises(ValueError, match="output: expected 2 outputs and as many targets or one, but got 1 and 1"):
        Adapted(EdgeAwareLoss(), weights=[1, 1])(outputs[:1], LABELS)


def test_the_criterion_says_where_the_logits_are() -> None:
    with pytest.raises(TypeError, match=r'logits: expected a tensor, but got dict; pass output\["out"\]'):
        Adapted(EdgeAwareLoss())({"out": LOGITS}, LABELS)
