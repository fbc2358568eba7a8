"""Time the HTML report: to write it, and to open it in a browser.

Writing is timed in CPU seconds of a process of its own, from tensors to the text of the page; opening from the start of
the navigation until all views, tables and histograms are drawn and respond. Values of a pixel: from pointing at one
whose part of the page has not been unpacked until they are shown. Logits vary slowly, as those of networks do, and have
a quarter of the resolution of the image. The browser is Chromium with its driver.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import torch
from torch.nn import functional as F

from edgeloss import EdgeAwareLoss
from measure import alone
from result_table import Row

SIZES = ["512x1024", "1024x2048", "4000x6000"]
POINT = "return showPixel(...arguments).then(() => performance.now())"


def make_scene(height: int, width: int, classes: int) -> dict[str, Any]:
    """Return the logits, labels and image of a scene."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(1, classes, 8, 16, generator=generator)
    logits = 4 * F.interpolate(coarse, (height // 4, width // 4), mode="bicubic")
    target = F.interpolate(logits, (height, width), mode="nearest").argmax(1).roll(5, 2)
    image = F.interpolate(torch.rand(1, 3, height // 8, width // 8, generator=generator), (height, width))
    return {"logits": logits, "target": target, "image": image}


def write_report(path: Path, height: int, width: int, classes: int, threads: int) -> float:
    """Write the report of a scene, and return the CPU seconds that it took."""
    from edgeloss.viz import report

    torch.set_num_threads(threads)
    scene = make_scene(height, width, classes)
    start = process_time()
    page = report(scene.pop("logits"), scene.pop("target"), **scene, criterion=EdgeAwareLoss(upsample=True))
    seconds = process_time() - start
    path.write_text(page, encoding="utf-8")
    return seconds


def start_browser() -> Any:  # noqa: ANN401
    """Start a headless Chromium; without these paths selenium would look for one on the network."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1500,1000"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def open_report(driver: Any, path: Path, height: int, width: int) -> tuple[float, float]:  # noqa: ANN401
    """Return the seconds to open a page, and to show the values of a pixel."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(path.as_uri())
    ready = "return performance.getEntriesByName('ready')[0]?.startTime"
    opened = WebDriverWait(driver, 300).until(lambda d: d.execute_script(ready))
    start = driver.execute_script("return performance.now()")
    return opened / 1000, (driver.execute_script(POINT, height // 2, width // 2) - start) / 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="HxW", help="(default: %(default)s)")
    parser.add_argument("--classes", type=int, default=19, help="(default: %(default)s)")
    parser.set_defaults(rounds=3)  # times to open a page


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row per size."""
    with TemporaryDirectory() as folder, start_browser() as driver:
        path = Path(folder) / "report.html"
        for size in options.sizes:
            height, width = map(int, size.split("x"))
            seconds = alone(write_report, path, height, width, options.classes, options.threads)
            rounded = re.search(r"rounded to ([0-9.]+%)", path.read_text("utf-8"))
            times = [open_report(driver, path, height, width) for _ in range(options.rounds)]
            opened, pointed = map(statistics.median, zip(*times, strict=True))
            about = {"megabytes": path.stat().st_size / 1e6, "rounded": rounded[1] if rounded else ""}
            yield {"case": size, "written": seconds, **about, "opened": opened, "values_of_a_pixel": pointed}
