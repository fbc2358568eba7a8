"""Layouts of data sets: small trees like those of the archives."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from segkit import layouts
from segkit.data import SegmentationDataset

H, W = 6, 9  # differ, so that swapped axes are seen


def write_image(path: Path, gray: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # By what a file is called, not by what it is: Pet has GIFs named .jpg.
    Image.new("RGB", (W, H), (gray,) * 3).save(path, "jpeg" if path.suffix == ".jpg" else "png")


def write_mask(path: Path, *numbers: int, palette: bool = False) -> None:
    """Write a mask that begins with these numbers and repeats the last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = np.full((H, W), numbers[-1], np.uint8)
    mask.flat[: len(numbers)] = numbers
    picture = Image.fromarray(mask)
    if palette:
        picture.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
    picture.save(path)


def open_part(layout: str, root: Path, split: str) -> SegmentationDataset:
    return SegmentationDataset(layouts.find(layout, root, split))


def first_row(labels: torch.Tensor, count: int) -> list[int]:
    found: list[int] = labels[0, :count].tolist()
    return found


def write_folder(root: Path) -> None:
    for split, names in {"train": "ab", "val": "c"}.items():
        for name in names:
            write_image(root / split / "images" / f"{name}.png")
            write_mask(root / split / "masks" / f"{name}.png", 0, 1, 7)
    (root / "classes.txt").write_text("0 sky\n1 road\n7 void\n")


def write_camvid(root: Path) -> None:
    for split, names in {"train": ["0001TP_006690", "0001TP_006720"], "val": ["0016E5_07959"]}.items():
        for name in names:
            write_image(root / split / f"{name}.png")
            write_mask(root / f"{split}annot" / f"{name}.png", 0, 10, 11)
        (root / f"{split}.txt").write_text("/SegNet/CamVid/...")  # the archive has it; nobody needs it


def write_cityscapes(root: Path) -> None:
    for name in ("ulm_000001_000019", "ulm_000000_000019", "aachen_000000_000019"):
        city = name.partition("_")[0]
        write_image(root / "leftImg8bit" / "train" / city / f"{name}_leftImg8bit.png")
        masks = root / "gtFine" / "train" / city
        write_mask(masks / f"{name}_gtFine_labelIds.png", 7, 33, 0, 34 - 1, 29, 255)
        write_image(masks / f"{name}_gtFine_color.png")
        (masks / f"{name}_gtFine_polygons.json").write_text("{}")
    (root / "leftImg8bit" / "train" / "ulm" / "._ulm_000000_000019_leftImg8bit.png").write_bytes(b"no picture")


def write_voc(root: Path) -> None:
    folder = root / "VOCdevkit" / "VOC2012"
    for name in ("2007_000032", "2007_000039", "2008_000002"):  # most images have no mask
        write_image(folder / "JPEGImages" / f"{name}.jpg")
    for name in ("2007_000032", "2007_000039"):
        write_mask(folder / "SegmentationClass" / f"{name}.png", 0, 20, 255, palette=True)
    lists = folder / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("2007_000039\n2007_000032\n")
    (lists / "val.txt").write_text("2007_000032\n")


def write_pet(root: Path) -> None:
    for name in ("Abyssinian_1", "yorkshire_terrier_9", "Abyssinian_34"):
        write_image(root / "images" / f"{name}.jpg")
        write_mask(root / "annotations" / "trimaps" / f"{name}.png", 1, 2, 3)
        (root / "annotations" / "trimaps" / f"._{name}.png").write_bytes(b"no picture")
    (root / "images" / "Abyssinian_100.mat").write_bytes(b"")
    (root / "annotations" / "list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\nAbyssinian_1 1 1 1\n")
    (root / "annotations" / "trainval.txt").write_text("yorkshire_terrier_9 37 2 25\nAbyssinian_1 1 1 1\n")
    (root / "annotations" / "test.txt").write_text("Abyssinian_34 1 1 1\n")


WRITE = {
    "folder": write_folder,
    "camvid": write_camvid,
    "cityscapes": write_cityscapes,
    "voc": write_voc,
    "pet": write_pet,
}


