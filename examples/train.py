#!/usr/bin/env python3
"""Train a compact U-Net with the edge-aware loss on a folder of images and masks.

A run leaves in its output folder: metrics.csv and metrics.json (loss terms, IoU of each class, accuracy on and off the
edges), best.pt (by mean IoU) and last.pt, pictures of the loss maps under panels/, and tensorboard/.
"""

import argparse
import math
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from rich.console import Console
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from edgeloss import EdgeAwareLoss
from edgeloss.viz import panel
from segkit.checkpoint import save_checkpoint
from segkit.config import Config, ConfigError, load_config
from segkit.data import Augment, SegmentationFolder, denormalize, read_classes
from segkit.engine import (
    DataError,
    Interrupted,
    NonFiniteLossError,
    batches,
    evaluate,
    lr_factor,
    seed_everything,
    stop_on_signals,
    train_epoch,
)
from segkit.model import UNet
from segkit.report import RunFiles, epoch_line, prepare_folder, progress_bar, summary

EXAMPLES = """\
examples:
  python examples/train.py --config configs/shapes.yaml
  python examples/train.py --config configs/shapes.yaml output=runs/plain loss.edge_weight=0   # cross-entropy alone
  python examples/train.py --config configs/camvid.yaml epochs=3 data.workers=2
  tensorboard --logdir runs

keys and their defaults (??? must be given; what each one means stands in configs/shapes.yaml):
"""


def train(config: Config, console: Console) -> int:
    """Run a training from start to end.

    Args:
        config: what to do.
        console: where to tell about it.

    Returns:
        The exit code: 0, or 130 if the run was interrupted.

    Raises:
        ConfigError: if data, loss, device or output folder can't be had as the configuration wants them.
        DataError: if an image or mask can't be used.
        NonFiniteLossError: if the loss becomes nan or infinite.
    """
    seed_everything(config.seed)
    device = find_device(config.device)
    classes, void, train_set, val_set = open_data(config)
    criterion = make_criterion(config.loss, len(classes), void).to(device)
    model = UNet(len(classes), **asdict(config.model)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay)
    steps = math.ceil(len(train_set) / config.batch_size)
    warmup = round(config.optim.warmup * steps)
    schedule = partial(lr_factor, total=config.epochs * steps, warmup=warmup, power=config.optim.power)
    scheduler = LambdaLR(optimizer, schedule)
    folder = Path(config.output)
    prepare_folder(folder, overwrite=config.overwrite)
    files = RunFiles(folder, config, classes)

    def checkpoint() -> dict[str, Any]:
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": len(files.history),  # complete ones
            "step": scheduler.last_epoch,  # optimizer steps, those of an interrupted epoch included
            "config": asdict(config),
            "classes": classes,
            "ignore_index": void,
            "metrics": files.history[-1] if files.history else None,
        }

    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    console.print(
        f"{len(train_set)} training and {len(val_set)} validation images, {len(classes)} classes,"
        f" {parameters:.2f} M parameters, {device}"
    )
    best = -1.0
    with stop_on_signals() as stop_if_asked, progress_bar(console) as bar:
        task = bar.add_task("", terms="")

        def on_step(images: int, terms: dict[str, float]) -> None:
            stop_if_asked()
            bar.update(task, advance=images, terms="  ".join(f"{name} {value:.3f}" for name, value in terms.items()))

        try:
            for epoch in range(1, config.epochs + 1):
                start = time.perf_counter()
                rate = float(scheduler.get_last_lr()[0])
                bar.reset(task, total=len(train_set), description=f"epoch {epoch}/{config.epochs}")
                data = batches(train_set, config.batch_size, config.data.workers, seed=config.seed, epoch=epoch)
                trained = train_epoch(
                    model, criterion, optimizer, scheduler, data, device=device, clip=config.optim.clip, on_step=on_step
                )
                seconds = time.perf_counter() - start
                bar.reset(task, total=len(val_set), description="validation")
                data = batches(val_set, config.batch_size, config.data.workers)
                validated = evaluate(model, criterion, data, classes=classes, device=device, on_step=on_step)
                row = {
                    "epoch": epoch,
                    "lr": rate,
                    "seconds": time.perf_counter() - start,
                    "images_per_second": len(train_set) / seconds,
                    **{f"train/{name}": value for name, value in trained.items()},
                    **{f"val/{name}": value for name, value in validated.items()},
                }
                files.add_epoch(row)
                console.print(epoch_line(row, config.epochs))
                save_checkpoint(folder / "last.pt", checkpoint())
                if (miou := validated["miou"] or 0.0) > best:
                    best = miou
                    save_checkpoint(folder / "best.pt", checkpoint())
                if epoch in (1, config.epochs) or (config.panel_every and epoch % config.panel_every == 0):
                    draw_panels(model, criterion, val_set, classes, device, config.panels, files, epoch)
        except Interrupted:
            save_checkpoint(folder / "last.pt", checkpoint())
            console.print(f"interrupted after step {scheduler.last_epoch}; the weights are in {folder / 'last.pt'}")
            return 130
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"epoch {epoch}: {error}") from error
        finally:
            files.close()
    console.print(summary(files.history[0], files.history[-1]))
    console.print(f"best mIoU {best:.1%}; metrics, checkpoints, panels and TensorBoard events are in {folder}")
    return 0


