"""Layouts of data sets: small trees like those of the archives."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segkit import layouts
from segkit.data import SegmentationDataset

H, W = 6, 9  # differ, so that swapped axes are seen


def write_image(path: Path, *numbers: int) -> None:
    """Write an image, or a mask that begins with these numbers and repeats the last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = np.full((H, W), numbers[-1] if numbers else 100, np.uint8)
    mask.flat[: len(numbers)] = numbers
    picture = Image.fromarray(mask)
    if not numbers:
        # By what a file is called, not by what it is: Pet has GIFs named .jpg.
        picture.convert("RGB").save(path, "jpeg" if path.suffix == ".jpg" else "png")
        return
    if "SegmentationClass" in str(path):  # masks of VOC have a palette
        picture.putpalette(bytes(range(256)) * 3)
    picture.save(path)


VOC = "VOCdevkit/VOC2012"
LISTS = f"{VOC}/ImageSets/Segmentation"
CITIES = ["aachen_000000_000019", "ulm_000000_000019", "ulm_000001_000019"]
PETS = ["Abyssinian_1", "yorkshire_terrier_9", "Abyssinian_34"]
# What is in each tree: texts, and files of the numbers that a mask begins with, or None of an image.
TREES: dict[str, dict[str, Any]] = {
    "folder": {
        **{f"{part}/images/{name}.png": None for part, name in (("train", "a"), ("train", "b"), ("val", "c"))},
        **{f"{part}/masks/{name}.png": (0, 1, 7) for part, name in (("train", "a"), ("train", "b"), ("val", "c"))},
        "classes.txt": "0 sky\n1 road\n7 void\n",
    },
    "camvid": {
        **{f"train/{name}.png": None for name in ("0001TP_006690", "0001TP_006720")},
        **{f"trainannot/{name}.png": (0, 10, 11) for name in ("0001TP_006690", "0001TP_006720")},
        "train.txt": "/SegNet/CamVid/...",  # a file of the archive that is not read
    },
    "cityscapes": {
        **{f"leftImg8bit/train/{name[:-14]}/{name}_leftImg8bit.png": None for name in CITIES},
        **{f"gtFine/train/{name[:-14]}/{name}_gtFine_labelIds.png": (7, 33, 0, 33, 29, 255) for name in CITIES},
        **{f"gtFine/train/{name[:-14]}/{name}_gtFine_color.png": None for name in CITIES},
        "leftImg8bit/train/ulm/._ulm_000000_000019_leftImg8bit.png": "no picture",
    },
    "voc": {
        **{f"{VOC}/JPEGImages/{name}.jpg": None for name in ("2007_000032", "2007_000039", "2008_000002")},
        # Most images have no mask.
        **{f"{VOC}/SegmentationClass/{name}.png": (0, 20, 255) for name in ("2007_000032", "2007_000039")},
        f"{LISTS}/train.txt": "2007_000039\n2007_000032\n",
        f"{LISTS}/val.txt": "2007_000032\n",
    },
    "pet": {
        **{f"images/{name}.jpg": None for name in PETS},
        **{f"annotations/trimaps/{name}.png": (1, 2, 3) for name in PETS},
        **{f"annotations/trimaps/._{name}.png": "no picture" for name in PETS},
        "images/Abyssinian_100.mat": "",
        "annotations/list.txt": "#Image CLASS-ID SPECIES BREED ID\nAbyssinian_1 1 1 1\n",
        "annotations/trainval.txt": "yorkshire_terrier_9 37 2 25\nAbyssinian_1 1 1 1\n",
        "annotations/test.txt": "Abyssinian_34 1 1 1\n",
    },
    "volumes": {"train/a.npz": None, "val/b.npz": None, "classes.txt": "0 air\n1 body\n7 void\n"},
}


def write(layout: str, root: Path) -> None:
    """Write the tree of a layout."""
    for name, content in TREES[layout].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        elif path.suffix == ".npz":
            np.savez(path, image=np.ones((1, H, W)), label=np.full((1, H, W), 7))
        else:
            write_image(path, *(content or ()))


def labels_of(layout: str, root: Path, split: str, index: int = 0) -> list[int]:
    """Return the first labels of a mask."""
    labels = SegmentationDataset(layouts.find(layout, root, split))[index][1]
    return labels.flatten().tolist()


