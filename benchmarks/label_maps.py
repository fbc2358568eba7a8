"""Label maps to time losses on: generated regions, real masks, or noise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from edgeloss._reference.neighborhoods import find_edges

VOID = 255

Labels = npt.NDArray[np.uint8]


def blobs(size: tuple[int, ...], classes: int, seed: int) -> Iterator[Labels]:
    """Yield smooth regions, one more each time: each pixel has the class of the nearest random point."""
    random = np.random.default_rng(seed)
    image, best = np.empty(size, dtype=np.uint8), np.full(size, np.inf)
    for n in count():
        point = random.random(len(size)) * size
        axes = [np.square(np.arange(length) - c) for length, c in zip(size, point, strict=True)]
        distance = sum(np.meshgrid(*axes, indexing="ij", sparse=True))
        image[distance < best] = n % classes
        best = np.minimum(best, distance)
        yield image


@cache
def regions(batch: int, size: tuple[int, ...], classes: int, radius: int) -> Labels:
    """Generate blobs, as many as give the first image 4 % edge pixels, as in street scenes at radius 1."""
    for points, image in enumerate(blobs(size, classes, seed=0), 1):
        # Not at every point of many, as to count the edges takes longer than to add a point.
        if points % (1 + points // 16) == 0 and edge_fraction(image[None], radius) >= 0.04:
            break
    return np.stack([next(islice(blobs(size, classes, seed), points - 1, None)) for seed in range(batch)])


def scenes(masks: Path, batch: int, size: tuple[int, ...], classes: int) -> Labels:
    """Read real masks and tile them to the size; labels are taken modulo the classes."""
    paths = sorted(masks.glob("*.png"))
    out = []
    for i in range(batch):
        mask = np.asarray(Image.open(paths[i * len(paths) // batch])).astype(np.uint8)
        tiles = [-(-n // m) for n, m in zip(size, mask.shape, strict=True)]
        tiled = np.tile(mask, tiles)[: size[0], : size[1]]
        out.append(np.where(tiled == VOID, VOID, tiled % classes))
    return np.stack(out).astype(np.uint8)


def noise(shape: tuple[int, ...], classes: int) -> Labels:
    """Return random labels."""
    return np.random.default_rng(0).integers(classes, size=shape, dtype=np.uint8)


def edge_fraction(labels: Labels, radius: int) -> float:
    """Return the number of edge pixels divided by the number of valid pixels."""
    target = torch.from_numpy(labels).long()
    valid = target != VOID
    return float(find_edges(target, valid, [radius] * (target.dim() - 1)).sum() / valid.sum())
