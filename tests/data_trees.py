"""Small trees of files like those of the archives of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

H, W = 6, 9  # differ, so that swapped axes are seen
VOC = "VOCdevkit/VOC2012"
LISTS = f"{VOC}/ImageSets/Segmentation"
CITIES = ["aachen_000000_000019", "ulm_000000_000019", "ulm_000001_000019"]
PETS = ["Abyssinian_1", "yorkshire_terrier_9", "Abyssinian_34"]
ADE = "ADEChallengeData2016"
# What is in each tree: texts, and files of the numbers that a mask begins with, or None of an image.
TREES: dict[str, dict[str, Any]] = {
    "folder": {
        **{f"{part}/images/{name}.png": None for part, name in (("train", "a"), ("train", "b"), ("val", "c"))},
        **{f"{part}/masks/{name}.png": (0, 1, 7) for part, name in (("train", "a"), ("train", "b"), ("val", "c"))},
        "classes.txt": "0 sky\n1 road\n7 void\n",
    },
    "ade20k": {
        **{f"{ADE}/images/{name}.jpg": None for name in ("training/ADE_train_1", "validation/ADE_val_1")},
        **{f"{ADE}/annotations/{name}.png": (0, 1, 150) for name in ("training/ADE_train_1", "validation/ADE_val_1")},
        f"{ADE}/objectInfo150.txt": "Idx Ratio Train Val Stuff Name\n",
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
        **{f"gtFine/train/{name[:-14]}/{name}_gtFine_polygons.json": "{}" for name in CITIES},
        "leftImg8bit/train/ulm/._ulm_000000_000019_leftImg8bit.png": "no picture",
    },
    "coco-stuff": {
        **{f"images/train2017/{name}.jpg": None for name in ("000000000009", "000000000025")},
        **{f"annotations/train2017/{name}.png": (0, 12, 181, 255) for name in ("000000000009", "000000000025")},
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


def write_image(path: Path, *numbers: int, size: tuple[int, int] = (H, W)) -> None:
    """Write an image, or a mask that begins with these numbers and repeats the last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = np.full(size, numbers[-1] if numbers else 100, np.uint8)
    mask.flat[: len(numbers)] = numbers
    picture = Image.fromarray(mask)
    if not numbers:
        # By what a file is called, not by what it is: Pet has GIFs named .jpg.
        picture.convert("RGB").save(path, "jpeg" if path.suffix == ".jpg" else "png")
        return
    if "SegmentationClass" in str(path):  # masks of VOC have a palette
        picture.putpalette(bytes(range(256)) * 3)
    picture.save(path)


def write_tree(layout: str, root: Path, size: tuple[int, int] = (H, W)) -> None:
    """Write the tree of a layout."""
    for name, content in TREES[layout].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        elif path.suffix == ".npz":
            np.savez(path, image=np.ones((1, H, W)), label=np.full((1, H, W), 7))
        else:
            write_image(path, *(content or ()), size=size)
