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

# The set of Okabe & Ito, distinct for color-blind readers too, without its black.
_FIRST = ("56B4E9", "E69F00", "009E73", "F0E442", "0072B2", "D55E00", "CC79A7")

# Linear sRGB as seen with deuteranopia (Machado, Oliveira & Fernandes 2009, severity 1).
_DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)

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
    """Map colors [N, 3] to points [N, 6] whose distance is how distinct two colors are, for all readers."""
    linear = _linear(srgb)
    return np.hstack([_oklab(linear), 0.5 * _oklab((linear @ _DEUTERANOPIA.T).clip(0, 1))])


@functools.lru_cache
def distinct_colors(count: int) -> npt.NDArray[np.float64]:
    """Return distinct colors for classes, for normal and red-green-blind vision.

    The first seven are those of Okabe and Ito. Each further color is the farthest from all before it, so that class k
    has the same color for any ``count``. Gray and magenta are reserved: they mean *ignored* and *not finite*.

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
    first = np.array([[int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)] for code in _FIRST])
    levels = np.linspace(0, 1, 12)
    candidates = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    lightness, *ab = _oklab(_linear(candidates)).T
    candidates = candidates[
        (lightness > 0.35) & (lightness < 0.92) & (np.hypot(*ab) > 0.06)
    ]  # no blacks, whites, grays

    points = _appearance(candidates)
    chosen = list(first[:count])
    nearest = np.full(len(points), np.inf)
    for point in _appearance(np.vstack([[VOID, LOUD], first])):
        nearest = np.minimum(nearest, np.linalg.norm(points - point, axis=1))
    while len(chosen) < count:
        best = int(nearest.argmax())
        chosen.append(candidates[best])
        nearest = np.minimum(nearest, np.linalg.norm(points - points[best], axis=1))
    colors = np.reshape(chosen, (count, 3))
    colors.setflags(write=False)
    return colors
