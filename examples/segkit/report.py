"""What a run leaves behind: tables of figures, TensorBoard events, pictures, and lines on the terminal."""

import csv
import io
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text
from torch.utils.tensorboard import SummaryWriter

from segkit.checkpoint import atomic_write
from segkit.config import Config, ConfigError

Row = Mapping[str, float | None]  # the figures of one epoch

_OURS = ("metrics.csv", "metrics.json", "best.pt", "last.pt", "panels/epoch_*.png", "tensorboard/events.*")
_LIBRARIES = ("edgeloss", "torch", "torchmetrics", "numpy")

# What an epoch's line and the last table show, of all that the files hold.
_LINE = {
    "train/loss": "train loss",
    "val/loss": "val loss",
    "val/cross_entropy": "ce",
    "val/same_side": "same side",
    "val/other_side": "other side",
    "val/miou": "mIoU",
    "val/edge_accuracy": "edge accuracy",
}
_SUMMARY = (
    "train/loss",
    "val/loss",
    "val/cross_entropy",
    "val/same_side",
    "val/other_side",
    "val/edge",
    "val/miou",
    "val/accuracy",
    "val/edge_accuracy",
    "val/interior_accuracy",
)


def prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Make a run's folder, and clear it of an earlier run's files, of nothing else.

    Raises:
        ConfigError: if there is an earlier run and it is to be kept, or the folder can't be written.
    """
    earlier = [path for pattern in _OURS for path in folder.glob(pattern)]
    if earlier and not overwrite:
        raise ConfigError(f"output: {folder} holds a run; choose another folder, or replace it with overwrite=true")
    try:
        for path in earlier:
            path.unlink()
        (folder / "panels").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {error}") from error


class RunFiles:
    """``metrics.csv``, ``metrics.json``, ``panels/`` and ``tensorboard/`` of one run.

    Args:
        folder: the run's folder.
        config: stored with the metrics.
        classes: the classes' names, stored with the metrics.
        history: the figures of the epochs so far, of a run that goes on.
    """

    def __init__(self, folder: Path, config: Config, classes: Sequence[str], history: Sequence[Row] = ()) -> None:
        """Open the TensorBoard file."""
        self.folder = folder
        self.history = list(history)
        self._about = {
            "config": asdict(config),
            "classes": list(classes),
            "versions": {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES},
        }
        # Of a run that was killed there may be events of a later epoch, which comes again.
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=len(history) + 1 if history else None)

    def add_epoch(self, row: Row) -> None:
        """Write the figures of an epoch everywhere; None becomes an empty cell and a JSON null."""
        self.history.append(row)
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, list(row))
        table.writeheader()
        table.writerows(self.history)
        with atomic_write(self.folder / "metrics.csv") as file:
            file.write(text.getvalue().encode())
        with atomic_write(self.folder / "metrics.json") as file:
            file.write(json.dumps(self._about | {"epochs": self.history}, indent=1, allow_nan=False).encode())
        for name, value in row.items():
            if value is not None:
                self._board.add_scalar(name, value, int(row["epoch"] or 0))
        self._board.flush()

    def add_panel(self, name: str, figure: Figure, epoch: int) -> None:
        """Write a picture as PNG and to TensorBoard."""
        figure.savefig(self.folder / "panels" / f"epoch_{epoch:03d}_{name}.png")
        self._board.add_figure(name, figure, epoch)

    def close(self) -> None:
        """Finish the TensorBoard file."""
        self._board.close()


class _ImagesPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.0f} images/s")


def progress_bar(console: Console) -> Progress:
    """A bar over the images of an epoch, with a field ``terms``; it shows on a terminal only, not in a log file."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _ImagesPerSecond(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[terms]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def epoch_line(row: Row, epochs: int) -> str:
    """One line about an epoch."""
    figures = "  ".join(f"{label} {_shown(name, row[name])}" for name, label in _LINE.items())
    return f"epoch {row['epoch']}/{epochs}  {figures}  {row['images_per_second']:.0f} images/s  {row['seconds']:.1f} s"


def summary(first: Row, last: Row) -> Table:
    """The first and the last epoch side by side."""
    table = Table("", f"epoch {first['epoch']}", f"epoch {last['epoch']}")
    for name in _SUMMARY:
        table.add_row(name, _shown(name, first[name]), _shown(name, last[name]))
    return table


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.1%}" if name.endswith(("iou", "accuracy")) else f"{value:.4f}"
