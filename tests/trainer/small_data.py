"""Small data sets as files: masks with images that show them, volumes, and a run that trains on such images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml
from PIL import Image

from edgeloss.io import Split, find_volumes, pair_folders
from segkit.data import SegmentationDataset

VOID = 255
CLASSES = ["ground", "box", "bar"]
Bytes = npt.NDArray[np.uint8]


def pixels(path: Path) -> Bytes:
    """Read an image file."""
    with Image.open(path) as image:
        return np.asarray(image)


def gray(mask: Bytes, step: int = 25) -> Bytes:
    """Return the image [H, W, 3] that shows each label as a gray value."""
    return np.repeat((mask * step).astype(np.uint8)[..., None], 3, axis=2)


def save(root: Path, name: str, mask: Bytes, image: Bytes | None = None) -> None:
    """Write a mask and its image, by default the one that shows the mask."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.fromarray(gray(mask) if image is None else image).save(root / "images" / f"{name}.png")
    Image.fromarray(mask).save(root / "masks" / f"{name}.png")


def save_volume(root: Path, name: str, labels: npt.NDArray[Any], **arrays: Any) -> None:
    """Write a volume whose intensities show its labels."""
    np.savez(root / f"{name}.npz", image=labels * 80, label=labels, **arrays)


def blocks(height: int = 60, width: int = 80, classes: int = 10) -> Bytes:
    """Return a mask of 10 × 10 blocks without any symmetry."""
    labels = np.random.default_rng(0).integers(0, classes, (height // 10, width // 10), dtype=np.uint8)
    return labels.repeat(10, axis=0).repeat(10, axis=1)


def open_folder(root: Path, num_classes: int = 10, ignore_index: int = 255, **options: Any) -> SegmentationDataset:
    """Open a folder of `save`; the options are those of the data set."""
    pairs = pair_folders(root / "images", root / "masks")
    return SegmentationDataset(Split(pairs, [str(c) for c in range(num_classes)], ignore_index), **options)


def open_volumes(root: Path, num_classes: int = 3, ignore_index: int = 255, **options: Any) -> SegmentationDataset:
    """Open a folder of `save_volume`; the options are those of the data set."""
    return SegmentationDataset(Split(find_volumes(root), [str(c) for c in range(num_classes)], ignore_index), **options)


def write_config(root: Path) -> Path:
    """Write a configuration and its data set: 5 training and 3 validation images, in batches of 2."""
    rng = np.random.default_rng(0)
    colors = np.array([[60, 90, 60], [200, 60, 60], [70, 70, 220]])
    for split, count in {"train": 5, "val": 3}.items():
        for i in range(count):
            mask = np.zeros((32, 32), np.uint8)
            top, left = rng.integers(2, 14, 2)
            mask[top : top + 12, left : left + 12] = 1
            mask[:, 26:29] = 2
            image = np.clip(colors[mask] + rng.normal(0, 20, (32, 32, 3)), 0, 255).astype(np.uint8)
            mask[:3] = VOID
            save(root / split, f"{split}{i}", mask, image)
    (root / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(CLASSES)) + f"{VOID} void\n")
    values = {
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False},
        "data": {
            "root": str(root),
            "layout": "folder",
            "batch_size": 2,
            "workers": 0,
            "augment": {"flip": 0.5, "scale": [0.75, 1.5], "color": 0.3},
        },
        "model": {"width": 8, "levels": 3, "shares_every": 2},
        "page": {"worst": 0},
    }
    path = root / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def run_in(folder: Path, config: Path, *options: str) -> int:
    """Train in this process, without pictures, which take most of the time; return the exit code."""
    import train  # here, so that processes which do not train need not import Lightning

    return train.main(["fit", "--config", str(config), f"--trainer.default_root_dir={folder}", *options])


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Return the figures of each epoch, without those of the clock."""
    epochs = json.loads((folder / "metrics.json").read_text())["epochs"]
    return [{name: row[name] for name in row if name not in ("seconds", "images_per_second")} for row in epochs]


def state_of(folder: Path) -> dict[str, Any]:
    """Return the weights, and the state of the loss and of the optimizer, after the last epoch."""
    checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
    state = {name: value for name, value in checkpoint["state_dict"].items() if name.startswith(("network", "crit"))}
    return state | {"optimizer": checkpoint["optimizer_states"]}
