"""Batches of a data set, divided among processes and micro-batches, with a clock for the time spent waiting."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from segkit.data import SegmentationDataset
from segkit.distributed import rank, world_size
from segkit.seeding import seed_worker
from segkit.signals import let_main_process_stop, without_sigterm

T = TypeVar("T")


class DataError(ValueError):
    """An image or mask that can't be used; the message has one line."""


class MicroBatch(NamedTuple):
    """Images that go through the network together.

    Attributes:
        names: names of the images. Empty if the micro-batch only keeps this process in step with the others: all its
            labels are void then, and it counts in nothing.
        images: [B, 3, H, W].
        labels: [B, H, W].
    """

    names: list[str]
    images: Tensor
    labels: Tensor


def load_batches(
    dataset: SegmentationDataset,
    batch_size: int,
    workers: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    accumulate: int = 1,
    skip: int = 0,
) -> Iterator[list[MicroBatch]]:
    """Load a data set once and yield the micro-batches of each batch.

    Each process gets its own part of a batch. Order and augmentation depend on `seed` and `epoch` only, not on what ran
    before or on the number of processes.

    Args:
        dataset: the images and masks.
        batch_size: images per batch, over all processes; the last batch may have fewer.
        workers: processes that read ahead; 0 reads in this one.
        seed: seed of the order; None keeps the order of the data set.
        epoch: the epoch.
        accumulate: micro-batches per batch and process.
        skip: batches to leave out at the beginning, without reading them.

    Raises:
        DataError: if a file can't be used.
    """
    order = np.arange(len(dataset)) if seed is None else np.random.default_rng((seed, epoch)).permutation(len(dataset))
    dataset.set_epoch(epoch)
    starts = range(0, len(order), batch_size)
    steps = [split_batch(order[start : start + batch_size].tolist(), accumulate) for start in starts][skip:]
    parts = [part for step in steps for part in step]
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        dataset,
        batch_sampler=[part or [0] for part in parts],
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_start_worker,
        generator=torch.Generator().manual_seed(seed or 0),  # the workers' seeds take nothing from the global generator
    )
    with without_sigterm():  # workers get it when they are ready for it
        loaded = zip(parts, loader, strict=True)
    try:
        for step in steps:
            micro_batches = []
            for part, (images, labels) in islice(loaded, len(step)):
                if not part:
                    labels.fill_(dataset.ignore_index)
                micro_batches.append(MicroBatch([dataset.names[index] for index in part], images, labels))
            yield micro_batches
    except (OSError, ValueError) as error:
        # A worker's error comes with the worker's traceback, whose last line has the type and the message.
        raise DataError(re.sub(r"^[\w.]+(Error|Exception): ", "", str(error).strip().splitlines()[-1])) from error


def split_batch(batch: list[int], accumulate: int) -> list[list[int]]:
    """Return the images of a batch that this process takes, in micro-batches.

    Every process gets the same number of micro-batches, since each waits for the others once per micro-batch; where
    there are too few images, some are empty.
    """
    mine = batch[rank() :: world_size()]
    parts = min(accumulate, math.ceil(len(batch) / world_size()))
    return [mine[part::parts] for part in range(parts)]


def _collate(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return images and labels of one size as a batch."""
    sizes = sorted({tuple(labels.shape) for _, labels in samples})
    if len(sizes) > 1:
        shown = ", ".join(" x ".join(map(str, size)) for size in sizes)
        raise ValueError(
            f"data.size: expected images of one size in a batch, but got height x width {shown}; pass data.size to"
            " resize them, or batch_size=1"
        )
    batch: list[Tensor] = default_collate(samples)
    return batch


def _start_worker(worker: int) -> None:
    """Seed a worker, and leave signals to the main process."""
    seed_worker(worker)
    let_main_process_stop()


class TimedIterator(Iterator[T]):
    """Iterate, and measure the time spent waiting for the next element.

    With a loader whose workers keep up, there is next to no waiting; where ``seconds`` is a large part of an epoch,
    the loader is the bottleneck.

    Args:
        iterable: what to iterate over, once; for instance a loader.

    Attributes:
        seconds: time spent in the iterable so far, with its start and end.
    """

    def __init__(self, iterable: Iterable[T]) -> None:
        """Store the iterable; iteration starts with the first element."""
        self._iterable = iterable
        self._iterator: Iterator[T] | None = None
        self.seconds = 0.0

    def __next__(self) -> T:
        """Return the next element."""
        start = time.perf_counter()
        try:
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            return next(self._iterator)
        finally:
            self.seconds += time.perf_counter() - start
