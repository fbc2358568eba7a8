#!/usr/bin/env python3
"""Train a compact U-Net with the edge-aware loss on a folder of images and masks, in one process or in several.

A run leaves in its output folder: metrics.csv and metrics.json (loss terms, IoU of each class, accuracy on and off the
edges), best.pt (by mean IoU) and last.pt, pictures of the loss maps under panels/, and tensorboard/.
"""

import argparse
import math
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from edgeloss import EdgeAwareLoss
from edgeloss.functional import balanced_edge_class_weight
from edgeloss.io import InputError
from segkit.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from segkit.config import Config, ConfigError, load_config
from segkit.console import epoch_line, progress_bar, summary
from segkit.data import Augment, SegmentationDataset, open_dataset, waited
from segkit.distributed import process_group, rank, world_size
from segkit.engine import (
    DataError,
    Interrupted,
    NonFiniteLossError,
    Placement,
    Training,
    batches,
    evaluate,
    lr_factor,
    seed_everything,
    stop_on_signals,
    train_step,
)
from segkit.guard import NanGuard
from segkit.model import UNet
from segkit.run_files import RunFiles, draw_panel, prepare_folder
from segkit.run_page import write_run_page
from segkit.schedule import edge_weight
from segkit.scores import WorstImages

EXAMPLES = """\
examples:
  python examples/train.py --config configs/shapes.yaml
  python examples/train.py --config configs/shapes.yaml output=runs/plain loss.edge_weight=0   # cross-entropy alone
  python examples/train.py --config configs/camvid.yaml epochs=3 data.workers=2
  python examples/train.py --config configs/camvid.yaml resume=auto   # go on after an interruption
  torchrun --nproc_per_node=2 examples/train.py --config configs/camvid.yaml   # the same on two processes or GPUs
  tensorboard --logdir runs

keys and their defaults (??? must be given; what each one means stands in configs/shapes.yaml):
"""
MUCH_WAITING = 0.2  # share of an epoch


