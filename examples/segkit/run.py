"""The command line of train.py, and what a run prints and writes."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import register_type
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from torch import Tensor

from edgeloss.integrations.lightning import WriteRunPage
from edgeloss.integrations.run_page import shown
from edgeloss.io import InputError, atomic_write
from segkit.checkpoint import save_checkpoint
from segkit.data import denormalize
from segkit.guard import NanGuard
from segkit.loader import SegmentationData
from segkit.module import SegmentationModule

# Class weights in a configuration.
register_type(Tensor, Tensor.tolist, lambda values: torch.tensor(values, dtype=torch.float32))

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
                print(
                    "the training masks have no edge between two classes, so that only cross-entropy is trained; check"
                    f" that the label {pl_module.criterion.ignore_index} marks void, and no class"
                )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where the files are."""
        super().on_fit_end(trainer, pl_module)
        if trainer.is_global_zero and self.history:
            print(f"metrics, checkpoints and report.html are in {trainer.default_root_dir}", flush=True)


class LastCheckpoint(Checkpoint):
    """Write last.ckpt after each epoch, with its validation, and on request between its steps.

    Args:
        every_n_train_steps: Distance between steps with a checkpoint; 0 for none within an epoch.
    """

    def __init__(self, every_n_train_steps: int = 0) -> None:
        """Store the option."""
        self.every = every_n_train_steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Save between two steps; after the last one of an epoch, its end follows."""
        is_between = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and not trainer.is_last_batch
        if self.every and is_between and trainer.global_step % self.every == 0:
            self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save at the end of an epoch."""
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "last.ckpt")


class CompleteCheckpoints(TorchCheckpointIO):
    """Checkpoints that replace an earlier one only when they are complete on disk, whenever the run is killed."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ANN401
        """Write a checkpoint."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(Path(path), checkpoint)


class SaveConfig(SaveConfigCallback):
    """Write the configuration next to the checkpoints, which the page of the run shows."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write config.yaml."""
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        text = self.parser.dump(self.config, skip_none=False)
        with atomic_write(folder / "config.yaml") as file:
            file.write(text.encode())


class TrainCLI(LightningCLI):
    """The command line: options of the trainer, the module, the data and the callbacks."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return what the module has steps for; each command costs a start the time to describe all options."""
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name in ("fit", "validate")}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the callbacks, and what one part takes from another."""
        parser.add_argument("--overwrite", type=bool, default=False, help="Replace an earlier run in that folder.")
        parser.add_lightning_class_args(RunPage, "page")
        parser.add_lightning_class_args(NanGuard, "guard")
        parser.add_lightning_class_args(LastCheckpoint, "last")
        parser.add_lightning_class_args(ModelCheckpoint, "best")
        options = {"filename": "best", "monitor": "val/boundary_f1_1", "mode": "max", "enable_version_counter": False}
        options |= {"save_on_train_epoch_end": True, "auto_insert_metric_name": False}
        parser.set_defaults({f"best.{option}": value for option, value in options.items()})
        parser.link_arguments("trainer.default_root_dir", "best.dirpath")
        parser.set_defaults({"model.loss": {"class_path": "edgeloss.EdgeAwareLoss"}})
        for target in ("data", "model"):
            parser.link_arguments("seed_everything", f"{target}.seed", compute_fn=int)
        for source, target in {"class_names": "classes", "void": "ignore_index", "dims": "dims"}.items():
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")

    def before_fit(self) -> None:
        """Refuse to replace an earlier run."""
        config, folder = self.config.get("fit", self.config), Path(self.trainer.default_root_dir)
        if (folder / "last.ckpt").exists() and config["ckpt_path"] is None and not config["overwrite"]:
            raise InputError(
                f"trainer.default_root_dir: expected a folder without a run, but {folder} has one; choose another, set"
                " --overwrite=true, or continue it by --ckpt_path=last"
            )


def run(arguments: ArgsType = None) -> None:
    """Train as the command line asks for.

    Args:
        arguments: Those of the command line; None for those of this program.

    Raises:
        OSError: A file is missing or can't be written.
        ValueError: An option or file can't be used.
    """
    quiet()
    bar = sys.stderr.isatty()
    TrainCLI(
        SegmentationModule,
        SegmentationData,
        args=arguments,
        seed_everything_default=0,
        save_config_callback=SaveConfig,
        save_config_kwargs={"save_to_log_dir": False},
        trainer_defaults={
            "default_root_dir": "runs/last",
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "enable_progress_bar": bar,
            "enable_model_summary": bar,
            "log_every_n_steps": 1,
            "plugins": [{"class_path": "segkit.run.CompleteCheckpoints"}],
        },
    )


def quiet() -> None:
    """Leave out what Lightning says about itself, and warnings that do not hold for this trainer."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*sync_dist=True.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*`srun` command.*",
        ".*lr_scheduler.step.*",
        ".*your dataloader is not resumable.*",  # it continues at the trainer's position
    ):
        warnings.filterwarnings("ignore", message)
