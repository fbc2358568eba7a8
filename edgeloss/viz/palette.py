"""Colors for any number of classes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

VOID = (0.62, 0.62, 0.62)  # ignored pixels
LOUD = (1.0, 0.0, 1.0)  # nan and inf
NOTHING = (0.0, 0.0, 0.0)  # off the edges, or a gradient of exactly 0
RIGHT = (0.27, 0.46, 0.71)  # predicted as labeled
WRONG = (0.84, 0.19, 0.15)  # predicted as another class; distinct from RIGHT for red-green-blind readers

_FIRST = ((0.337, 0.706, 0.914), (0.902, 0.624, 0.0))  # sky blue and orange of Okabe and Ito

# Linear sRGB as seen with deuteranopia and protanopia (Machado, Oliveira & Fernandes 2009, severity 1).
_COLOR_BLIND = np.array(
    [
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ]
)
_EASED = 1.6  # color-blind readers see fewer colors: to them, closer ones count as equally distinct

# Linear sRGB to cone responses, and their cube roots to OKLab (Ottosson 2020).
_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _oklab(linear: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.cbrt(linear @ _TO_LMS.T) @ _TO_LAB.T)


def _linear(srgb: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def _appearance(srgb: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Map colors [N, 3] to OKLab as normal, deuteranope and protanope readers see them, [3, N, 3]."""
    linear = _linear(srgb)
    return np.stack([_oklab(linear), *(_EASED * _oklab((linear @ seen.T).clip(0, 1)) for seen in _COLOR_BLIND)])


def _differences(points: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how distinct the colors are from another one, to the reader to whom they are least distinct."""
    return np.asarray(np.linalg.norm(points - other[:, None], axis=2).min(0))


@functools.lru_cache
def distinct_colors(count: int) -> npt.NDArray[np.float64]:
    """Return distinct colors for classes, for normal and red-green-blind vision.

    After the first two, each color is the farthest from all before it, so that class k has the same color for any
    ``count``. Gray, magenta and black are reserved: they mean *ignored*, *not finite* and *no edge*.

    Args:
        count: the number of colors.

    Returns:
        [count, 3] float64, sRGB in [0, 1]; read-only.

    Example:
        >>> distinct_colors(150).shape
        (150, 3)
        >>> bool((distinct_colors(150)[:20] == distinct_colors(20)).all())
        True
    """
    levels = np.linspace(0, 1, 12)
    candidates = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    lightness, *ab = _oklab(_linear(candidates)).T
    chroma = np.hypot(*ab)
    # No near blacks, whites and grays, and nothing glaring.
    candidates = candidates[(lightness > 0.42) & (lightness < 0.95) & (chroma > 0.05) & (chroma < 0.17)]

    points = _appearance(candidates)
    chosen = list(np.array(_FIRST[:count]))
    nearest = np.full(len(candidates), np.inf)
    for other in _appearance(np.array([VOID, LOUD, NOTHING, *_FIRST])).transpose(1, 0, 2):
        nearest = np.minimum(nearest, _differences(points, other))
    while len(chosen) < count:
        best = int(nearest.argmax())
        chosen.append(candidates[best])
        nearest = np.minimum(nearest, _differences(points, points[:, best]))
    colors = np.reshape(chosen, (count, 3))
    colors.setflags(write=False)
    return colors
