"""Input that cannot be used: one line that names it, and no file touched."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import C, H, Run, W, arguments
from PIL import Image


class Bomb:
    """An object whose unpickling creates a folder."""

    def __init__(self, mark: Path) -> None:
        """Store the folder to create."""
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        """Create the folder when unpickled."""
        return os.mkdir, (str(self.mark),)


def bad_file(folder: Path, case: str) -> Path:
    """Write a file that cannot be used, and return its path."""
    pred, mask, picture = folder / "pred.npy", folder / "mask.png", folder / "a.png"
    bomb = Bomb(folder / "mark")
    if case == "pickled array":
        np.save(pred, np.array([bomb], dtype=object), allow_pickle=True)
    elif case == "pickle":
        pred.write_bytes(pickle.dumps(bomb))
    elif case == "pickle in an archive":
        pred = folder / "pred.npz"
        np.savez(pred, logits=np.array([bomb], dtype=object), allow_pickle=True)
    elif case == "pickle in a .pt":
        pred = folder / "pred.pt"
        torch.save({"logits": bomb}, pred)
    elif case == "model in a .pt":
        pred = folder / "pred.pt"
        torch.save(torch.nn.Conv2d(1, 1, 1), pred)
    elif case == "truncated array":
        pred.write_bytes(pred.read_bytes()[:-100])
    elif case == "empty array":
        pred.write_bytes(b"")
    elif case == "text":
        np.save(pred, np.array(["sky"]))
    elif case == "complex":
        torch.save(torch.zeros(C, H, W, dtype=torch.complex64), folder / "pred.pt")
        pred = folder / "pred.pt"
    elif case == "sparse":
        torch.save(torch.eye(H).to_sparse(), folder / "pred.pt")
        pred = folder / "pred.pt"
    elif case == "two arrays":
        pred = folder / "pred.npz"
        np.savez(pred, a=np.zeros(3), b=np.zeros(3))
    elif case == "no pixel":
        np.save(pred, np.zeros((C, 0, W), np.float32))
    elif case == "volume":
        np.save(pred, np.zeros((2, C, H, W), np.float32))
    elif case == "classes last":
        np.save(pred, np.zeros((H, W, C), np.float32))
    elif case == "larger than the mask":
        np.save(pred, np.zeros((C, H + 1, W), np.float32))
    elif case == "float labels":
        np.save(pred, np.zeros((C, H, W), np.int64))
    elif case == "missing":
        pred.unlink()
    elif case == "coloured mask":
        Image.fromarray(np.zeros((H, W, 3), np.uint8)).save(mask)
        return mask
    elif case == "label out of range":
        Image.fromarray(np.full((H, W), 7, np.uint8)).save(mask)
        return mask
    elif case == "truncated mask":
        mask.write_bytes(mask.read_bytes()[:-30])
        return mask
    elif case == "no mask":
        mask.write_bytes(b"not an image")
        return mask
    elif case == "large image":
        Image.fromarray(np.zeros((2000, 2000), np.uint8)).save(picture)
        return picture
    elif case == "image of another size":
        Image.fromarray(np.zeros((H, W + 1), np.uint8)).save(picture)
        return picture
    elif case == "deep image":
        Image.fromarray(np.zeros((H, W), np.uint16)).save(picture)
        return picture
    return pred


@pytest.mark.parametrize(
    ("case", "message"),
    {
        "pickled array": "holds something other than numbers",
        "pickle": "holds something other than numbers",
        "pickle in an archive": "holds something other than numbers",
        "pickle in a .pt": "pickled objects are not read",
        "model in a .pt": "pickled objects are not read",
        "truncated array": "is damaged",
        "empty array": "is damaged",
        "text": "expected an array of real numbers, but got dtype <U3",
        "complex": "expected dense real numbers, but got complex64 [3, 24, 32]",
        "sparse": "expected dense real numbers, but got float32 [24, 24], torch.sparse_coo",
        "two arrays": "expected one array, or one named logits, pred,",
        "no pixel": "expected at least one pixel, but got float32 [3, 0, 32]",
        "volume": "expected floating logits [C, H, W], but got float32 [2, 3, 24, 32]",
        "classes last": "got 32 × 3; classes come first, [C, H, W]",
        "larger than the mask": "or the same picture in lower resolution, but got 25 × 32",
        "float labels": "expected integer labels [H, W], but got int64 [3, 24, 32]",
        "missing": "no such file or folder",
        "coloured mask": "expected one channel of class indices, but got colours (mode RGB)",
        "label out of range": "expected labels 0 to 2, or ignore_index=255, but got 7 at 768 pixels, first at [0, 0]",
        "truncated mask": "can't be read as an image",
        "no mask": "can't be read as an image",
        "large image": "expected at most 1000000 pixels",
        "image of another size": "mask.png, but got 24 × 33",
        "deep image": "expected 8 bits per channel, but got an image of mode I;16",
    }.items(),
)
def test_bad_files_are_one_line_that_names_them(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, case: str, message: str
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # keeps the large image of the test small
    path = bad_file(folder, case)
    assert (b"mkdir" in path.read_bytes() if path.exists() else False) == case.startswith("pickle")
    pred = path if path.name.startswith("pred") else folder / "pred.npy"
    output = folder / "panel.png"
    output.write_bytes(b"from before")
    ran = run("view", *arguments(folder, pred.name), "--image", folder / "a.png", "-o", output)
    assert ran.code == 2
    assert ran.err.startswith(f"edgeloss: error: {path}: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""
    assert output.read_bytes() == b"from before"
    assert not (folder / "mark").exists()
    assert not list(folder.glob(".edgeloss*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--radius", "0"], "radius: expected ≥ 0 along every axis and ≥ 1 along at least one, but got 0"),
        (["--decay", "nan"], "decay: expected a finite number > 0"),
        (["--classes", "1"], "--classes: expected 2 to 32767 classes, but got 1; one logit has two"),
        (["--classes", "4"], "pred.npy: expected 4 classes, but got 3; classes come first"),
        (["--classes", "none.txt"], "none.txt: No such file or directory"),
        (["--palette", "mask.png"], "mask.png: expected a text file in UTF-8"),
        (["--palette", "colors.txt"], "colors.txt: expected 3 colours, but got none for class 1, 2"),
        (["--palette", "reds.txt"], 'reds.txt, line 2: expected "<index> <r> <g> <b> or <index> #rrggbb"'),
        (["--classes", "gap.txt"], "gap.txt, line 2: expected the indices of 2 classes to be 0 to 1"),
        (["--pred-kind", "probabilities"], "pred.npy: expected probabilities in [0, 1] that sum to 1"),
        (["--pred-kind", "labels"], "pred.npy: expected integer labels [H, W], but got float32 [3, 12, 16]"),
        (["-o", "panel.gif"], "panel.gif: expected an output in one of .png, .pdf, .svg, .html, but got .gif"),
        (["-o", "none/panel.png"], "panel.png: can't be written (No such file or directory)"),
        (["-o", "a.png/panel.png"], "panel.png: can't be written (Not a directory)"),
        (["-o", "folder.png"], "folder.png: expected a file to write to, but got something else"),
        (["-o", "mask.png"], "mask.png: expected an output apart from the inputs, but got one of them"),
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
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    ran = run("view", "--mask", "mask.png", "--pred", "pred.npy", "-o", "panel.png", *options)
    assert ran.code == 2
    assert ran.err.startswith("edgeloss: error: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_ctrl_c_leaves_no_incomplete_file(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    assert run("view", *arguments(folder), "-o", folder / "panel.png").code == 130
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "mask.png", "pred.npy"]
