"""Prediction as a command: the files that it writes, how it stops, and its error messages."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from small_data import pixels
from torch import Tensor

import predict
from edgeloss import cli
from edgeloss.io import PALETTES, read_classes, read_prediction
from edgeloss.viz import distinct_colors
from segkit.checkpoint import load_checkpoint, open_network, save_checkpoint
from segkit.data import normalize, resize
from segkit.model import UNet

CLASSES = ["ground", "box", "bar", *map(str, range(3, 21))]
VOID = 255
NETWORK = {"width": 8, "levels": 2, "dims": 2}


def make_checkpoint(path: Path, count: int = 3, **data: Any) -> Path:
    """Write a checkpoint as a run does, of a network with random weights, for a number of classes."""
    torch.manual_seed(0)
    state = UNet(count, width=8, levels=2).state_dict()
    weights = {f"network.{name}": 3 * weight for name, weight in state.items()}  # far from equal logits
    about = {"classes": CLASSES[:count], "ignore_index": VOID, "network": NETWORK, "data": data}
    save_checkpoint(path, {"state_dict": weights, "segmentation": about})
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "best.ckpt")


SIZES = {"a": (30, 41), "b": (64, 33), "c": (9, 8)}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of three images of different sizes and kinds, and other files."""
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for (name, size), suffix in zip(SIZES.items(), (".png", ".png", ".PNG"), strict=True):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize(size[::-1], Image.Resampling.BICUBIC).save(folder / f"{name}{suffix}", "png")
    (folder / ".DS_Store").touch()
    (folder / "notes.txt").touch()
    return folder


def run(checkpoint: Path, images: Path, output: Path, *options: str) -> int:
    arguments = ["--checkpoint", checkpoint, "--images", images, "-o", output, "--device", "cpu", *options]
    return predict.main([str(argument) for argument in arguments])


