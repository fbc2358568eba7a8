"""Files of a run: tables that a resumed run continues, and the page about the run."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accessibility import Sized, violations
from PIL import Image
from rich.console import Console
from selenium.webdriver.common.keys import Keys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from edgeloss import EdgeAwareLoss
from edgeloss.viz import panel
from segkit.config import Config, ConfigError
from segkit.console import EpochBar, Row, epoch_line, summary
from segkit.data import SegmentationFolder
from segkit.run_files import RunFiles, draw_panel, prepare_folder, read_history
from segkit.run_page import write_run_page
from segkit.scores import ImageFigures

CLASSES = ["road", "<b>car</b>", "</script><script>document.title='caught'</script>"]
HOSTILE = """x" onerror="document.title='caught'"><img src=x onerror="document.title='caught'">.png"""


def row_of(epoch: int, miou: float | None = None) -> Row:
    """Return the figures of an epoch, with a mean IoU of ``miou`` or one that grows."""
    miou = epoch / 10 if miou is None else miou
    row: dict[str, float | None] = {"epoch": epoch, "lr": 0.01 / epoch, "edge_weight": 0.5, "seconds": 40.0}
    row |= {"images_per_second": 12.5}
    for split in ("train", "val"):
        terms = ("loss", "cross_entropy", "same_side", "other_side")
        row |= {f"{split}/{name}": place + 1 / epoch for place, name in enumerate(terms)}
    row |= {f"train/gradient_share/{name}": 1 / 3 for name in ("cross_entropy", "same_side", "other_side")}
    row |= {"val/miou": miou, "val/boundary_iou": miou / 2, "val/boundary_f1_3": None}
    for k, name in enumerate(CLASSES):
        row |= {f"val/iou/{name}": miou + k / 100, f"val/boundary_iou/{name}": None, f"val/boundary_f1_3/{name}": miou}
    return row


def folder_of(root: Path) -> Path:
    prepare_folder(root / "run", overwrite=False)
    return root / "run"


class Fake:
    """A module whose functions record their calls."""

    def __init__(self, calls: list[tuple[Any, ...]], name: str = "") -> None:
        """Store the list of calls."""
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> Fake:
        """Return a function."""
        return Fake(self._calls, f"{self._name}.{name}".strip("."))

    def __call__(self, *arguments: Any, **options: Any) -> Fake:
        """Record a call; what it returns records too."""
        self._calls.append((self._name, *arguments, *options.items()))
        return self


class FakeRun(Fake):
    """A run with an id, as ``wandb.init`` and ``mlflow.start_run`` return it."""

    id = "abc"

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(run_id=self.id)


class FakeLibrary(Fake):
    """A library that starts runs."""

    def __getattr__(self, name: str) -> Fake:
        return (FakeRun if name in ("init", "start_run") else Fake)(self._calls, name)


def test_logs_to_other_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, list[tuple[Any, ...]]] = {"wandb": [], "mlflow": []}
    for name in calls:
        monkeypatch.setitem(sys.modules, name, FakeLibrary(calls[name]))
    files = RunFiles(folder_of(tmp_path), Config(output="run", log=["wandb", "mlflow"]), CLASSES)
    files.add_epoch(row_of(1))
    files.add_panel("a", panel(torch.randn(3, 8, 8), torch.zeros(8, 8, dtype=torch.int64)), 1)
    files.close()
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert [call[0] for call in calls["wandb"]] == ["init", "init.log", "Image", "init.log", "init.finish"]
    (_, logged, step) = calls["wandb"][1]
    assert (logged["val/miou"], step) == (0.1, ("step", 1))
    assert "val/boundary_f1_3" not in logged  # None
    names = ["start_run", "log_params", "log_metrics", "log_artifact", "end_run"]
    assert [call[0] for call in calls["mlflow"]] == names
    assert calls["mlflow"][1][1]["optim.lr"] == Config().optim.lr
    assert calls["mlflow"][2][1]["val/iou/_b_car_/b_"] == pytest.approx(0.11)
    assert calls["mlflow"][3] == ("log_artifact", str(tmp_path / "run" / "panels" / "epoch_001_a.png"), "panels")


