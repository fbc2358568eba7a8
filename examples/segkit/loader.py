"""The data of a run: files of a data set in, batches out, divided among processes and micro-batches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from lightning import LightningDataModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from edgeloss.io import InputError, find_split
from segkit.data import Augment, SegmentationDataset

# Names of the parts of data sets for training and validation; those of others are train and val.
PARTS = {"ade20k": ("training", "validation"), "coco-stuff": ("train2017", "val2017"), "pet": ("trainval", "test")}


class MicroBatch(NamedTuple):
    """Images that go through the network together.

    Attributes:
        images: [B, K, *S].
        labels: [B, *S].
        names: Names of the images. Empty if the micro-batch only keeps this process in step with the others: all its
            labels are void then, and it counts in nothing.
        step_labels: The labels of every micro-batch that this process has in the step, with the first of them; else
            None.
        step_images: Number of images in the step, over all processes.
    """

    images: Tensor
    labels: Tensor
    names: list[str]
    step_labels: list[Tensor] | None
    step_images: int


class Batches:
    """Micro-batches of a data set, in an order that depends on a seed and the epoch only.

    Each process gets its own part of a batch: images r, r + n, r + 2n ... in process r of n. All get the same number of
    micro-batches, since each waits for the others once per micro-batch; where there are too few images, some are empty.
    A resumed run skips the steps that the trainer has done without reading them.

    Args:
        dataset: Images and labels.
        batch_size: Images per step, over all processes; the last batch may have fewer.
        workers: Processes that read ahead; 0 reads in this one.
        trainer: The trainer that reads them.
        seed: Seed of the order of training; None for validation, in the order of the data set and at once.

    Raises:
        ValueError: A batch has too few images for all processes and micro-batches.
    """

    def __init__(
        self, dataset: SegmentationDataset, batch_size: int, workers: int, trainer: Trainer, *, seed: int | None = None
    ) -> None:
        """Store the options."""
        self.dataset, self.batch_size, self.workers = dataset, batch_size, workers
        self.trainer, self.seed = trainer, seed
        self.accumulate = 1 if seed is None else trainer.accumulate_grad_batches
        if seed is not None and batch_size < self.accumulate * trainer.world_size:
            raise ValueError(
                f"data.batch_size: expected at least accumulate_grad_batches × processes = {self.accumulate} ×"
                f" {trainer.world_size} images, but got {batch_size}"
            )

    def __len__(self) -> int:
        """Return the number of micro-batches of an epoch."""
        return self.accumulate * math.ceil(len(self.dataset) / self.batch_size)

    def __iter__(self) -> Iterator[MicroBatch]:
        """Read one epoch, or what the trainer has left of it.

        Raises:
            InputError: A file can't be used.
        """
        dataset, size = self.dataset, self.batch_size
        order, skipped = np.arange(len(dataset)), 0
        if self.seed is not None:  # here, not when the iterator is made: Lightning restores its counters later
            dataset.epoch = self.trainer.current_epoch + 1
            order = np.random.default_rng((self.seed, dataset.epoch)).permutation(order)
            done = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready
            skipped = math.ceil(done / self.accumulate)  # checkpoints are written between steps
        steps = [order[start : start + size].tolist() for start in range(skipped * size, len(order), size)]
        rank, world, accumulate = self.trainer.global_rank, self.trainer.world_size, self.accumulate
        parts = [step[rank::world][part::accumulate] for step in steps for part in range(accumulate)]
        loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            dataset,
            batch_sampler=[indices or [0] for indices in parts],
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=torch.cuda.is_available(),
            # Not the global generator: what workers draw depends on the seed, the epoch and the worker only.
            generator=torch.Generator().manual_seed(mixed_seed(self.seed or 0, dataset.epoch)),
        )
        loaded, chosen = self._load(loader, parts), iter(parts)
        try:
            for step in steps:
                batches = list(zip(islice(chosen, accumulate), islice(loaded, accumulate), strict=True))
                for indices, (_, labels) in batches:
                    if not indices:
                        labels.fill_(dataset.ignore_index)
                step_labels: list[Tensor] | None = [labels for _, (_, labels) in batches]
                for indices, (images, labels) in batches:
                    yield MicroBatch(images, labels, [dataset.names[i] for i in indices], step_labels, len(step))
                    step_labels = None
        except (OSError, ValueError) as error:
            # A worker's error comes with the worker's traceback, whose last line has the type and the message.
            raise InputError(re.sub(r"^[\w.]+(Error|Exception): ", "", str(error).strip().splitlines()[-1])) from error

    def _load(self, loader: DataLoader[tuple[Tensor, Tensor]], parts: list[list[int]]) -> Iterator[list[Tensor]]:
        """Yield the micro-batches, in this process once the signal that ends the run has ended the workers, too."""
        done = 0
        try:
            for batch in loader:
                yield batch
                done += 1
        except RuntimeError:
            if not any(getattr(callback, "is_stopping", False) for callback in self.trainer.callbacks):
                raise
            for indices in parts[done:]:
                yield _collate([self.dataset[i] for i in indices or [0]])


class SegmentationData(LightningDataModule):
    """Training and validation data.

    Args:
        root: Folder of the data set.
        layout: Layout of the files: folder; ade20k, camvid, cityscapes, coco-stuff, pet or voc as in their archives; or
            volumes, ROOT/PART/NAME.npz with the arrays image and label.
        train: Training part; for the layout folder, a subfolder with images/ and masks/. null for the name that the
            layout has for it, train for folder.
        val: Validation part; null as above, val for folder.
        classes: For folder and volumes, the file with lines "INDEX NAME", where "void" is the ignored label; null for
            ROOT/classes.txt.
        palette: Colors of the classes in masks of colors: ade20k, camvid, cityscapes or voc, or a text file with one
            "<index> <r> <g> <b>" or "<index> #rrggbb" per line; null for masks of class indices.
        remap: Numbers to replace in masks, FROM:TO or FIRST-LAST:TO, separated by commas: 255:1 for a mask of 0 and
            255, 0:255,1-150:0 for labels that begin at 1; or the name of a layout whose numbers these are.
        size: [height, width] to resize images to, or [depth, height, width] to crop and pad volumes to; null keeps
            their size.
        augment: Random changes to training images or volumes; null for none.
        batch_size: Images per step, over all processes and micro-batches.
        workers: Processes that read images, per training process; 0 reads in the training process.
        cache: Keep decoded images in memory.
        seed: Seed of order and augmentation.

    Attributes:
        class_names: Names of the classes.
        void: The label of ignored pixels.
        dims: 2 for images, 3 for volumes.

    Raises:
        OSError: A file or folder is missing.
        ValueError: A file or an option can't be used.
    """

    def __init__(
        self,
        root: str,
        layout: str = "folder",
        train: str | None = None,
        val: str | None = None,
        classes: str | None = None,
        palette: str | None = None,
        remap: str | None = None,
        size: list[int] | None = None,
        augment: Augment | None = None,
        batch_size: int = 4,
        workers: int = 1,
        cache: bool = False,
        seed: int = 0,
    ) -> None:
        """Find the files, without opening the images."""
        super().__init__()
        self.batch_size, self.workers, self.seed = batch_size, workers, seed
        parts = [given or own for given, own in zip((train, val), PARTS.get(layout, ("train", "val")), strict=True)]
        self.source = {"layout": layout, "root": root, "val": parts[1], "classes": classes, "size": size}
        files = [find_split(layout, root, part, classes=classes) for part in parts]
        self.class_names, self.void, self.dims = files[0].classes, files[0].ignore_index, files[0].dims
        if len(self.class_names) < 2:
            raise ValueError(f"data.classes: expected two classes or more, but got {self.class_names}")
        open_part = partial(SegmentationDataset, size=size and tuple(size), cache=cache, palette=palette, remap=remap)
        self.train_set, self.val_set = open_part(files[0], augment=augment, seed=seed), open_part(files[1])

    def train_dataloader(self) -> Batches:
        """Return the training batches, from the place that the trainer is at."""
        return Batches(self.train_set, self.batch_size, self.workers, self.trainer, seed=self.seed)

    def val_dataloader(self) -> Batches:
        """Return the validation batches, in the order of the files."""
        return Batches(self.val_set, self.batch_size, self.workers, self.trainer)


def mixed_seed(*numbers: int) -> int:
    """Return a seed that differs for each combination of numbers ≥ 0."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _collate(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return images and labels of one size as a batch."""
    sizes = sorted({tuple(labels.shape) for _, labels in samples})
    if len(sizes) > 1:
        shown = ", ".join(" x ".join(map(str, size)) for size in sizes)
        raise ValueError(
            f"data.size: expected images of one size in a batch, but got height x width {shown}; pass data.size to"
            " resize them, or data.batch_size=1"
        )
    batch: list[Tensor] = default_collate(samples)
    return batch
