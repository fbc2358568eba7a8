"""From label maps to distance fields."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss._checks import hints, inputs
from edgeloss._checks.options import spacing_per_axis

__all__ = ["boundary_distance"]

Array = npt.NDArray[Any]
Labels = TypeVar("Labels", Tensor, Array)

# OpenCV is several times faster than SciPy for images of square pixels. Its squared distances should be integers;
# float32 is off by up to 0.1 for sides of 700 pixels, so up to this size rounding makes them exact.
_EXACT_SIDE = 700
_SMALL_STEP = 128  # pixels, of windows for short distances


def boundary_distance(
    target: Labels,
    *,
    ignore_index: int | None,
    max_distance: float | None = None,
    spacing: float | Sequence[float] | None = None,
) -> Labels:
    """Compute the distance of each pixel to the nearest valid pixel of another class.

    The distance is Euclidean and exact: 1 for a pixel next to a border, on either side. Runs on the CPU. The loss does
    not need this field, since with ``decay`` it computes the distances near edges itself, but accepts it as
    ``distance``.

    Args:
        target: labels [B, H, W] or [B, D, H, W], a tensor on any device or an array, of an integral dtype or bool.
        ignore_index: the label of ignored pixels, which have no class and no distance; None for none.
        max_distance: larger distances become inf. In pixels, or in units of ``spacing``.
        spacing: size of a pixel, one number or one per axis.

    Returns:
        [B, *S] float32, > 0, a tensor on the device of the target or an array, like the target. It is inf on ignored
        pixels and in images without a pixel of another class.

    Raises:
        TypeError: if the target is not a tensor or array of integral labels.
        ValueError: for an invalid shape, spacing or max_distance.

    Example:
        >>> import numpy as np
        >>> from edgeloss.fields import boundary_distance
        >>> boundary_distance(np.array([[[0, 0, 0, 7, 7]]]), ignore_index=255)
        array([[[3., 2., 1., 1., 2.]]], dtype=float32)
    """
    if isinstance(target, Tensor):
        inputs.check_target(target)
        field = boundary_distance(
            target.cpu().numpy(), ignore_index=ignore_index, max_distance=max_distance, spacing=spacing
        )
        return torch.from_numpy(field).to(target.device)
    if not isinstance(target, np.ndarray) or target.dtype.kind not in "iub":
        is_array = isinstance(target, np.ndarray)
        got = f"{target.dtype}; pass target.astype(int)" if is_array else hints.not_a_tensor("target", target)
        raise TypeError(f"target: expected a tensor or array of integral labels, but got {got}")
    if target.ndim not in (3, 4):
        hint = "; for a single image pass target[None]" if target.ndim == 2 else ""
        raise ValueError(f"target: expected [B, H, W] or [B, D, H, W], but got {list(target.shape)}{hint}")
    if max_distance is not None and not max_distance > 0:
        raise ValueError(f"max_distance: expected a number > 0 or None, but got {max_distance!r}")
    size = spacing_per_axis(spacing, target.ndim - 1)

    field = np.full(target.shape, np.inf, dtype=np.float32)
    for labels, distance in zip(target, field, strict=True):
        for inside, around in _windows(labels.shape, size, max_distance):
            distance[around][inside] = _nearest_other(labels[around], inside, ignore_index, size)
    if max_distance is not None:
        field[field > max_distance] = np.inf
    return field


def _windows(
    shape: Sequence[int], spacing: Sequence[float], reach: float | None
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield parts of an image in which all distances up to ``reach`` are those of the whole image.

    Yields:
        The part of the window that it stands for, and the window.
    """
    margin = 0 if reach is None else math.ceil(reach / spacing[0])
    widest = _EXACT_SIDE - 2 * margin
    step = min(widest, max(5 * margin, _SMALL_STEP))  # each class of a window is a transform: small ones have few
    if len(shape) != 2 or spacing[0] != spacing[1] or reach is None or widest < _EXACT_SIDE / 4:
        everything = (slice(None),) * len(shape)
        yield everything, everything
        return
    for starts in itertools.product(*(range(0, length, step) for length in shape)):
        around = tuple(slice(max(start - margin, 0), start + step + margin) for start in starts)
        inside = (start - part.start for start, part in zip(starts, around, strict=True))
        yield tuple(slice(start, start + step) for start in inside), around


def _nearest_other(
    labels: Array, inside: tuple[slice, ...], ignore_index: int | None, spacing: Sequence[float]
) -> npt.NDArray[np.float32]:
    """Return the distance of pixels of a part of an image to the nearest pixel of another class."""
    part = labels[inside]
    distance = np.full(part.shape, np.inf, dtype=np.float32)
    valid = np.ones_like(labels, dtype=bool) if ignore_index is None else np.not_equal(labels, ignore_index)
    for label in np.unique(part[valid[inside]]):
        others = valid & (labels != label)
        if others.any():
            own = part == label
            distance[own] = distance_to_sites(others, spacing)[inside][own]
    return distance


def distance_to_sites(sites: npt.NDArray[np.bool_], spacing: Sequence[float]) -> Array:
    """Compute the exact Euclidean distance of every pixel [*S] to the nearest of the sites, of which there is one."""
    if sites.ndim == 2 and spacing[0] == spacing[1] and max(sites.shape) <= _EXACT_SIDE:
        import cv2  # a heavy import that `import edgeloss` should not need

        pixels = cv2.distanceTransform((~sites).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
        return np.sqrt(np.rint(np.square(pixels, dtype=np.float64))) * spacing[0]
    from scipy.ndimage import distance_transform_edt

    field: Array = distance_transform_edt(~sites, sampling=spacing)
    return field
