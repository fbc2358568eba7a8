"""Input that cannot be used: one line that names it, exit code 2, and no file touched."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import C, H, Run, W, arguments, half_logits, mask_array
from PIL import Image

from edgeloss.cli.paths import PALETTE_NAMES, READ_SUFFIXES
from edgeloss.io import ARRAY_SUFFIXES, IMAGE_SUFFIXES, PALETTES

Write = Callable[[Path], object]


class Bomb:
    """An object whose unpickling creates a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Create the folder when unpickled."""
        return os.mkdir, ("mark",)


def image(array: np.ndarray[Any, Any]) -> Write:
    return lambda path: Image.fromarray(array).save(path)


def array(*shape: int, dtype: type = np.float32, value: float = 0) -> Write:
    return lambda path: np.save(path, np.full(shape, value, dtype))


def tensor(content: object) -> Write:
    return lambda path: torch.save(content, path)


def truncated(name: str, size: int) -> Write:
    return lambda path: path.write_bytes(path.with_name(name).read_bytes()[:-size])


def text(content: str) -> Write:
    return lambda path: path.write_text(content)


BOMB = np.array([Bomb()], dtype=object)
NOT_FINITE = half_logits().index_fill(1, torch.tensor([3]), float("nan"))
# Next to a.png, mask.png and pred.npy, which can be used, and to images/, masks/ and preds/ of a, b and c.
FILES: dict[str, Write] = {
    "pickled.npy": lambda path: np.save(path, BOMB, allow_pickle=True),
    "pickle.npy": lambda path: path.write_bytes(pickle.dumps(BOMB[0])),
    "pickled.npz": lambda path: np.savez(path, logits=BOMB, allow_pickle=True),
    "pickled.pt": tensor({"logits": BOMB[0]}),
    "model.pt": tensor(torch.nn.Conv2d(1, 1, 1)),
    **{f"empty.{suffix}": text("") for suffix in ("npy", "png", "txt")},
    "words.npy": lambda path: np.save(path, np.array(["sky"])),
    "complex.pt": tensor(torch.zeros(C, H, W, dtype=torch.complex64)),
    "sparse.pt": tensor(torch.eye(H).to_sparse()),
    "several.npz": lambda path: np.savez(path, a=np.zeros(3), b=np.zeros(3)),
    "no_pixel.npy": array(C, 0, W),
    "volume.npy": array(2, C, H, W),
    "classes_last.npy": array(H, W, C),
    "large.npy": array(C, H + 1, W),
    "swapped.npy": array(C, W, H),
    "quantized.npy": array(C, H, W, dtype=np.uint8),
    "quantized.pt": tensor(torch.zeros(C, H, W, dtype=torch.int8)),
    "int8.npy": array(H, W, dtype=np.int8, value=-1),
    "nan.npy": lambda path: np.save(path, NOT_FINITE.numpy()),
    "colors.png": image(np.full((H, W, 3), (200, 0, 0), np.uint8)),
    "sevens.png": image(np.full((H, W), 7, np.uint8)),
    "two.png": image(mask_array() == 1),
    "three.png": image(mask_array() % 255),
    "levels.png": image(np.array([0, 128, 255], np.uint8)[np.arange(H * W).reshape(H, W) % 3]),
    "photo.png": image(np.random.default_rng(0).integers(256, size=(H, W, 3), dtype=np.uint8)),
    "small.png": image(np.zeros((H // 4, W), np.uint8)),
    "truncated.png": truncated("mask.png", 30),
    "words.png": text("not an image"),
    "pixels.png": image(np.zeros((2000, 2000), np.uint8)),
    "wide.png": image(np.zeros((H, W + 1), np.uint8)),
    "deep.png": image(np.zeros((H, W), np.uint16)),
    "mask.jpg": image(np.zeros((H, W), np.uint8)),
    "notes.txt": text("hello\n"),
    "one_color.txt": text("0 1 2 3\n"),
    "bright.txt": text("0 1 2 3\n1 256 0 0\n"),
    "others/z.png": image(mask_array()),
    **{f"begun/x{name}.png": image(mask_array()) for name in "abc"},
    **{f"parts/{part}/{name}.png": image(mask_array()) for part in ("one", "two") for name in "abc"},
    "incomplete/a.png": image(mask_array()),
    "twice/a.npy": text(""),
    "twice/a.pt": text(""),
    "none/notes.txt": text(""),
    "folder.png/notes.txt": text(""),
}

# By command, the words that can be used; those of a case come after them, and so replace their options.
COMMANDS = {
    "view": "view --pred pred.npy --mask mask.png -o out.png",
    "compare": "compare pred.npy pred.npy --mask mask.png -o out.html",
    "metrics": "metrics --pred pred.npy --mask mask.png --classes 3 -o out.csv",
    "diagnose": "diagnose --pred pred.npy --mask mask.png --figure out.png",
    "view of folders": "view --pred preds --mask masks -o new --format html",
    "compare of folders": "compare preds preds --mask masks -o out.html",
}
NOT_NUMBERS = (
    "expected numbers as numpy.save or torch.save write them, but got a damaged file or other objects; pickled objects"
    " are not read"
)
NO_IMAGE = "can't be read as an image"
SUFFIXES = "expected labels in one of .png, .bmp, .tif, .tiff, .npy, .npz, .pt, .pth, but got"
VOLUME = (
    "; of a volume [C, D, H, W], with labels [D, H, W], take slice N along D by --slice N, or score all by metrics"
    " --volumes"
)

# What every command says: of the mask, or of other words.
EVERY = [
    ("--mask no.png", "no.png: no such file or folder; "),
    ("--mask mask.jpg", f"mask.jpg: {SUFFIXES} .jpg; lossy compression changes labels: store a .png"),
    ("--mask notes.txt", f"notes.txt: {SUFFIXES} .txt"),
    ("--mask empty.png", f"empty.png: {NO_IMAGE}"),
    ("--mask empty.npy", f"empty.npy: {NOT_NUMBERS}"),
    ("--mask truncated.png", f"truncated.png: {NO_IMAGE} (image file is truncated)"),
    ("--mask small.png", "pred.npy: expected the 6 × 32 pixels of small.png, or the same picture in lower"),
    ("--mask sevens.png", "sevens.png: expected labels 0 to 2, or ignore_index=255, but got 7 at 768 pixels, first"),
    ("--mask colors.png", "colors.png: expected class indices, but got colors, such as (200, 0, 0) at [0, 0]; store"),
    ("--mask colors.png --palette voc", "colors.png: expected colors of the palette, but got 1 unknown, such as (200"),
    ("--mask quantized.npy", f"quantized.npy: expected integer labels [H, W], but got uint8 [3, 24, 32]{VOLUME}"),
    ("--mask int8.npy", "but got -1 at 768 pixels, first at [0, 0]; if -1 marks void, pass --mask-remap -1:255"),
    ("--mask several.npz", "several.npz: expected one array, or one named labels, label, mask,"),
    ("--mask masks", "masks: expected only folders or only files, but got a folder, while pred.npy is a file"),
    ("--classes 1", "--classes: expected 2 to 32767 classes, but got 1; one logit has two"),
    ("--classes 4", "pred.npy: expected the 4 classes of --classes, but got 3; pass --classes 3"),
    ("--classes three", "--classes: expected the number of classes, or a file of their names, but got three"),
    ("--classes no.txt", "no.txt: no such file or folder"),
    ("--classes empty.txt", "empty.txt: expected at least one class, but got none"),
    ("--palette VOC", "--palette: expected a file, or one of ade20k, camvid, cityscapes, voc, but got VOC"),
    ("--palette mask.png", "mask.png: expected a text file in UTF-8"),
    ("--palette bright.txt", 'bright.txt, line 2: expected "<index> <r> <g> <b> or <index> #rrggbb"'),
    (
        "--pred-kind probabilities",
        "pred.npy: expected probabilities, in 0 to 1, 0 to 100 or 0 to 255, [C, H, W], but got float32 [3, 12, 16]",
    ),
    ("--pred-kind labels", "pred.npy: expected integer labels [H, W], but got float32 [3, 12, 16]"),
    ("--remap 1:2:3", "--remap: expected FROM:TO or FIRST-LAST:TO, separated by commas, or one of ade20k, camvid,"),
    ("--slice 4-2", "--slice: expected N or FIRST-LAST, but got '4-2'"),
    ("--slice 1", "mask.png: expected labels [D, H, W] of a volume in one of .npy, .npz, .pt, .pth"),
    ("--region 1", "mask.png: expected labels [C, H, W] of regions in one of .npy"),
    ("--region lung", "or a name of --classes, but got 'lung'"),
    ("--ignore-index void", "--ignore-index: expected an integer, but got void; see edgeloss {command} --help"),
    ("--maks mask.png", "no option --maks; did you mean --mask? See edgeloss {command} --help"),
]
# What some commands say: predictions, images, outputs, numbers and folders.
SOME = {
    "view": [
        ("--pred no.npy", "no.npy: no such file or folder"),
        ("--pred pickled.npy", f"pickled.npy: {NOT_NUMBERS}"),
        ("--pred pickle.npy", f"pickle.npy: {NOT_NUMBERS}"),
        ("--pred pickled.npz", f"pickled.npz: {NOT_NUMBERS}"),
        ("--pred pickled.pt", f"pickled.pt: {NOT_NUMBERS}"),
        ("--pred model.pt", f"model.pt: {NOT_NUMBERS}"),
        ("--pred notes.txt", f"notes.txt: {SUFFIXES} .txt"),
        ("--pred words.npy", "words.npy: expected an array of real numbers, but got dtype <U3"),
        ("--pred complex.pt", "complex.pt: expected dense real numbers, but got complex64 [3, 24, 32]"),
        ("--pred sparse.pt", "sparse.pt: expected dense real numbers, but got float32 [24, 24], torch.sparse_coo"),
        ("--pred several.npz", "several.npz: expected one array, or one named logits, pred,"),
        ("--pred several.npz --key c", "several.npz: expected an array named c, but got a, b"),
        ("--pred no_pixel.npy", "no_pixel.npy: expected at least one pixel, but got float32 [3, 0, 32]"),
        ("--pred volume.npy", f"expected floating logits [C, H, W], but got float32 [2, 3, 24, 32]{VOLUME}"),
        ("--pred volume.npy --mask no.npy --slice 3", "no.npy: no such file or folder"),
        (
            "--pred volume.npy --mask volume.npy --slice 3",
            "expected a volume [..., D, H, W] with slice 3 along D, but got [2, 3, 24",
        ),
        (
            "--pred classes_last.npy",
            "but got 32 × 3 in [24, 32, 3]; store it with the classes first, [C, H, W], as by numpy.moveaxis",
        ),
        (
            "--pred swapped.npy",
            "but got 32 × 24 in [3, 32, 24]; if its axes are [C, W, H], swap them, as by numpy.swap",
        ),
        (
            "--pred large.npy",
            "in lower resolution, but got 25 × 32 in [3, 25, 32]; pass the mask of",
        ),
        (
            "--pred quantized.npy",
            "but got uint8 [3, 24, 32], values are 0 to 0 and add up to 0 to 0 over the classes; store",
        ),
        ("--pred quantized.pt", "but got int8 [3, 24, 32], values are 0 to 0 and add up"),
        ("--pred sevens.png --classes 3", "sevens.png: expected labels 0 to 2, but got 7 at 736 pixels, first at"),
        ("--pred three.png --classes 2", "but got 2 at 46 pixels, first at [1, 26]; pass --classes 3 if there are as"),
        ("--pred levels.png --classes 3", "if these are its classes, pass --pred-remap 128:1,255:2"),
        ("--mask levels.png --classes 3", "if these are its classes, pass --mask-remap 128:1"),
        ("--pred a.png --mask pred.npy", "logits and probabilities are predictions, not labels (edgeloss --pred)"),
        ("--pred prde.npy", "prde.npy: no such file or folder; did you mean pred.npy?"),
        ("--mask maks/a.png", "maks/a.png: no such file or folder; did you mean masks/a.png?"),
        ("--image images/d.png", "images/d.png: no such file or folder; did you mean images/c.png?"),
        ("--image none/photograph.jpg", "none/photograph.jpg: no such file or folder; none has notes.txt"),
        ("--classes nots.txt", "nots.txt: no such file or folder; did you mean notes.txt?"),
        ("--mask photo.png", "is it a photograph (edgeloss --image), or a mask that was stored as JPEG, which changes"),
        ("--region 2 --mask volume.npy --pred quantized.npy", "expected [C, H, W] with class 2 to take, but got"),
        ("--palette one_color.txt", "one_color.txt: expected 3 colors, but got none for class 1, 2"),
        ("--image no.png", "no.png: no such file or folder"),
        ("--image notes.txt", f"notes.txt: {NO_IMAGE} (cannot identify image file)"),
        ("--image words.png", f"words.png: {NO_IMAGE}"),
        ("--image pixels.png", "pixels.png: expected at most 1000000 pixels"),
        ("--image wide.png", "wide.png: expected 24 × 32 pixels as in mask.png, but got 24 × 33"),
        ("--image images", "images: expected only folders or only files, but got a folder, while pred.npy is a file"),
        ("-o out.gif", "out.gif: expected an output in one of .png, .pdf, .svg, .html, but got .gif"),
        ("-o a.png/out.png", "a.png/out.png: expected a path in a folder that can be written to, but got one in"),
        ("-o folder.png", "folder.png: expected a file to write to, but got a folder"),
        ("-o mask.png", "mask.png: expected a path other than the inputs, but got one of them"),
        ("--image a.png -o a.png", "a.png: expected a path other than the inputs, but got one of them"),
        ("--radius 0", "--radius: expected ≥ 0 along every axis and ≥ 1 along at least one, but got 0"),
        ("--decay nan", "--decay: expected a finite number > 0, or None, but got nan; see edgeloss view"),
        ("--edge-weight -1", "--edge-weight: expected a finite number ≥ 0, but got -1.0; see"),
        ("--width 1", "--width: expected a number from 1.7 to 100, but got 1; see edgeloss view --help"),
    ],
    "compare": [
        ("-o out.png", "out.png: expected an output in .html, but got .png"),
        ("--names a a", "--names: expected two different names, but got a twice"),
    ],
    "metrics": [
        ("--pred nan.npy", "nan.npy: expected finite values, but got 48 of 576 that are not; edgeloss diagnose"),
        ("-o mask.png", "mask.png: expected a path other than the inputs, but got one of them"),
        ("-o out.xlsx", "out.xlsx: expected an output in one of .csv, .json, .txt, but got .xlsx; choose another"),
        ("-o a.png/out.csv", "a.png/out.csv: expected a path in a folder that can be written to, but got one in"),
        ("--power 1", "no option --power; see edgeloss metrics --help"),
    ],
    "diagnose": [
        ("--figure mask.png", "mask.png: expected a path other than the inputs, but got one of them"),
        ("--figure out.gif", "out.gif: expected an output in one of .png, .pdf, .svg, but got .gif"),
    ],
    "view of folders": [
        ("--mask mask.png", "mask.png: expected only folders or only files, but got a file, while preds is a folder"),
        ("--pred none", "none: expected .png, .bmp, .tif, .tiff, .npy, .npz, .pt, .pth files, but got .txt"),
        ("--mask others", "preds: expected names as in others, but got none that is in all folders"),
        ("--mask begun", "pass --mask-suffix 'x{stem}'"),
        (
            "--pred parts",
            "in all folders: one/a, not a; pass one of its folders, parts/one, parts/two",
        ),
        ("--mask others --skip-missing", "preds: expected names as in others, but got none that is in"),
        (
            "--mask incomplete",
            "incomplete: expected a file for each name, but got none for b, c; nearest to b: a; pass",
        ),
        ("--pred twice", "twice/a.pt: expected one file per name, but got twice/a.npy too; rename one"),
        ("-o a.png", "a.png: expected a folder to write to, but got a file"),
    ],
    "compare of folders": [
        (
            "--mask incomplete",
            "incomplete: expected a file for each name, but got none for b, c; nearest to b: a; pass",
        ),
    ],
}
ALONE = [  # words that are no change of those above
    ("compare preds no --mask masks -o out.html", "no: no such file or folder"),
    (
        "compare preds pred.npy --mask masks -o out.html",
        "pred.npy: expected only folders or only files, but got a file, while",
    ),
    ("compare three.png two.png --mask two.png -o out.html", "two.png: expected 3 classes as in three.png, but got 2;"),
    (
        "view --mask mask.png",
        "error: expected --pred, --output/-o, but got none; the form is: edgeloss view --pred PRED (--mask MASK |"
        " --data LAYOUT ROOT PART) --output OUTPUT [options]",
    ),
    ("compare preds --mask masks -o out.html", "error: expected B, but got none; the form is: edgeloss compare A B ("),
    (
        "compare preds preds preds --mask masks -o out.html",
        "error: expected nothing else, but got preds; the form is: edgeloss compare A B (",
    ),
    (
        "metrics --pred pred.npy",
        "error: expected --mask or --data, but got neither; the form is: edgeloss metrics --pr",
    ),
    ("view --pred --mask mask.png", "error: --pred: expected PRED, but got no values; see edgeloss view --help"),
    ("view --data camvid --pred preds", "error: --data: expected LAYOUT ROOT PART, but got 1 value; see"),
    ("view -p pred.npy", "error: no option -p; see edgeloss view --help"),
    ("--verson", "error: no option --verson; did you mean --version? See edgeloss --help"),
    ("metrics --across-void x", "error: --across-void: expected an integer from 0 to 1000, but got x; see"),
    ("vew", "error: no command vew; did you mean view? See edgeloss --help"),
    ("draw", "error: no command draw; expected one of view, compare, metrics, diagnose, info; see edgeloss --help"),
    ("metrics --scores al", "--scores: expected one of default, all, but got al; did you mean all? See edgeloss"),
]
CASES = [
    *((f"{COMMANDS[name]} {words}", message) for words, message in EVERY for name in [*COMMANDS][:4]),
    *((f"{COMMANDS[name]} {words}", message) for name, rows in SOME.items() for words, message in rows),
    *ALONE,
]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that can be used, and with those that cannot."""
    folder = tmp_path_factory.mktemp("bad")
    Image.fromarray(np.full((H, W, 3), 90, np.uint8)).save(folder / "a.png")
    Image.fromarray(mask_array()).save(folder / "mask.png")
    np.save(folder / "pred.npy", half_logits().numpy())
    for kind, source in {"images": "a.png", "masks": "mask.png", "preds": "pred.npy"}.items():
        (folder / kind).mkdir()
        for name in "abc":
            shutil.copy(folder / source, (folder / kind / name).with_suffix(Path(source).suffix))
    for name, write in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        write(folder / name)
    return folder


@pytest.mark.parametrize(("words", "message"), CASES)
def test_what_cannot_be_used_is_one_line(
    run: Run, bad: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # keeps the large image of the test small
    monkeypatch.chdir(bad)
    before = {path: path.is_file() and path.read_bytes() for path in bad.rglob("*")}
    ran = run(*words.split())
    (error,) = [line for line in ran.err.splitlines() if not line.startswith("edgeloss: note: ")]
    assert (ran.code, ran.out) == (2, "")
    assert error.startswith("edgeloss: error: ")
    assert message.replace("{command}", words.partition(" ")[0]) in error
    assert {path: path.is_file() and path.read_bytes() for path in bad.rglob("*")} == before


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


def test_palettes_and_suffixes_are_known_without_importing_torch() -> None:
    assert tuple(PALETTES) == PALETTE_NAMES
    assert (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES) == READ_SUFFIXES


def test_ctrl_c_leaves_no_incomplete_file(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    assert run("view", *arguments(folder), "-o", folder / "panel.png").code == 130
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "mask.png", "pred.npy"]
