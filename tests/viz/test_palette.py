"""Colors that have a meaning differ from each other and from those of classes, to every reader."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeloss.viz import distinct_colors
from edgeloss.viz.palette import BETTER, WORSE, WRONG_IN_BOTH

# Linear sRGB as seen with normal vision, deuteranopia and protanopia (Machado, Oliveira & Fernandes 2009).
VISIONS = np.array(
    [
        np.eye(3),
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ]
)
# Linear sRGB -> OKLab (Ottosson 2020).
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def difference(first: Any, second: Any) -> float:
    """Return the distance of two colors in OKLab, to the reader to whom they differ least."""
    return float(np.linalg.norm(oklab(first) - oklab(second), axis=-1).min())


def oklab(color: Any) -> npt.NDArray[np.float64]:
    """Return a color to each of the readers, [3, 3]."""
    values = np.asarray(color, float)
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt((VISIONS @ linear).clip(0, 1) @ TO_CONES.T) @ TO_LAB.T)


def test_overlays_differ_from_each_other_and_from_the_first_classes() -> None:
    overlays = (BETTER, WORSE, WRONG_IN_BOTH)
    assert min(difference(*pair) for pair in itertools.combinations(overlays, 2)) > 0.18
    assert min(difference(*pair) for pair in itertools.product(overlays, distinct_colors(3))) > 0.14
