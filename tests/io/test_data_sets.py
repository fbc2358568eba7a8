"""Layouts of data sets: small trees like those of the archives, and folders of any other kind."""

from __future__ import annotations

import re
import shutil
import unicodedata
from pathlib import Path

import pytest
from data_trees import CITIES, LISTS, VOC, write_image, write_tree

from edgeloss.io import (
    IMAGE_SUFFIXES,
    LABEL_SUFFIXES,
    LAYOUTS,
    Folder,
    InputError,
    files_by_stem,
    find_split,
    pair_files,
    read_labels,
)


def labels_of(layout: str, root: Path, split: str, index: int = 0) -> list[int]:
    """Return the first labels of a mask."""
    found = find_split(layout, root, split)
    numbers = read_labels(found.pairs[index].mask).flatten().tolist()
    return [number if found.labels is None else found.labels[number] for number in numbers]


@pytest.mark.parametrize(
    ("layout", "split", "names", "classes", "ignore_index", "labels"),
    [
        ("folder", "train", ["a", "b"], 2, 7, [0, 1, 7]),
        ("folder", "val", ["c"], 2, 7, [0, 1, 7]),
        ("ade20k", "training", ["ADE_train_1"], 150, 255, [255, 0, 149]),
        ("camvid", "train", ["0001TP_006690", "0001TP_006720"], 11, 255, [0, 10, 255]),
        ("cityscapes", "train", CITIES, 19, 255, [0, 18, 255, 18, 255, 255]),
        ("coco-stuff", "train2017", ["000000000009", "000000000025"], 171, 255, [0, 11, 170, 255]),
        ("voc", "train", ["2007_000039", "2007_000032"], 21, 255, [0, 20, 255]),
        ("pet", "trainval", ["yorkshire_terrier_9", "Abyssinian_1"], 2, 255, [1, 0, 255]),
        ("pet", "test", ["Abyssinian_34"], 2, 255, [1, 0, 255]),
        ("volumes", "val", ["b"], 2, 7, None),
    ],
)
def test_each_layout(
    layout: str,
    split: str,
    names: list[str],
    classes: int,
    ignore_index: int,
    labels: list[int] | None,
    tmp_path: Path,
) -> None:
    write_tree(layout, tmp_path)
    found = find_split(layout, tmp_path, split)
    assert [pair.name for pair in found.pairs] == names
    assert len(found.classes) == len(set(found.classes)) == classes
    assert found.ignore_index == ignore_index
    assert found.dims == 2 + (layout == "volumes")
    for index in range(len(names) if labels else 0):
        assert labels_of(layout, tmp_path, split, index)[: len(labels or ())] == labels


def test_folder_without_splits_and_with_another_list(tmp_path: Path) -> None:
    write_tree("folder", tmp_path)
    (tmp_path / "other.txt").write_text("0 a\n1 b\n7 c\n2 d\n3 e\n4 f\n5 g\n6 h\n")
    found = find_split("folder", tmp_path / "train", ".", classes=tmp_path / "other.txt")
    assert found.classes == list("abdefghc")
    assert found.ignore_index == 255


def test_cityscapes_labels_are_those_of_its_own_table(tmp_path: Path) -> None:
    """The ids of road, sidewalk, building and so on in the order of the train ids, as the benchmark lists them."""
    write_tree("cityscapes", tmp_path)
    ids = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    write_image(tmp_path / "gtFine" / "train" / "aachen" / f"{CITIES[0]}_gtFine_labelIds.png", *range(34), 255)
    labels = labels_of("cityscapes", tmp_path, "train")[:34]
    assert labels == [ids.index(number) if number in ids else 255 for number in range(34)]


def test_voc_with_the_augmented_labels(tmp_path: Path) -> None:
    write_tree("voc", tmp_path)
    write_image(tmp_path / VOC / "SegmentationClassAug" / "2008_000002.png", 3, 255)
    long = "/JPEGImages/2008_000002.jpg /SegmentationClassAug/2008_000002.png"
    for split, line in (("trainaug", "2008_000002"), ("train_aug", long)):
        (tmp_path / LISTS / f"{split}.txt").write_text(f"{line}\n")
        assert labels_of("voc", tmp_path / VOC, split)[:2] == [3, 255]  # the root may be VOC2012 itself


TRAIN = f"{LISTS}/train.txt"
ID = "gtFine/train/ulm/ulm_000000_000019_gtFine_labelIds.png"


@pytest.mark.parametrize(
    ("layout", "split", "removed", "message"),
    [
        ("folder", "train", "classes.txt", "{path}: no such file or folder"),
        (
            "folder",
            "train",
            "train/masks/b.png",
            "masks: expected a file for each name, but got none for b; nearest to",
        ),
        ("folder", "train", "train/images/b.png", "images: expected a file for each name, but got none for b; nearest"),
        ("cityscapes", "train", "leftImg8bit/train", "{path}: no such file or folder"),
        (
            "cityscapes",
            "train",
            ID,
            "train: expected a file for each name, but got none for ulm_000000_000019; nearest",
        ),
        ("ade20k", "train", "ADEChallengeData2016/objectInfo150.txt", "images/train: no such file or folder"),
        ("voc", "train", TRAIN, "{path}: no such file or folder; "),
        ("voc", "train", f"{VOC}/ImageSets", "{path}/Segmentation/train.txt: no such file or folder"),
        ("pet", "trainval", "images/Abyssinian_1.jpg", "images: expected a file for each name, but got none for Aby"),
        ("volumes", "train", "train/a.npz", "{root}/train: expected .npz files, but got none"),
    ],
)
def test_errors_name_the_file_and_what_was_expected(
    layout: str, split: str, removed: str, message: str, tmp_path: Path
) -> None:
    write_tree(layout, tmp_path)
    path = tmp_path / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=re.escape(message.format(path=path, root=tmp_path))):
        find_split(layout, tmp_path, split)


