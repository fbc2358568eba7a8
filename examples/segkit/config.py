"""Configuration of a run: dataclasses give the types, YAML the values, and ``key=value`` arguments override them."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, get_args

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from edgeloss import EdgeAwareLoss
from edgeloss.io import InputError, check_file
from edgeloss.options import REMOVED
from segkit.schedule import Kind

LOGS = ("tensorboard", "wandb", "mlflow")
PRECISIONS = ("float32", "bfloat16", "float16")
SECTION = "a section of keys"
OURS = ("ignore_index", "multilabel", "reduction", "sync_normalizer")  # arguments of the loss that the trainer sets


class ConfigError(ValueError):
    """A configuration that can't be used; the message has one line."""


@dataclass
class AugmentConfig:
    """Random changes to training images: the arguments of `segkit.data.Augment`."""

    flip: float = 0.5
    scale: list[float] = field(default_factory=lambda: [0.75, 1.5])
    color: float = 0.3


@dataclass
class DataConfig:
    """Where images and masks are, and how they are read."""

    layout: str = "folder"
    root: str = "."
    train: str = MISSING
    val: str = MISSING
    classes: str | None = None
    size: list[int] | None = None
    augment: AugmentConfig | None = field(default_factory=AugmentConfig)
    workers: int = 1
    cache: bool = False


@dataclass
class ModelConfig:
    """The arguments of `segkit.model.UNet`."""

    width: int = 16
    levels: int = 5
    output_stride: int = 1


@dataclass
class OptimConfig:
    """AdamW, its learning-rate schedule and gradient clipping."""

    lr: float = 3e-3
    weight_decay: float = 1e-4
    warmup: float = 0.5
    power: float = 0.9
    clip: float | None = None


@dataclass
class EdgeScheduleConfig:
    """Warm-up of the edge terms: the arguments of `segkit.schedule.edge_weight`."""

    kind: str = "constant"
    warmup: float = 0.0


@dataclass
class GuardConfig:
    """Reaction to a loss or gradient that is not finite: arguments of `segkit.guard.NanGuard`."""

    action: str = "stop"
    limit: int = 4
    in_a_row: int = 10


