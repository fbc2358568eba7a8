"""Calibration, HD95 and clDice, checked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from quality.scores import METRICS, PER_CLASS, PER_IMAGE, Calibration, Shapes, evaluate, thin_class

VOID = 255


def logits_of(*probabilities: float) -> torch.Tensor:
    """Return logits [1, 2, 1, W] with these probabilities of class 1."""
    p = torch.tensor(probabilities)
    return torch.stack([(1 - p).log(), p.log()])[None, :, None]


def test_calibration_by_hand() -> None:
    calibration = Calibration(VOID)
    # Two pixels of confidence 0.9, one right; one of 0.6, right; void. The second and third are at an edge.
    calibration.update(logits_of(0.9, 0.9, 0.4, 0.5), torch.tensor([[[1, 1, 0, VOID]]]))
    calibration.update(logits_of(0.1, 0.9), torch.tensor([[[1, 1]]]))
    scores = calibration.compute()
    # confidence 0.9: four pixels, three right; 0.6: one, right
    assert scores["ece"] == pytest.approx((abs(3 - 3.6) + abs(1 - 0.6)) / 5)
    assert scores["ece_edge"] == pytest.approx((abs(1 - 0.9) + abs(1 - 0.6)) / 2)
    assert scores["nll"] == pytest.approx(-(3 * math.log(0.9) + math.log(0.6) + math.log(0.1)) / 5)
    assert scores["nll_edge"] == pytest.approx(-(math.log(0.9) + math.log(0.6)) / 2)
    assert all(math.isnan(value) for value in Calibration(VOID).compute().values())


def test_calibration_of_a_sure_prediction() -> None:
    calibration = Calibration(VOID)
    calibration.update(torch.tensor([[[[0.0]], [[200.0]]]]), torch.tensor([[[1]]]))  # of confidence 1, in the last bin
    assert calibration.compute()["ece"] == 0


def one_hot(labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(labels, 3).movedim(-1, 1)


def test_hd95_by_hand() -> None:
    target = torch.zeros(2, 9, 12, dtype=torch.long)
    target[:, :, 4:] = 1
    pred = torch.zeros_like(target)
    pred[0, :, 7:] = 1  # three columns off; the second image has no class 1
    shapes = Shapes(3, VOID)
    shapes.update(one_hot(pred), target)
    # Class 0: 3 px in the first image; in the second all of the image's border is its border, and farther.
    first, second = shapes.hd95[0].tolist()
    assert first[:2] == [3.0, 3.0]
    assert second[0] > 3
    assert math.isnan(second[1])
    assert shapes.compute() == {"hd95": pytest.approx((3 + (3 + second[0]) / 2) / 2)}  # without class 2
    target[0, :, 4:7] = VOID  # where they differ
    shapes = Shapes(3, VOID)
    shapes.update(one_hot(pred[:1]), target[:1])
    assert shapes.compute() == {"hd95": 0}


def test_cldice_by_hand() -> None:
    target = torch.zeros(3, 7, 10, dtype=torch.long)
    target[:2, 3] = 1  # its own skeleton; the third image has none
    pred = torch.zeros_like(target)
    pred[0, 3, :5] = 1
    shapes = Shapes(3, VOID, thin=1)
    shapes.update(one_hot(pred), target)
    # All of the prediction's skeleton is in the target, and half of the target's in the prediction: 2 · 0.5 / 1.5.
    assert shapes.cldice == [pytest.approx(2 / 3), 0.0]
    assert shapes.compute()["cldice"] == pytest.approx(1 / 3)


def test_metrics_of_a_run() -> None:
    assert thin_class("topomortar", ["brick", "mortar"]) == 1
    assert thin_class("camvid", ["sky"]) is None
    target = torch.zeros(1, 8, 8, dtype=torch.long)
    target[:, 4:] = 1
    batches = [(torch.stack([1.0 - target, target], 1), target)]
    scores = evaluate(nn.Identity(), batches, 2, VOID, "cpu", thin=1)
    assert scores.keys() == {*METRICS, *PER_CLASS, *PER_IMAGE, "pixels"}
    assert (scores["f1_2"], scores["hd95"], scores["cldice"]) == (1, 0, 1)
    some = evaluate(nn.Identity(), batches, 2, VOID, "cpu", metrics=("miou", "f1_2"))
    assert some == {name: scores[name] for name in ("miou", "f1_2", "iou")}
    empty = evaluate(nn.Identity(), [(batches[0][0], torch.full_like(target, VOID))], 2, VOID, "cpu")
    assert empty["hd95"] is None
    assert empty["ece"] is None