@pytest.mark.parametrize(
    ("layout", "split", "names", "classes", "ignore_index", "labels"),
    [
        ("folder", "train", ["a", "b"], 2, 7, [0, 1, 7]),
        ("folder", "val", ["c"], 2, 7, [0, 1, 7]),
        ("camvid", "train", ["0001TP_006690", "0001TP_006720"], 11, 255, [0, 10, 255]),
        ("cityscapes", "train", CITIES, 19, 255, [0, 18, 255, 18, 255, 255]),
        ("voc", "train", ["2007_000039", "2007_000032"], 21, 255, [0, 20, 255]),
        ("pet", "trainval", ["yorkshire_terrier_9", "Abyssinian_1"], 2, 255, [1, 0, 255]),
        ("pet", "test", ["Abyssinian_34"], 2, 255, [1, 0, 255]),
        ("volumes", "val", ["b"], 2, 7, [7, 7]),
    ],
)
def test_each_layout(
    layout: str, split: str, names: list[str], classes: int, ignore_index: int, labels: list[int], tmp_path: Path
) -> None:
    write(layout, tmp_path)
    files = layouts.find(layout, tmp_path, split)
    assert [pair.name for pair in files.pairs] == names
    assert len(files.classes) == len(set(files.classes)) == classes
    assert files.ignore_index == ignore_index
    assert files.dims == 2 + (layout == "volumes")
    for index in range(len(names)):
        assert labels_of(layout, tmp_path, split, index)[: len(labels)] == labels


def test_folder_without_splits_and_with_another_list(tmp_path: Path) -> None:
    write("folder", tmp_path)
    (tmp_path / "other.txt").write_text("0 a\n1 b\n7 c\n2 d\n3 e\n4 f\n5 g\n6 h\n")
    files = layouts.find("folder", tmp_path / "train", ".", classes=tmp_path / "other.txt")
    assert files.classes == list("abdefghc")
    assert files.ignore_index == 255


def test_cityscapes_labels_are_those_of_its_own_table(tmp_path: Path) -> None:
    """The ids of road, sidewalk, building and so on in the order of the train ids, as the benchmark lists them."""
    write("cityscapes", tmp_path)
    ids = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    write_image(tmp_path / "gtFine" / "train" / "aachen" / f"{CITIES[0]}_gtFine_labelIds.png", *range(34), 255)
    labels = labels_of("cityscapes", tmp_path, "train")[:34]
    assert labels == [ids.index(number) if number in ids else 255 for number in range(34)]


def test_voc_with_the_augmented_labels(tmp_path: Path) -> None:
    write("voc", tmp_path)
    write_image(tmp_path / VOC / "SegmentationClassAug" / "2008_000002.png", 3, 255)
    long = "/JPEGImages/2008_000002.jpg /SegmentationClassAug/2008_000002.png"
    for split, line in (("trainaug", "2008_000002"), ("train_aug", long)):
        (tmp_path / LISTS / f"{split}.txt").write_text(f"{line}\n")
        assert labels_of("voc", tmp_path / VOC, split)[:2] == [3, 255]  # the root may be VOC2012 itself


def test_images_of_other_kinds(tmp_path: Path) -> None:
    write("pet", tmp_path)
    for mode, kind in (("P", "gif"), ("RGBA", "png"), ("L", "jpeg"), ("CMYK", "jpeg")):
        Image.new(mode, (W, H)).save(tmp_path / "images" / "Abyssinian_34.jpg", kind)
        assert labels_of("pet", tmp_path, "test")[:3] == [1, 0, 255]


TRAIN = f"{LISTS}/train.txt"
ID = "gtFine/train/ulm/ulm_000000_000019_gtFine_labelIds.png"


@pytest.mark.parametrize(
    ("layout", "split", "removed", "message"),
    [
        ("folder", "train", "classes.txt", "{path}: No such file"),
        ("folder", "train", "train/masks/b.png", "masks: expected the mask b of {root}/train/images/b.png, but there"),
        ("folder", "train", "train/images/b.png", "images: expected the image b of {root}/train/masks/b.png, but"),
        ("cityscapes", "train", "leftImg8bit/train", "{path}: expected CITY/NAME_leftImg8bit.png files"),
        ("cityscapes", "train", ID, "gtFine/train: expected the mask ulm_000000_000019 of {root}/leftImg8bit/"),
        ("voc", "train", TRAIN, "{path}: no such list of names; there are val"),
        ("voc", "train", f"{VOC}/ImageSets", "{path}/Segmentation/train.txt: no such list of names; there are none"),
        ("pet", "trainval", "images/Abyssinian_1.jpg", "images: expected the image Abyssinian_1 of {root}/annotations"),
        ("volumes", "train", "train/a.npz", "{root}/train: expected .npz files, but got none"),
    ],
)
def test_errors_name_the_file_and_what_was_expected(
    layout: str, split: str, removed: str, message: str, tmp_path: Path
) -> None:
    write(layout, tmp_path)
    path = tmp_path / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=re.escape(message.format(path=path, root=tmp_path))):
        layouts.find(layout, tmp_path, split)


def test_bad_arguments_and_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="layout: expected one of folder, camvid, cityscapes, voc, pet, volumes, but"):
        layouts.find("coco", tmp_path, "train")
    with pytest.raises(ValueError, match="classes: expected none for the layout pet, which has its own"):
        layouts.find("pet", tmp_path, "train", classes="classes.txt")
    write("voc", tmp_path)
    (tmp_path / TRAIN).write_text("\n")
    with pytest.raises(ValueError, match=r"train\.txt: expected one name per line, but got none"):
        layouts.find("voc", tmp_path, "train")