def train(config: Config, console: Console, device: torch.device) -> int:
    """Run a training from start to end, or from a checkpoint on.

    Args:
        config: what to do.
        console: where to tell about it.
        device: where to compute.

    Returns:
        The exit code: 0, or 130 if the run was interrupted.

    Raises:
        CheckpointError: if the run can't go on from a checkpoint.
        ConfigError: if data, loss or output folder can't be had as the configuration wants them.
        DataError: if an image or mask can't be used.
        NonFiniteLossError: if the loss becomes nan or infinite.
    """
    seed_everything(config.seed)
    is_main = rank() == 0  # the process that writes
    folder = Path(config.output)
    place = find_place(config, device)
    train_set, val_set = open_data(config)
    classes, void = train_set.classes, train_set.ignore_index
    counting = track(
        range(len(train_set)), "counting edge pixels", console=console, transient=True, disable=not is_main
    )
    masks = (train_set.labels(i)[None] for i in counting)
    criterion = make_criterion(config.loss, len(classes), void, masks).to(device)
    steps = math.ceil(len(train_set) / config.batch_size)

    network = UNet(len(classes), **asdict(config.model)).to(device, memory_format=place.memory_format)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay)
    warmup = round(config.optim.warmup * steps)
    schedule = partial(lr_factor, total=config.epochs * steps, warmup=warmup, power=config.optim.power)
    ema = None if config.ema is None else AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(config.ema))
    scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
    training = Training(network, optimizer, LambdaLR(optimizer, schedule), scaler, ema)
    source = find_checkpoint(config)
    if source is not None:
        resume(training, source, config, classes)
    is_new = source is None or source.resolve().parent != folder.resolve()
    if is_main and is_new:
        prepare_folder(folder, overwrite=config.overwrite)

    if config.compile:
        network.compile()
    model: nn.Module = network
    if dist.is_initialized():
        model = DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)

    def save(name: str) -> None:
        if is_main:
            about = {"config": asdict(config), "classes": classes, "ignore_index": void}
            save_checkpoint(folder / name, training.state_dict() | about)

    if is_new:
        save("last.pt")  # from here on there is always something to go on from
    files = RunFiles(folder, config, classes, training.history) if is_main else None
    parameters = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    console.print(
        f"{len(train_set)} training and {len(val_set)} validation images, {len(classes)} classes,"
        f" {parameters:.2f} M parameters, {device}" + f" and {world_size() - 1} more" * (world_size() > 1)
    )
    if source is not None:
        console.print(f"going on from {source}, step {training.step}")
    full_edge_weight = criterion.edge_weight
    try:
        guard = NanGuard(folder, criterion, **asdict(config.guard))
    except ValueError as error:
        raise ConfigError(f"guard: {error}") from error
    worst = None
    with stop_on_signals() as stop_if_asked, progress_bar(console) as bar:
        task = bar.add_task("", terms="")

        def on_step(images: int, figures: dict[str, float] | None = None) -> None:
            bar.update(task, advance=images, terms="  ".join(f"{k} {v:.3f}" for k, v in (figures or {}).items()))
            stop_if_asked()

        try:
            for epoch in range(training.epoch + 1, config.epochs + 1):
                bar.reset(
                    task,
                    total=len(train_set),
                    completed=training.batch * config.batch_size,
                    description=f"epoch {epoch}/{config.epochs}",
                )
                data = waited(
                    batches(
                        train_set,
                        config.batch_size,
                        config.data.workers,
                        seed=config.seed,
                        epoch=epoch,
                        accumulate=config.accumulate,
                        skip=training.batch,
                    )
                )
                skipped = guard.skipped
                start, waiting = time.perf_counter(), 0.0
                for micro_batches in data:
                    seed_everything(config.seed, epoch, training.batch, rank())
                    criterion.edge_weight = edge_weight(
                        training.step, config.epochs * steps, weight=full_edge_weight, **asdict(config.edge_schedule)
                    )
                    figures = {"lr": training.scheduler.get_last_lr()[0], "edge_weight": criterion.edge_weight}
                    measured = train_step(
                        training,
                        model,
                        criterion,
                        micro_batches,
                        number=(epoch - 1) * steps + training.batch + 1,
                        place=place,
                        guard=guard,
                        clip=config.optim.clip,
                        shares=config.shares_every > 0 and training.batch % config.shares_every == 0,
                    )
                    images = min(config.batch_size, len(train_set) - training.batch * config.batch_size)
                    if measured is None:
                        console.print(f"epoch {epoch}: left out: {guard.message}")
                        images, figures = 0, {}
                    else:
                        figures |= measured
                    now = time.perf_counter()
                    training.count(images, figures, seconds=now - start, waiting=data.seconds - waiting)
                    start, waiting = now, data.seconds
                    if config.checkpoint_every and training.step % config.checkpoint_every == 0:
                        save("last.pt")
                    on_step(images, figures)

                start = time.perf_counter()
                bar.reset(task, total=len(val_set), description="validation")
                criterion.edge_weight = full_edge_weight  # one yardstick for all epochs
                data = batches(val_set, config.batch_size, config.data.workers)
                worst = WorstImages(criterion, len(classes), config.worst)
                validated = evaluate(
                    training.averaged, criterion, data, classes=classes, place=place, worst=worst, on_step=on_step
                )
                trained, seconds = training.means(), training.sums["seconds"]
                row = {
                    "epoch": epoch,
                    "lr": trained.pop("lr", None),
                    "edge_weight": trained.pop("edge_weight", None),
                    "seconds": seconds + time.perf_counter() - start,
                    "images_per_second": training.sums["images"] / seconds,
                    "waiting": training.sums["waiting"] / seconds,
                    "skipped": guard.skipped - skipped,
                    **{f"train/{name}": value for name, value in trained.items()},
                    **{f"val/{name}": value for name, value in validated.items()},
                }
                console.print(epoch_line(row, config.epochs))
                if row["waiting"] > MUCH_WAITING:
                    console.print(
                        f"{row['waiting']:.0%} of the time went by waiting for images:"
                        " more data.workers or data.cache=true may help"
                    )
                miou = validated["miou"] or 0.0
                is_best, training.best = miou > training.best, max(miou, training.best)
                training.end_epoch(row)
                if is_best:
                    save("best.pt")
                save("last.pt")  # after the best, or a run killed in between would go on without having that
                if files is not None:
                    files.add_epoch(row)
                    if epoch in (1, config.epochs) or (config.panel_every and epoch % config.panel_every == 0):
                        draw_panels(training.averaged, criterion, val_set, classes, place, config.panels, files, epoch)
        except Interrupted:
            save("last.pt")
            console.print(f"interrupted after step {training.step}; resume=auto goes on from {folder / 'last.pt'}")
            return 130
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"epoch {epoch}: {error}") from error
        finally:
            if files is not None:
                files.close()
    if worst is not None and (ranked := worst.ranked()) is not None and is_main:
        predict = partial(place.run, training.averaged.eval())
        drawn = [
            (
                image,
                draw_panel(
                    predict,
                    criterion,
                    val_set,
                    val_set.names.index(image.name),
                    classes=classes,
                ),
            )
            for image in ranked
        ]
        write_run_page(folder, training.history, classes, drawn, config=asdict(config))
    console.print(summary(training.history[0], training.history[-1]))
    console.print(f"best mIoU {training.best:.1%}; metrics, checkpoints, panels and TensorBoard events are in {folder}")
    return 0


