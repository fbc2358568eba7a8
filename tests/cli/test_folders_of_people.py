"""Files as people have them: data sets as downloaded, names of all kinds, and folders with a bad file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import C, H, Run, W, half_logits, mask_array
from data_trees import write_tree
from PIL import Image

from edgeloss._checks.remap import table_rules
from edgeloss.io import find_split, read_labels, remap_labels

PARTS = {
    "ade20k": "training",
    "camvid": "train",
    "cityscapes": "train",
    "coco-stuff": "train2017",
    "folder": "train",
    "pet": "trainval",
    "voc": "train",
}


@pytest.mark.parametrize("name_of", ["pair", pytest.param("image", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=[] if name in ("voc", "cityscapes") else pytest.mark.slow) for name in PARTS]
)
def test_a_data_set_as_downloaded_is_read(run: Run, tmp_path: Path, layout: str, name_of: str) -> None:
    root = tmp_path / "data"
    write_tree(layout, root, (H, W))
    split = find_split(layout, root, PARTS[layout])
    (tmp_path / "preds").mkdir()
    for pair in split.pairs:
        labels = read_labels(pair.mask)
        labels = remap_labels(labels, table_rules(split.labels)) if split.labels else labels
        picture = Image.fromarray(labels.to(torch.uint8).numpy())
        picture.save(tmp_path / "preds" / f"{pair.name if name_of == 'pair' else pair.image.stem}.png")
    given = ["--pred", tmp_path / "preds", "--data", layout, root, PARTS[layout]]
    ran = run("metrics", *given, "--json")
    assert ran.code == 0, ran.err
    scores = json.loads(ran.out)
    assert scores["images"] == len(split.pairs)
    assert list(scores["classes"]) == split.classes
    assert scores["mean"]["iou"] == 1
    if name_of == "pair":
        ran = run("view", *given, "-o", tmp_path / "pages", "--dpi", 20)
        assert ran.code == 0, ran.err
        assert (tmp_path / "pages" / f"{split.pairs[0].name}.png").exists()
        assert run("diagnose", *given).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data camvid no train", "no: no such file or folder"),
        ("--data coco data train", "expected one of the layouts folder, ade20k, camvid,"),
        ("--data camvid data test", "data/test: no such file or folder; data has "),
        ("--data camvid data train --classes classes.txt", "expected no classes for the layout camvid"),
        (
            "--data camvid data train --mask data",
            "expected --mask or --data, but got",
        ),
        ("--classes 3", "expected --mask or --data, but got neither"),
        ("--mask data/trainannot", "--classes: expected the number of classes, such as --classes 11, or a file of"),
    ],
)
def test_what_is_wrong_with_a_data_set_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tree("camvid", Path("data"))
    Path("classes.txt").write_text("a\nb\n")
    ran = run("metrics", "--pred", "data/trainannot", *words.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"edgeloss: error: {message}")


@pytest.mark.parametrize(
    ("preds", "masks", "words", "hint"),
    [
        ("{}.npy", "{}_mask.png", "--mask-suffix _mask", "pass --mask-suffix _mask"),
        ("{}_leftImg8bit.npy", "ulm/{}_gtFine_labelIds.png", "--pred-suffix _leftImg8bit --mask-suffix"
            " {stem}_gtFine_labelIds.png", "pass --mask-suffix or --pred-suffix"),
    ],
)  # fmt: skip
def test_names_may_end_differently(run: Run, tmp_path: Path, preds: str, masks: str, words: str, hint: str) -> None:
    for kind, form in (("L", preds), ("M", masks)):
        path = tmp_path / kind / form.format("a")
        path.parent.mkdir(parents=True)
        if kind == "L":
            np.save(path, half_logits().numpy())
        else:
            Image.fromarray(mask_array()).save(path)
    command = ["metrics", "--pred", tmp_path / "L", "--mask", tmp_path / "M", "--classes", C, "--json"]
    ran = run(*command)
    assert (ran.code, hint in ran.err) == (2, True)
    ran = run(*command, *words.split())
    assert (ran.code, json.loads(ran.out)["images"]) == (0, 1)


def test_pages_of_nested_folders_link_to_each_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeloss.cli import pages

    found: list[dict[str, str]] = []

    def report(*_: object, links: dict[str, str], **given: object) -> str:
        found.append(links)
        return ""

    monkeypatch.setattr(pages, "draw_report", report)
    for name in ("x/1", "y/1"):
        for kind in ("L", "M"):
            (tmp_path / kind / name).parent.mkdir(parents=True)
        np.save(tmp_path / "L" / f"{name}.npy", half_logits().numpy())
        Image.fromarray(mask_array()).save(tmp_path / "M" / f"{name}.png")
    ran = run("view", "--pred", tmp_path / "L", "--mask", tmp_path / "M", "-o", tmp_path / "P", "--format", "html")
    assert ran.code == 0, ran.err
    assert found == [
        {"All images": "../index.html", "1 →": "../y/1.html"},
        {"All images": "../index.html", "← 1": "../x/1.html"},
    ]


@pytest.mark.parametrize(
    ("words", "iou"),
    [("--mask-remap 0:255,1-3:0", 1.0), ("--remap 0:255,1-3:0", 0.0), ("--mask-remap 1-3:0 --pred-remap 0-2:0", 1.0)],
)
@pytest.mark.filterwarnings("ignore:ignore_index. 255 is one of the 256 classes")
def test_labels_of_masks_and_predictions_are_replaced_apart(run: Run, tmp_path: Path, words: str, iou: float) -> None:
    labels = np.repeat(np.repeat(np.array([[0, 1], [2, 0]], np.uint8), 8, 0), 8, 1)
    Image.fromarray(labels).save(tmp_path / "pred.png")
    Image.fromarray(labels + 1).save(tmp_path / "mask.png")
    command = ["metrics", "--pred", tmp_path / "pred.png", "--mask", tmp_path / "mask.png", "--classes", 256, "--json"]
    ran = run(*command, *words.split())
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["classes"]["0"]["iou"] == iou


@pytest.mark.parametrize("name", ["ade20k", "cityscapes"])
def test_presets_of_data_sets(run: Run, tmp_path: Path, name: str) -> None:
    numbers, labels = {"ade20k": ([0, 1, 150], [255, 0, 149]), "cityscapes": ([0, 7, 33], [255, 0, 18])}[name]
    for file, values in (("mask", numbers), ("pred", labels)):
        Image.fromarray(np.repeat(np.repeat(np.array([values], np.uint8), 9, 0), 9, 1)).save(tmp_path / f"{file}.png")
    given = ["--pred", tmp_path / "pred.png", "--mask", tmp_path / "mask.png", "--mask-remap", name]
    ran = run("metrics", *given, "--classes", {"ade20k": 150, "cityscapes": 19}[name], "--csv")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1].startswith("mean,1.0,")
    assert len(ran.out.splitlines()) == {"ade20k": 152, "cityscapes": 21}[name]


def test_tables_of_many_classes_show_the_worst_and_the_best(run: Run, tmp_path: Path) -> None:
    labels = np.repeat(np.repeat(np.arange(40, dtype=np.uint8).reshape(5, 8), 6, 0), 6, 1)
    Image.fromarray(labels).save(tmp_path / "mask.png")
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(labels.shape) < labels / 60, (labels + 1) % 40, labels).astype(np.uint8)
    Image.fromarray(noisy).save(tmp_path / "pred.png")
    command = ["metrics", "--pred", tmp_path / "pred.png", "--mask", tmp_path / "mask.png", "--classes", 60]
    every = {line.split(",")[0]: line.split(",")[1] for line in run(*command, "--csv").out.splitlines()[1:]}
    assert list(every) == [*map(str, range(60)), "mean"]
    about, table, *_, last = run(*command).out.split("\n\n")
    assert about == "1 image; scores in %, 100 is best"
    lines = table.splitlines()[3:]  # after two lines of heads and a rule
    assert len(lines) == 20 + 2
    ranked = sorted((name for name in every if every[name] and name != "mean"), key=lambda name: float(every[name]))
    assert {line.split()[0] for line in lines[:20]} == {*ranked[:10], *ranked[-10:]}
    assert last.splitlines()[-1] == "20 of 60 classes, the worst and the best by IoU; --csv has all"


def test_metrics_and_diagnose_skip_bad_files(run: Run, folders: Path) -> None:
    for name in "ab":
        (folders / "preds" / f"{name}.pt").write_bytes(b"bad")
    given = ["--pred", folders / "preds", "--mask", folders / "masks"]
    for command in (["metrics", *given, "--classes", C], ["diagnose", *given], ["compare", *given[1:2], *given[1:4]]):
        more = ["-o", folders / "c.html"] if command[0] == "compare" else []
        ran = run(*command, *more)
        assert ran.code == 2
        assert ran.err.count("edgeloss: skipped: ") == 2
        assert "edgeloss: skipped: 1 more for the same reason as a\n" in ran.err
        assert ran.err.endswith("edgeloss: error: 2 of 3 images were skipped: a, b\n")
        assert ran.out or (folders / "c.html").exists()
        strict = run(*command, *more, "--strict")
        assert strict.code == 2
        assert re.fullmatch(r"edgeloss: error: .*a\.pt: expected numbers .*\n", strict.err)
    ran = run("metrics", *given, "--classes", C, "--json")
    assert json.loads(ran.out)["images"] == 1
    (folders / "preds" / "c.pt").write_bytes(b"bad")
    ran = run("metrics", *given, "--classes", C)
    assert (ran.code, ran.out) == (2, "")


def test_a_value_that_is_not_finite_and_a_bad_file(run: Run, folders: Path) -> None:
    torch.save(torch.full((C, H, W), float("nan")), folders / "preds" / "b.pt")
    given = ["diagnose", "--pred", folders / "preds", "--mask", folders / "masks"]
    assert run(*given).code == 1
    (folders / "preds" / "a.pt").write_bytes(b"bad")
    assert run(*given).code == 2


@pytest.mark.parametrize(
    ("masks", "is_warned"),
    [
        ({"a": (0, 255), "b": (0, 255)}, True),
        ({"a": (0, 255), "b": (0, 1)}, False),  # background with a void rim, among others
        ({"a": (0, 0), "b": (0, 0)}, False),
    ],
)
def test_a_folder_whose_foreground_may_be_ignored_is_warned_of_once(
    run: Run, tmp_path: Path, masks: dict[str, Any], is_warned: bool
) -> None:
    for kind in ("L", "M"):
        (tmp_path / kind).mkdir()
    for name, values in masks.items():
        Image.fromarray(np.repeat(np.repeat(np.array([values], np.uint8), 9, 0), 9, 1)).save(tmp_path / f"M/{name}.png")
        np.save(tmp_path / f"L/{name}.npy", np.ones((9, 18), np.float32) * -3)
    ran = run("metrics", "--pred", tmp_path / "L", "--mask", tmp_path / "M", "--classes", 2)
    assert ran.code == 0, ran.err
    assert ran.err.count("all masks hold only 0 and 255") == is_warned


def test_an_error_of_a_binary_mask_advises_its_target(run: Run, tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(tmp_path / "m.png")
    np.save(tmp_path / "p.npy", np.zeros((1, 2), np.float32) - 1)
    given = ["metrics", "--pred", tmp_path / "p.npy", "--mask", tmp_path / "m.png", "--classes", 2]
    ran = run(*given, "--ignore-index", -100)
    assert ran.code == 2
    assert "if these are its classes, pass --mask-remap 255:1" in ran.err
    assert run(*given, "--mask-remap", "255:1").code == 0


def test_many_labels_that_the_mask_lacks_are_noted(run: Run, tmp_path: Path) -> None:
    p = torch.sigmoid(torch.randn(H, W, generator=torch.Generator().manual_seed(0)))
    np.save(tmp_path / "p.npy", (p * 255).round().to(torch.uint8).numpy())
    Image.fromarray((p > 0.5).numpy().astype(np.uint8)).save(tmp_path / "m.png")
    given = ["view", "--pred", tmp_path / "p.npy", "--mask", tmp_path / "m.png", "-o", tmp_path / "x.png", "--dpi", 20]
    ran = run(*given)
    assert ran.code == 0
    assert re.search(r"p\.npy: \d+ of its \d+ labels, up to 25\d, are not in .*m\.png; of probabilities, pass", ran.err)
    ran = run(*given, "--pred-kind", "probabilities", "--json")
    assert json.loads(ran.out)["mean_iou"] == 1


def test_an_error_does_not_list_150_classes(run: Run, folder: Path) -> None:
    np.save(folder / "p.npy", np.zeros((150, H, W), np.float32))
    (folder / "one.txt").write_text("0 1 2 3\n")
    given = ["--pred", folder / "p.npy", "--mask", folder / "mask.png", "--palette", folder / "one.txt"]
    ran = run("view", *given, "-o", folder / "x.png")
    assert ran.err.endswith("expected 150 colors, but got none for class 1, 2, 3, 4, 5, 6, 7, 8 and 141 more\n")


def test_as_many_classes_as_labels_are_limited(run: Run, folder: Path) -> None:
    labels = np.zeros((H, W), np.uint16)
    labels[0, 0], labels[5, 5] = 30_000, 30_000
    np.save(folder / "p.npy", labels)
    given = ["view", "--pred", folder / "p.npy", "--mask", folder / "mask.png", "-o", folder / "x.png"]
    ran = run(*given)
    assert ran.code == 2
    assert "p.npy: expected at most 1024 classes, but got the label 30000; pass --classes for more" in ran.err


def test_an_image_in_another_orientation_than_its_mask(run: Run, folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (W, H)).save(folder / "turned.jpg", exif=exif)
    given = ["view", "--pred", folder / "pred.npy", "--mask", folder / "mask.png", "-o", folder / "x.png"]
    ran = run(*given, "--image", folder / "turned.jpg")
    assert ran.code == 2
    assert "but got 32 × 24, turned upright by its EXIF orientation 6; the mask fits the pixels as they are" in ran.err


def test_a_note_is_printed_once_for_all_files(run: Run, folders: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    for name in "abc":
        Image.new("RGB", (W, H)).save(folders / "images" / f"{name}.jpg", exif=exif)
    given = ["view", "--pred", folders / "preds", "--mask", folders / "masks", "--image", folders / "images"]
    ran = run(*given, "-o", folders / "pages", "--dpi", 20)
    about = "turned upright by its EXIF orientation 3\n"
    assert ran.err.count(about) == 2
    assert f"edgeloss: note: {folders / 'images' / 'a.jpg'}: {about}" in ran.err
    assert f"edgeloss: note: 2 more: {about}" in ran.err


def test_a_huge_image_is_refused_by_its_header(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (9400, 9400), 1).save(folder / "huge.png")
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    given = ["view", "--pred", folder / "pred.npy", "--mask", folder / "mask.png", "-o", folder / "x.png"]
    ran = run(*given, "--image", folder / "huge.png")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"huge.png: expected {H} × {W} pixels as in {folder / 'mask.png'}, but got 9400 × 9400" in ran.err


def test_limits_are_raised_by_their_options(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeloss.io import limits

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    monkeypatch.setattr(limits, "MAX_BYTES", 100)
    given = ["metrics", "--pred", folder / "pred.npy", "--mask", folder / "mask.png", "--classes", C]
    assert "pass --max-pixels to read it" in run(*given).err
    assert "pass --max-gigabytes to read it" in run(*given, "--max-pixels", 1000).err
    assert run(*given, "--max-pixels", 1000, "--max-gigabytes", 1).code == 0


def test_memory_that_runs_out_names_the_files(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeloss.cli.cases import Reader

    for error in (MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't")):

        def parts(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(Reader, "parts", parts)
        ran = run("metrics", "--pred", folder / "pred.npy", "--mask", folder / "mask.png", "--classes", C)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert f"{folder / 'mask.png'} or {folder / 'pred.npy'}: expected a case that fits into memory" in ran.err


def test_tree_of_a_data_set_is_left_as_it_was(run: Run, tmp_path: Path) -> None:
    write_tree("camvid", tmp_path / "data", (H, W))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    ran = run("view", "--pred", tmp_path / "data/trainannot", "--data", "camvid", tmp_path / "data", "train", "-o",
              tmp_path / "data/train")  # fmt: skip
    assert ran.code == 2
    for path in (tmp_path / "copy").rglob("*.png"):
        assert (tmp_path / "data" / path.relative_to(tmp_path / "copy")).read_bytes() == path.read_bytes()
