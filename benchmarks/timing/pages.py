"""Time the HTML report: to write it, and to open it in a browser.

Writing is the time of the command ``edgeloss view`` from its start to its end, from files to a file, with its CPU
seconds and the most memory that it holds; opening is timed from the start of the navigation until all views, tables and
histograms are drawn and respond. Values of a pixel: from pointing at one whose part of the page has not been unpacked
until they are shown. Logits vary slowly, as those of networks do, and have a quarter of the resolution of the image.
The browser is Chromium with its driver.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from measure import alone
from result_table import Row

POINT = "return showPixel(...arguments).then(() => performance.now())"


def make_scene(folder: Path, height: int, width: int, classes: int) -> None:
    """Write the logits, labels and image of a scene."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(1, classes, 8, 16, generator=generator)
    logits = 4 * F.interpolate(coarse, (height // 4, width // 4), mode="bicubic")
    target = F.interpolate(logits, (height, width), mode="nearest").argmax(1).roll(5, 2)
    image = F.interpolate(torch.rand(1, 3, height // 8, width // 8, generator=generator), (height, width))
    np.save(folder / "logits.npy", logits[0].numpy())
    Image.fromarray(target[0].to(torch.uint8).numpy()).save(folder / "labels.png")
    Image.fromarray((255 * image[0]).to(torch.uint8).movedim(0, -1).numpy()).save(folder / "image.jpg", quality=90)


def write_report(folder: Path, height: int, width: int, classes: int, threads: int) -> dict[str, float]:
    """Write ``report.html`` of a scene, and return the seconds, CPU seconds and gigabytes that the command took."""
    make_scene(folder, height, width, classes)
    files = {"--pred": "logits.npy", "--mask": "labels.png", "--image": "image.jpg", "-o": "report.html"}
    words = [word for option, name in files.items() for word in (option, str(folder / name))]
    start = time.perf_counter()
    command = [sys.executable, "-m", "edgeloss", "view", *words, "--classes", str(classes)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=environment)
    seconds, usage = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"written": seconds, "of_cpu": usage.ru_utime + usage.ru_stime, "gigabytes": usage.ru_maxrss / 1e6}


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


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row per size."""
    with TemporaryDirectory() as folder, start_browser() as driver:
        path = Path(folder) / "report.html"
        for size in options.sizes:
            height, width = map(int, size.split("x"))
            written = alone(write_report, Path(folder), height, width, options.classes, options.threads)
            rounded = re.search(r"rounded to ([0-9.]+%)", path.read_text("utf-8"))
            times = [open_report(driver, path, height, width) for _ in range(options.rounds)]
            opened, pointed = map(statistics.median, zip(*times, strict=True))
            about = {"megabytes": path.stat().st_size / 1e6, "rounded": rounded[1] if rounded else ""}
            yield {"case": size, **written, **about, "opened": opened, "values_of_a_pixel": pointed}
