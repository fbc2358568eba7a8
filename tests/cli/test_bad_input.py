"""Input that cannot be used: one line that names it, and no file touched."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from command_line import C, H, Run, W, arguments
from PIL import Image

from edgeloss.cli.commands import PALETTE_NAMES
from edgeloss.io import PALETTES


class Bomb:
    """An object whose unpickling creates a folder."""

    def __init__(self, mark: Path) -> None:
        """Store the folder to create."""
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        """Create the folder when unpickled."""
        return os.mkdir, (str(self.mark),)


class Bad(NamedTuple):
    """A file that cannot be used: how to write it to a path, and what the message says."""

    name: str
    write: Callable[[Path], object]
    message: str


def _image(array: np.ndarray[Any, Any]) -> Callable[[Path], object]:
    return lambda path: Image.fromarray(array).save(path)


def _truncated(size: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:-size])


def _array(*shape: int, dtype: type = np.float32) -> Callable[[Path], object]:
    return lambda path: np.save(path, np.zeros(shape, dtype))


def _objects(path: Path) -> np.ndarray[Any, Any]:
    return np.array([Bomb(path.with_name("mark"))], dtype=object)


NO_NUMBERS = "holds something other than numbers"
NOT_READ = "pickled objects are not read"
NO_IMAGE = "can't be read as an image"
BAD_FILES = {
    "pickled array": Bad("pred.npy", lambda path: np.save(path, _objects(path), allow_pickle=True), NO_NUMBERS),
    "pickle": Bad("pred.npy", lambda path: path.write_bytes(pickle.dumps(_objects(path)[0])), NO_NUMBERS),
    "pickle in an archive": Bad(
        "pred.npz", lambda path: np.savez(path, logits=_objects(path), allow_pickle=True), NO_NUMBERS
    ),
    "pickle in a .pt": Bad("pred.pt", lambda path: torch.save({"logits": _objects(path)[0]}, path), NOT_READ),
    "model in a .pt": Bad("pred.pt", lambda path: torch.save(torch.nn.Conv2d(1, 1, 1), path), NOT_READ),
    "truncated array": Bad("pred.npy", _truncated(100), "is damaged"),
    "empty array": Bad("pred.npy", lambda path: path.write_bytes(b""), "is damaged"),
    "text": Bad(
        "pred.npy",
        lambda path: np.save(path, np.array(["sky"])),
        "expected an array of real numbers, but got dtype <U3",
    ),
    "complex": Bad(
        "pred.pt",
        lambda path: torch.save(torch.zeros(C, H, W, dtype=torch.complex64), path),
        "expected dense real numbers, but got complex64 [3, 24, 32]",
    ),
    "sparse": Bad(
        "pred.pt",
        lambda path: torch.save(torch.eye(H).to_sparse(), path),
        "expected dense real numbers, but got float32 [24, 24], torch.sparse_coo",
    ),
    "two arrays": Bad(
        "pred.npz",
        lambda path: np.savez(path, a=np.zeros(3), b=np.zeros(3)),
        "expected one array, or one named logits, pred,",
    ),
    "no pixel": Bad("pred.npy", _array(C, 0, W), "expected at least one pixel, but got float32 [3, 0, 32]"),
    "volume": Bad("pred.npy", _array(2, C, H, W), "expected floating logits [C, H, W], but got float32 [2, 3, 24, 32]"),
    "classes last": Bad("pred.npy", _array(H, W, C), "got 32 × 3; classes come first, [C, H, W]"),
    "larger than the mask": Bad(
        "pred.npy", _array(C, H + 1, W), "or the same picture in lower resolution, but got 25 × 32"
    ),
    "quantized logits": Bad(
        "pred.npy",
        _array(C, H, W, dtype=np.uint8),
        "expected labels [H, W] or floating logits [C, H, W], but got uint8 [3, 24, 32]; store logits or probabilities"
        " [C, H, W] in a floating dtype",
    ),
    "quantized tensor": Bad(
        "pred.pt",
        lambda path: torch.save(torch.zeros(C, H, W, dtype=torch.int8), path),
        "but got int8 [3, 24, 32]; store logits",
    ),
    "void in int8": Bad(
        "mask.npy",
        lambda path: np.save(path, np.full((H, W), -1, np.int8)),
        "but got -1 at 768 pixels, first at [0, 0]; if -1 marks void, pass --remap -1:255",
    ),
    "missing": Bad("pred.npy", lambda path: path.unlink(), "no such file or folder"),
    "colored mask": Bad(
        "mask.png",
        _image(np.full((H, W, 3), (200, 0, 0), np.uint8)),
        "expected class indices, but got colors, (200, 0, 0) at [0, 0]; store indices, or name the palette"
        " (edgeloss --palette)",
    ),
    "label out of range": Bad(
        "mask.png",
        _image(np.full((H, W), 7, np.uint8)),
        "expected labels 0 to 2, or ignore_index=255, but got 7 at 768 pixels, first at [0, 0]",
    ),
    "truncated mask": Bad("mask.png", _truncated(30), NO_IMAGE),
    "no mask": Bad("mask.png", lambda path: path.write_bytes(b"not an image"), NO_IMAGE),
    "large image": Bad("a.png", _image(np.zeros((2000, 2000), np.uint8)), "expected at most 1000000 pixels"),
    "image of another size": Bad("a.png", _image(np.zeros((H, W + 1), np.uint8)), "mask.png, but got 24 × 33"),
    "deep image": Bad(
        "a.png",
        _image(np.zeros((H, W), np.uint16)),
        "expected 8 bits per channel, but got an image of mode I;16",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_one_line_that_names_them(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # keeps the large image of the test small
    bad = BAD_FILES[case]
    path = folder / bad.name
    bad.write(path)
    assert (b"mkdir" in path.read_bytes() if path.exists() else False) == case.startswith("pickle")
    pred = path if path.name.startswith("pred") else folder / "pred.npy"
    output = folder / "panel.png"
    output.write_bytes(b"from before")
    mask = path if path.name.startswith("mask") else folder / "mask.png"
    ran = run("view", "--pred", pred, "--mask", mask, "--image", folder / "a.png", "-o", output)
    assert ran.code == 2
    assert ran.err.startswith(f"edgeloss: error: {path}: ")
    assert bad.message in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""
    assert output.read_bytes() == b"from before"
    assert not (folder / "mark").exists()
    assert not list(folder.glob(".edgeloss*"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
@pytest.mark.parametrize("name", ["a.png", "mask.png", "pred.npy", "pred.npz", "pred.pt", "classes.txt", "colors.txt"])
def test_pipes_and_endless_files_are_not_read(run: Run, folder: Path, name: str) -> None:
    """Opening a pipe without a writer would wait forever."""
    path, output = folder / name, folder / "panel.png"
    pred = name if name.startswith("pred") else "pred.npy"
    command = ["view", *arguments(folder, pred), "--image", folder / "a.png", "-o", output]
    command += {"classes.txt": ["--classes", path], "colors.txt": ["--palette", path]}.get(name, [])
    for kind in ("a pipe", "a device or socket"):
        path.unlink(missing_ok=True)
        os.mkfifo(path) if kind == "a pipe" else path.symlink_to("/dev/zero")
        ran = run(*command)
        assert (ran.code, ran.err) == (2, f"edgeloss: error: {path}: expected a regular file, but got {kind}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--radius", "0"], "radius: expected ≥ 0 along every axis and ≥ 1 along at least one, but got 0"),
        (["--decay", "nan"], "decay: expected a finite number > 0"),
        (["--classes", "1"], "--classes: expected 2 to 32767 classes, but got 1; one logit has two"),
        (["--classes", "4"], "pred.npy: expected 4 classes, but got 3; classes come first"),
        (["--classes", "none.txt"], "none.txt: no such file or folder"),
        (["--palette", "mask.png"], "mask.png: expected a text file in UTF-8"),
        (["--palette", "colors.txt"], "colors.txt: expected 3 colors, but got none for class 1, 2"),
        (["--palette", "reds.txt"], 'reds.txt, line 2: expected "<index> <r> <g> <b> or <index> #rrggbb"'),
        (["--classes", "gap.txt"], "gap.txt, line 2: expected the indices of 2 classes to be 0 to 1"),
        (["--pred-kind", "probabilities"], "pred.npy: expected probabilities in [0, 1] that sum to 1"),
        (["--palette", "VOC"], "VOC: expected a file, or one of ade20k, camvid, cityscapes, voc, but got neither"),
        (["--remap", "1:2:3"], "--remap: expected FROM:TO or FIRST-LAST:TO, separated by commas, but got '1:2:3'"),
        (["--mask", "several.npz"], "several.npz: expected one array, or one named labels, label, mask,"),
        (["--pred", "several.npz", "--key", "c"], "several.npz: expected an array named c, but got a, b"),
        (["--pred-kind", "labels"], "pred.npy: expected integer labels [H, W], but got float32 [3, 12, 16]"),
        (["-o", "panel.gif"], "panel.gif: expected an output in one of .png, .pdf, .svg, .html, but got .gif"),
        (["-o", "a.png/panel.png"], "panel.png: can't be written (Not a directory)"),
        (["-o", "folder.png"], "folder.png: expected a file to write to"),
        (["-o", "mask.png"], "mask.png: expected a path other than the inputs, but got one of them"),
        (["--image", "."], "expected only folders or only files, but got both"),
    ],
)
def test_bad_options_are_one_line(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    (folder / "colors.txt").write_text("0 1 2 3\n")
    (folder / "reds.txt").write_text("0 1 2 3\n1 256 0 0\n")
    (folder / "gap.txt").write_text("0 ground\n2 box\n")
    (folder / "folder.png").mkdir()
    np.savez(folder / "several.npz", a=np.zeros((H, W)), b=np.zeros((H, W)))
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    ran = run("view", "--mask", "mask.png", "--pred", "pred.npy", "-o", "panel.png", *options)
    assert ran.code == 2
    assert ran.err.startswith("edgeloss: error: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_palettes_are_known_without_importing_torch() -> None:
    assert tuple(PALETTES) == PALETTE_NAMES


def test_ctrl_c_leaves_no_incomplete_file(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    assert run("view", *arguments(folder), "-o", folder / "panel.png").code == 130
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "mask.png", "pred.npy"]
