"""What a training run can be told: dataclasses for the types, YAML for the values, ``key=value`` for the last word."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException


class ConfigError(ValueError):
    """A configuration the trainer can't run with, told in one line."""


@dataclass
class AugmentConfig:
    """Random changes to training images; the arguments of `segkit.data.Augment`."""

    flip: float = 0.5
    scale: list[float] = field(default_factory=lambda: [0.75, 1.5])
    color: float = 0.3


@dataclass
class DataConfig:
    """Where images and masks lie, and how they are read."""

    train: str = MISSING
    val: str = MISSING
    classes: str = MISSING
    size: list[int] | None = None
    augment: AugmentConfig | None = field(default_factory=AugmentConfig)
    workers: int = 1


@dataclass
class ModelConfig:
    """The arguments of `segkit.model.UNet`."""

    width: int = 16
    levels: int = 5


@dataclass
class OptimConfig:
    """AdamW, its learning-rate schedule and gradient clipping."""

    lr: float = 3e-3
    weight_decay: float = 1e-4
    warmup: float = 0.5
    power: float = 0.9
    clip: float | None = None


@dataclass
class Config:
    """A training run; every field is explained in ``configs/shapes.yaml``."""

    output: str = MISSING
    overwrite: bool = False
    seed: int = 0
    device: str = "auto"
    epochs: int = 10
    batch_size: int = 8
    panels: int = 4
    panel_every: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values that have the right type and no meaning."""
        size, augment = self.data.size, self.data.augment
        rules = {
            "seed must be at least 0": self.seed >= 0,
            "epochs must be at least 1": self.epochs >= 1,
            "batch_size must be at least 1": self.batch_size >= 1,
            "data.size must be [height, width], both at least 1": size is None or (len(size) == 2 and min(size) > 0),
            "data.augment.scale must be [low, high]": augment is None or len(augment.scale) == 2,
            "model.width must be a positive multiple of 8": self.model.width > 0 and self.model.width % 8 == 0,
            "model.levels must be at least 1": self.model.levels >= 1,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ConfigError(rule)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and lay ``key=value`` overrides over it.

    Args:
        path: the YAML file.
        overrides: such as ``["epochs=3", "loss.edge_weight=0"]``; a value is read as YAML.

    Returns:
        The configuration, as typed as its dataclasses.

    Raises:
        ConfigError: if the file can't be read, a key is unknown or missing, or a value has the wrong type.
    """
    origin = str(path)  # what is being read when an error comes
    try:
        config = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path))
        for origin in overrides:  # one by one, so that an error can name the one it comes from
            if "=" not in origin:
                raise ConfigError(f"{origin}: expected key=value")
            config = OmegaConf.merge(config, OmegaConf.from_dotlist([origin]))
        origin = str(path)
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise ConfigError(f"{origin}: no value for {', '.join(missing)}")
        result = OmegaConf.to_object(config)
    except OSError as error:
        raise ConfigError(f"{origin}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not valid YAML: {' '.join(str(error).split())}") from error
    except OmegaConfBaseException as error:
        key = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"{origin}: {key}{str(error).splitlines()[0]}") from error
    assert isinstance(result, Config)
    return result