LIST = ".edgeloss-outputs"  # of what the program has written


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("size", "options", "of_a"),
    [(None, [], SIZES["a"]), ([16, 24], [], (16, 24)), ([16, 24], ["--scale", "0.5"], (15, 20))],
    ids=["own size", "size of training", "scale"],
)
def test_labels_and_probabilities_are_the_networks(
    size: list[int] | None, options: list[str], of_a: tuple[int, int], images: Path, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(tmp_path / "best.ckpt", size=size)
    assert run(checkpoint, images, tmp_path / "out", *options, "--probabilities") == 0
    files = {f"labels/{name}.png" for name in SIZES} | {f"probabilities/{name}.npy" for name in SIZES}
    assert written(tmp_path / "out") == {LIST, "classes.txt", *files}
    network, _ = open_network(checkpoint)
    rgb = pixels(images / "a.png")
    with torch.no_grad():
        logits = network(normalize(resize(rgb, *of_a))[None])
    expected = F.interpolate(logits, rgb.shape[:2], mode="bilinear", align_corners=False)[0].softmax(0)
    prediction = read_prediction(tmp_path / "out/probabilities/a.npy")
    assert (prediction.kind, prediction.values.dtype) == ("probabilities", torch.float32)
    torch.testing.assert_close(prediction.values, expected, atol=1e-6, rtol=1e-5)
    labels = pixels(tmp_path / "out/labels/a.png")
    np.testing.assert_array_equal(labels, prediction.values.argmax(0))
    assert len(np.unique(labels)) > 1  # otherwise any network would pass


@pytest.mark.slow
def test_windows_reach_the_network(
    checkpoint: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("monai", reason="MONAI is not installed")
    seen: list[tuple[int, ...]] = []
    forward = UNet.forward

    def noted(self: UNet, image: Tensor) -> Tensor:
        seen.append(tuple(image.shape))
        return forward(self, image)

    monkeypatch.setattr(UNet, "forward", noted)
    options = ["--scale", "2", "--window", "32", "40", "--overlap", "0.25", "--batch-size", "3"]
    assert run(checkpoint, images / "a.png", tmp_path / "out", *options) == 0
    # 60 × 82 pixels: 3 rows of windows at most 24 apart, and in each 3 of them at most 30 apart.
    assert seen == [(3, 3, 32, 40)] * 3
    assert pixels(tmp_path / "out/labels/a.png").shape == SIZES["a"]


@pytest.mark.parametrize(("count", "layout"), [(3, "folder"), (21, "voc")])  # of which one has colors of its own
def test_palette_overlay_and_class_list(count: int, layout: str, images: Path, tmp_path: Path) -> None:
    checkpoint, out = make_checkpoint(tmp_path / "best.ckpt", count, layout=layout), tmp_path / "out"
    assert run(checkpoint, images, out, "--overlay") == 0
    assert read_classes(out / "classes.txt") == (CLASSES[:count], VOID)
    own = np.array([PALETTES["voc"][c] for c in range(21)])
    colors = own if layout == "voc" else (distinct_colors(3) * 255).round()
    for name, size in SIZES.items():
        with Image.open(out / "labels" / f"{name}.png") as picture:
            assert picture.mode == "P"
            labels, shown = np.asarray(picture), np.asarray(picture.convert("RGB"))
        np.testing.assert_array_equal(shown, colors[labels])
        assert pixels(out / "overlays" / f"{name}.jpg").shape == (*size, 3)
    image, labeled = pixels(images / "b.png").astype(float), colors[pixels(out / "labels/b.png")]
    off = [np.abs(pixels(out / "overlays/b.jpg") - other).mean() for other in ((image + labeled) / 2, image, labeled)]
    assert off[0] < min(off[1:])  # JPEG is lossy


def test_labels_and_probabilities_are_measured_by_the_command(
    checkpoint: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, masks = tmp_path / "out", tmp_path / "masks"
    assert run(checkpoint, images, out, "--probabilities") == 0
    assert capsys.readouterr().err == f"3 images: {out}\n"
    shutil.copytree(out / "labels", masks)
    for kind in ("labels", "probabilities"):
        arguments = ["--pred", out / kind, "--mask", masks, "--classes", out / "classes.txt"]
        with pytest.raises(SystemExit) as exit_:
            cli.main(["metrics", *map(str, arguments), "--json"])
        assert not exit_.value.code
        measured: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert measured["images"] == 3
        assert list(measured["classes"]) == CLASSES[:3]
        assert measured["mean"]["iou"] == 1


# What it refuses


def _change(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    state = load_checkpoint(checkpoint)
    change(state)
    save_checkpoint(checkpoint, state)


ANOTHER = "{c}: expected a checkpoint of train.py, but got another"
NAN = "expected finite logits, but the network returned nan or inf"


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (lambda c, i: c.unlink(), "", "{c}: expected a checkpoint, but there is no such file"),
        (lambda c, i: _change(c, lambda s: s.pop("segmentation")), "", f"{ANOTHER}: 'segmentation'"),
        (
            lambda c, i: _change(c, lambda s: s["segmentation"]["classes"].pop()),
            "",
            f"{ANOTHER}: size mismatch for head",
        ),
        (lambda c, i: shutil.rmtree(i), "", "{i}: no such file or folder"),
        (
            lambda c, i: make_checkpoint(c, size=[16, 24]),
            "--window 8 8",
            "--window: expected --scale too, since training",
        ),
        (lambda c, i: _change(c, lambda s: s["segmentation"]["network"].pop("dims")), "", f"{ANOTHER}: 'dims'"),
        (
            lambda c, i: c.write_bytes(b"garbage" * 99),
            "",
            "{c}: expected a checkpoint of tensors and plain values, but",
        ),
        (lambda c, i: (i / "b.png").write_bytes(b"no"), "--strict", "{i}/b.png: can't be read as an image"),
        (lambda c, i: (i.parent / "out").touch(), "", "[Errno 17] File exists: '{o}'"),
        (
            lambda c, i: _change(c, lambda s: s["state_dict"]["network.head.bias"].fill_(torch.nan)),
            "--strict",
            f"{{i}}/a.png: {NAN}",
        ),
        (lambda c, i: None, "-o {i}/..", "{i}/..: expected another folder than that of the images; change -o"),
    ],
)
def test_an_error_is_one_line(
    damage: Callable[[Path, Path], object],
    options: str,
    message: str,
    checkpoint: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images = images.rename(tmp_path / "labels")
    damage(checkpoint, images)
    capsys.readouterr()
    assert run(checkpoint, images, tmp_path / "out", *options.format(i=images).split()) == 1
    message_line = capsys.readouterr().err
    assert message_line.startswith(f"predict.py: {message.format(c=checkpoint, i=images, o=tmp_path / 'out')}")
    assert message_line.count("\n") == 1
    assert not [name for name in written(tmp_path) if ".edgeloss-" in name and LIST not in name]


@pytest.mark.parametrize("name", ["classes.txt", "labels/a.png", "overlays/b.jpg", "probabilities/c.npy"])
@pytest.mark.parametrize(("options", "is_link"), [([], False), (["--overwrite"], False), (["--overwrite"], True)])
def test_files_of_others_are_never_replaced(
    name: str,
    options: list[str],
    is_link: bool,
    checkpoint: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As those of a data set: predict.py --images val/images -o val."""
    data = tmp_path / "val"
    data.mkdir()
    images = images.rename(data / "images")
    (data / name).parent.mkdir(exist_ok=True)
    (tmp_path / "elsewhere").write_text("true")
    (data / name).symlink_to(tmp_path / "elsewhere") if is_link else (data / name).write_text("true")
    before = written(data)
    assert run(checkpoint, images, data, "--overlay", "--probabilities", *options) == 1
    message = (
        f"predict.py: {data / name}: expected no file, or an output of an earlier call, but got another; change -o\n"
    )
    assert capsys.readouterr().err == message
    assert written(data) == before
    assert (data / name).read_text() == "true"


def test_outputs_of_an_earlier_call_are_replaced_on_request(
    checkpoint: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(checkpoint, images / "a.png", out) == 0
    assert run(checkpoint, images, out) == 1
    message = f"predict.py: {out}/classes.txt: expected no file, but got an output of an earlier call; add --overwrite"
    assert message in capsys.readouterr().err
    assert run(checkpoint, images, out, "--overwrite") == 0
    with (out / LIST).open("a") as lines:
        lines.write('\n["labels/b.pn')  # by a call that was killed
    assert run(checkpoint, images, out, "--overwrite") == 0
    (out / "labels" / "a.png").write_bytes((out / "labels" / "b.png").read_bytes())  # corrected by hand, say
    assert run(checkpoint, images, out, "--overwrite") == 1
    assert f"{out}/labels/a.png: expected no file, or an output of an earlier call" in capsys.readouterr().err


def test_a_bad_image_is_skipped_and_listed(
    checkpoint: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "b.png").write_bytes(b"no")
    assert run(checkpoint, images, tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"2 images: {tmp_path / 'out'}"
    assert lines[1].startswith(f"predict.py: {images}/b.png: can't be read as an image")
    assert lines[2:] == ["predict.py: skipped 1 of 3 images"]
    assert written(tmp_path / "out") == {LIST, "classes.txt", "labels/a.png", "labels/c.png"}


def test_progress_is_lines_but_on_a_terminal(
    checkpoint: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever FORCE_COLOR and TTY_COMPATIBLE say."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert run(checkpoint, images, tmp_path / "first") == 0
    assert capsys.readouterr().err == f"3 images: {tmp_path / 'first'}\n"
    monkeypatch.setattr("edgeloss.cli.progress._SECONDS", 0.0)
    assert run(checkpoint, images, tmp_path / "second") == 0
    left = ["", "about 0 s left; ", "about 0 s left; "]
    lines = [f"edgeloss: {done} of 3 images after 0 s; {left[done]}{name}" for done, name in enumerate(SIZES)]
    assert capsys.readouterr().err.splitlines() == [*lines, f"3 images: {tmp_path / 'second'}"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(checkpoint, images, tmp_path / "third") == 0
    assert "\x1b" in capsys.readouterr().err


def test_images_of_one_name_in_subfolders(checkpoint: Path, images: Path, tmp_path: Path) -> None:
    for city in ("bonn", "ulm"):
        shutil.copytree(images, tmp_path / "cities" / city)
    assert run(checkpoint, tmp_path / "cities", tmp_path / "out") == 0
    labels = {f"labels/{city}/{name}.png" for city in ("bonn", "ulm") for name in SIZES}
    assert written(tmp_path / "out") == {LIST, "classes.txt", *labels}


def test_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for scale in (0.0, math.nan):
        with pytest.raises(SystemExit, match="2"):
            run(tmp_path / "best.ckpt", tmp_path, tmp_path / "out", f"--scale={scale}")
        assert f"--scale: expected a factor > 0, but got {scale}" in capsys.readouterr().err