def find_device(name: str) -> torch.device:
    """The device of that name; for "auto" the accelerator if there is one, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch raises either, depending on how it was built
        raise ConfigError(f"device: {str(error).splitlines()[0]}") from error


def find_place(config: Config, device: torch.device) -> Placement:
    """Where and how to compute."""
    if config.precision == "float16" and device.type != "cuda":
        raise ConfigError(f"precision: float16 needs a CUDA device; expected float32 or bfloat16 on {device.type}")
    if config.batch_size < config.accumulate * world_size():
        raise ConfigError(
            f"batch_size: expected at least accumulate × processes = {config.accumulate} × {world_size()} images"
            f" but got {config.batch_size}"
        )
    memory_format = torch.channels_last if config.channels_last else torch.preserve_format
    return Placement(device, getattr(torch, config.precision), memory_format)


def find_checkpoint(config: Config) -> Path | None:
    """The checkpoint to go on from, if there is to be one."""
    if config.resume != "auto":
        return None if config.resume is None else Path(config.resume)
    path = Path(config.output) / "last.pt"
    return path if path.exists() else None


def resume(training: Training, source: Path, config: Config, classes: Sequence[str]) -> None:
    """Go on from a checkpoint.

    Raises:
        CheckpointError: if it can't be read, or is of another network, other classes, or another order of images.
    """
    checkpoint = load_checkpoint(source)
    try:
        expected = {"classes": list(classes)}
        if checkpoint["batch"]:  # its place in the epoch is told in batches
            expected |= {"seed": config.seed, "batch_size": config.batch_size}
        for name, value in expected.items():
            found = checkpoint[name] if name in checkpoint else checkpoint["config"][name]
            if found != value:
                raise CheckpointError(f"{source}: expected {name} {value} but got {found}")
        training.load_state_dict(checkpoint)
    except KeyError as error:
        raise CheckpointError(f"{source}: holds weights but no {error} to go on from") from error
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from error


def open_data(config: Config) -> tuple[SegmentationDataset, SegmentationDataset]:
    """The training set and the validation set."""
    data = config.data
    key = "data.augment"  # what is being opened when an error comes
    try:
        augment = None if data.augment is None else Augment(**asdict(data.augment))
        size = None if data.size is None else (data.size[0], data.size[1])
        open_split = partial(open_dataset, data.layout, data.root, classes=data.classes, size=size, cache=data.cache)
        key = "data.train"
        train_set = open_split(data.train, augment=augment, seed=config.seed)
        key = "data.val"
        return train_set, open_split(data.val)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from error


def make_criterion(
    options: dict[str, Any], num_classes: int, ignore_index: int, masks: Iterable[Tensor] = ()
) -> EdgeAwareLoss:
    """The loss with the options of the configuration, tried out on a single pixel.

    Args:
        options: of the loss.
        num_classes: C.
        ignore_index: the label that does not count.
        masks: labels [1, H, W] to balance the classes by, read only where that is asked for.
    """
    options = dict(options)
    try:
        if options.get("edge_class_weight") == "balanced":
            about = {"ignore_index": ignore_index, "radius": options.get("radius", 1)}
            options["edge_class_weight"] = balanced_edge_class_weight(masks, num_classes, **about).tolist()
        for name in ("weight", "edge_class_weight"):
            if options.get(name) is not None:
                options[name] = torch.tensor(options[name], dtype=torch.float32)
        options = {"upsample": True} | options  # of a network with an output stride
        criterion = EdgeAwareLoss(ignore_index=ignore_index, reduction="mean", sync_normalizer=True, **options)
        criterion(torch.zeros(1, num_classes, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loss: {error}") from error
    return criterion


def draw_panels(
    model: nn.Module,
    criterion: EdgeAwareLoss,
    dataset: SegmentationDataset,
    classes: Sequence[str],
    place: Placement,
    count: int,
    files: RunFiles,
    epoch: int,
) -> None:
    """Write loss-map pictures of `count` images spread evenly over a data set."""
    for index in sorted({round(i) for i in np.linspace(0, len(dataset) - 1, count)}):
        name = dataset.names[index]
        predict = partial(place.run, model.eval())
        title = f"{name}, epoch {epoch}"
        files.add_panel(name, draw_panel(predict, criterion, dataset, index, classes=classes, title=title), epoch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, train, and turn a user's error into one line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES + textwrap.indent(OmegaConf.to_yaml(OmegaConf.structured(Config)), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file, such as configs/shapes.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values that replace those of the file")
    options = parser.parse_intermixed_args(arguments)
    try:
        config = load_config(options.config, options.overrides)
        with process_group(find_device(config.device)) as device:
            quiet = rank() != 0
            return train(config, Console(highlight=False, markup=False, soft_wrap=True, quiet=quiet), device)
    except (CheckpointError, ConfigError, DataError, InputError, NonFiniteLossError) as error:
        if dist.is_torchelastic_launched():  # torchrun shows which process failed first, and why
            raise
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before or after the loop, which has its own way to stop
        return 130


if __name__ == "__main__":
    sys.exit(record(main)())  # for torchrun, an error goes into its report
