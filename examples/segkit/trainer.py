"""A training run, from an empty folder or a checkpoint to its last epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from segkit.build import make_criterion, make_state, open_data
from segkit.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from segkit.config import Config, ConfigError
from segkit.console import EpochBar, Row, epoch_line, summary
from segkit.distributed import rank, sum_over_ranks, world_size
from segkit.evaluation import evaluate, total_loss
from segkit.guard import NanGuard, NonFiniteLossError
from segkit.loader import MicroBatch, TimedIterator, load_batches
from segkit.placement import find_placement
from segkit.run_files import RunFiles, draw_panel, prepare_folder
from segkit.run_page import write_run_page
from segkit.schedule import edge_weight
from segkit.scores import WorstImages
from segkit.seeding import seed_everything
from segkit.signals import Interrupted, stop_on_signals
from segkit.state import check_state
from segkit.step import TrainStep

MUCH_WAITING = 0.2  # share of an epoch


class Trainer:
    """Train a U-Net on a folder of images and masks, as a configuration asks for.

    Args:
        config: the configuration.
        console: where progress is printed.
        device: where to compute.

    Attributes:
        state: network, optimizer, schedules and counters.
        criterion: the loss.

    Raises:
        CheckpointError: if the run can't be resumed from the checkpoint.
        ConfigError: if data, loss, guard or output folder do not fit the configuration.
        DataError: if an image or mask can't be used.
    """

    def __init__(self, config: Config, console: Console, device: torch.device) -> None:
        """Open the data, build or resume the run, and prepare the output folder."""
        seed_everything(config.seed)
        self.config = config
        self.console = console
        self.folder = Path(config.output)
        self.is_main = rank() == 0  # the process that writes
        self.placement = find_placement(config, device)
        self.train_set, self.val_set = open_data(config)
        self.classes = self.train_set.classes
        self.criterion = make_criterion(
            config.loss, len(self.classes), self.train_set.ignore_index, self._training_masks()
        ).to(device)
        try:
            self._guard = NanGuard(self.folder, self.criterion, **asdict(config.guard))
        except ValueError as error:
            raise ConfigError(f"guard: {error}") from error
        self.full_edge_weight = self.criterion.edge_weight
        self.steps_per_epoch = math.ceil(len(self.train_set) / config.batch_size)
        self.state = make_state(config, len(self.classes), self.placement, self.steps_per_epoch)
        self.source = find_checkpoint(config)
        if self.source is not None:
            self._resume(self.source)
        is_new = self.source is None or self.source.resolve().parent != self.folder.resolve()
        if self.is_main and is_new:
            prepare_folder(self.folder, overwrite=config.overwrite)
        if is_new:
            self._save("last.pt")  # from here on there is always a checkpoint to resume from
        self._files: RunFiles | None = None
        self._worst: WorstImages | None = None  # of the last validation
        self._step = TrainStep(
            self.state, self._wrapped_model(), self.criterion, self.placement, self._guard, clip=config.optim.clip
        )

    def run(self) -> int:
        """Train to the last epoch.

        Returns:
            The exit code: 0, or that of the signal that stopped the run: 130 for Ctrl-C, 143 for SIGTERM.

        Raises:
            DataError: if an image or mask can't be used.
            NonFiniteLossError: if the loss becomes nan or infinite.
        """
        config, state = self.config, self.state
        if self.is_main:
            self._files = RunFiles(self.folder, config, self.classes, state.history)
        self._print_start()
        with stop_on_signals() as self._stop_if_asked, EpochBar(self.console) as self._bar:
            try:
                while state.epoch < config.epochs:
                    self._run_epoch(state.epoch + 1)
                if self._worst is None and sum_over_ranks([self.is_main and not self._has_page()])[0]:
                    self.console.print("all epochs are complete, but report.html is not; validating to write it")
                    self._validate()
            except Interrupted as interrupted:
                self._save("last.pt")
                checkpoint = self.folder / "last.pt"
                self.console.print(f"{interrupted} after step {state.step}; resume=auto continues from {checkpoint}")
                return interrupted.exit_code
            except NonFiniteLossError as error:
                raise NonFiniteLossError(f"epoch {state.epoch + 1}: {error}") from error
            finally:
                if self._files is not None:
                    self._files.close()
        self._finish()
        return 0

    # ------------------------------------------------------------------------------------------------------ an epoch

    def _run_epoch(self, epoch: int) -> None:
        """Train, validate, log and save."""
        skipped = self._guard.skipped
        self._train_epoch(epoch)
        start = time.perf_counter()
        validated = self._validate()
        row = self._row(epoch, validated, self._guard.skipped - skipped, time.perf_counter() - start)
        self.console.print(epoch_line(row, self.config.epochs))
        if (waiting := row["waiting"] or 0.0) > MUCH_WAITING:
            self.console.print(
                f"{waiting:.0%} of the time was spent waiting for images; try more data.workers or data.cache=true"
            )
        if epoch == 1 and row.get("train/edge_fraction") == 0:
            self.console.print(
                "the training masks have no edge between two classes, so that only cross-entropy is trained; check that"
                f" the label {self.train_set.ignore_index} marks void, and no class"
            )
        state, miou = self.state, validated["miou"] or 0.0
        is_best, state.best = miou > state.best, max(miou, state.best)
        state.end_epoch(row)
        if self._files is not None:
            self._files.add_epoch(row)
            every = self.config.panel_every
            if epoch in (1, self.config.epochs) or (every and epoch % every == 0):
                self._draw_panels(self._files, epoch)
        if is_best:
            self._save("best.pt")
        self._save("last.pt")  # last: a run killed before it repeats the epoch, with all its files

    def _train_epoch(self, epoch: int) -> None:
        """Take the steps of an epoch that are still to be taken."""
        config, state = self.config, self.state
        self._bar.restart(
            f"epoch {epoch}/{config.epochs}", len(self.train_set), completed=state.batch * config.batch_size
        )
        data = TimedIterator(
            load_batches(
                self.train_set,
                config.batch_size,
                config.data.workers,
                seed=config.seed,
                epoch=epoch,
                accumulate=config.accumulate,
                skip=state.batch,
            )
        )
        start, waited = time.perf_counter(), 0.0
        for micro_batches in data:
            figures = self._train_batch(epoch, micro_batches)
            images = min(config.batch_size, len(self.train_set) - state.batch * config.batch_size) if figures else 0
            now = time.perf_counter()
            state.end_batch(images, figures, seconds=now - start, waiting=data.seconds - waited)
            start, waited = now, data.seconds
            if config.checkpoint_every and state.step % config.checkpoint_every == 0:
                self._save("last.pt")
            self._end_step(images, figures)

    def _train_batch(self, epoch: int, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Take one step and return its figures; none if the guard skipped it."""
        config, state = self.config, self.state
        seed_everything(config.seed, epoch, state.batch, rank())
        total = config.epochs * self.steps_per_epoch
        self.criterion.edge_weight = edge_weight(
            state.step, total, weight=self.full_edge_weight, **asdict(config.edge_schedule)
        )
        figures = {"lr": state.scheduler.get_last_lr()[0], "edge_weight": self.criterion.current_edge_weight.item()}
        measured = self._step(
            micro_batches,
            number=(epoch - 1) * self.steps_per_epoch + state.batch + 1,
            shares=config.shares_every > 0 and state.batch % config.shares_every == 0,
        )
        if measured is None:
            self.console.print(f"epoch {epoch}: skipped a step: {self._guard.message}")
            return {}
        return figures | measured

    def _validate(self) -> dict[str, float | None]:
        """Return the figures of the validation set."""
        self._bar.restart("validation", len(self.val_set))
        self.criterion.edge_weight = self.full_edge_weight  # the same loss in all epochs
        self._worst = WorstImages(self.criterion, len(self.classes), self.config.worst)
        return evaluate(
            self.state.averaged,
            self.criterion,
            load_batches(self.val_set, self.config.batch_size, self.config.data.workers),
            classes=self.classes,
            placement=self.placement,
            worst=self._worst,
            on_batch=self._end_step,
        )

    def _row(self, epoch: int, validated: Row, skipped: int, validation_seconds: float) -> Row:
        """Return the figures of an epoch as they are written."""
        trained, sums = self.state.means(), self.state.sums
        if "loss" in trained:  # with the weights of the validation, where the steps had those of edge_focus
            trained["loss"] = total_loss(trained, self.criterion)
        return {
            "epoch": epoch,
            "lr": trained.pop("lr", None),
            "edge_weight": trained.pop("edge_weight", None),
            "seconds": sums["seconds"] + validation_seconds,
            "images_per_second": sums["images"] / sums["seconds"],
            "waiting": sums["waiting"] / sums["seconds"],
            "skipped": skipped,
            **{f"train/{name}": value for name, value in trained.items()},
            **{f"val/{name}": value for name, value in validated.items()},
        }

    def _end_step(self, images: int, figures: dict[str, float] | None = None) -> None:
        """Show progress, and stop if a signal asked for it."""
        self._bar.advance(images, figures or {})
        self._stop_if_asked()

    # ----------------------------------------------------------------------------------------------- start and finish

    def _training_masks(self) -> Iterator[Tensor]:
        """Yield the labels of each training image, with a progress bar."""
        images = range(len(self.train_set))
        disable = not self.is_main
        for i in track(images, "counting edge pixels", console=self.console, transient=True, disable=disable):
            yield self.train_set.labels(i)[None]

    def _resume(self, source: Path) -> None:
        """Restore the state from a checkpoint.

        Raises:
            CheckpointError: if it can't be read, or has another network, other classes, or another order of images.
        """
        checkpoint = load_checkpoint(source)
        try:
            check_state(checkpoint)
            expected: dict[str, object] = {"classes": list(self.classes)}
            if checkpoint["batch"]:  # within an epoch, the position is counted in batches of this order
                expected |= {"seed": self.config.seed, "batch_size": self.config.batch_size}
            for name, value in expected.items():
                saved = checkpoint[name] if name in checkpoint else checkpoint["config"].get(name)
                if saved != value:
                    raise CheckpointError(f"expected {name} {value}, but got {saved}")
            if checkpoint["batch"] > self.steps_per_epoch:
                raise CheckpointError(
                    f"batch: expected at most {self.steps_per_epoch}, those of an epoch, but got {checkpoint['batch']}"
                )
            self.state.load_state_dict(checkpoint)
            counts = {name: value for name, value in checkpoint.get("criterion", {}).items() if "weight" not in name}
            self.criterion.load_state_dict(counts, strict=False)  # weights come from the configuration
            if len(getattr(self.criterion, "edge_counts", ())) not in (0, len(self.classes)):
                raise CheckpointError(f"criterion: expected counts of {len(self.classes)} classes, but got others")
        except CheckpointError as error:
            raise CheckpointError(f"{source}: {error}") from error
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{source}: criterion: expected the counts of this loss, but got others ({error})"
            ) from error

    def _wrapped_model(self) -> nn.Module:
        """Return the network, compiled and distributed where that is asked for."""
        network = self.state.network
        if self.config.compile:
            network.compile()
        if not dist.is_initialized():
            return network
        device = self.placement.device
        return DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)

    def _save(self, name: str) -> None:
        """Write a checkpoint, in the main process only."""
        if self.is_main:
            description = {
                "config": asdict(self.config),
                "classes": self.classes,
                "ignore_index": self.train_set.ignore_index,
                "criterion": self.criterion.state_dict(),
            }
            save_checkpoint(self.folder / name, self.state.state_dict() | description)

    def _print_start(self) -> None:
        parameters = sum(parameter.numel() for parameter in self.state.network.parameters()) / 1e6
        others = f" and {world_size() - 1} more" if world_size() > 1 else ""
        self.console.print(
            f"{len(self.train_set)} training and {len(self.val_set)} validation images, {len(self.classes)} classes,"
            f" {parameters:.2f} M parameters, {self.placement.device}{others}"
        )
        if self.source is not None:
            self.console.print(f"resuming from {self.source}, step {self.state.step}")

    def _draw_panels(self, files: RunFiles, epoch: int) -> None:
        """Write loss-map pictures of images spread evenly over the validation set."""
        for index in sorted({round(i) for i in np.linspace(0, len(self.val_set) - 1, self.config.panels)}):
            name = self.val_set.names[index]
            figure = self._panel(index, title=f"{name}, epoch {epoch}")
            files.add_panel(name, figure, epoch)

    def _panel(self, index: int, title: str | None = None) -> Figure:
        predict = partial(self.placement.run, self.state.averaged.eval())
        return draw_panel(predict, self.criterion, self.val_set, index, classes=self.classes, title=title)

    def _finish(self) -> None:
        """Write the page of the run and print its summary."""
        history = self.state.history
        if self._worst is not None:  # None if nothing was left to do
            ranked = self._worst.ranked()  # a collective
            if self.is_main:
                panels = [(image, self._panel(self.val_set.names.index(image.name))) for image in ranked]
                write_run_page(self.folder, history, self.classes, panels, config=asdict(self.config))
        self.console.print(summary(history[0], history[-1]))
        self.console.print(
            f"best mIoU {self.state.best:.1%}; metrics, checkpoints, panels and TensorBoard events are in {self.folder}"
        )

    def _has_page(self) -> bool:
        """Return whether there is a page about all epochs: one written after the last checkpoint."""
        page, checkpoint = self.folder / "report.html", self.folder / "last.pt"
        return page.exists() and page.stat().st_mtime >= checkpoint.stat().st_mtime


def find_checkpoint(config: Config) -> Path | None:
    """Return the checkpoint to resume from, or None for a new run."""
    if config.resume != "auto":
        return None if config.resume is None else Path(config.resume)
    path = Path(config.output) / "last.pt"
    return path if path.exists() else None
