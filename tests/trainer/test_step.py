"""One optimizer step: scaling, clipping, averaging, and what never reaches a weight."""

import math
from pathlib import Path

import pytest
import torch
from small_run import CLASSES
from stateless import stateless_loss
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from edgeloss import EdgeAwareLoss
from segkit.checkpoint import load_weights
from segkit.evaluation import evaluate
from segkit.guard import NanGuard, NonFiniteLossError
from segkit.loader import MicroBatch
from segkit.model import UNet
from segkit.placement import Placement
from segkit.state import TrainingState
from segkit.step import TrainStep

CPU = Placement(torch.device("cpu"))


def small_training(
    *, scaler: torch.amp.GradScaler | None = None, ema: float | None = None
) -> tuple[TrainingState, EdgeAwareLoss, list[MicroBatch]]:
    """Return a network with gradient descent at rate 1, a loss and a batch."""
    network = UNet(3, width=8, levels=2)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    averaged = None if ema is None else AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(ema))
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    training = TrainingState(network, optimizer, LambdaLR(optimizer, lambda step: 1.0), scaler, averaged)
    labels = torch.zeros(2, 8, 8, dtype=torch.int64)
    labels[:, 2:5, 3:] = 1
    return training, stateless_loss(), [MicroBatch(["a", "b"], torch.randn(2, 3, 8, 8), labels)]


def step(
    training: TrainingState,
    criterion: EdgeAwareLoss,
    batch: list[MicroBatch],
    folder: Path,
    *,
    placement: Placement = CPU,
    clip: float | None = None,
) -> dict[str, float]:
    """Take a step, with a guard that writes into the folder."""
    guard = NanGuard(folder, criterion, action="stop")
    figures = TrainStep(training, training.network, criterion, placement, guard, clip)(batch, number=1)
    assert figures is not None
    return figures


def gradient(training: TrainingState) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in training.network.parameters()]


def weights(network: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def test_figures_are_those_of_one_batch_of_all_images(tmp_path: Path) -> None:
    training, _, [(names, images, labels)] = small_training()
    labels[0] = 0  # without edges
    criterion = EdgeAwareLoss(edge_weight=0.5)
    with torch.no_grad():
        loss, terms = criterion(training.network.eval()(images), labels, return_terms=True)
    expected = {name: pytest.approx(float(value)) for name, value in {"loss": loss, **terms}.items()}
    parts = [MicroBatch(names[i : i + 1], images[i : i + 1], labels[i : i + 1]) for i in range(2)]
    measured = evaluate(training.network, criterion, [[part] for part in parts], classes=CLASSES, placement=CPU)
    assert {name: measured[name] for name in expected} == expected
    assert step(training, criterion, parts, tmp_path) == expected


def test_edges_of_a_validation_set_count_by_their_class_weights() -> None:
    training, _, [(names, images, labels)] = small_training()
    labels[0] *= 2  # the images have edges of other classes
    criterion = stateless_loss(edge_class_weight=torch.tensor([1.0, 0.1, 5.0]), region_weight=0.5)
    with torch.no_grad():
        loss, terms = criterion(training.network.eval()(images), labels, return_terms=True)
    parts = [[MicroBatch(names[i : i + 1], images[i : i + 1], labels[i : i + 1])] for i in range(2)]
    measured = evaluate(training.network, criterion, parts, classes=CLASSES, placement=CPU)
    for name, value in {"loss": loss, **terms}.items():
        assert measured[name] == pytest.approx(float(value)), name


def test_a_scaled_loss_gives_the_same_step(tmp_path: Path) -> None:
    plain, criterion, batch = small_training()
    scaled, _, _ = small_training(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    load_weights(scaled.network, plain.network.state_dict())
    for training in (plain, scaled):
        step(training, criterion, batch, tmp_path, clip=0.1)
    torch.testing.assert_close(gradient(scaled), gradient(plain))  # clipped after it is scaled back
    torch.testing.assert_close(weights(scaled.network), weights(plain.network))


def test_a_step_whose_gradient_overflowed_is_skipped(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    training, _, batch = small_training(scaler=scaler, ema=0.5)
    criterion = EdgeAwareLoss(ce_weight=1e3)  # times the scale beyond float32
    before = weights(training.network)
    figures = step(training, criterion, batch, tmp_path)
    assert math.isfinite(figures["loss"])
    assert training.step == 0
    assert scaler.get_scale() == 2.0**126
    torch.testing.assert_close(weights(training.network), before, rtol=0, atol=0)
    assert training.ema.n_averaged == 0
    while training.step == 0:  # each halves the scale, until one fits
        step(training, criterion, batch, tmp_path)
    assert training.ema.n_averaged == 1
    assert all(weight.isfinite().all() for weight in weights(training.network))


def test_a_gradient_that_is_not_finite_raises_before_it_reaches_a_weight(tmp_path: Path) -> None:
    training, criterion, batch = small_training()
    training.network.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = weights(training.network)
    with pytest.raises(NonFiniteLossError, match=r"the gradient is (inf|nan) at step 1 on the images a, b"):
        step(training, criterion, batch, tmp_path)
    torch.testing.assert_close(weights(training.network), before, rtol=0, atol=0)


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    training, criterion, batch = small_training()
    before = weights(training.network)
    step(training, criterion, batch, tmp_path, clip=1e-2)
    steps = [new - old for new, old in zip(weights(training.network), before, strict=True)]
    assert torch.nn.utils.get_total_norm(steps).item() == pytest.approx(1e-2, rel=1e-3)


def test_weights_are_averaged(tmp_path: Path) -> None:
    training, criterion, batch = small_training(ema=0.9)
    expected = None
    for _ in range(3):
        step(training, criterion, batch, tmp_path)
        new = weights(training.network)
        expected = new if expected is None else [0.9 * a + 0.1 * b for a, b in zip(expected, new, strict=True)]
    torch.testing.assert_close(weights(training.averaged), expected)


def test_the_loss_reads_half_precision_as_it_is(tmp_path: Path) -> None:
    training, criterion, batch = small_training()
    seen = []
    criterion.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].dtype))
    step(training, criterion, batch, tmp_path, placement=Placement(torch.device("cpu"), torch.bfloat16))
    assert seen == [torch.bfloat16]
