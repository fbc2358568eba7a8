"""The data of a run: training and validation images of a folder or a public data set."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from lightning import LightningDataModule

from edgeloss.io import VOID_INDEX, read_classes
from segkit import layouts
from segkit.data import Augment, SegmentationDataset
from segkit.loader import Batches
from segkit.volumes import VolumeAugment, VolumeFolder

Layout = Literal["folder", "camvid", "cityscapes", "voc", "pet", "volumes"]


class SegmentationData(LightningDataModule):
    """Training and validation data.

    Args:
        root: Folder of the data set.
        layout: Layout of the files: folder, or camvid, cityscapes, voc or pet as in their archives, or volumes:
            ROOT/PART/NAME.npz with the arrays image and label.
        train: Training part; for the layout folder, a subfolder with images/ and masks/.
        val: Validation part.
        classes: For folder and volumes, the file with lines "INDEX NAME", where "void" is the ignored label; null for
            ROOT/classes.txt.
        size: [height, width] to resize images to, or [depth, height, width] to crop and pad volumes to; null keeps
            their size.
        augment: Random changes to training images; null for none.
        volume_augment: Random changes to training volumes; null for none.
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
        layout: Layout = "folder",
        train: str = "train",
        val: str = "val",
        classes: str | None = None,
        size: list[int] | None = None,
        augment: Augment | None = None,
        volume_augment: VolumeAugment | None = None,
        batch_size: int = 4,
        workers: int = 1,
        cache: bool = False,
        seed: int = 0,
    ) -> None:
        """Find the files, without opening the images."""
        super().__init__()
        self.batch_size, self.workers, self.seed = batch_size, workers, seed
        self.source = {"layout": layout, "root": root, "val": val, "classes": classes, "size": size}
        self.dims = 3 if layout == "volumes" else 2
        self.train_set: SegmentationDataset | VolumeFolder
        self.val_set: SegmentationDataset | VolumeFolder
        if layout == "volumes":
            names, void = read_classes(Path(root) / "classes.txt" if classes is None else classes)
            options = {"num_classes": len(names), "ignore_index": VOID_INDEX if void is None else void, "cache": cache}
            open_part = partial(VolumeFolder, size=size and tuple(size), **options)
            self.train_set = open_part(Path(root) / train, augment=volume_augment, seed=seed)
            self.val_set, self.class_names = open_part(Path(root) / val), names
        else:
            files = [layouts.find(layout, root, part, classes=classes) for part in (train, val)]
            open_images = partial(SegmentationDataset, size=size and tuple(size), cache=cache)
            self.train_set = open_images(files[0], augment=augment, seed=seed)
            self.val_set, self.class_names = open_images(files[1]), files[0].classes
        if len(self.class_names) < 2:
            raise ValueError(f"data.classes: expected two classes or more, but got {self.class_names}")
        self.void = self.train_set.ignore_index

    def train_dataloader(self) -> Batches:
        """Return the training batches, from the place that the trainer is at."""
        return Batches(
            self.train_set,
            self.batch_size,
            self.workers,
            seed=self.seed,
            accumulate=self.trainer.accumulate_grad_batches,
            position=self._position,
            process=(self.trainer.global_rank, self.trainer.world_size),
        )

    def val_dataloader(self) -> Batches:
        """Return the validation batches, in the order of the files."""
        process = self.trainer.global_rank, self.trainer.world_size
        return Batches(self.val_set, self.batch_size, self.workers, process=process)

    def _position(self) -> tuple[int, int]:
        """Return the epoch, from 1, and the micro-batches of it that are done."""
        return self.trainer.current_epoch + 1, self.trainer.fit_loop.epoch_loop.batch_progress.current.ready
