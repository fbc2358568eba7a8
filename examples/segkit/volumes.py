"""Volumes and their labels in .npz files, before and after random changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeloss.io import InputError, check_file

Volume = npt.NDArray[np.float32]  # [D, H, W, 1]
Labels = npt.NDArray[Any]  # integers, [D, H, W]


def read_volume(path: Path) -> tuple[Volume, Labels]:
    """Read the arrays `image` and `label` of a file.

    Returns:
        The image with mean 0 and standard deviation 1, and the numbers of the labels.

    Raises:
        InputError: The file can't be read, or its arrays do not fit together.
    """
    with _opened(path) as arrays:
        image, labels = arrays["image"].astype(np.float32), arrays["label"].astype(np.int64)
    if labels.ndim != 3 or image.shape != labels.shape:
        raise InputError(
            f"{path}: expected image and label of one shape [D, H, W], but got {image.shape} and {labels.shape}"
        )
    return ((image - image.mean()) / max(float(image.std()), 1e-6))[..., None], labels


def change_volume(
    image: Volume, labels: Labels, flip: float, strength: float, rng: np.random.Generator
) -> tuple[Volume, Labels]:
    """Flip a volume along its first axis at random, and vary its contrast and brightness."""
    if rng.random(3)[0] < flip:  # a draw per axis, but in anatomical order bodies are symmetric along the first alone
        image, labels = image[::-1], labels[::-1]
    contrast, brightness = strength * rng.uniform(-1, 1, 2).astype(np.float32)
    return image * (1 + contrast) + brightness, labels


def read_spacing(paths: list[Path]) -> tuple[float, ...] | None:
    """Read the array `spacing` that volumes share, the size of a voxel along each axis; None if they do not have it.

    Raises:
        InputError: A file can't be read, has no three sizes > 0, or has other sizes than the first one.
    """
    sizes = []
    for path in paths:
        with _opened(path) as arrays:
            size = tuple(arrays["spacing"].astype(float).tolist()) if "spacing" in arrays.files else None
        if size is not None and (len(size) != 3 or not all(0 < length < math.inf for length in size)):
            raise InputError(f"{path}: expected spacing of three numbers > 0, but got {size}")
        sizes.append(size)
        if size != sizes[0]:
            raise InputError(
                f"{path}: expected spacing {sizes[0]} as in {paths[0]}, but got {size}; resample the volumes"
            )
    return sizes[0]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; any error of reading its arrays names it."""
    check_file(path)
    try:
        with np.load(path) as arrays:
            yield arrays
    except Exception as error:  # NumPy raises OSError, ValueError, KeyError and more
        raise InputError(f"{path}: can't be read as a volume ({error})") from error
