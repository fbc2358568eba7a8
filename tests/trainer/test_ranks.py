"""Several ranks take a step and evaluate as one process does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from small_run import CLASSES, VOID, write_config
from torch.nn.parallel import DistributedDataParallel

from edgeloss import EdgeAwareLoss
from segkit import loader
from segkit.data import SegmentationFolder
from segkit.evaluation import evaluate
from segkit.guard import NanGuard
from segkit.loader import MicroBatch, load_batches, split_batch
from segkit.model import UNet
from segkit.placement import Placement
from segkit.state import TrainingState
from segkit.step import TrainStep

CPU = Placement(torch.device("cpu"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training images of a small run."""
    return write_config(tmp_path_factory.mktemp("ranks")).parent / "train"


def batch(case: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return six crops; those of rank 1 may have no edge, or be all void."""
    random = torch.Generator().manual_seed(1)
    images, labels = torch.randn(6, 3, 16, 16, generator=random), torch.zeros(6, 16, 16, dtype=torch.int64)
    for i in range(6):  # of very different counts
        labels[i, : 2 * i + 2, 3:9] = 1
        labels[i, 12:, : i + 1] = 2
    labels[2, :7] = VOID
    others = {"no edge": 1, "all void": VOID}
    if case in others:
        labels[[1, 3, 4, 5]] = others[case]  # rank 1 of two; ranks 1 and 2 of three, except for crop 2
    return images, labels


def one_step(case: str, accumulate: int, count: int = 6) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Return the figures and the gradient of a step over the first `count` crops, on all ranks."""
    torch.manual_seed(0)
    network = UNet(3, width=8, levels=3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    state = TrainingState(network, optimizer, scheduler, torch.amp.GradScaler("cpu", enabled=False))
    model = DistributedDataParallel(network) if dist.is_initialized() else network
    images, labels = batch(case)
    micro_batches = []
    for part in split_batch(list(range(count)), accumulate):
        names = [str(i) for i in part]
        micro_batches.append(MicroBatch(names, images[part or [0]], labels[part] if part else labels[[0]] * 0 + VOID))
    criterion = EdgeAwareLoss(torch.tensor([1.0, 2.0, 0.5]), ignore_index=VOID, sync_normalizer=True)
    guard = NanGuard(Path("not written"), criterion)
    figures = TrainStep(state, model, criterion, CPU, guard)(micro_batches, number=1)
    assert figures is not None
    return figures, [parameter.grad for parameter in network.parameters()]


# Case, micro-batches and number of crops; with few crops, micro-batches and even ranks get none.
STEPS = [
    *((case, accumulate) for case in ("plain", "no edge", "all void") for accumulate in (1, 2)),
    ("plain", 2, 5),
    ("plain", 1, 1),
]


def measure(data: Path) -> dict[str, float | None]:
    """Return the figures of a network on the training images."""
    torch.manual_seed(0)
    dataset = SegmentationFolder(data, num_classes=3, ignore_index=VOID)
    criterion = EdgeAwareLoss(ignore_index=VOID, sync_normalizer=True)
    return evaluate(UNet(3, width=8), criterion, load_batches(dataset, 2, 0), classes=CLASSES, placement=CPU)


def one_rank(rank: int, folder: Path, data: Path) -> None:
    torch.save(([one_step(*step) for step in STEPS], measure(data)), folder / f"{rank}.pt")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of each of two or three ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(request.param, folder, one_rank, folder, data)
    return [torch.load(folder / f"{index}.pt") for index in range(request.param)]


@pytest.mark.parametrize("index", range(len(STEPS)), ids=str)
def test_a_step_takes_the_gradient_of_the_whole_batch(index: int, ranks: list[Any]) -> None:
    case, _, *count = STEPS[index]
    figures, gradient = one_step(case, 1, *count)
    assert max(g.abs().max() for g in gradient) > 0.01
    for steps, _ in ranks:
        for got, expected in zip(steps[index][1], gradient, strict=True):
            # float32: the region term divides by the noise of a prediction that is nearly constant, as here.
            torch.testing.assert_close(got, expected, rtol=0, atol=3e-6)
        assert steps[index][0] == pytest.approx(figures, rel=1e-5)


@pytest.mark.parametrize("accumulate", [2, 3, 4, 6])
def test_parts_of_a_batch_add_up_to_its_gradient(accumulate: int) -> None:
    figures, gradient = one_step("plain", 1)
    in_parts, of_parts = one_step("plain", accumulate)
    assert in_parts == pytest.approx(figures, rel=1e-5)
    torch.testing.assert_close(of_parts, gradient, rtol=0, atol=1e-6)


def test_a_whole_set_is_measured_once(ranks: list[Any], data: Path) -> None:
    """Five images: in the last batch all ranks but one have none."""
    expected = measure(data)
    for _, measured in ranks:
        assert measured == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 7])
def test_parts_of_all_ranks_make_up_the_batch(
    world: int, accumulate: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "world_size", lambda: world)
    shares = []
    for index in range(world):
        monkeypatch.setattr(loader, "rank", lambda index=index: index)
        shares.append(split_batch(list(range(length)), accumulate))
    assert sorted(image for parts in shares for part in parts for image in part) == list(range(length))
    assert len({len(parts) for parts in shares}) == 1  # or one process would wait forever
    sizes = [sum(map(len, parts)) for parts in shares]
    assert max(sizes) - min(sizes) <= 1
    assert len(shares[0]) == min(accumulate, math.ceil(length / world))