def test_a_resumed_training_continues_the_run_of_other_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, list[tuple[Any, ...]]] = {"wandb": [], "mlflow": []}
    for name in calls:
        monkeypatch.setitem(sys.modules, name, FakeLibrary(calls[name]))
    folder, config = folder_of(tmp_path), Config(output="run", log=["wandb", "mlflow"])
    RunFiles(folder, config, CLASSES).close()
    assert ("id", "abc") not in calls["wandb"][0]
    for made in calls.values():
        made.clear()
    RunFiles(folder, config, CLASSES, [row_of(1)]).close()
    assert calls["wandb"][0][-2:] == (("id", "abc"), ("resume", "allow"))
    assert calls["mlflow"][0] == ("start_run", ("run_id", "abc"))
    assert "log_params" not in [call[0] for call in calls["mlflow"]]  # MLflow lets no parameter change
    prepare_folder(folder, overwrite=True)
    for made in calls.values():
        made.clear()
    RunFiles(folder, config, CLASSES).close()
    assert calls["mlflow"][0] == ("start_run", ("run_name", "run"))


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="log: expected wandb to be installed, but it is not; pip install wandb"):
        RunFiles(folder_of(tmp_path), Config(output="run", log=["wandb"]), CLASSES)
    with pytest.raises(ConfigError, match="log must be a list of tensorboard, wandb, mlflow"):
        Config(output="run", log=["tensorbord"])


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Return a curve as TensorBoard shows it."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]


# ----------------------------------------------------------------------------------------------------------- the files


def test_a_resumed_run_reads_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """The earlier run reached epoch 4, its checkpoint is of epoch 2."""
    folder = folder_of(tmp_path)
    files = RunFiles(folder, Config(output=""), CLASSES)
    for epoch in (1, 2, 3, 4):
        files.add_epoch(row_of(epoch, miou=0.1))
    files.close()

    files = RunFiles(folder, Config(output=""), CLASSES, history=read_history(folder)[:2])
    assert read_history(folder) == [row_of(1, 0.1), row_of(2, 0.1)]  # before any epoch: a crash leaves these
    for epoch in (3, 4, 5):
        files.add_epoch(row_of(epoch, miou=0.9))
    files.close()
    mious = [0.1, 0.1, 0.9, 0.9, 0.9]
    assert [row["val/miou"] for row in read_history(folder)] == mious
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val/miou"]) for row in rows] == mious
    assert [row["val/boundary_f1_3"] for row in rows] == [""] * 5
    assert curve(folder, "val/miou") == list(enumerate(mious, start=1))
    assert curve(folder, "train/gradient_share/same_side") == [(epoch, 1 / 3) for epoch in range(1, 6)]


def test_figures_that_only_later_epochs_have(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    files = RunFiles(folder, Config(output=""), CLASSES, history=[{"epoch": 1, "lr": 0.5}])
    files.add_epoch({"epoch": 2, "lr": 0.25, "edge_weight": 0.125})
    files.close()
    with (folder / "metrics.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["epoch", "lr", "edge_weight"], ["1", "0.5", ""], ["2", "0.25", "0.125"]]


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_a_folder_without_metrics_raises(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.json: expected the metrics of a run"):
        read_history(tmp_path)


def test_a_new_run_removes_the_files_of_the_guard_and_the_page(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "nan").mkdir()
    left = [folder / "nan" / "step_3.pt", folder / "report.html"]
    for path in [*left, folder / "notes.txt"]:
        path.write_text("x")
    prepare_folder(folder, overwrite=True)
    assert not any(path.exists() for path in left)
    assert (folder / "notes.txt").exists()


def test_shares_are_printed_in_percent() -> None:
    line = epoch_line(row_of(3), 5)
    assert "mIoU 30.0%  boundary IoU 15.0%" in line
    cells = {row: list(column.cells) for row, column in enumerate(summary(row_of(1), row_of(3)).columns)}
    printed = dict(zip(cells[0], zip(cells[1], cells[2], strict=True), strict=True))
    assert printed["val/boundary_f1_3"] == ("none", "none")
    assert printed["val/boundary_iou"] == ("5.0%", "15.0%")
    assert printed["val/loss"] == ("1.0000", "0.3333")


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, ""),
        (60, " 0 images/s"),
        (80, " 0 images/s loss 1.2500  lr 3.0e-5"),
        (110, " 0 images/s loss 1.2500  lr 3.0e-5  edge_weight 0.5000"),
    ],
)
def test_the_bar_fits_the_terminal(width: int, expected: str) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    bar = EpochBar(console)
    figures = {"lr": 3e-5, "edge_weight": 0.5, "loss": 1.25, "cross_entropy": 0.75}
    bar.restart("epoch 100/120", 4000)
    bar._progress.get_time = lambda: 0.0  # no time passes, so that there is no speed
    for _ in range(2):
        bar.advance(1000, figures)
    with console.capture() as capture:
        console.print(bar._progress.get_renderable(), soft_wrap=False)
    (line,) = re.sub(r"\x1b\[[\d;]*m", "", capture.get()).splitlines()
    assert re.fullmatch(rf"epoch 100/120 \S{{5,10}} *2000/4000 [-:\d]+{re.escape(expected)} *", line), line


