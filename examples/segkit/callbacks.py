"""What a run prints, writes and does when it is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import SaveConfigCallback
from torch import Tensor

from edgeloss.integrations.lightning import WriteRunPage
from edgeloss.io import atomic_write
from edgeloss.viz.run_page import shown
from segkit.data import denormalize
from segkit.folder import remove_results

# What the line of an epoch shows; the files have all figures.
LINE = {
    "train/loss": "train loss",
    "val/loss": "val loss",
    "val/miou": "mIoU",
    "val/boundary_iou": "boundary IoU",
    "val/boundary_f1_1": "boundary F1 (1 px)",
    "val/edge_accuracy": "edge accuracy",
}


class RunPage(WriteRunPage):
    """Print a line per epoch, too, and draw images as they are in their files.

    Args:
        worst: Validation images with the highest edge loss to show in report.html.
        links: Pages that report.html links to, from its folder, by the text of the link.
    """

    def picture(self, image: Tensor) -> Tensor:
        """Undo the normalization."""
        return denormalize(image)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the figures of an epoch."""
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.is_global_zero:
            row = self.history[-1]
            figures = "  ".join(f"{label} {shown(name, row.get(name))}" for name, label in LINE.items())
            speed = f"{row['images_per_second']:.0f} images/s  {row['seconds']:.1f} s"
            print(f"epoch {row['epoch']}/{trainer.max_epochs}  {figures}  {speed}", flush=True)
            if row["epoch"] == 1 and row.get("train/edge_fraction") == 0:
                print("the training masks have no edge between two classes, so that only cross-entropy is trained")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where the files are, and which epoch is the best."""
        super().on_fit_end(trainer, pl_module)
        if trainer.is_global_zero and self.history:
            print(f"metrics, checkpoints and report.html are in {trainer.default_root_dir}", flush=True)
            name, row = self.best(trainer)
            if row.get(name) is not None:
                print(f"best epoch: {row['epoch']}, by {LINE.get(name, name)} {shown(name, row[name])}", flush=True)


class BestCheckpoint(ModelCheckpoint):
    """A checkpoint of the best epoch, which stays the best when its folder has been moved."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the score of best.ckpt."""
        path = str(Path(self.dirpath) / "best.ckpt")
        if Path(path).exists():
            places = dict.fromkeys(("best_model_path", "kth_best_model_path"), path)
            score = {path: state_dict["best_model_score"]}
            state_dict = {**state_dict, **places, "best_k_models": score, "dirpath": self.dirpath}
        super().load_state_dict(state_dict)


class LastCheckpoint(Checkpoint):
    """Write last.ckpt after each epoch, with its validation, on request between its steps, and when interrupted.

    Ctrl-C and SIGTERM end a run after the step that it is in, or after the validation, with exit codes 130 and 143. A
    second Ctrl-C ends it at once, without a checkpoint.

    Args:
        every_n_train_steps: Distance between steps with a checkpoint; 0 for none within an epoch.
    """

    def __init__(self, every_n_train_steps: int = 0) -> None:
        """Store the option."""
        self.every = every_n_train_steps
        self._signal: int | None = None  # that ends the run
        self._process = -1  # that handles signals; workers, which are copies of it, don't
        self._is_speaking = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Handle signals in place of Lightning, which restores the earlier handlers at the end."""
        self._signal, self._process, self._is_speaking = None, os.getpid(), trainer.is_global_zero
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._note)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Save between two steps; after the last one of an epoch, its end follows."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches or trainer.is_last_batch:
            return
        is_stopped = self._is_stopped(trainer)
        if is_stopped or (self.every and trainer.global_step % self.every == 0):
            self._save(trainer)
        if is_stopped:
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save at the end of an epoch."""
        self._save(trainer)
        if self._is_stopped(trainer):
            self._stop(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "last.ckpt")

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal until the step is done."""
        if os.getpid() != self._process:
            return
        if number == signal.SIGINT == self._signal:
            raise KeyboardInterrupt
        if self._signal is None and self._is_speaking:
            os.write(2, b"train.py: stopping after this step; press Ctrl-C again to stop at once\n")
        self._signal = self._signal or number
        # A worker that the same signal ends must not raise an error in the middle of the step. With SIG_DFL, Python
        # would print an error where its end has been noted, but not handled yet.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    @property
    def is_stopping(self) -> bool:
        """Whether this process has got a signal that ends the run."""
        return self._signal is not None

    def _is_stopped(self, trainer: Trainer) -> bool:
        """Return whether a process of the run has got a signal; a collective."""
        stopped: bool = trainer.strategy.reduce_boolean_decision(self.is_stopping, all=False)
        return stopped

    def _stop(self, trainer: Trainer) -> NoReturn:
        """End the run as a program that the signal ends."""
        if trainer.is_global_zero:
            print(f"train.py: interrupted in epoch {trainer.current_epoch + 1}; {GO_ON}", file=sys.stderr)
        raise SystemExit(128 + (self._signal or signal.SIGTERM))


GO_ON = "continue by the same command with --ckpt_path=last"


class SaveConfig(SaveConfigCallback):
    """Write the configuration next to the checkpoints, which the page of the run shows."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write nothing yet: a checkpoint to resume from may not fit."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write config.yaml, in place of the results of a run that is replaced."""
        if trainer.is_global_zero:
            if trainer.ckpt_path is None:
                remove_results(Path(trainer.default_root_dir))
            self.save_config(trainer, pl_module, "fit")

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write config.yaml."""
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        text = self.parser.dump(self.config, skip_none=False)
        with atomic_write(folder / "config.yaml") as file:
            file.write(text.encode())
