"""The folder of a run: who may write to it, and with which options its run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from edgeloss.io import InputError

RESULTS = ("last.ckpt", "best.ckpt", "metrics.csv", "metrics.json", "report.html")
# Options of the data and the model that change neither the loss, nor the network, nor what it sees.
_OF_SPEED = ("data.workers", "data.cache", "model.channels_last", "model.compile", "model.shares_every")
_PATIENCE = 6.0  # seconds to wait for a lock: workers of a process that was killed end within 5 s
_SHOWN = 4  # options in a message


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder; the lock ends with the process, however that ends.

    Raises:
        InputError: Another process trains there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise InputError(
            f"trainer.default_root_dir: expected a folder that no other process trains in, but got {folder}; choose"
            " another, or wait for the end of that run"
        ) from error
    try:
        yield
    finally:
        lock.release()


def check_folder(folder: Path, checkpoint: str | None, *, overwrite: bool) -> None:
    """Check that a run may write to a folder: one without results, or with those of the run that it continues.

    Args:
        folder: The folder.
        checkpoint: The checkpoint to continue from.
        overwrite: Whether to replace the results of another run.

    Raises:
        InputError: The folder has results of another run.
    """
    results = [name for name in RESULTS if (folder / name).exists()]
    is_own = checkpoint is not None and Path(checkpoint).resolve().parent == folder.resolve()
    if results and not is_own and not overwrite:
        raise InputError(
            f"trainer.default_root_dir: expected a folder without a run, but {folder} has {results[0]}; continue that"
            " run by --ckpt_path=last, choose another folder, or replace the run by --overwrite"
        )


def remove_results(folder: Path) -> None:
    """Remove the results of a run, so that none of them is taken for one of the next."""
    for name in RESULTS:
        (folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class RunOptions:
    """The options of a run that say what it computes, by name, and whether a resumed run may have others.

    Attributes:
        values: Those of the loss, the network, the optimizer and the data, such as {"model.lr": 0.003}.
        allow_changes: Print the differences instead of refusing them.
    """

    values: dict[str, Any] = field(default_factory=dict)
    allow_changes: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, allow_changes: bool) -> RunOptions:
        """Return the options of a configuration."""
        chosen = {name: config[name] for name in ("seed_everything", "data", "model")}
        values = {name: value for name, value in _flat(chosen) if name not in _OF_SPEED}
        return cls(values, allow_changes)

    def check(self, saved: Mapping[str, Any], path: str) -> None:
        """Compare with the options of the run that a checkpoint is from.

        Args:
            saved: Its ``values``; empty if they are unknown.
            path: The checkpoint.

        Raises:
            InputError: They differ, and may not.
        """
        names = [name for name in {**saved, **self.values} if saved and self.values]
        differ = [name for name in names if saved.get(name) != self.values.get(name)]
        if not differ:
            return
        shown = ", ".join(f"{name} is {self.values.get(name)} instead of {saved.get(name)}" for name in differ[:_SHOWN])
        if len(differ) > _SHOWN:
            shown += f", and {len(differ) - _SHOWN} more"
        if not self.allow_changes:
            raise InputError(
                f"{path}: expected the options of its run, but {shown}; give the same, or add --allow_changes"
            )
        print(f"{path}: the run goes on with other options: {shown}", flush=True)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts by their names with dots."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
