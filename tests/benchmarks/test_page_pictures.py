"""The pictures of pages in the documents."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import page_pictures
from edgeloss.viz.run_page import write_run_page
from pictures import LIMIT

NAMES = {f"{name}{ending}.png" for name in page_pictures.SHOTS for ending in page_pictures.WINDOWS} | {
    "panel.png",
    "panel-narrow.png",
    "diagnosis.png",
}


def test_every_picture_is_committed_and_small() -> None:
    sizes = {name: (page_pictures.ROOT / "docs" / "images" / name).stat().st_size for name in NAMES}
    assert max(sizes.values()) < LIMIT


def small_demo(folder: Path) -> None:
    """Write what the demo writes, of seven small images, with a median one."""
    truth = np.zeros((24, 32), np.uint8)
    truth[6:18, 8:24] = 1
    data = folder / "data"
    for part in ("images", "masks"):
        (data / "val" / part).mkdir(parents=True)
    (data / "classes.txt").write_text("0 ground\n1 box\n")
    for shift, name in enumerate("abcdefg"):
        Image.fromarray(np.stack([90 * truth + 60] * 3, axis=-1)).save(data / "val" / "images" / f"{name}.png")
        Image.fromarray(truth).save(data / "val" / "masks" / f"{name}.png")
        for run, moved in (("cross-entropy", 3), ("EdgeAwareLoss", shift)):
            (folder / run / "probabilities").mkdir(parents=True, exist_ok=True)
            share = 0.1 + 0.8 * np.roll(truth, moved, 1)
            np.save(folder / run / "probabilities" / f"{name}.npy", np.stack([1 - share, share]).astype(np.float32))
    given = ["--mask", data / "val" / "masks", "--classes", data / "classes.txt"]
    runs = [folder / run / "probabilities" for run in ("cross-entropy", "EdgeAwareLoss")]
    image = ["--mask", data / "val" / "masks" / "b.png", "--classes", data / "classes.txt"]
    for words in (
        ["compare", *runs, "--names", "cross-entropy", "EdgeAwareLoss", *given, "-o", folder / "comparison.html"],
        ["view", "--pred", runs[1] / "b.npy", *image, "-o", folder / "report.html"],
    ):
        subprocess.run([sys.executable, "-m", "edgeloss", *map(str, words)], check=True)
    history = [{"epoch": epoch, "val/miou": 0.1 * epoch, "train/loss": 1 / epoch} for epoch in (1, 2, 3)]
    write_run_page(folder / "EdgeAwareLoss", history, ["ground", "box"], [])


@pytest.mark.slow
def test_pictures_are_taken_of_pages_of_this_version(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_pictures, "start_browser", lambda: contextlib.nullcontext(driver))
    small_demo(tmp_path / "demo")
    text = tmp_path / "command.md"
    text.write_text("```\n24 images; scores in %\n\nshape 1.5\n```\nmore\n", "utf-8")
    words = ["--demo", str(tmp_path / "demo"), "--output", str(tmp_path / "images"), "--page", str(text)]
    try:
        page_pictures.main(words)
        assert {path.name for path in (tmp_path / "images").iterdir()} == NAMES
        for name in page_pictures.SHOTS:
            path = tmp_path / "images" / f"{name}.png"
            with Image.open(path) as wide, Image.open(path.with_stem(f"{name}-narrow")) as narrow:
                assert wide.width > 1300
                assert 700 < narrow.width <= 800  # two dots per pixel
        first, *_, last = text.read_text("utf-8").splitlines()[1:-2]
        assert (first, last.split()[0]) == ("7 images; scores in %, 100 is best", "mean")
        page = tmp_path / "demo" / "comparison.html"
        page.write_text(page.read_text("utf-8").replace("edgeloss 0.", "edgeloss 9."), encoding="utf-8")
        with pytest.raises(ValueError, match=r"expected a page of edgeloss .*, but got 'edgeloss 9"):
            page_pictures.main(words)
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": False})
