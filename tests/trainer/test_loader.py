"""The seeds of workers, and the order of batches and micro-batches."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edgeloss.io import Pair, Split
from segkit.data import SegmentationDataset
from segkit.loader import Batches, MicroBatch


class Order(SegmentationDataset):
    """Samples that are their own index, and numbers from the global generators, as a transform may draw them."""

    def __init__(self) -> None:
        """Name them."""
        pairs = [Pair(f"image {i}", Path(f"{i}.png"), Path()) for i in range(11)]
        super().__init__(Split(pairs, ["a", "b"]))

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = (i, random.random(), float(np.random.random()), float(torch.rand(())))
        return torch.tensor(drawn, dtype=torch.float64), torch.tensor([i])


def at(epoch: int = 0, done: int = 0, accumulate: int = 1, rank: int = 0, world: int = 1) -> Any:
    """Return a trainer at a place of an epoch, counted from 0."""
    progress = SimpleNamespace(current=SimpleNamespace(ready=done))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    process = {"global_rank": rank, "world_size": world, "accumulate_grad_batches": accumulate}
    return SimpleNamespace(current_epoch=epoch, fit_loop=loop, **process)


def indices(batches: Iterable[MicroBatch]) -> list[int]:
    return [int(i) for batch in batches for i in batch.images[:, 0].tolist() if batch.names]


@pytest.mark.skipif(sys.platform != "linux", reason="start methods differ elsewhere")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on one core
def test_random_numbers_of_workers_depend_on_seed_epoch_and_worker_only() -> None:
    def drawn(seed: int, epoch: int) -> torch.Tensor:
        batches = Batches(Order(), 1, 2, at(epoch), seed=seed)
        return torch.cat([batch.images[:, 1:] for batch in batches])  # in turn from one worker and the other

    first = drawn(0, 0)
    torch.rand(3)  # from which torch alone would seed its workers
    assert torch.equal(drawn(0, 0), first)
    assert first.unique().numel() == 33  # all generators, workers and samples differ
    for other in (drawn(1, 0), drawn(0, 1)):
        assert not (other == first).any()


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_micro_batches_of_an_epoch(accumulate: int) -> None:
    batches = Batches(Order(), 4, 0, at(3, accumulate=accumulate), seed=7)
    read = list(batches)
    assert len(batches) == len(read)
    assert sorted(indices(read)) == list(range(11))  # each image once
    begins = [batch for batch in read if batch.step_labels is not None]
    assert [batch.step_images for batch in begins] == [4, 4, 3]
    assert [len(batch.step_labels or ()) for batch in begins] == [accumulate] * 3
    whole = Batches(Order(), 4, 0, at(3), seed=7)  # steps do not depend on the micro-batches
    for begin, batch in zip(begins, whole, strict=True):
        together = torch.cat(begin.step_labels or []).flatten()
        assert sorted(together.tolist()) == sorted(batch.labels.flatten().tolist())
    for done in (accumulate, 2 * accumulate):  # a resumed epoch goes on where it stopped
        rest = list(Batches(Order(), 4, 0, at(3, done, accumulate), seed=7))
        assert [batch.names for batch in rest] == [batch.names for batch in read[done:]]
        assert [batch.step_images for batch in rest] == [batch.step_images for batch in read[done:]]
    other = [batch.names for batch in Batches(Order(), 4, 0, at(4), seed=7)]
    assert other != [batch.names for batch in whole]


def test_processes_share_a_batch() -> None:
    parts = [list(Batches(Order(), 5, 0, at(0, 0, 2, rank, 2), seed=0)) for rank in range(2)]
    assert len(parts[0]) == len(parts[1]) == 6
    assert sorted(indices([*parts[0], *parts[1]])) == list(range(11))
    empty = [batch for batch in parts[1] if not batch.names]
    assert [batch.labels.tolist() for batch in empty] == 2 * [[[255]]]  # of the last batch, which has one image
    with pytest.raises(ValueError, match="batch_size: expected at least accumulate_grad_batches × processes = 2 × 2"):
        Batches(Order(), 3, 0, at(0, 0, 2, 0, 2), seed=0)