def test_draw_panel_shows_the_image_of_the_index(tmp_path: Path) -> None:
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    for name, size in (("a", (8, 8)), ("b", (12, 20))):
        mask = np.zeros(size, np.uint8)
        mask[4:] = 1
        Image.fromarray(np.dstack([90 * mask] * 3)).save(tmp_path / "images" / f"{name}.png")
        Image.fromarray(mask).save(tmp_path / "masks" / f"{name}.png")
    dataset = SegmentationFolder(tmp_path, num_classes=2)
    figure = draw_panel(
        lambda images: images[:, :2], EdgeAwareLoss(ignore_index=255), dataset, 1, classes=["a", "b"], title="of b"
    )
    assert "12 × 20 pixels" in [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "of b" in [text.get_text() for text in figure.texts]


# ------------------------------------------------------------------------------------------------------------ the page


def worst() -> list[tuple[ImageFigures, Any]]:
    target = torch.zeros(16, 24, dtype=torch.int64)
    target[4:, 6:] = 1
    return [
        (ImageFigures(name, edge, 0.5, 0.25), panel(torch.randn(3, 16, 24), target))
        for name, edge in ((HOSTILE, 3.25), ("plain", 1.5))
    ]


def test_the_worst_images_are_thumbnails_of_their_errors(tmp_path: Path) -> None:
    page = write_run_page(tmp_path, [row_of(1)], CLASSES, worst()).read_text("utf-8")
    cards = re.findall(r'href="#(worst-[01])"><img src="data:image/jpeg;base64,([^"]+)"', page)
    assert [place for place, _ in cards] == ["worst-0", "worst-1"]
    for place, encoded in cards:
        assert f'<figure id="{place}"' in page
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded)))).astype(int)
        assert shown.shape == (16, 24, 3)
        assert (shown[..., 0] > shown[..., 2] + 60).any()  # wrong pixels in red


