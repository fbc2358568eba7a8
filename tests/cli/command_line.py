"""Command lines in tests: small inputs, and ways to run and read."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from page_data import parts_of
from torch import Tensor

from edgeloss.cli.commands import parse

H, W, C = 24, 32, 3  # of the masks; predictions have half the resolution
ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    """The result of a command line."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def options(pred: Path, mask: Path, *words: object) -> Namespace:
    """Return the options of files and loss that a command line has."""
    return parse(["diagnose", "--pred", str(pred), "--mask", str(mask), *map(str, words)])


def gallery_items(path: Path) -> list[dict[str, Any]]:
    """Return the images of an index or of a comparison, in their order."""
    (gallery,) = parts_of(path.read_text("utf-8"), "gallery")
    items: list[dict[str, Any]] = gallery["items"]
    return items


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in a separate process."""
    command = [sys.executable, "-m", "edgeloss", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def mask_array() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A background with a box and a bar; the first row is void."""
    mask = np.zeros((H, W), np.uint8)
    mask[6:18, 5:20] = 1
    mask[:, 26:28] = 2
    mask[0] = 255
    return mask


def wrote(path: Path, others: int = 0) -> str:
    """Return the pattern of the line about what was written."""
    more = f" and {others} page{'s' * (others > 1)}" if others else ""
    return re.escape(f"edgeloss: wrote {path}{more} (") + r"[0-9]+\.[0-9] [kM]B\)\n"


def half_logits(seed: int = 0) -> Tensor:
    return torch.randn(C, H // 2, W // 2, generator=torch.Generator().manual_seed(seed))


def arguments(folder: Path, pred: str = "pred.npy") -> list[object]:
    return ["--mask", folder / "mask.png", "--pred", folder / pred]


def view_folders(folder: Path) -> list[object]:
    return ["view", "--image", folder / "images", "--mask", folder / "masks", "--pred", folder / "preds"]