def find_device(name: str) -> torch.device:
    """The device of that name; for "auto" the accelerator if there is one, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch raises either, depending on how it was built
        raise ConfigError(f"device: {str(error).splitlines()[0]}") from error


def open_data(config: Config) -> tuple[list[str], int, SegmentationFolder, SegmentationFolder]:
    """The class names, the label that does not count, the training set and the validation set."""
    data = config.data
    key = "data.classes"  # what is being opened when an error comes
    try:
        classes, void = read_classes(data.classes)
        void = 255 if void is None else void
        size = None if data.size is None else (data.size[0], data.size[1])
        folder = partial(SegmentationFolder, num_classes=len(classes), ignore_index=void, size=size)
        key = "data.augment"
        augment = None if data.augment is None else Augment(**asdict(data.augment))
        key = "data.train"
        train_set = folder(data.train, augment=augment, seed=config.seed)
        key = "data.val"
        return classes, void, train_set, folder(data.val)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from error


def make_criterion(options: dict[str, Any], num_classes: int, ignore_index: int) -> EdgeAwareLoss:
    """The loss with the options of the configuration, tried out on a single pixel."""
    options = dict(options)
    try:
        if options.get("weight") is not None:
            options["weight"] = torch.tensor(options["weight"], dtype=torch.float32)
        criterion = EdgeAwareLoss(ignore_index=ignore_index, reduction="mean", **options)
        criterion(torch.zeros(1, num_classes, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loss: {error}") from error
    return criterion


def draw_panels(
    model: nn.Module,
    criterion: EdgeAwareLoss,
    dataset: SegmentationFolder,
    classes: Sequence[str],
    device: torch.device,
    count: int,
    files: RunFiles,
    epoch: int,
) -> None:
    """Write loss-map pictures of `count` images spread evenly over a data set."""
    model.eval()
    for index in sorted({round(i) for i in np.linspace(0, len(dataset) - 1, count)}):
        image, labels = dataset[index]
        with torch.no_grad():
            logits = model(image[None].to(device))
        name = dataset.names[index]
        figure = panel(
            logits,
            labels[None].to(device),
            image=denormalize(image),
            criterion=criterion,
            class_names=classes,
            title=f"{name}, epoch {epoch}",
        )
        files.add_panel(name, figure, epoch)


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
        return train(
            load_config(options.config, options.overrides), Console(highlight=False, markup=False, soft_wrap=True)
        )
    except (ConfigError, DataError, NonFiniteLossError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before or after the loop, which has its own way to stop
        return 130


if __name__ == "__main__":
    sys.exit(main())
