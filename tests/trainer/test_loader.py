"""The seeds of workers, and the order of batches and micro-batches."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_masks import open_folder

from segkit.data import AugmentedDataset, SegmentationDataset
from segkit.loader import Batches


class Drawing(SegmentationDataset):
    """Samples that draw from the global generators, as a transform may."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = (random.random(), float(np.random.random()), float(torch.rand(())))
        return torch.tensor(drawn, dtype=torch.float64), torch.tensor(i)


@pytest.mark.skipif(sys.platform != "linux", reason="start methods differ elsewhere")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
def test_random_numbers_of_workers_depend_on_seed_epoch_and_worker_only(folder: Path) -> None:
    def drawn(seed: int, epoch: int) -> torch.Tensor:
        batches = Batches(open_folder(folder, kind=Drawing), 1, 2, seed=seed, position=lambda: (epoch, 0))
        return torch.cat([batch.images for batch in batches])  # samples 0 and 2 from one worker, 1 from the other

    first = drawn(0, 0)
    torch.rand(3)  # from which torch alone would seed its workers
    assert torch.equal(drawn(0, 0), first)
    assert first.unique().numel() == 9  # all generators, workers and samples differ
    for other in (drawn(1, 0), drawn(0, 1)):
        assert not (other == first).any()


class Order(AugmentedDataset):
    """Samples that are their own index."""

    def __init__(self) -> None:
        """Name them."""
        super().__init__([f"image {i}" for i in range(11)], 255, seed=0, cache=False)

    def _decode(self, index: int) -> tuple[Any, Any]:
        return np.array(index), np.array([index])

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, labels, _ = self._read(i)
        return torch.from_numpy(image), torch.from_numpy(labels)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_micro_batches_of_an_epoch(accumulate: int) -> None:
    batches = Batches(Order(), 4, 0, seed=7, accumulate=accumulate, position=lambda: (3, 0))
    found = list(batches)
    assert len(batches) == len(found)
    assert sorted(i for batch in found for i in batch.images.tolist()) == list(range(11))  # each image once
    begins = [batch for batch in found if batch.step_labels is not None]
    assert [batch.step_images for batch in begins] == [4, 4, 3]
    assert [len(batch.step_labels or ()) for batch in begins] == [batch.parts for batch in begins]
    assert [batch.parts for batch in begins[:2]] == [accumulate] * 2
    whole = Batches(Order(), 4, 0, seed=7, position=lambda: (3, 0))  # steps do not depend on the micro-batches
    for begin, batch in zip(begins, whole, strict=True):
        together = torch.cat(begin.step_labels or []).flatten()
        assert sorted(together.tolist()) == sorted(batch.labels.flatten().tolist())
    for done in (accumulate, 2 * accumulate):  # a resumed epoch goes on where it stopped
        rest = list(Batches(Order(), 4, 0, seed=7, accumulate=accumulate, position=lambda done=done: (3, done)))
        assert [batch.names for batch in rest] == [batch.names for batch in found[done:]]
        assert [batch.step_images for batch in rest] == [batch.step_images for batch in found[done:]]
    other = [batch.names for batch in Batches(Order(), 4, 0, seed=7, position=lambda: (4, 0))]
    assert other != [batch.names for batch in whole]


def test_processes_share_a_batch() -> None:
    parts = [list(Batches(Order(), 5, 0, seed=0, accumulate=2, process=(rank, 2))) for rank in range(2)]
    assert len(parts[0]) == len(parts[1]) == 5
    assert sorted(i for part in parts for batch in part for i in (batch.images.tolist() if batch.names else [])) == [
        *range(11)
    ]
    empty = [batch for batch in parts[1] if not batch.names]
    assert len(empty) == 1  # of the last batch, which has one image
    assert empty[0].labels.tolist() == [[255]]
    with pytest.raises(ValueError, match="batch_size: expected at least accumulate_grad_batches × processes = 2 × 2"):
        Batches(Order(), 3, 0, seed=0, accumulate=2, process=(0, 2))
