"""Checkpoints that are either the old ones or the new ones, never half of each."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgeloss.io import atomic_write


class CheckpointError(RuntimeError):
    """A checkpoint that isn't there or can't be read, told in one line."""


def save_checkpoint(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write tensors and plain values (dict, list, str, number, None), which ``weights_only=True`` can load."""
    with atomic_write(path) as file:
        torch.save(dict(checkpoint), file)


def load_checkpoint(path: str | Path, *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, running no code from the file.

    Args:
        path: the checkpoint.
        map_location: the device its tensors are put on.

    Returns:
        The checkpoint's dict. A run's has what `segkit.engine.Training.state_dict` tells, ``config``, ``classes`` and
        ``ignore_index``.

    Raises:
        CheckpointError: if there is no such file, or it isn't a checkpoint, or it is damaged.
    """
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint at {path}") from error
    except Exception as error:  # what a damaged file makes of the unpickler can be any error
        raise CheckpointError(f"{path} is damaged, or not a checkpoint") from error
    if not isinstance(checkpoint, dict) or "model" not in checkpoint:
        raise CheckpointError(f"{path} holds no model")
    return checkpoint


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights into a model, whether or not DistributedDataParallel or torch.compile was around either.

    Args:
        model: takes the weights, on the device it is on.
        weights: by name, on any device.

    Raises:
        CheckpointError: if names or shapes are another model's.
    """
    own = {_bare(name): name for name in model.state_dict()}
    given = {_bare(name): weight for name, weight in weights.items()}
    for what, names in {"no": own.keys() - given.keys(), "an unknown": given.keys() - own.keys()}.items():
        if names:
            raise CheckpointError(f"the weights are of another model: {what} {min(names)}, and so {len(names)} in all")
    try:
        model.load_state_dict({own[name]: weight for name, weight in given.items()})
    except RuntimeError as error:  # of shapes
        raise CheckpointError(f"the weights are of another model: {str(error).splitlines()[-1].strip()}") from error


def _bare(name: str) -> str:
    """A weight's name without what wrappers put before it."""
    return re.sub(r"^((module|_orig_mod)\.)+|_orig_mod\.", "", name)
