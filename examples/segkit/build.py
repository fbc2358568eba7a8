"""Build what a configuration asks for: data sets, loss, network and optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from edgeloss import EdgeAwareLoss
from edgeloss.functional import balanced_edge_class_weight
from segkit.config import Config, ConfigError
from segkit.data import Augment, SegmentationDataset, open_dataset, read_classes
from segkit.model import UNet
from segkit.placement import Placement
from segkit.schedule import lr_factor
from segkit.state import TrainingState


def open_data(config: Config) -> tuple[SegmentationDataset, SegmentationDataset]:
    """Open the training set and the validation set."""
    data = config.data
    key = "data.augment"  # what is being opened when an error is raised
    try:
        augment = None if data.augment is None else Augment(**asdict(data.augment))
        size = None if data.size is None else (data.size[0], data.size[1])
        open_split = partial(open_dataset, data.layout, data.root, classes=data.classes, size=size, cache=data.cache)
        key = "data.classes"
        if data.classes is not None:
            read_classes(data.classes)
        key = "data.train"
        train_set = open_split(data.train, augment=augment, seed=config.seed)
        if len(train_set.classes) < 2:
            raise ConfigError(f"data.classes: expected two classes or more, but got {train_set.classes}")
        key = "data.val"
        return train_set, open_split(data.val)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from error


def make_criterion(
    options: dict[str, Any], num_classes: int, ignore_index: int, masks: Iterable[Tensor] = ()
) -> EdgeAwareLoss:
    """Build the loss, and try it on a single pixel to check its options.

    Args:
        options: section ``loss`` of the configuration.
        num_classes: C.
        ignore_index: the label of void pixels.
        masks: labels [1, H, W] to balance the classes by, read only with ``edge_class_weight: balanced``.

    Raises:
        ConfigError: if the loss does not accept the options.
    """
    options = dict(options)
    try:
        if options.get("edge_class_weight") == "balanced":
            label_options = {"ignore_index": ignore_index, "radius": options.get("radius", 1)}
            options["edge_class_weight"] = balanced_edge_class_weight(masks, num_classes, **label_options).tolist()
        for name in ("weight", "edge_class_weight"):
            if options.get(name) not in (None, "running"):
                try:
                    options[name] = torch.tensor(options[name], dtype=torch.float32)
                except (RuntimeError, TypeError, ValueError) as error:  # with torch's own message
                    raise ValueError(f"{name}: expected a list of numbers, but got {options[name]!r}") from error
        options = {"upsample": True} | options  # for a network with an output stride
        criterion = EdgeAwareLoss(ignore_index=ignore_index, reduction="mean", sync_normalizer=True, **options)
        criterion.eval()(torch.zeros(1, num_classes, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loss: {error}") from error
    return criterion.train()


def make_state(config: Config, num_classes: int, placement: Placement, steps_per_epoch: int) -> TrainingState:
    """Build network, optimizer, learning-rate schedule, scaler and average."""
    network = UNet(num_classes, **asdict(config.model)).to(placement.device, memory_format=placement.memory_format)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay)
    warmup = round(config.optim.warmup * steps_per_epoch)
    schedule = partial(lr_factor, total=config.epochs * steps_per_epoch, warmup=warmup, power=config.optim.power)
    ema = None if config.ema is None else AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(config.ema))
    scaler = torch.amp.GradScaler(placement.device.type, enabled=config.precision == "float16")
    return TrainingState(network, optimizer, LambdaLR(optimizer, schedule), scaler, ema)
