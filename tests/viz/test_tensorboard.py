"""Loss maps in TensorBoard, read back from its files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from edgeloss import EdgeAwareLoss, LossMaps
from edgeloss.viz import log_maps
from edgeloss.viz.coloring import CMAP

BLACK, MAGENTA = [0, 0, 0], [255, 0, 255]


def maps_of(*shape: int, **options: Any) -> LossMaps:
    target = torch.randint(3, (2, *(size // 4 for size in shape)))
    for axis in range(1, target.ndim):
        target = target.repeat_interleave(4, axis)
    return EdgeAwareLoss(**options)(torch.randn(2, 3, *shape), target, return_maps=True)[1]


def logged(folder: Path, maps: LossMaps, **options: Any) -> EventAccumulator:
    with SummaryWriter(str(folder)) as writer:
        log_maps(writer, "train", maps, 7, **options)
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def picture(events: EventAccumulator, name: str) -> npt.NDArray[np.uint8]:
    """Return all images of a batch, tiled side by side by TensorBoard."""
    (event,) = events.Images(name)
    assert event.step == 7
    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB"))


def test_each_map_becomes_pictures_and_a_histogram(tmp_path: Path) -> None:
    maps = maps_of(16, 20, decay=2.0)
    events = logged(tmp_path, maps)
    names = {f"train/{name}" for name in ("cross_entropy", "same_side", "other_side", "edge", "distance")}
    assert set(events.Tags()["images"]) == set(events.Tags()["histograms"]) == names
    assert events.Histograms("train/cross_entropy")[0].histogram_value.num == 2 * 16 * 20
    assert events.Histograms("train/edge")[0].histogram_value.num == int(maps.edge_mask.sum())
    shown = picture(events, "train/edge")
    one, two = (shown[:, part] for part in (slice(20), slice(20, 40)))
    for image, mask in zip((one, two), maps.edge_mask, strict=True):
        assert (image[~mask.numpy()] == BLACK).all()
        assert (image[mask.numpy()] != BLACK).any(1).all()


def test_a_fixed_range_gives_a_value_the_same_color_at_every_step(tmp_path: Path) -> None:
    maps = maps_of(8, 8)._replace(cross_entropy=torch.full((2, 8, 8), 1.0))
    shown = picture(logged(tmp_path, maps, high=4.0), "train/cross_entropy")
    assert (shown == CMAP(0.25, bytes=True)[:3]).all()


def test_non_finite_values_are_magenta(tmp_path: Path) -> None:
    maps = maps_of(8, 8)
    maps.cross_entropy[0, 2, 3] = torch.nan
    events = logged(tmp_path, maps, count=1)
    shown = picture(events, "train/cross_entropy")
    assert shown.shape == (8, 8, 3)
    assert (shown == MAGENTA).all(2).sum() == 1
    assert shown[2, 3].tolist() == MAGENTA
    assert events.Histograms("train/cross_entropy")[0].histogram_value.num == 2 * 64 - 1


@pytest.mark.parametrize("decay", [None, 1.0])
def test_no_edge_anywhere_and_volumes(decay: float | None, tmp_path: Path) -> None:
    """Draw the middle slice of a volume; write no histogram without values."""
    logits, target = torch.randn(1, 3, 4, 8, 8), torch.zeros(1, 4, 8, 8, dtype=torch.int64)
    _, maps = EdgeAwareLoss(decay=decay)(logits, target, return_maps=True)
    events = logged(tmp_path, maps)
    assert set(events.Tags()["histograms"]) == {"train/cross_entropy"}
    assert (picture(events, "train/edge") == BLACK).all()
    values = maps.cross_entropy[0, 2].numpy()
    shown = picture(events, "train/cross_entropy")
    brightest = np.unravel_index(values.argmax(), values.shape)
    assert shown[brightest].tolist() == list(CMAP(1.0, bytes=True)[:3])