@pytest.mark.parametrize(("layout", "stored", "split"), [("camvid", "folder", "train"), ("folder", "camvid", "train")])
def test_the_layout_that_a_folder_has_is_named(layout: str, stored: str, split: str, tmp_path: Path) -> None:
    write_tree(stored, tmp_path)
    with pytest.raises(InputError, match=f": no such folder; {tmp_path} has the folders of the layout {stored}$"):
        find_split(layout, tmp_path, split)


def test_bad_arguments_and_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"expected one of the layouts {', '.join(LAYOUTS)}, but got 'coco'"):
        find_split("coco", tmp_path, "train")
    with pytest.raises(InputError, match="expected no classes for the layout pet, which has its own"):
        find_split("pet", tmp_path, "train", classes="classes.txt")
    write_tree("voc", tmp_path)
    (tmp_path / TRAIN).write_text("\n")
    with pytest.raises(InputError, match=r"train\.txt: expected one name per line, but got none"):
        find_split("voc", tmp_path, "train")
    (tmp_path / TRAIN).write_bytes(b"\xff\xff")
    with pytest.raises(InputError, match=r"train\.txt: expected a text file in UTF-8"):
        find_split("voc", tmp_path, "train")


# ---------------------------------------------------------------------------------------------- folders of other kinds


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def paired(root: Path, *, preds: str = "", masks: str = "") -> list[str]:
    folders = {
        "prediction": Folder(root / "L", LABEL_SUFFIXES, preds),
        "mask": Folder(root / "M", LABEL_SUFFIXES, masks),
    }
    return [*pair_files(folders)]


@pytest.mark.parametrize(
    ("files", "preds", "masks", "names"),
    [
        (["L/a.npy", "M/a_mask.png"], "", "_mask", ["a"]),
        (["L/a.npy", "M/a_L.png", "M/a_C.png"], "", "_L.png", ["a"]),
        (["L/a_pred.npy", "M/gt_a.png"], "_pred", "gt_{stem}", ["a"]),
        (
            ["L/ulm/ulm_1_leftImg8bit.npy", "M/ulm/ulm_1_gtFine_labelIds.png", "M/ulm/ulm_1_gtFine_color.png"],
            "_leftImg8bit",
            "{stem}_gtFine_labelIds.png",
            ["ulm_1"],
        ),
        (["L/b.npy", "M/x/y/b.png"], "", "", ["b"]),  # nested in one of them only
        (["L/x/1.npy", "L/y/1.npy", "M/x/1.png", "M/y/1.png"], "", "", ["x/1", "y/1"]),
        (["L/.hidden/1.npy", "L/1.npy", "M/1.png", "M/._1.png"], "", "", ["1"]),
        (["L/a.npy", f"M/a_{unicodedata.normalize('NFD', 'é')}.png"], "", "_é", ["a"]),
        ([f"L/{unicodedata.normalize('NFD', 'é')}.npy", f"M/{unicodedata.normalize('NFC', 'é')}.png"], "", "", ["é"]),
    ],
)
def test_files_are_matched(tmp_path: Path, files: list[str], preds: str, masks: str, names: list[str]) -> None:
    assert paired(touch(tmp_path, *files), preds=preds, masks=masks) == names


@pytest.mark.parametrize(
    ("files", "masks", "message"),
    [
        (["L/a.npy", "M/a_mask.png"], "", "M: expected names as in {root}/L, but got none that is in all folders: "
            "a_mask, not a; pass --mask-suffix _mask"),
        (["L/a_out.npy", "M/a.png"], "", "a, not a_out; pass --pred-suffix _out"),
        (["L/a.npy", "M/b.png"], "", "b, not a; pass --mask-suffix or --pred-suffix where names differ in a part"),
        (["L/a.npy", "M/a.png"], "_x", "M: expected NAME_x, but got a.png"),
        (["L/a.npy", "M/a.png"], "x_{stem}.png", "M: expected x_{{stem}}.png, but got a.png"),
        (["L/img_1.npy", "L/img_2.npy", "L/img_3.npy", "L/img_04.npy", "M/img_1.png", "M/img_2.png", "M/img_3.png",
            "M/img_4.png"], "", "L: expected a file for each name, but got none for img_4; nearest to img_4: img"),
        (["L/x/1.npy", "L/x/1.pt", "M/1.png"], "", "L/x/1.pt: expected one file per name, but got {root}/L/x/1.npy"),
        (["L/notes.txt", "M/1.png"], "", "L: expected .png, .bmp, .tif, .tiff, .npy, .npz, .pt, .pth files, but got"),
    ],
)  # fmt: skip
def test_what_does_not_match_is_named(tmp_path: Path, files: list[str], masks: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message.format(root=tmp_path))):
        paired(touch(tmp_path, *files), masks=masks)


def test_a_folder_that_contains_itself_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(files_by_stem(tmp_path, IMAGE_SUFFIXES)) == ["a"]
