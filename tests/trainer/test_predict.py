"""Prediction as a command: the files that it writes, how it stops, and its error messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import predict
from edgeloss import cli
from edgeloss.io import read_classes, read_prediction
from edgeloss.viz import distinct_colors
from segkit import layouts
from segkit.checkpoint import load_checkpoint, save_checkpoint
from segkit.data import normalize, resize
from segkit.model import UNet

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "data" / "shapes"
CLASSES = ["ground", "box", "bar"]
VOID = 255


def make_checkpoint(path: Path, *, seed: int = 0, size: list[int] | None = None, **changes: Any) -> Path:
    """Write a checkpoint as a run does, of a network with random weights."""
    torch.manual_seed(seed)
    network = UNet(len(CLASSES), width=8, levels=2)
    state = {name: 3 * weight for name, weight in network.state_dict().items()}  # far from equal logits
    config = {"model": {"width": 8, "levels": 2}, "data": {"size": size}}
    save_checkpoint(path, {"model": state, "config": config, "classes": CLASSES, "ignore_index": VOID, **changes})
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "best.pt")


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


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def pixels(path: Path) -> np.ndarray[Any, Any]:
    with Image.open(path) as image:
        return np.asarray(image)


def expected_logits(checkpoint: Path, image: Path, size: tuple[int, int] | None = None) -> Tensor:
    """Return the logits [C, H, W] of an image."""
    network = UNet(len(CLASSES), width=8, levels=2)
    network.load_state_dict(load_checkpoint(checkpoint)["model"])
    rgb = pixels(image)
    small = rgb if size is None else resize(rgb, *size)
    with torch.no_grad():
        logits = network(normalize(small)[None])
    return F.interpolate(logits, rgb.shape[:2], mode="bilinear", align_corners=False)[0]


def check_labels(labels: Path, logits: Tensor) -> None:
    """Check that the labels are those of the largest logits, up to ties."""
    found = torch.from_numpy(pixels(labels).astype(np.int64))
    chosen = logits.gather(0, found[None])[0]
    torch.testing.assert_close(chosen, logits.amax(0), atol=1e-4, rtol=1e-4)
    assert found.unique().numel() > 1  # otherwise any network would pass


@pytest.mark.parametrize("size", [None, [16, 24]])  # their own, or one size as in training
def test_labels_are_the_networks(size: list[int] | None, images: Path, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "best.pt", size=size)
    assert run(checkpoint, images, tmp_path / "out") == 0
    assert written(tmp_path / "out") == {"classes.txt", *(f"labels/{name}.png" for name in SIZES)}
    for name in SIZES:
        image = images / f"{name}.{'PNG' if name == 'c' else 'png'}"
        expected = expected_logits(checkpoint, image, None if size is None else (16, 24))
        check_labels(tmp_path / "out" / "labels" / f"{name}.png", expected)


def test_scale_overrules_the_size_of_training(images: Path, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "best.pt", size=[16, 24])
    assert run(checkpoint, images / "a.png", tmp_path / "out", "--scale", "0.5") == 0
    assert written(tmp_path / "out") == {"classes.txt", "labels/a.png"}
    check_labels(tmp_path / "out/labels/a.png", expected_logits(checkpoint, images / "a.png", (15, 20)))


def test_windows_reach_the_network(
    checkpoint: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    forward = UNet.forward

    def noted(self: UNet, image: Tensor) -> Tensor:
        seen.append(tuple(image.shape))
        return forward(self, image)

    monkeypatch.setattr(UNet, "forward", noted)
    options = ["--scale", "2", "--window", "32", "40", "--overlap", "12", "--batch-size", "3"]
    assert run(checkpoint, images / "a.png", tmp_path / "out", *options) == 0
    # 60 × 82 pixels: 3 rows of windows at most 20 apart, and in each 3 of them at most 28 apart.
    assert seen == [(3, 3, 32, 40)] * 3
    assert pixels(tmp_path / "out/labels/a.png").shape == SIZES["a"]


def test_palette_overlay_and_class_list(checkpoint: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(checkpoint, images, out, "--overlay") == 0
    assert read_classes(out / "classes.txt") == (CLASSES, VOID)
    colors = (distinct_colors(3) * 255).round()
    for name, size in SIZES.items():
        with Image.open(out / "labels" / f"{name}.png") as picture:
            assert picture.mode == "P"
            labels, shown = np.asarray(picture), np.asarray(picture.convert("RGB"))
        np.testing.assert_array_equal(shown, colors[labels])
        assert pixels(out / "overlays" / f"{name}.jpg").shape == (*size, 3)
    image, labeled = pixels(images / "b.png").astype(float), colors[pixels(out / "labels/b.png")]
    off = [np.abs(pixels(out / "overlays/b.jpg") - of).mean() for of in ((image + labeled) / 2, image, labeled)]
    assert off[0] < min(off[1:]) / 2  # JPEG is lossy


def test_a_data_sets_own_colors_are_used(images: Path, tmp_path: Path) -> None:
    classes = [str(c) for c in range(21)]
    network = UNet(21, width=8, levels=1)
    config = {"model": {"width": 8, "levels": 1}, "data": {"size": None, "layout": "voc"}}
    state = {"model": network.state_dict(), "config": config, "classes": classes, "ignore_index": VOID}
    save_checkpoint(tmp_path / "best.pt", state)
    assert run(tmp_path / "best.pt", images, tmp_path / "out") == 0
    with Image.open(tmp_path / "out/labels/a.png") as picture:
        assert picture.getpalette()[:63] == layouts.colors("voc").ravel().tolist()


def test_probabilities_are_those_of_the_labels(images: Path, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "best.pt", size=[16, 24])  # so that they are upsampled
    out = tmp_path / "out"
    assert run(checkpoint, images, out, "--probabilities") == 0
    for name, size in SIZES.items():
        found = read_prediction(out / "probabilities" / f"{name}.npy")
        assert found.kind == "probabilities"
        assert found.values.dtype == torch.float16
        assert found.values.shape == (3, *size)
    expected = expected_logits(checkpoint, images / "b.png", (16, 24)).softmax(0)
    found = read_prediction(out / "probabilities/b.npy")
    torch.testing.assert_close(found.values.float(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("weights", "ema", "expected"),
    [("auto", False, 0), ("auto", True, 1), ("model", True, 0), ("ema", True, 1), ("model", False, 0)],
)
def test_weights_can_be_chosen(weights: str, ema: bool, expected: int, images: Path, tmp_path: Path) -> None:
    """The averaged weights here are those of another network."""
    networks = [make_checkpoint(tmp_path / f"{seed}.pt", seed=seed) for seed in (0, 1)]
    averaged = load_checkpoint(networks[1])["model"] if ema else None
    checkpoint = make_checkpoint(tmp_path / "best.pt", ema=averaged)
    assert run(checkpoint, images / "b.png", tmp_path / "out", "--weights", weights) == 0
    check_labels(tmp_path / "out/labels/b.png", expected_logits(networks[expected], images / "b.png"))
    some, other = (expected_logits(network, images / "b.png").argmax(0) for network in networks)
    assert not torch.equal(some, other)


def test_as_a_user_and_measured_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = tmp_path / "best.pt", tmp_path / "out"
    names = [f"{index:03d}" for index in range(4)]
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for name in names:
            shutil.copy(SHAPES / "val" / kind / f"{name}.png", tmp_path / kind)
    classes, _ = read_classes(SHAPES / "classes.txt")
    network = UNet(len(classes), width=8, levels=2)
    config = {"model": {"width": 8, "levels": 2}, "data": {"size": None}}
    state = {"model": network.state_dict(), "config": config, "classes": classes, "ignore_index": VOID}
    save_checkpoint(checkpoint, state)
    command = [sys.executable, "examples/predict.py", "--checkpoint", checkpoint, "--images", tmp_path / "images"]
    command += ["-o", out, "--overlay", "--probabilities", "--window", "64", "64", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("4 images in ")
    assert done.stdout == ""
    kinds = {"labels": "png", "overlays": "jpg", "probabilities": "npy"}
    assert written(out) == {"classes.txt"} | {f"{kind}/{name}.{end}" for kind, end in kinds.items() for name in names}

    def measured(kind: str) -> dict[str, Any]:
        arguments = ["--pred", out / kind, "--mask", tmp_path / "masks", "--classes", out / "classes.txt"]
        with pytest.raises(SystemExit) as exit_:
            cli.main(["metrics", *map(str, arguments), "--json"])
        assert exit_.value.code == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    labels, probabilities = measured("labels"), measured("probabilities")
    assert labels["images"] == 4
    assert list(labels["classes"]) == classes
    # Where the rounding of float16 makes two classes equal, either may win.
    assert labels["mean"]["iou"] == pytest.approx(probabilities["mean"]["iou"], abs=1e-3)
    right = [pixels(out / "labels" / f"{n}.png") == pixels(tmp_path / "masks" / f"{n}.png") for n in names]
    assert 0 < np.mean(right) < 1


# What it refuses


def _change(**changes: Any) -> Callable[[Path, Path], None]:
    def damage(checkpoint: Path, images: Path) -> None:
        state = load_checkpoint(checkpoint) | changes
        save_checkpoint(checkpoint, {name: value for name, value in state.items() if value is not None})

    return damage


def _nothing(checkpoint: Path, images: Path) -> None:
    pass


def _spoil_weights(checkpoint: Path, images: Path) -> None:
    state = load_checkpoint(checkpoint)
    state["model"]["head.bias"].fill_(torch.nan)
    save_checkpoint(checkpoint, state)


CONFIG = {"model": {"width": 8, "levels": 2}, "data": {"size": [16, 24]}}


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (lambda c, i: c.unlink(), [], "{c}: expected a checkpoint, but there is no such file"),
        (lambda c, i: c.write_bytes(b"PK"), [], "{c}: expected a checkpoint, but got a damaged or another file"),
        (_change(config=None), [], "{c}: expected a checkpoint of train.py, but got one without 'config'"),
        (
            _change(config={"model": {"depth": 3}}),
            [],
            "{c}: expected a checkpoint of this network, but got another: UNet.__init__() got",
        ),
        (
            _change(classes=["a"]),
            [],
            "{c}: expected weights of this model, but got a size mismatch for head.bias",
        ),
        (_nothing, ["--weights", "ema"], "{c}: expected averaged weights, but got none; use --weights model"),
        (_nothing, ["--device", "abacus"], "device: "),
        (
            _change(config=CONFIG),
            ["--window", "8", "8"],
            "--window: expected --scale too, since training resized all images to 16 × 24",
        ),
        (lambda c, i: [p.unlink() for p in i.glob("*.[pP]*")], [], "{i}: expected .png, .jpg, "),
        (lambda c, i: (i / "a.jpg").touch(), [], "{i}/a.png: expected one file per name, but got {i}/a.jpg too"),
        (lambda c, i: (i / "b.png").write_bytes(b"no"), [], "{i}/b.png: can't be read as an image"),
        (lambda c, i: (i.parent / "out").touch(), [], "{o}: can't be created"),
        (lambda c, i: (i.parent / "out/labels/b.png").mkdir(parents=True), [], "{o}/labels/b.png: expected a file"),
        (_spoil_weights, [], "{i}/a.png: expected finite logits, but the network returned nan or inf"),
    ],
)
def test_an_error_is_one_line(
    damage: Callable[[Path, Path], object],
    options: list[str],
    message: str,
    checkpoint: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(checkpoint, images)
    capsys.readouterr()
    assert run(checkpoint, images, tmp_path / "out", *options) == 1
    message_line = capsys.readouterr().err
    assert message_line.startswith(f"predict.py: {message.format(c=checkpoint, i=images, o=tmp_path / 'out')}")
    assert message_line.count("\n") == 1
    assert not [name for name in written(tmp_path) if ".edgeloss" in name]


def test_missing_images_and_images_in_the_way(
    checkpoint: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(checkpoint, tmp_path / "nowhere", tmp_path / "out") == 1
    assert "nowhere: no such file or folder" in capsys.readouterr().err
    images.rename(tmp_path / "labels")
    assert run(checkpoint, tmp_path / "labels", tmp_path) == 1
    assert "expected a folder other than that of the images, but got the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scale", "0"], "--scale: expected a factor > 0, but got 0.0"),
        (["--scale", "nan"], "--scale: expected a factor > 0, but got nan"),
        (["--window", "0", "8"], "--window: expected height and width >= 1, but got [0, 8]"),
        (["--overlap", "4"], "--overlap: expected --window too, but got none"),
        (["--window", "16", "9", "--overlap", "5"], "--overlap: expected 0 to 4, half a window, but got 5"),
        (["--batch-size", "0"], "--batch-size: expected at least 1, but got 0"),
    ],
)
def test_bad_options(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path / "best.pt", tmp_path, tmp_path / "out", *options)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_leaves_whole_files_alone(number: signal.Signals, checkpoint: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "large", tmp_path / "out"
    folder.mkdir()
    for name in ("a", "b"):
        # In windows of 8 × 8 the second takes minutes: the signal arrives in between.
        side = 16 if name == "a" else 1024
        Image.new("RGB", (side, side), (90, 120, 30)).save(folder / f"{name}.png")
    command = [sys.executable, "examples/predict.py", "--checkpoint", checkpoint, "--images", folder, "-o", out]
    command += ["--probabilities", "--window", "8", "8", "--overlap", "4", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(1200):
            if any((out / "probabilities").glob(".edgeloss-*")) and (out / "labels" / "a.png").exists():
                break
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors == "predict.py: interrupted; all files written so far are complete\n"
    assert written(out) == {"classes.txt", "labels/a.png", "probabilities/a.npy"}
    read_prediction(out / "probabilities" / "a.npy")
