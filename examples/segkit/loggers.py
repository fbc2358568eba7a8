"""Where the figures and pictures of a run are logged as it goes: TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from segkit.config import LOGS, ConfigError


class Logger(Protocol):
    """What a run logs to."""

    def add_epoch(self, figures: Mapping[str, float], epoch: int) -> None:
        """Log the figures of an epoch."""

    def add_picture(self, name: str, path: Path, epoch: int) -> None:
        """Log the picture in a file."""

    def close(self) -> None:
        """End the run."""


def _report_thread(report: Callable[[threading.ExceptHookArgs], object], arguments: threading.ExceptHookArgs) -> None:
    """Report the exception of a thread, but not that of TensorBoard's writer, which raises it again in ours."""
    if not type(arguments.thread).__module__.startswith("tensorboard."):
        report(arguments)


class _RunId:
    """The id of a run of another library, in a file of the run's folder: a resumed run continues that one."""

    def __init__(self, folder: Path, library: str) -> None:
        """Take the file."""
        self._path = folder / f"{library}-run-id"

    def read(self) -> str | None:
        """Return the id; None for a new run."""
        return self._path.read_text("utf-8") if self._path.exists() else None

    def write(self, run_id: str) -> None:
        """Store the id."""
        self._path.write_text(run_id, "utf-8")


class TensorBoardLogger:
    """Events in the folder ``tensorboard`` of the run; those of epochs from ``epochs`` + 1 on are removed."""

    def __init__(self, folder: Path, config: Mapping[str, Any], epochs: int) -> None:
        """Open the file of events."""
        tensorboard = import_module("torch.utils.tensorboard")
        threading.excepthook = partial(_report_thread, threading.excepthook)
        self._writer = tensorboard.SummaryWriter(str(folder / "tensorboard"), purge_step=epochs + 1)

    def add_epoch(self, figures: Mapping[str, float], epoch: int) -> None:
        """Log the figures of an epoch."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def add_picture(self, name: str, path: Path, epoch: int) -> None:
        """Log the picture in a file."""
        self._writer.add_image(name, np.asarray(Image.open(path).convert("RGB")), epoch, dataformats="HWC")

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases, named as the folder; WANDB_PROJECT, WANDB_MODE and the like apply."""

    def __init__(self, folder: Path, config: Mapping[str, Any], epochs: int) -> None:
        """Start or resume the run."""
        self._wandb, stored = import_module("wandb"), _RunId(folder, "wandb")
        earlier = stored.read()
        resumed = {} if earlier is None else {"id": earlier, "resume": "allow"}
        self._run = self._wandb.init(dir=str(folder), name=folder.resolve().name, config=dict(config), **resumed)
        stored.write(self._run.id)

    def add_epoch(self, figures: Mapping[str, float], epoch: int) -> None:
        """Log the figures of an epoch."""
        self._run.log(dict(figures), step=epoch)

    def add_picture(self, name: str, path: Path, epoch: int) -> None:
        """Log the picture in a file."""
        self._run.log({name: self._wandb.Image(str(path))}, step=epoch)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MlflowLogger:
    """A run of MLflow, named as the folder; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME apply."""

    def __init__(self, folder: Path, config: Mapping[str, Any], epochs: int) -> None:
        """Start or resume the run."""
        self._mlflow, stored = import_module("mlflow"), _RunId(folder, "mlflow")
        if (earlier := stored.read()) is not None:
            self._mlflow.start_run(run_id=earlier)
            return
        stored.write(self._mlflow.start_run(run_name=folder.resolve().name).info.run_id)
        self._mlflow.log_params(_flat(config))  # of a new run only: MLflow lets no parameter change

    def add_epoch(self, figures: Mapping[str, float], epoch: int) -> None:
        """Log the figures of an epoch; characters that MLflow does not allow in names become underscores."""
        self._mlflow.log_metrics({re.sub(r"[^\w\-. /]", "_", k): v for k, v in figures.items()}, step=epoch)

    def add_picture(self, name: str, path: Path, epoch: int) -> None:
        """Log the picture in a file."""
        self._mlflow.log_artifact(str(path), "panels")

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


_LOGGERS: dict[str, type[TensorBoardLogger | WandbLogger | MlflowLogger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}
assert tuple(_LOGGERS) == LOGS


def open_loggers(folder: Path, config: Mapping[str, Any], epochs: int) -> list[Logger]:
    """Open what ``config["log"]`` names.

    Args:
        folder: the run's folder.
        config: the configuration, which is logged too.
        epochs: how many epochs of an earlier part of the run are kept.

    Raises:
        ConfigError: if a library is not installed.
    """
    return [_open(name, folder, config, epochs) for name in config["log"]]


def _open(name: str, folder: Path, config: Mapping[str, Any], epochs: int) -> Logger:
    try:
        return _LOGGERS[name](folder, config, epochs)
    except ModuleNotFoundError as error:
        raise ConfigError(f"log: expected {name} to be installed, but it is not; pip install {name}") from error


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all values of a configuration under keys such as ``optim.lr``."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
