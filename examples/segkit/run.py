"""The command line of train.py."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ActionYesNo
from jsonargparse.typing import register_type
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from torch import Tensor

from edgeloss.io import InputError
from segkit.callbacks import BestCheckpoint, LastCheckpoint, RunPage, SaveConfig
from segkit.checkpoint import load_checkpoint, load_values, save_checkpoint
from segkit.folder import RunOptions, check_folder, locked
from segkit.guard import NanGuard
from segkit.loader import SegmentationData
from segkit.module import SegmentationModule

# Class weights in a configuration.
register_type(Tensor, Tensor.tolist, lambda values: torch.tensor(values, dtype=torch.float32))


class CompleteCheckpoints(TorchCheckpointIO):
    """Checkpoints that replace an earlier one only when complete on disk, and are read without running their code."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ANN401
        """Write a checkpoint."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(Path(path), checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:  # noqa: ANN401
        """Read a checkpoint from a path or a URL; ``weights_only`` has no effect."""
        # Forked processes hand their weights back in such a file.
        return (load_values if Path(path).name == ".temp.ckpt" else load_checkpoint)(path)


class TrainCLI(LightningCLI):
    """The command line: options of the trainer, the module, the data and the callbacks."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return what the module has steps for; each command costs a start the time to describe all options."""
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name in ("fit", "validate")}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the callbacks, and what one part takes from another."""
        about = "Replace an earlier run in that folder."
        parser.add_argument("--overwrite", action=ActionYesNo, nargs="?", default=False, help=about)
        about = "Continue a checkpoint's run with other options of the loss, the network or the data."
        parser.add_argument("--allow_changes", action=ActionYesNo, nargs="?", default=False, help=about)
        parser.add_lightning_class_args(RunPage, "page")
        parser.add_lightning_class_args(NanGuard, "guard")
        parser.add_lightning_class_args(BestCheckpoint, "best")  # before last.ckpt, which has its state
        parser.add_lightning_class_args(LastCheckpoint, "last")
        options = {"filename": "best", "monitor": "val/boundary_f1_1", "mode": "max", "enable_version_counter": False}
        options |= {"save_on_train_epoch_end": True, "auto_insert_metric_name": False}
        parser.set_defaults({f"best.{option}": value for option, value in options.items()})
        parser.link_arguments("trainer.default_root_dir", "best.dirpath")
        parser.set_defaults({"model.loss": {"class_path": "edgeloss.EdgeAwareLoss"}})
        for target in ("data", "model"):
            parser.link_arguments("seed_everything", f"{target}.seed", compute_fn=int)
        for source, target in {"class_names": "classes", "void": "ignore_index", "dims": "dims"}.items():
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Find last.ckpt and best.ckpt; ``hyper_parameters`` of a checkpoint set nothing, unlike in Lightning."""
        config = self.config[self.config.subcommand]
        if config.weights_only is False:
            raise InputError("weights_only: expected true, but got false; checkpoints never run code; leave it out")
        if config.ckpt_path in ("last", "best"):
            path = Path(config.trainer.default_root_dir or ".") / f"{config.ckpt_path}.ckpt"
            is_new = self.config.subcommand == "fit" and config.ckpt_path == "last" and not path.exists()
            config.ckpt_path = None if is_new else str(path)

    def fit(self, **options: Any) -> None:  # noqa: ANN401
        """Train, in a folder that no other run has."""
        config, folder = self.config.fit, Path(self.trainer.default_root_dir)
        values = yaml.safe_load(self._parser("fit").dump(config, skip_none=False))
        self.model.run_options = RunOptions.from_config(values, allow_changes=config.allow_changes)
        with locked(folder) if self.trainer.is_global_zero else nullcontext():
            check_folder(folder, config.ckpt_path, overwrite=config.overwrite)
            self.trainer.fit(**options)


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
    try:
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
    except MisconfigurationException as error:  # of Lightning, about its own options
        raise ValueError(str(error)) from error


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
