"""Command lines in tests: small inputs, and ways to run and read."""

from __future__ import annotations

import html.parser
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

H, W, C = 24, 32, 3  # of the masks; predictions have half the resolution
ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    """The result of a command line."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in a separate process."""
    command = [sys.executable, "-m", "edgeloss.cli", *map(str, arguments)]
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


class Page(html.parser.HTMLParser):
    """The links, pictures and cells of a page."""

    def __init__(self, text: str) -> None:
        """Read a page."""
        super().__init__()
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "a" and (link := dict(attrs)["href"]) not in self.links:
            self.links.append(str(link))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data)
