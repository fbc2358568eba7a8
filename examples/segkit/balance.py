"""Class weights of the edge terms from the labels of a whole training set, which are counted once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeloss.cli.progress import with_progress
from edgeloss.functional import balanced_edge_class_weight
from edgeloss.io import atomic_write
from segkit.data import SegmentationDataset


def data_edge_class_weight(dataset: SegmentationDataset, radius: int | Sequence[int], cache: Path) -> Tensor:
    """Return weights that give the edges of each class the same share of a training set.

    Args:
        dataset: The training set; its labels are read as without augmentation.
        radius: That of the loss.
        cache: A file that keeps the weights, and what they are of: names, sizes and times of the files, and options.

    Returns:
        [C] float32, those of `edgeloss.functional.balanced_edge_class_weight`.

    Raises:
        InputError: A file can't be read, or the cache can't be written.
    """
    key = hashlib.sha256(json.dumps([dataset.label_sources(), radius]).encode()).hexdigest()
    if (kept := _read(cache)).get("key") == key:
        return torch.tensor(kept["edge_class_weight"])

    def targets() -> Iterator[Tensor]:
        for index, _ in enumerate(with_progress(dataset.names, "training labels, whose edge pixels are counted,")):
            yield dataset.labels(index)[None]

    classes, ignored = len(dataset.classes), dataset.ignore_index
    weight = balanced_edge_class_weight(targets(), classes, ignore_index=ignored, radius=radius)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(cache) as file:
        file.write(json.dumps({"key": key, "edge_class_weight": weight.tolist()}).encode())
    return weight


def _read(cache: Path) -> dict[str, Any]:
    """Return what a cache holds, nothing if it can't be read: it is then written again."""
    try:
        kept = json.loads(cache.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
