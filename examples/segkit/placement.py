"""Where and in which precision a network computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from segkit.config import Config, ConfigError
from segkit.distributed import world_size


@dataclass(frozen=True)
class Placement:
    """The device, precision and memory format that a network computes in.

    Attributes:
        device: the device of the network.
        dtype: type of autocast; float32 for none.
        memory_format: memory format of the images.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.preserve_format

    def run(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return the logits, in `dtype`, of images on any device."""
        images = images.to(self.device, non_blocking=True, memory_format=self.memory_format)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits: Tensor = model(images)
        return logits


def find_device(name: str) -> torch.device:
    """Return a device by name; "auto" is the accelerator or, without one, the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch raises either, depending on how it was built
        raise ConfigError(f"device: {str(error).splitlines()[0]}") from error


def find_placement(config: Config, device: torch.device) -> Placement:
    """Return the placement that a configuration asks for."""
    if config.precision == "float16" and device.type != "cuda":
        raise ConfigError(
            f"precision: expected float32 or bfloat16 on {device.type}, but got float16, which needs CUDA"
        )
    if config.batch_size < config.accumulate * world_size():
        raise ConfigError(
            f"batch_size: expected at least accumulate × processes = {config.accumulate} × {world_size()} images,"
            f" but got {config.batch_size}"
        )
    memory_format = torch.channels_last if config.channels_last else torch.preserve_format
    return Placement(device, getattr(torch, config.precision), memory_format)
