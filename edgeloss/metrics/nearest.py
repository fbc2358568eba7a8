"""From places on a grid to their distances to the nearest of other places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

NEAR = 1 + 1e-9  # times a radius: what rounding may take from a distance that is equal to it
# Places on a grid, those of the sites, the grid and its spacing → the distance of each place to the nearest site.
Distances = Callable[[Array, Array, Sequence[int], Sequence[float]], Array]


def nearest(
    place: Array, others: Array, grid: Sequence[int], spacing: Sequence[float], distances_of: Distances
) -> Array:
    """Return the distance of each place on a grid to the nearest of the others; inf without any."""
    distances = np.full(len(place), np.inf)
    if len(others):
        elsewhere = ~np.isin(place, others, assume_unique=True)  # few elements are, of good predictions
        distances[~elsewhere] = 0
        if elsewhere.any():
            distances[elsewhere] = distances_of(place[elsewhere], others, grid, spacing)
    return distances


def distances_on(device: torch.device) -> Distances:
    """Return how distances are found: on a GPU by cuCIM where it is installed, else on the CPU."""
    if device.type != "cuda":
        return distances_by_tree
    try:
        import cupy
        from cucim.core.operations.morphology import distance_transform_edt
    except ImportError:
        return distances_by_tree

    def by_transform(place: Array, sites: Array, grid: Sequence[int], spacing: Sequence[float]) -> Array:
        with cupy.cuda.Device(device.index or 0):
            is_elsewhere = cupy.ones(math.prod(grid), dtype=bool)
            is_elsewhere[cupy.asarray(sites)] = False
            field = distance_transform_edt(
                is_elsewhere.reshape(tuple(grid)), sampling=tuple(spacing), float64_distances=True
            )
            distances: Array = cupy.asnumpy(field.ravel()[cupy.asarray(place)])
        return distances

    return by_transform


def distances_by_tree(place: Array, sites: Array, grid: Sequence[int], spacing: Sequence[float]) -> Array:
    """Return the distance of each place to the nearest site, in time by their numbers and not by the grid's."""
    from scipy.spatial import cKDTree  # a heavy import that `import edgeloss` should not need

    at, of_sites = (np.stack(np.unravel_index(each, grid), 1) * np.asarray(spacing) for each in (place, sites))
    # A balanced tree takes longer to build than it saves.
    distances: Array = cKDTree(of_sites, balanced_tree=False, compact_nodes=False).query(at)[0]
    return distances
