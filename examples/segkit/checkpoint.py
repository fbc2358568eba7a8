"""Checkpoints, written completely or not at all, and read without running code from the file."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs

from edgeloss.io import InputError, atomic_write, check_file
from segkit.model import UNet


class CheckpointError(InputError):
    """A checkpoint that is missing or can't be used; the message has one line."""


def save_checkpoint(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        path: file to write or replace.
        checkpoint: tensors and plain values (dict, list, str, number, None), which ``weights_only=True`` can load.

    Raises:
        InputError: if the file can't be written; an earlier one remains unchanged.
    """
    content = io.BytesIO()
    torch.save(dict(checkpoint), content)
    with atomic_write(path) as file:
        file.write(content.getbuffer())


def load_checkpoint(path: str | Path, *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a checkpoint of `save_checkpoint`, without running code from the file.

    Args:
        path: the checkpoint, or its URL.
        map_location: device to load the tensors to.

    Returns:
        The dict of the checkpoint.

    Raises:
        InputError: if the path is a folder, pipe or device.
        CheckpointError: if the file is missing, damaged, or not a checkpoint of tensors and plain values.
    """
    checkpoint = load_values(path, map_location=map_location)
    if not isinstance(checkpoint, dict) or not {"model", "state_dict"} & checkpoint.keys():
        raise CheckpointError(f"{path}: expected a checkpoint, but got a file without a model")
    return checkpoint


def load_values(path: str | Path, *, map_location: str | torch.device = "cpu") -> Any:  # noqa: ANN401
    """Read what `torch.save` has written, tensors and plain values of any kind, as `load_checkpoint` does."""
    source: str | Path | io.BytesIO = path
    if "://" in str(path):
        files, place = url_to_fs(str(path))
        try:
            source = io.BytesIO(files.cat_file(place))
        except Exception as error:  # each kind of URL has its own errors
            raise CheckpointError(f"{path}: expected a checkpoint, but it can't be fetched ({error!r})") from error
    else:
        check_file(path)
    try:
        return torch.load(source, map_location=map_location, weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: expected a checkpoint, but there is no such file") from error
    except Exception as error:  # a damaged file can make the unpickler raise anything, with advice that is not safe
        raise CheckpointError(
            f"{path}: expected a checkpoint of tensors and plain values, but got a damaged file or other objects"
        ) from error


def open_network(path: str | Path) -> tuple[UNet, dict[str, Any]]:
    """Open the network of a run of train.py.

    Args:
        path: best.ckpt or last.ckpt.

    Returns:
        The network in evaluation mode, and its description: ``classes``, ``ignore_index``, ``network``, ``data`` and
        the version of ``edgeloss``.

    Raises:
        CheckpointError: if the file can't be read, or isn't one of train.py.
    """
    checkpoint = load_checkpoint(path)
    try:
        about = checkpoint["segmentation"]
        network = UNet(len(about["classes"]), **about["network"])
        prefix = "network."
        weights = {k.removeprefix(prefix): v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
        network.load_state_dict(weights)
        int(about["ignore_index"]), int(about["network"]["dims"]), about["data"].get("size")
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise CheckpointError(f"{path}: expected a checkpoint of train.py, but got another: {reason}") from error
    return network.eval(), about