@pytest.mark.parametrize(
    ("layout", "split", "names", "classes", "ignore_index", "labels"),
    [
        ("folder", "train", ["a", "b"], 2, 7, [0, 1, 7]),
        ("folder", "val", ["c"], 2, 7, [0, 1, 7]),
        ("camvid", "train", ["0001TP_006690", "0001TP_006720"], 11, 255, [0, 10, 255]),
        (
            "cityscapes",
            "train",
            ["aachen_000000_000019", "ulm_000000_000019", "ulm_000001_000019"],
            19,
            255,
            [0, 18, 255, 18, 255, 255],
        ),
        ("voc", "train", ["2007_000039", "2007_000032"], 21, 255, [0, 20, 255]),
        ("pet", "trainval", ["yorkshire_terrier_9", "Abyssinian_1"], 2, 255, [1, 0, 255]),
        ("pet", "test", ["Abyssinian_34"], 2, 255, [1, 0, 255]),
    ],
)
def test_each_layout(
    layout: str, split: str, names: list[str], classes: int, ignore_index: int, labels: list[int], tmp_path: Path
) -> None:
    WRITE[layout](tmp_path)
    dataset = open_part(layout, tmp_path, split)
    assert dataset.names == names
    assert len(dataset.classes) == len(set(dataset.classes)) == classes
    assert dataset.ignore_index == ignore_index
    for image, found in map(dataset.__getitem__, range(len(dataset))):
        assert image.shape == (3, H, W)
        assert found.dtype == torch.int64
        assert first_row(found, len(labels)) == labels


def test_folder_without_splits_and_with_another_list(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "other.txt").write_text("0 a\n1 b\n7 c\n2 d\n3 e\n4 f\n5 g\n6 h\n")
    files = layouts.find("folder", tmp_path / "train", "", classes=tmp_path / "other.txt")
    assert files.classes == list("abdefghc")
    assert files.ignore_index == 255


def test_cityscapes_takes_train_ids_only_where_all_are_there(tmp_path: Path) -> None:
    write_cityscapes(tmp_path)
    masks = tmp_path / "gtFine" / "train"
    for name in ("ulm_000001_000019", "ulm_000000_000019", "aachen_000000_000019"):
        assert first_row(open_part("cityscapes", tmp_path, "train")[0][1], 2) == [0, 18]
        write_mask(masks / name.partition("_")[0] / f"{name}_gtFine_labelTrainIds.png", 4, 255)
    assert first_row(open_part("cityscapes", tmp_path, "train")[0][1], 2) == [4, 255]


def test_cityscapes_labels_are_those_of_its_own_table(tmp_path: Path) -> None:
    """The ids of road, sidewalk, building and so on in the order of the train ids, as the benchmark lists them."""
    write_cityscapes(tmp_path)
    ids = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    write_mask(tmp_path / "gtFine" / "train" / "aachen" / "aachen_000000_000019_gtFine_labelIds.png", *range(34), 255)
    labels = open_part("cityscapes", tmp_path, "train")[0][1].flatten()[:34].tolist()
    assert labels == [ids.index(number) if number in ids else 255 for number in range(34)]


@pytest.mark.parametrize("line", ["2008_000002", "/JPEGImages/2008_000002.jpg /SegmentationClassAug/2008_000002.png"])
@pytest.mark.parametrize("split", ["trainaug", "train_aug"])
def test_voc_with_the_augmented_labels(split: str, line: str, tmp_path: Path) -> None:
    write_voc(tmp_path)
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    write_mask(folder / "SegmentationClassAug" / "2008_000002.png", 3, 255)
    (folder / "ImageSets" / "Segmentation" / f"{split}.txt").write_text(f"{line}\n")
    dataset = open_part("voc", folder, split)  # the root may be VOC2012 itself
    assert dataset.names == ["2008_000002"]
    assert first_row(dataset[0][1], 2) == [3, 255]


@pytest.mark.parametrize("kind", ["gif", "RGBA", "L", "CMYK"])
def test_pet_images_of_other_kinds(kind: str, tmp_path: Path) -> None:
    write_pet(tmp_path)
    path = tmp_path / "images" / "Abyssinian_34.jpg"
    if kind == "gif":
        Image.new("P", (W, H), 3).save(path, "gif")
    else:
        Image.new(kind, (W, H)).save(path, "png" if kind == "RGBA" else "jpeg")
    assert open_part("pet", tmp_path, "test")[0][0].shape == (3, H, W)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


