"""Outputs of the command: what exists is replaced only if the same command wrote it, and links and devices stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import C, Run, arguments, process
from PIL import Image

from edgeloss.cli import outputs

PALE = ["--dpi", 20]
ANOTHER = "expected a new file or an output of edgeloss {}, but got another file; delete it, or choose another {}"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # Pictures of the same names, read or not.
        ("view -o images", "images/a.png: " + ANOTHER.format("view", "--output")),
        ("view --image images -o images", "images: expected a path other than the inputs"),
        ("view -o masks", "masks: expected a path other than the inputs"),
        ("view -o masks/pages", "masks/pages: expected a path outside of masks, whose files are read"),
        ("view -o link", "link: expected a path other than the inputs"),
        ("view -o others", "others/index.html: " + ANOTHER.format("view", "--output")),
        ("view -o pages.html", "pages.html: expected a folder, but got a name that ends in .html; pass --output"),
        ("view -o pages.png", "pages.png: expected a folder, but got a name that ends in .png; pass --output pages"),
        ("diagnose --figure images", "images/a.png: " + ANOTHER.format("diagnose", "--figure")),
        ("diagnose --figure masks", "masks: expected a path other than the inputs"),
        ("metrics --classes 3 -o masks/a.png", "masks/a.png: expected an output in one of .csv, .json, .txt, but"),
        ("metrics --classes 3 -o masks/new.npy", "masks/new.npy: expected an output in one of .csv"),
        ("metrics --classes 3 -o classes.txt", "classes.txt: " + ANOTHER.format("metrics", "--output")),
        ("metrics --classes classes.txt -o classes.txt", "classes.txt: expected a path other than the inputs"),
        ("metrics --classes 3 --palette colors.txt -o colors.txt", "colors.txt: expected a path other than the inputs"),
        ("metrics --classes 3 -o notes.csv", "notes.csv: " + ANOTHER.format("metrics", "--output")),
    ],
)  # fmt: skip
def test_nothing_is_replaced_that_the_command_did_not_write(
    run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    for name in "abc":
        Image.open(folders / "images" / f"{name}.jpg").save(folders / "images" / f"{name}.png")
        (folders / "images" / f"{name}.jpg").unlink()
    (folders / "link").symlink_to("masks")
    (folders / "others").mkdir()
    for name, text in {
        "classes.txt": "a\nb\nc\n",
        "colors.txt": "0 1 1 1\n1 2 2 2\n2 3 3 3\n",
        "notes.csv": "my,own\n",
        "others/index.html": "<!doctype html>mine",
    }.items():
        (folders / name).write_text(text)
    monkeypatch.chdir(folders)
    before = contents(folders)
    command, *more = words.split()
    ran = run(command, "--pred", "preds", "--mask", "masks", *more)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"edgeloss: error: {message}")
    assert contents(folders) == before


@pytest.mark.parametrize("suffix", [*(pytest.param(s, marks=pytest.mark.slow) for s in ("pdf", "svg")), "png", "html"])
def test_a_command_replaces_its_own_outputs(run: Run, folder: Path, suffix: str) -> None:
    output = folder / f"page.{suffix}"
    for _ in range(2):
        assert run("view", *arguments(folder), "-o", output, *PALE).code == 0
    if suffix == "html":
        return
    ran = run("diagnose", *arguments(folder), "--figure", output)  # but not those of another command
    assert (ran.code, "expected a new file or an output of edgeloss diagnose" in ran.err) == (2, True)
    if suffix == "png":
        with Image.open(output) as picture:
            picture.load()
            assert picture.info["Source"] == "edgeloss view"


@pytest.mark.parametrize("name", ["m.csv", "m.json", "m.txt"])
def test_metrics_replaces_its_own_tables(run: Run, folder: Path, name: str) -> None:
    for _ in range(2):
        assert run("metrics", *arguments(folder), "--classes", C, "-o", folder / name).code == 0
    assert "iou" in (folder / name).read_text().lower()


def test_a_link_to_a_table_stays_one(run: Run, folder: Path) -> None:
    (folder / "link.json").symlink_to("real.json")
    for _ in range(2):
        assert run("metrics", *arguments(folder), "--classes", C, "-o", folder / "link.json").code == 0
        assert json.loads((folder / "real.json").read_text())["images"] == 1
        assert (folder / "link.json").is_symlink()


def test_a_device_is_written_through(run: Run, folder: Path) -> None:
    assert run("metrics", *arguments(folder), "--classes", C, "-o", os.devnull).code == 0
    assert not Path(os.devnull).is_file()
    ran = run("metrics", *arguments(folder), "--classes", C, "-o", "/dev/full")
    assert (ran.code, "/dev/full: can't be written (No space left on device)" in ran.err) == (2, True)


@pytest.mark.slow
def test_standard_output_by_its_path(folder: Path) -> None:
    ran = process("metrics", *arguments(folder), "--classes", C, "-o", "/dev/stdout", "--json")
    assert (ran.returncode, json.loads(ran.stdout)["images"]) == (0, 1)


def test_a_full_disk_ends_the_work_on_a_folder(run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = run("view", "--pred", folders / "preds", "--mask", folders / "masks", "-o", folders / "pages", *PALE)
    assert ran.code == 2
    assert ran.err.endswith(f"error: {folders / 'pages' / 'a.png'}: can't be written (No space left on device)\n")
    assert os.listdir(folders / "pages") == []


def test_marks_leave_pictures_as_they_are(tmp_path: Path) -> None:
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "a.png")
    outputs.write(tmp_path / "b.png", (tmp_path / "a.png").read_bytes(), "view")
    with Image.open(tmp_path / "b.png") as picture:
        picture.verify()
    with Image.open(tmp_path / "b.png") as picture:
        assert picture.tobytes() == bytes([1, 2, 3]) * 6
