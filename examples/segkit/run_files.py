"""Files of a run: tables of figures and pictures, which are logged too."""

import csv
import io
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from edgeloss import EdgeAwareLoss
from edgeloss.io import atomic_write, check_file
from edgeloss.viz import panel
from segkit.config import Config, ConfigError
from segkit.console import Row
from segkit.data import SegmentationDataset, denormalize
from segkit.loggers import open_loggers

_RUN_FILES = (
    "metrics.csv",
    "metrics.json",
    "report.html",
    "best.pt",
    "last.pt",
    "panels/epoch_*.png",
    "nan/step_*",
    "tensorboard/events.*",
    "*-run-id",
)
_LIBRARIES = ("edgeloss", "torch", "torchmetrics", "numpy")


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create the folder of a run, and keep other processes from writing to it.

    The lock is one of the file ``.lock``, which stays. It ends with this process, even if that is killed, and its
    workers do not inherit it. A file system or platform without locks has none.

    Raises:
        ConfigError: if another process holds the lock, or the folder can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("ab+", buffering=0)
    except OSError as error:
        raise ConfigError(f"output: {folder}: can't be written ({error.strerror})") from error
    with file:
        try:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError | PermissionError):  # POSIX allows both
                file.seek(0)
                owner = file.read().decode(errors="replace").strip() or "another process"
                raise ConfigError(
                    f"output: expected a folder that no other run writes to, but {owner} is using {folder}; wait for"
                    " it, or choose another folder"
                ) from None
        with suppress(OSError):  # a full disk: the name is for messages only
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        yield


def prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Create the folder of a run, or remove an earlier run from it.

    Other files stay.

    Raises:
        ConfigError: if there is an earlier run and `overwrite` is False, or the folder can't be written.
    """
    earlier = [path for pattern in _RUN_FILES for path in folder.glob(pattern)]
    if earlier and not overwrite:
        raise ConfigError(
            f"output: expected a folder without a run, but {folder} has one; choose another, or set overwrite=true"
        )
    try:
        for path in earlier:
            path.unlink()
        (folder / "panels").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {error}") from error


def draw_panel(
    predict: Callable[[Tensor], Tensor],
    criterion: EdgeAwareLoss,
    dataset: SegmentationDataset,
    index: int,
    *,
    classes: Sequence[str],
    title: str | None = None,
) -> Figure:
    """Draw the loss maps of one image of a data set.

    Args:
        predict: images [1, 3, H, W] to logits on any device, in evaluation mode.
        criterion: the loss.
        dataset: the images and labels.
        index: index of the image.
        classes: names of the classes.
        title: title of the picture; None for none.
    """
    image, labels = dataset[index]
    with torch.no_grad():
        logits = predict(image[None])
    return panel(
        logits,
        labels[None].to(logits.device),
        image=denormalize(image),
        criterion=criterion,
        class_names=classes,
        title=title,
    )


def read_history(folder: Path) -> list[Row]:
    """Read the figures of each epoch of a run.

    Raises:
        ValueError: if the folder has no metrics of a run.
    """
    path = folder / "metrics.json"
    check_file(path)
    try:
        epochs: list[Row] = json.loads(path.read_text(encoding="utf-8"))["epochs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected the metrics of a run, but got an error ({error})") from error
    return epochs


class RunFiles:
    """``metrics.csv``, ``metrics.json``, ``panels/`` and the logs of one run.

    Args:
        folder: the run's folder.
        config: configuration, stored with the metrics.
        classes: names of the classes, stored with the metrics.
        history: figures of the epochs that a resumed run keeps. Later epochs are removed from the files, TensorBoard's
            curves included.

    Attributes:
        history: figures of all epochs so far.
    """

    def __init__(self, folder: Path, config: Config, classes: Sequence[str], history: Sequence[Row] = ()) -> None:
        """Open the logs.

        Raises:
            ConfigError: if the library of a log is not installed.
        """
        self.folder = folder
        self.history = list(history)
        self._description = {
            "config": asdict(config),
            "classes": list(classes),
            "versions": {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES},
        }
        if history:
            self._write_tables()
        # After a kill there may be events of later epochs, which will be written again.
        self._loggers = open_loggers(folder, self._description["config"], len(history))

    def add_epoch(self, row: Row) -> None:
        """Write the figures of an epoch; None is an empty cell or a JSON null."""
        self.history.append(row)
        figures = {name: value for name, value in row.items() if value is not None}
        with self._named():
            self._write_tables()
            for logger in self._loggers:
                logger.add_epoch(figures, int(row["epoch"] or 0))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the folder in errors of writing, as of a full disk, that name no file."""
        try:
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = str(self.folder)
            raise

    def _write_tables(self) -> None:
        text = io.StringIO(newline="")
        # In order of appearance: a resumed run may have more figures than before.
        table = csv.DictWriter(text, list(dict.fromkeys(name for row in self.history for name in row)))
        table.writeheader()
        table.writerows(self.history)
        with atomic_write(self.folder / "metrics.csv") as file:
            file.write(text.getvalue().encode())
        with atomic_write(self.folder / "metrics.json") as file:
            file.write(json.dumps(self._description | {"epochs": self.history}, indent=1, allow_nan=False).encode())

    def add_panel(self, name: str, figure: Figure, epoch: int) -> None:
        """Write a picture as a PNG file, and log it."""
        path = self.folder / "panels" / f"epoch_{epoch:03d}_{name}.png"
        with self._named():
            figure.savefig(path)
            for logger in self._loggers:
                logger.add_picture(name, path, epoch)

    def close(self) -> None:
        """Close the logs."""
        for logger in self._loggers:
            logger.close()