@dataclass
class Config:
    """A training run; ``configs/shapes.yaml`` explains every field."""

    output: str = MISSING
    overwrite: bool = False
    resume: str | None = None
    checkpoint_every: int = 0
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"
    channels_last: bool = True
    compile: bool = False
    epochs: int = 10
    batch_size: int = 8
    accumulate: int = 1
    ema: float | None = None
    panels: int = 4
    panel_every: int = 0
    worst: int = 8
    shares_every: int = 50
    log: list[str] = field(default_factory=lambda: ["tensorboard"])
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    edge_schedule: EdgeScheduleConfig = field(default_factory=EdgeScheduleConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    loss: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the ranges of values."""
        size, augment = self.data.size, self.data.augment
        optim = self.optim
        rules = {
            "optim.lr, weight_decay, warmup and power must be finite and at least 0": all(
                0 <= value < math.inf for value in (optim.lr, optim.weight_decay, optim.warmup, optim.power)
            ),
            "optim.clip must be greater than 0": optim.clip is None or optim.clip > 0,
            "data.workers must be at least 0": self.data.workers >= 0,
            "panels and panel_every must be at least 0": min(self.panels, self.panel_every) >= 0,
            "seed must be in [0, 2^32)": 0 <= self.seed < 2**32,
            "epochs must be at least 1": self.epochs >= 1,
            "batch_size must be at least 1": self.batch_size >= 1,
            "worst must be at least 0": self.worst >= 0,
            "shares_every must be at least 0": self.shares_every >= 0,
            "accumulate must be at least 1": self.accumulate >= 1,
            f"log must be a list of {', '.join(LOGS)}": set(self.log) <= set(LOGS),
            "checkpoint_every must be at least 0": self.checkpoint_every >= 0,
            "ema must be in [0, 1)": self.ema is None or 0 <= self.ema < 1,
            f"precision must be one of {', '.join(PRECISIONS)}": self.precision in PRECISIONS,
            f"edge_schedule.kind must be one of {', '.join(get_args(Kind))}": self.edge_schedule.kind in get_args(Kind),
            "edge_schedule.warmup must be in [0, 1]": 0 <= self.edge_schedule.warmup <= 1,
            "data.size must be [height, width], both at least 1": size is None or (len(size) == 2 and min(size) > 0),
            "data.augment.scale must be [low, high]": augment is None or len(augment.scale) == 2,
            "model.width must be a positive multiple of 8": self.model.width > 0 and self.model.width % 8 == 0,
            "model.levels must be at least 1": self.model.levels >= 1,
            "model.output_stride must be 1, 2, 4 ... up to 2^(levels - 1)": self.model.output_stride
            in [2**level for level in range(self.model.levels)],
        }
        for rule, holds in rules.items():
            if not holds:
                raise ConfigError(rule)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply ``key=value`` overrides.

    Args:
        path: the YAML file.
        overrides: overrides, such as ``["epochs=3", "loss.edge_weight=0"]``; values are read as YAML.

    Returns:
        The configuration, with values of the types of its dataclasses.

    Raises:
        ConfigError: if the file can't be read, a key is unknown or missing, or a value has the wrong type.
    """
    origin = str(path)  # what is being read when an error is raised
    layer: Any = None
    try:
        check_file(path)
        config: Any = OmegaConf.structured(Config)
        for origin in (str(path), *overrides):  # one by one, so that an error can name its origin
            if layer is not None and "=" not in origin:
                raise ConfigError(f"expected key=value, but got {origin}")
            layer = OmegaConf.load(path) if layer is None else OmegaConf.from_dotlist([origin])
            if not isinstance(layer, DictConfig):
                raise ConfigError(f"{origin}: expected keys with values, but got {layer}")
            for key in (key for key, kind in keys().items() if kind == SECTION):
                if not isinstance(value := OmegaConf.select(layer, key), DictConfig | None):
                    raise ConfigError(f"{origin}: {key}: expected {SECTION}, but got {value!r}")
            config = OmegaConf.merge(config, layer)
            for name in config.loss.keys() - loss_keys().keys() - {REMOVED}:  # EdgeAwareLoss reports it
                raise ConfigError(f"{origin}: {_unknown(f'loss.{name}')}")
        origin = str(path)
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise ConfigError(f"{origin}: expected a value for {', '.join(missing)}, but got none")
        result = OmegaConf.to_object(config)
    except OSError as error:
        raise ConfigError(f"{origin}: {error.strerror}") from error
    except InputError as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{origin}: expected a text file in UTF-8, but got other bytes ({error})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not valid YAML: {' '.join(str(error).split())}") from error
    except ConfigKeyError as error:
        raise ConfigError(f"{origin}: {_unknown(error.full_key)}") from error
    except OmegaConfBaseException as error:
        if kind := keys().get((error.full_key or "").partition("[")[0]):
            value = OmegaConf.select(layer, error.full_key)
            raise ConfigError(f"{origin}: {error.full_key}: expected {kind}, but got {value!r}") from error
        raise ConfigError(f"{origin}: {str(error).splitlines()[0]}") from error
    assert isinstance(result, Config)
    return result


def keys(section: type = Config, prefix: str = "") -> dict[str, str]:
    """Return all keys, such as ``optim.lr``, with the types of their values."""
    types = {}
    for key in fields(section):
        types[prefix + key.name] = key.type.__name__ if isinstance(key.type, type) else str(key.type)
        for part in (key.type, *get_args(key.type)):
            if is_dataclass(part):
                types |= {prefix + key.name: SECTION} | keys(part, f"{prefix}{key.name}.")
    return types | {f"loss.{name}": kind for name, kind in loss_keys().items()}


def loss_keys() -> dict[str, str]:
    """Return the keys of section ``loss``, with the types of their values."""
    parameters = inspect.signature(EdgeAwareLoss).parameters.items()
    return {name: str(parameter.annotation) for name, parameter in parameters if name not in OURS}


def _unknown(key: str) -> str:
    """Return the message about an unknown key."""
    section, _, name = key.rpartition(".")
    if section == "loss" and name in OURS:
        return f"{key}: set by the trainer; remove it"

    def similarity(known: str) -> float:  # to the whole key, or to its last part: the section is easily forgotten
        return max(SequenceMatcher(None, key, text).ratio() for text in (known, known.rpartition(".")[2]))

    return f"{key}: no such key; did you mean {max(keys(), key=similarity)}?"