VOC = "VOCdevkit/VOC2012"
TRAIN = f"{VOC}/ImageSets/Segmentation/train.txt"
ID = "gtFine/train/ulm/ulm_000000_000019_gtFine_labelIds.png"


@pytest.mark.parametrize(
    ("layout", "damage", "name", "message"),
    [
        ("folder", _remove, "classes.txt", "{path}: No such file"),
        ("folder", _remove, "train/masks", "{path}: no such folder, expected {root}/train/images and {path}"),
        ("camvid", _remove, "trainannot/0001TP_006720.png", "train/0001TP_006720.png: has no mask, expected {path}"),
        (
            "cityscapes",
            _remove,
            "leftImg8bit/train",
            "{path}: expected CITY/NAME_leftImg8bit.png files",
        ),
        ("cityscapes", _remove, ID, "{path}: no such file, expected for ulm_000000_000019 of {root}/leftImg8bit/train"),
        ("voc", _remove, f"{VOC}/JPEGImages", "{root}: expected VOCdevkit/VOC2012/JPEGImages in it, but found none"),
        ("voc", _remove, TRAIN, "{path}: no such list of names; there are val"),
        ("voc", _remove, f"{VOC}/ImageSets", "{path}/Segmentation/train.txt: no such list of names; there are none"),
        ("voc", lambda path: path.write_text("\n"), TRAIN, "{path}: expected one name per line, but got none"),
        ("voc", _remove, f"{VOC}/SegmentationClass/2007_000032.png", "{path}: no such file, expected for 2007_000032"),
        ("pet", _remove, "images/Abyssinian_1.jpg", "{path}: no such file, expected for Abyssinian_1 of {root}"),
        ("pet", _remove, "annotations/train.txt", "{path}: no such list of names; there are list, test, trainval"),
    ],
)
def test_errors_name_the_file_and_what_was_expected(
    layout: str, damage: Callable[[Path], object], name: str, message: str, tmp_path: Path
) -> None:
    WRITE[layout](tmp_path)
    path = tmp_path / name
    if path.exists():
        damage(path)
    split = "train" if layout != "pet" or not name.startswith("images") else "trainval"
    with pytest.raises((FileNotFoundError, ValueError), match=re.escape(message.format(path=path, root=tmp_path))):
        layouts.find(layout, tmp_path, split)


@pytest.mark.parametrize(
    ("layout", "name", "number", "message"),
    [
        ("camvid", "trainannot/0001TP_006690.png", 12, "expected labels 0 to 11, but got 12 at 54 pixels"),
        ("voc", f"{VOC}/SegmentationClass/2007_000039.png", 21, "expected labels 0 to 20 or 255, but got 21"),
        ("pet", "annotations/trimaps/Abyssinian_34.png", 0, "expected labels 1 to 3, but got 0"),
        (
            "cityscapes",
            "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png",
            34,
            "expected labels 0 to 33 or 255, but got 34",
        ),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    layout: str, name: str, number: int, message: str, tmp_path: Path
) -> None:
    WRITE[layout](tmp_path)
    write_mask(tmp_path / name, number)
    dataset = open_part(layout, tmp_path, "test" if layout == "pet" else "train")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / name}: {message}")):
        dataset[0]


def test_unknown_layouts_and_lists_of_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="layout: expected one of folder, camvid, cityscapes, voc, pet, but got 'coco'"
    ):
        layouts.find("coco", tmp_path, "train")
    with pytest.raises(ValueError, match="classes: expected none for the layout pet, which has its own"):
        layouts.find("pet", tmp_path, "train", classes="classes.txt")


def test_colors() -> None:
    """Those that the sets' own tools show, where they have some: of VOC as the development kit prints them."""
    found = {layout: layouts.colors(layout) for layout in layouts.LAYOUTS}
    counts = {layout: len(colors) for layout, colors in found.items() if colors is not None}
    assert counts == {"camvid": 11, "cityscapes": 19, "voc": 21}
    # background, aeroplane, bicycle, bird, bottle and tvmonitor
    some = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (128, 0, 128), (0, 64, 128)]
    assert [tuple(found["voc"][c].tolist()) for c in (0, 1, 2, 3, 5, 20)] == some  # type: ignore[index]
