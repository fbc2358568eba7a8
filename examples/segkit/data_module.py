"""The data of a run: training and validation images of a folder or a public data set."""

from __future__ import annotations

from functools import partial
from typing import Literal

from lightning import LightningDataModule

from segkit import layouts
from segkit.data import Augment, SegmentationDataset
from segkit.loader import Batches

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
        layout: Layout = "folder",
        train: str = "train",
        val: str = "val",
        classes: str | None = None,
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
        self.source = {"layout": layout, "root": root, "val": val, "classes": classes, "size": size}
        files = [layouts.find(layout, root, part, classes=classes) for part in (train, val)]
        self.class_names, self.void, self.dims = files[0].classes, files[0].ignore_index, files[0].dims
        if len(self.class_names) < 2:
            raise ValueError(f"data.classes: expected two classes or more, but got {self.class_names}")
        open_part = partial(SegmentationDataset, size=size and tuple(size), cache=cache)
        self.train_set, self.val_set = open_part(files[0], augment=augment, seed=seed), open_part(files[1])

    def train_dataloader(self) -> Batches:
        """Return the training batches, from the place that the trainer is at."""
        return Batches(self.train_set, self.batch_size, self.workers, self.trainer, seed=self.seed)

    def val_dataloader(self) -> Batches:
        """Return the validation batches, in the order of the files."""
        return Batches(self.val_set, self.batch_size, self.workers, self.trainer)
