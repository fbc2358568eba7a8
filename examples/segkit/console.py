"""What a run prints on the terminal: a progress bar, a line per epoch, and a closing table."""

from __future__ import annotations

from collections.abc import Mapping

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
from rich.table import Column, Table
from rich.text import Text

Row = Mapping[str, float | None]  # the figures of one epoch

# The figures that the line of an epoch and the closing table show; the files have all of them.
_LINE = {
    "train/loss": "train loss",
    "val/loss": "val loss",
    "val/cross_entropy": "ce",
    "val/same_side": "same side",
    "val/other_side": "other side",
    "val/region": "region",
    "val/miou": "mIoU",
    "val/boundary_iou": "boundary IoU",
    "val/edge_accuracy": "edge accuracy",
}
_SUMMARY = (
    "train/loss",
    "val/loss",
    "val/cross_entropy",
    "val/same_side",
    "val/other_side",
    "val/edge",
    "val/region",
    "val/miou",
    "val/boundary_iou",
    "val/boundary_f1_3",
    "val/accuracy",
    "val/edge_accuracy",
    "val/interior_accuracy",
)


_NARROW = 60  # columns of a terminal; a narrower one shows a shorter bar, and neither speed nor figures


class _ImagesPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.0f} images/s")


class EpochBar:
    """A progress bar over the images of an epoch; shown on a terminal only, not in a log file."""

    def __init__(self, console: Console) -> None:
        """Build the bar; it shows from ``with`` on."""
        self._console = console
        is_narrow = console.width < _NARROW
        columns = [TextColumn("{task.description}"), BarColumn(5 if is_narrow else 10)]
        columns += [MofNCompleteColumn(), TimeRemainingColumn()]
        if not is_narrow:
            columns += [_ImagesPerSecond(Column(no_wrap=True)), TextColumn("{task.fields[terms]}")]
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", visible=False, terms="")

    def __enter__(self) -> EpochBar:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the bar."""
        self._progress.stop()

    def restart(self, description: str, total: int, *, completed: int = 0) -> None:
        """Begin at `completed` of `total` images."""
        self._progress.reset(
            self._task, total=total, completed=completed, description=description, visible=True, terms=""
        )

    def advance(self, images: int, figures: Mapping[str, float]) -> None:
        """Add images, and show as many figures next to the bar as fit, loss and learning rate first."""
        task = self._progress.tasks[self._task]
        others = len(f"{task.description} {'━' * 10} {task.total}/{task.total} 0:00:00 1000 images/s ")
        terms = ""
        for name in sorted(figures, key=lambda name: (name != "loss", name != "lr")):
            longer = f"{terms}  {name} {shown(name, figures[name])}".strip()
            if others + len(longer) <= self._console.width:
                terms = longer
        self._progress.update(self._task, advance=images, terms=terms)


def epoch_line(row: Row, epochs: int) -> str:
    """Return the line that is printed after an epoch."""
    figures = "  ".join(f"{label} {shown(name, row[name])}" for name, label in _LINE.items() if name in row)
    return f"epoch {row['epoch']}/{epochs}  {figures}  {row['images_per_second']:.0f} images/s  {row['seconds']:.1f} s"


def summary(first: Row, last: Row) -> Table:
    """Return a table of the first and the last epoch, side by side."""
    table = Table("", f"epoch {first['epoch']}", f"epoch {last['epoch']}")
    for name in _SUMMARY:
        if name in last:
            table.add_row(name, shown(name, first.get(name)), shown(name, last[name]))
    return table


def is_share(name: str) -> bool:
    """Return whether a figure of that name is a share, shown in percent."""
    return any(word in name for word in ("iou", "f1", "accuracy", "share", "fraction"))


def shown(name: str, value: float | None) -> str:
    """Return a figure as it is printed."""
    if value is None:
        return "none"
    if name == "lr":
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.1%}" if is_share(name) else f"{value:.4f}"
