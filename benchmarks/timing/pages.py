"""Time the HTML report: to write it, and to open it in a browser.

Writing is the time of the command ``edgeloss view`` from its start to its end, from files to a file, by as many threads
as the machine has cores; its memory is the most that it holds. Opening is timed from the start of the navigation until
all views, tables and histograms are drawn and respond. Values of a pixel: from pointing at one whose part of the page
has not been unpacked until they are shown. Logits vary slowly, as those of networks do, and have a quarter of the
resolution of the image.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from measure import alone, processor

SIZES = ((512, 1024), (1024, 2048), (4000, 6000))
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


def write_report(folder: Path, height: int, width: int, classes: int) -> tuple[float, float, float]:
    """Write ``report.html`` of a scene, and return the seconds, CPU seconds and gigabytes that the command took."""
    make_scene(folder, height, width, classes)
    files = {"--pred": "logits.npy", "--mask": "labels.png", "--image": "image.jpg", "-o": "report.html"}
    words = [word for option, name in files.items() for word in (option, str(folder / name))]
    start = time.perf_counter()
    command = [sys.executable, "-m", "edgeloss.cli", "view", *words, "--classes", str(classes)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def start_browser() -> Any:  # noqa: ANN401
    """Start a headless Chromium, or return None where there is none."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1500,1000"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))


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
    sizes = [f"{height}x{width}" for height, width in SIZES]
    parser.add_argument("--sizes", nargs="+", default=sizes, metavar="HxW", help="(default: %(default)s)")
    parser.add_argument("--classes", type=int, default=19, help="(default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="times to open a page; the median counts")


def run(options: argparse.Namespace) -> None:
    """Print a row per size."""
    driver = start_browser()
    threads = f"{torch.get_num_threads()} threads"
    print(
        f"{processor()}, {threads}, torch {torch.__version__}, {options.classes} classes, medians of {options.repeat}"
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        for size in options.sizes:
            height, width = map(int, size.split("x"))
            seconds, of_cpu, gigabytes = alone(write_report, Path(folder), height, width, options.classes)
            rounded = re.search(r"rounded to ([0-9.]+%)", path.read_text("utf-8"))
            megabytes = path.stat().st_size / 1e6
            line = f"{size}: written in {seconds:.1f} s, {of_cpu:.1f} s of CPU, {gigabytes:.1f} GB, {megabytes:.1f} MB"
            line += f", rounded to {rounded and rounded[1]}"
            if driver is not None:
                times = [open_report(driver, path, height, width) for _ in range(options.repeat)]
                opened, pointed = (statistics.median(column) for column in zip(*times, strict=True))
                line += f"; opens in {opened:.1f} s, values of a pixel in {pointed:.2f} s"
            print(line, flush=True)
    if driver is not None:
        driver.quit()
