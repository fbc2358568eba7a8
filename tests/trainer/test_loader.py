"""Workers, their cache and their seeds, and the order of batches and micro-batches."""

from __future__ import annotations

import random
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_masks import blocks, open_folder, save
from torch.utils.data import DataLoader

from segkit import loader
from segkit.data import Augment, AugmentedDataset, SegmentationDataset, _Cache
from segkit.loader import Batches

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="start methods differ elsewhere")
# Python 3.12 and later
fork_warns = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@on_linux
@fork_warns
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_set_epoch_reaches_workers_that_live_on(start: str, folder: Path) -> None:
    dataset = open_folder(folder, augment=Augment())
    loader = DataLoader(dataset, batch_size=3, num_workers=1, persistent_workers=True, multiprocessing_context=start)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        (image, mask), *_ = loader
        for index in range(3):
            assert torch.equal(image[index], dataset[index][0])
            assert torch.equal(mask[index], dataset[index][1])


def load(dataset: SegmentationDataset, workers: int, start: str | None = None) -> list[torch.Tensor]:
    """Load all images and labels of an epoch, in order."""
    loader = DataLoader(dataset, num_workers=workers, multiprocessing_context=start if workers else None)
    return [part for batch in loader for part in batch]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@on_linux
@fork_warns
@pytest.mark.parametrize(
    ("workers", "start"), [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("size", [None, (30, 50)])
@pytest.mark.parametrize("augment", [None, Augment()], ids=["plain", "augmented"])
def test_cache_gives_the_same_without_reading_again(
    workers: int, start: str | None, size: tuple[int, int] | None, augment: Augment | None, folder: Path
) -> None:
    save(folder, "b", blocks(70, 90))  # images of two sizes
    plain = open_folder(folder, size=size, augment=augment)
    cached = open_folder(folder, size=size, augment=augment, cache=True)
    expected = []
    for epoch in range(2):
        plain.set_epoch(epoch)
        expected.append(load(plain, 0))
    assert same(load(cached, workers, start), expected[0])
    for kind in ("images", "masks"):
        shutil.rmtree(folder / kind)
    cached.set_epoch(1)
    assert same(load(cached, workers, start), expected[1])  # what other processes have read


def test_cache_is_filled_when_asked_for(folder: Path) -> None:
    dataset = open_folder(folder, cache=True)
    first = dataset[1][0]
    (folder / "images" / "b.png").unlink()
    assert torch.equal(dataset[1][0], first)
    (folder / "images" / "c.png").unlink()
    with pytest.raises(ValueError, match=r"c\.png: No such file"):
        dataset[2]


def test_what_a_sample_changes_stays_out_of_the_cache(folder: Path) -> None:
    dataset = open_folder(folder, cache=True)
    image, labels = (part.clone() for part in dataset[0])
    for _ in range(2):
        again = dataset[0]
        assert torch.equal(again[0], image)
        assert torch.equal(again[1], labels)
        again[0].zero_()
        again[1].zero_()


@pytest.mark.parametrize(
    ("options", "pixels", "label_bytes"),
    [
        ({}, 2 * 60 * 80 + 70 * 90, 1),
        ({"size": (30, 50)}, 3 * 30 * 50, 1),
        ({"size": (30, 50), "augment": Augment()}, 2 * 60 * 80 + 70 * 90, 1),  # every epoch resizes to another size
        ({"num_classes": 300}, 2 * 60 * 80 + 70 * 90, 4),
        ({"ignore_index": -100}, 2 * 60 * 80 + 70 * 90, 4),
    ],
)
@pytest.mark.parametrize("cache", [False, True])
def test_cache_bytes_are_known_without_a_cache(
    options: dict[str, Any], pixels: int, label_bytes: int, cache: bool, folder: Path
) -> None:
    save(folder, "b", blocks(70, 90))
    dataset = open_folder(folder, **{"cache": cache, **options})
    assert dataset.cache_bytes == pixels * (3 + label_bytes)
    if cache:
        assert dataset._cache is not None
        assert dataset._cache._images.nbytes + dataset._cache._labels.nbytes == dataset.cache_bytes


def test_cache_keeps_large_and_negative_labels(tmp_path: Path) -> None:
    save(tmp_path, "a", blocks(classes=2))
    Image.fromarray(blocks(classes=2).astype(np.uint16) * 300).save(tmp_path / "masks" / "a.png")
    dataset = open_folder(tmp_path, num_classes=301, ignore_index=-100, cache=True)
    assert torch.equal(dataset[0][1], torch.from_numpy(blocks(classes=2)).long() * 300)
    assert torch.equal(dataset[0][1], dataset[0][1])


def test_cache_leaves_out_what_does_not_fit_its_place(folder: Path) -> None:
    """A file may be replaced by one of another size after the memory was allocated."""
    dataset = open_folder(folder, cache=True)
    neighbors = dataset[0][0], dataset[2][0]
    save(folder, "b", blocks(70, 90))
    assert dataset[1][1].shape == dataset[1][1].shape == (70, 90)
    assert torch.equal(dataset[0][0], neighbors[0])
    assert torch.equal(dataset[2][0], neighbors[1])


def test_cache_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("shared memory is no file system here")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    with pytest.raises(
        ValueError, match=re.escape("cache: expected 4.0 GiB of shared memory, but /dev/shm has 1.0 GiB")
    ):
        _Cache([2**20] * 1024, torch.uint8)


def test_cache_names_the_image_whose_size_it_can_not_read(folder: Path) -> None:
    (folder / "images" / "b.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"b\.png: can't be read as an image"):
        open_folder(folder, cache=True)


class Drawing(SegmentationDataset):
    """Samples that draw from the global generators, as a transform may."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = (random.random(), float(np.random.random()), float(torch.rand(())))
        return torch.tensor(drawn, dtype=torch.float64), torch.tensor(i)


@on_linux
@fork_warns
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

    ignore_index = 255
    names = tuple(f"image {i}" for i in range(11))

    def __len__(self) -> int:
        return 11

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(i), torch.tensor([i])


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_micro_batches_of_an_epoch(accumulate: int) -> None:
    batches = Batches(Order(0), 4, 0, seed=7, accumulate=accumulate, position=lambda: (3, 0))
    found = list(batches)
    assert len(batches) == len(found)
    assert sorted(i for batch in found for i in batch.images.tolist()) == list(range(11))  # each image once
    begins = [batch for batch in found if batch.step_labels is not None]
    assert [batch.step_images for batch in begins] == [4, 4, 3]
    assert [len(batch.step_labels or ()) for batch in begins] == [batch.parts for batch in begins]
    assert [batch.parts for batch in begins[:2]] == [accumulate] * 2
    whole = Batches(Order(0), 4, 0, seed=7, position=lambda: (3, 0))  # steps do not depend on the micro-batches
    for begin, batch in zip(begins, whole, strict=True):
        together = torch.cat(begin.step_labels or []).flatten()
        assert sorted(together.tolist()) == sorted(batch.labels.flatten().tolist())
    for done in (accumulate, 2 * accumulate):  # a resumed epoch goes on where it stopped
        rest = list(Batches(Order(0), 4, 0, seed=7, accumulate=accumulate, position=lambda done=done: (3, done)))
        assert [batch.names for batch in rest] == [batch.names for batch in found[done:]]
        assert [batch.step_images for batch in rest] == [batch.step_images for batch in found[done:]]
    other = [batch.names for batch in Batches(Order(0), 4, 0, seed=7, position=lambda: (4, 0))]
    assert other != [batch.names for batch in whole]


def test_processes_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "world_size", lambda: 2)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(loader, "rank", lambda rank=rank: rank)
        parts.append(list(Batches(Order(0), 5, 0, seed=0, accumulate=2)))
    assert len(parts[0]) == len(parts[1]) == 5
    assert sorted(i for part in parts for batch in part for i in (batch.images.tolist() if batch.names else [])) == [
        *range(11)
    ]
    empty = [batch for batch in parts[1] if not batch.names]
    assert len(empty) == 1  # of the last batch, which has one image
    assert empty[0].labels.tolist() == [[255]]
    with pytest.raises(ValueError, match="batch_size: expected at least accumulate_grad_batches × processes = 2 × 2"):
        Batches(Order(0), 3, 0, seed=0, accumulate=2)