def curves_of(path: Path) -> list[tuple[str, str, list[int], list[float | None]]]:
    """Return the title, name, epochs and values of each curve of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return [
        (curve["title"], one["name"], curve["epochs"], one["values"])
        for curve in json.loads(found[1])["curves"]
        for one in curve["series"]
    ]


def test_curves_hold_the_history(tmp_path: Path) -> None:
    history = [row_of(epoch) for epoch in (1, 2, 3)]
    path = write_run_page(tmp_path, history, CLASSES, [])
    curves = [curve[1:] for curve in curves_of(path)]
    for name, key in (("train", "train/loss"), ("val", "val/loss"), ("mean IoU", "val/miou"), ("lr", "lr")):
        assert (name, [1, 2, 3], [row[key] for row in history]) in curves
    assert "boundary F1, 3 px" not in [name for name, *_ in curves]  # nothing was measured


def test_a_curve_that_never_changes_is_a_line_of_text(tmp_path: Path) -> None:
    path = write_run_page(tmp_path, [row_of(epoch) for epoch in (1, 2, 3)], CLASSES, [])
    titles = {title for title, *_ in curves_of(path)}
    assert "Loss" in titles
    assert not titles & {"Weight of the edge terms", "Share of each term in the gradient"}
    note = re.search(r"Constant, and not drawn: (.*?)\.</p>", path.read_text("utf-8"))
    assert note is not None
    assert "Weight of the edge terms, edge weight: 0.5" in note[1]
    assert "Share of each term in the gradient, same side: 33.3%" in note[1]


def test_a_gap_in_the_history_is_a_gap_in_the_curve(tmp_path: Path) -> None:
    history = [row_of(1), {**row_of(2), "val/miou": None}, row_of(3)]
    curves = curves_of(write_run_page(tmp_path, history, CLASSES, []))
    assert [values for _, name, _, values in curves if name == "mean IoU"] == [[0.1, None, 0.3]]


def test_a_run_without_an_epoch_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="history: expected at least one epoch, but got none"):
        write_run_page(tmp_path, [], CLASSES, [])
    assert list(tmp_path.iterdir()) == []


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    folder = tmp_path / "a <i>run"
    folder.mkdir()
    path = write_run_page(folder, [row_of(1)], CLASSES, worst(), config={"output": "</pre><img src=x>"})
    page = path.read_text("utf-8")
    assert page.count("</script>") == 2  # those of the template
    assert page.count("<img ") == 4
    for markup in ("<i>", "<b>car", "<img src=x", 'x" onerror'):
        assert markup not in page


Browse = Callable[[Path], Any]


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_it_is_accessible(browse: Browse, axe: str, sized: Sized, width: int, dark: bool, tmp_path: Path) -> None:
    sized(width, 844, dark)
    history = [row_of(epoch) for epoch in (1, 2, 3)]
    page = browse(write_run_page(tmp_path, history, CLASSES, worst(), config={"epochs": 3}))
    assert violations(page, axe) == []
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_it_renders_with_no_network(browse: Browse, tmp_path: Path) -> None:
    history = [row_of(1), row_of(2, miou=0.75), row_of(3, miou=0.75), {**row_of(4), "skipped": 2}]
    page = browse(write_run_page(tmp_path, history, CLASSES, worst(), config={"epochs": 4, "output": HOSTILE}))

    def texts(selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        found: list[str] = page.execute_script(script, selector)
        return found

    assert page.title == f"Run {tmp_path.name}"
    tiles = dict(zip(texts("header dt"), texts("header dd"), strict=True))
    assert tiles == {
        "epochs": "4",
        "training time": "0:02:40",
        "best mean IoU": "75.0%",
        "best epoch": "2",
        "last mean IoU": "40.0%",
        "skipped steps, not finite": "2",
    }
    assert page.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    titles = ["Loss", "Terms in training", "Terms in validation", "IoU in validation", "Learning rate"]
    assert texts(".curves h3") == titles
    assert len(texts(".curves path[style]")) == len(texts(".curves li")) == 2 + 3 + 3 + 2 + 1
    assert texts(".curves li")[0] == "train 0.25"
    page.find_element("css selector", ".curves svg").send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert texts(".curves li")[0] == "train 0.5 in epoch 2"

    assert texts(".tables h3") == ["epoch 2, the best", "epoch 4, the last"]
    assert texts(".tables thead th") == 2 * ["class", "IoU", "boundary IoU", "boundary F1, 3 px"]
    rows = np.array(texts(".tables tbody tr > *, .tables tfoot tr > *")).reshape(2, len(CLASSES) + 1, 4)
    assert rows[0, :, 0].tolist() == [*CLASSES, "mean"]
    assert rows[0, 1].tolist() == [CLASSES[1], "76.0%", "–", "75.0%"]
    assert rows[1, 3].tolist() == ["mean", "40.0%", "20.0%", "–"]

    assert texts("figcaption b") == [HOSTILE, "plain"]
    assert "edge loss 3.25 · cross-entropy 0.5 · mean IoU 25.0%" in texts("figcaption")[0]
    assert "epochs: 4" in texts("pre")[0]
    pictures = page.execute_script("return [...document.querySelectorAll('figure img')].map((one) => one.src)")
    for source in pictures:
        kind, content = source.split(",")
        assert kind == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
            assert picture.size[0] > 400
    assert HOSTILE in page.execute_script("return document.querySelector('figure img').alt")


def test_a_single_epoch_is_best_and_last(browse: Browse, tmp_path: Path) -> None:
    page = browse(write_run_page(tmp_path, [row_of(1)], CLASSES, []))
    script = "return [...document.querySelectorAll('h2, .tables h3')].map((one) => one.textContent)"
    assert page.execute_script(script) == ["Curves", "Classes in validation", "epoch 1, best and last"]


# Limits the size of files, as a full disk would, so that the tables can be written, and the events can't.
FULL = """
import resource, signal, sys
from pathlib import Path
from segkit.config import Config
from segkit.run_files import RunFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
files = RunFiles(Path(sys.argv[1]), Config(output=""), ["a"])
resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))
try:
    files.add_epoch({"epoch": 1, **{f"a_long_name_of_a_figure_{n}": 1 for n in range(300)}})
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"[Errno 27] File too large: '{tmp_path}'\n", "")
