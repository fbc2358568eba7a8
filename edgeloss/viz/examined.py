"""Each image of a batch by itself → its arrays, its scores and its figures."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import numpy.typing as npt
from torch import Tensor

from edgeloss.fields import boundary_distance
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.arrays import Arrays, Said, batched, examine, keep_silent, read_scene, workers
from edgeloss.viz.packing import LARGE
from edgeloss.viz.scores import Scores, compute_scores

_NEIGHBORS = 8  # per edge pixel
_MAX_PAIRS = 1_500_000  # neighbors in total: fewer per edge pixel if there are very many edge pixels
_FAR = 100.0, 25.0  # pixels; exact distances beyond it, in large pictures the latter, would take most of the time


class Examined(NamedTuple):
    """One image.

    Attributes:
        arrays: of a batch of it alone.
        scores: of its prediction.
        distance: [1, H, W], to the nearest other label, inf beyond ``_FAR``; None if the loss has its own, or if it was
            not asked for.
    """

    arrays: Arrays
    scores: Scores
    distance: npt.NDArray[Any] | None

    @property
    def figures(self) -> dict[str, float]:
        """The terms of the loss and the scores, by key of ``FIGURES``."""
        return self.arrays.terms | self.scores.means


def examine_images(
    logits: Tensor,
    target: Tensor,
    criterion: EdgeAwareLoss | None,
    *,
    details: bool,
    said: Said = keep_silent,
) -> list[Examined]:
    """Examine the images of a batch, each as a batch of its own, with the details of a report if they are asked for.

    Args:
        logits: as of :func:`edgeloss.viz.panel`.
        target: as of :func:`edgeloss.viz.panel`.
        criterion: the loss; ``EdgeAwareLoss()`` if None.
        details: compute those of the arrays too, and the distances.
        said: is called with what is being computed.
    """
    logits, target = batched(logits, target)
    with workers() as pool:  # scores and distances are computed meanwhile
        parts = []
        for x, y in zip(logits, target, strict=True):
            parts.append(_examine(x[None], y[None], criterion, _MAX_PAIRS // len(target) * details, said, pool))
        return [
            Examined(arrays, scores.result(), None if distance is None else distance.result())
            for arrays, scores, distance in parts
        ]


def _examine(
    x: Tensor, y: Tensor, criterion: EdgeAwareLoss | None, most_pairs: int, said: Said, pool: Executor
) -> tuple[Arrays, Future[Scores], Future[npt.NDArray[Any]] | None]:
    """Examine an image. Its scene ends here: the logits are the largest part of the memory."""
    scene = read_scene(x, y, criterion)
    distance = None
    if most_pairs and scene.criterion.decay is None:
        far = _FAR[y.numel() > LARGE]
        distance = pool.submit(boundary_distance, scene.labels(), ignore_index=-1, max_distance=far)
    count = _NEIGHBORS if most_pairs else 0
    arrays = examine(scene, pool, said, neighbors=count, most_pairs=most_pairs)
    return arrays, pool.submit(compute_scores, arrays.target, arrays.prediction, arrays.classes), distance
