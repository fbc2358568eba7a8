#!/usr/bin/env python3
"""Take the pictures of pages in docs/command.md and docs/training.md, from what `make demo` has written.

    make demo && python benchmarks/page_pictures.py

Pages are opened in a headless Chromium, once in a wide window and once in that of a phone. The panels of a validation
image and the figure of a diagnosis are drawn by the command. The table of scores in docs/command.md is written too.
"""

from __future__ import annotations

import argparse
import base64
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from edgeloss import __version__
from pictures import save_png
from timing.pages import start_browser

ROOT = Path(__file__).resolve().parents[1]


class Shot(NamedTuple):
    """A part of a page.

    Attributes:
        page: below the folder of the demo.
        prepare: a script that runs before; it returns a promise.
        area: a script that returns left, top, width and height, by the width of the window.
    """

    page: str
    prepare: str
    area: str


# The pixel of the largest edge loss is pinned, and the whole image is shown; its values would cover a narrow window.
_PIN = """
if (innerWidth > 600) findAll(".largest")[1].click();
showWhole();
return new Promise((done) => setTimeout(done, 1000));
"""
_TOP = "return [0, 0, innerWidth, find({end}).getBoundingClientRect().bottom + scrollY + 12]"
_MEDIAN = """
const card = findAll("section.card").find((one) => find("h2", one)?.textContent.startsWith("The median"));
const { left, top, width, height } = card.getBoundingClientRect();
return [left - 10, top + scrollY - 10, width + 20, height + 20];
"""
SHOTS = {
    "report": Shot("report.html", _PIN, _TOP.format(end="innerWidth > 600 ? '#viewer' : '.panes'")),
    "compare": Shot("comparison.html", "", _MEDIAN),
    "run": Shot("EdgeAwareLoss/report.html", "", _TOP.format(end="innerWidth > 600 ? '.curves' : '.curves .card'")),
}
WINDOWS = {"": (1440, 1), "-narrow": (390, 2)}  # width, and dots per pixel
PANELS = {"": 6.9, "-narrow": 3.3}  # width in inches


def take(driver: Any, demo: Path, shot: Shot, width: int, dots: int) -> bytes:  # noqa: ANN401
    """Return a part of a page as a PNG.

    Raises:
        ValueError: if another version has written the page.
    """
    window = {"width": width, "height": 1000, "deviceScaleFactor": dots, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})  # the picture has none, and is as wide
    driver.get((demo / shot.page).as_uri())
    footer = driver.execute_script("return find('footer').textContent")
    if not footer.startswith(f"edgeloss {__version__}"):
        raise ValueError(f"{demo / shot.page}: expected a page of edgeloss {__version__}, but got {footer[:40]!r}")
    driver.execute_script(shot.prepare)
    x, y, wide, high = driver.execute_script(shot.area)
    clip = {"x": x, "y": y, "width": wide, "height": high, "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(taken["data"])


def run_command(*words: object) -> int:
    """Run the command edgeloss, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "edgeloss", *map(str, words)], check=False).returncode


def draw_figures(demo: Path, folder: Path) -> dict[str, bytes]:
    """Return the panels of the image of report.html, and the figure of a diagnosis of its logits, one of which is nan.

    The diagnosis is of every second logit along both axes, which the loss upsamples.

    Raises:
        ValueError: if the report is no page about an image, or the command fails.
    """
    title = re.search(r"<title>(.+?) · ", (demo / "report.html").read_text("utf-8"))
    if title is None:
        raise ValueError(f"{demo / 'report.html'}: expected a report of an image, but got another page")
    name, data = title[1], demo / "data"
    pred, mask = demo / "EdgeAwareLoss" / "probabilities" / f"{name}.npy", data / "val" / "masks" / f"{name}.png"
    logits = np.log(np.load(pred).astype(np.float32).clip(1e-6))[:, ::2, ::2]
    logits[0, logits.shape[1] // 4, logits.shape[2] // 4] = np.nan
    np.save(folder / "logits.npy", logits)
    figure = folder / "diagnosis.png"
    image = ["--image", data / "val" / "images" / f"{name}.png", "--classes", data / "classes.txt"]
    panels = {folder / f"panel{ending}.png": width for ending, width in PANELS.items()}
    view = ["view", *image, "--mask", mask, "--pred", pred]
    codes = [run_command(*view, "-o", panel, "--width", width, "--dpi", 220) for panel, width in panels.items()]
    codes.append(run_command("diagnose", "--pred", folder / "logits.npy", "--mask", mask, "--figure", figure))
    if codes != [0, 0, 1]:  # 1: not finite
        raise ValueError(f"edgeloss: expected the exit codes 0 of view and 1 of diagnose, but got {codes}")
    return {path.stem: path.read_bytes() for path in (*panels, figure)}


def with_scores(demo: Path, text: str) -> str:
    """Return docs/command.md with the scores of the network that was trained with the loss.

    Raises:
        ValueError: if the page has no such table.
    """
    data, predictions = demo / "data", demo / "EdgeAwareLoss" / "probabilities"
    words = ["metrics", "--pred", predictions, "--mask", data / "val" / "masks", "--classes", data / "classes.txt"]
    command = [sys.executable, "-m", "edgeloss", *map(str, words)]
    table = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    text, count = re.subn(r"(?<=```\n)\d+ images; scores .*?(?=\n```)", lambda _: table, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"docs/command.md: expected one table of scores, but got {count}")
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all pictures, and the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=ROOT / "runs" / "demo", help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images", help="default: %(default)s")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "command.md", help="default: %(default)s")
    options = parser.parse_args(arguments)
    demo = options.demo.resolve()
    with TemporaryDirectory() as folder, start_browser() as driver:
        for name, content in draw_figures(demo, Path(folder)).items():
            save_png(content, options.output / f"{name}.png")
        for name, shot in SHOTS.items():
            for ending, (width, dots) in WINDOWS.items():
                save_png(take(driver, demo, shot, width, dots), options.output / f"{name}{ending}.png")
                print(f"wrote {options.output / name}{ending}.png", flush=True)
    options.page.write_text(with_scores(demo, options.page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
