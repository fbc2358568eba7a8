"""Sliding windows: logits equal those of the whole image, and memory does not grow with its height."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from segkit.sliding_window import cover, upsample, window_logits


@given(st.data())
def test_windows_cover_an_axis_with_weights_that_sum_to_one(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 200), "length")
    window = data.draw(st.integers(1, length), "window")
    overlap = data.draw(st.integers(0, window - 1), "overlap")
    found = cover(length, window, overlap)
    starts = [start for start, _ in found]
    assert starts[0] == 0
    assert starts[-1] == length - window
    steps = np.diff(starts)
    assert ((steps > 0) & (steps <= window - overlap)).all()
    assert (
        len(found) == 1 or (len(found) - 1) * (window - overlap) + window - length < window - overlap
    )  # none to spare
    total = torch.zeros(length)
    for start, weight in found:
        assert weight.shape == (window,)
        total[start : start + window] += weight
        margin = overlap // 4
        assert start == 0 or not weight[:margin].any()
        assert start + window == length or not weight[window - margin :].any()
    torch.testing.assert_close(total, torch.ones(length))


def test_weights_are_ramps() -> None:
    (_, first), (start, second) = cover(24, 16, 8)
    assert start == 8
    ramp = torch.tensor([0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1])
    assert torch.equal(second, torch.cat([ramp, torch.ones(8)]))
    assert torch.equal(first, second.flip(0))


class Local(nn.Module):
    """A network whose receptive field reaches 2 pixels; the ReLU makes it nonlinear."""

    def __init__(self, classes: int = 4) -> None:
        """Draw the weights."""
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, classes, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def by_windows(
    network: nn.Module, image: Tensor, window: tuple[int, int], overlap: int, *, batch_size: int = 1
) -> list[Tensor]:
    size = (image.shape[1], image.shape[2])

    def crop(rows: slice, columns: slice) -> Tensor:
        return image[:, rows, columns]

    with torch.no_grad():
        return list(window_logits(network, crop, size, window, overlap, batch_size=batch_size))


@pytest.mark.parametrize("size", [(37, 53), (64, 40), (16, 16), (17, 90), (5, 3)])  # odd, tall, one window, a row, tiny
@pytest.mark.parametrize(("window", "overlap"), [((16, 16), 8), ((20, 24), 9), ((32, 17), 8), ((16, 100), 8)])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_windows_equal_the_whole_image_for_a_small_receptive_field(
    size: tuple[int, int], window: tuple[int, int], overlap: int, batch_size: int
) -> None:
    network, image = Local(), torch.randn(3, *size)
    bands = by_windows(network, image, window, overlap, batch_size=batch_size)
    with torch.no_grad():
        whole = network(image[None])[0]
    torch.testing.assert_close(torch.cat(bands, dim=1), whole)


def test_windows_without_overlap_show_their_borders() -> None:
    """The test above would notice wrong weights."""
    network, image = Local(), torch.randn(3, 37, 53)
    found = torch.cat(by_windows(network, image, (16, 16), 0), dim=1)
    with torch.no_grad():
        difference = (found - network(image[None])[0]).abs()
    assert difference.max() > 0.01
    assert difference[:, :10, :12].max() < 1e-5  # covered by the first window only, away from its ends


@given(
    st.tuples(st.integers(1, 30), st.integers(1, 20)),
    st.tuples(st.integers(1, 60), st.integers(1, 40)),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_upsampling_in_bands_equals_upsampling_the_whole(
    size: tuple[int, int], new_size: tuple[int, int], rows: int, most: int
) -> None:
    logits = torch.randn(2, *size)
    found = list(upsample(logits.split(rows, dim=1), size, new_size, most=most))
    expected = F.interpolate(logits[None], new_size, mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=1e-5, rtol=1e-5)
    assert size == new_size or max(part.shape[1] for part in found) <= most


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Hide existing objects from ``gc.get_objects``, which would be slow with all of them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_bytes() -> int:
    """Return the memory of all new tensors."""
    tensors = [part for part in gc.get_objects() if type(part) is Tensor]
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in tensors}.values())


@pytest.mark.usefixtures("only_new_objects")
def test_memory_does_not_grow_with_height() -> None:
    """A band of 8 classes and 64 columns takes 2 KiB per row, upsampled twice that: neither may be kept."""
    classes, width, factor = 8, 64, 2

    def peak(height: int) -> int:
        most = [0]

        def network(images: Tensor) -> Tensor:
            most[0] = max(most[0], live_bytes())
            return images[:, :1].expand(-1, classes, -1, -1)

        def crop(rows: slice, columns: slice) -> Tensor:
            return torch.zeros(3, rows.stop - rows.start, columns.stop - columns.start)

        bands = window_logits(network, crop, (height, width), (64, 64), 16)
        rows = 0
        for band in upsample(bands, (height, width), (height * factor, width * factor), most=64):
            most[0] = max(most[0], live_bytes())
            rows += band.shape[1]
        assert rows == height * factor
        return most[0]

    short, tall = peak(128), peak(640)
    a_row = classes * width * 4
    assert short > 64 * a_row
    assert tall - short < 0.05 * 512 * a_row  # weights and places of the rows themselves, and nothing of their pixels
