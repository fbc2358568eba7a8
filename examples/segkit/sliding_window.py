"""Logits of an image by overlapping windows, band by band, in memory that does not grow with the image's height."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

Network = Callable[[Tensor], Tensor]  # images [B, 3, h, w] to logits [B, C, h, w]
Crop = Callable[[slice, slice], Tensor]  # rows and columns to that part of the image, [3, h, w], normalized


def cover(length: int, window: int, overlap: int) -> list[tuple[int, Tensor]]:
    """Place as few windows as it takes along an axis, evenly, and weigh their pixels.

    A window counts for nothing over the outer quarter of the overlap, where the network sees least around a pixel,
    rises linearly over the two quarters between and has its full weight from the last on; also at an end of the axis,
    where no other window looks. So a network that looks no further than ``overlap // 4`` pixels gives exactly what it
    gives for the whole.

    Args:
        length: of the axis.
        window: length of a window, ≤ `length`.
        overlap: that of two neighbours at least, 0 ≤ overlap < window.

    Returns:
        The windows' starts and weights [window] float32; over each pixel the weights sum to 1.
    """
    count = 1 + math.ceil((length - window) / (window - overlap))
    starts = [round(i * (length - window) / max(1, count - 1)) for i in range(count)]
    margin = overlap // 4
    rise = ((torch.arange(window) + 0.5 - margin) / max(1, overlap - 2 * margin)).clamp(0, 1)
    weights = []
    for start in starts:
        weight = torch.ones(window)
        if start > 0:
            weight *= rise
        if start + window < length:
            weight *= rise.flip(0)
        weights.append(weight)
    total = torch.zeros(length)
    for start, weight in zip(starts, weights, strict=True):
        total[start : start + window] += weight
    return [(start, weight / total[start : start + window]) for start, weight in zip(starts, weights, strict=True)]


def window_logits(
    network: Network, crop: Crop, size: tuple[int, int], window: tuple[int, int], overlap: int, *, batch_size: int = 1
) -> Iterator[Tensor]:
    """Compute an image's logits from overlapping windows, blended by the weights of `cover`.

    Besides what the network itself needs for a batch, only the rows are held that later windows add to: [C, h, W].

    Args:
        network: images to logits of the same size.
        crop: gives a part of the image.
        size: (H, W) of the image.
        window: (h, w) of a window; what exceeds the image is cut off.
        overlap: of neighbouring windows at least, in pixels.
        batch_size: windows that go through the network together.

    Yields:
        The finished rows, [C, k, W], from top to bottom.
    """
    height, width = (min(length, most) for length, most in zip(size, window, strict=True))
    rows, columns = cover(size[0], height, min(overlap, height - 1)), cover(size[1], width, min(overlap, width - 1))
    band: Tensor | None = None
    for i, (top, row_weight) in enumerate(rows):
        for k in range(0, len(columns), batch_size):
            chosen = columns[k : k + batch_size]
            images = [crop(slice(top, top + height), slice(left, left + width)) for left, _ in chosen]
            logits = network(torch.stack(images))
            if band is None:
                band = logits.new_zeros(logits.shape[1], height, size[1])
            for (left, column_weight), part in zip(chosen, logits, strict=True):
                weight = row_weight[:, None] * column_weight
                band[:, :, left : left + width] += part * weight.to(part)
        assert band is not None
        done = rows[i + 1][0] - top if i + 1 < len(rows) else height
        yield band[:, :done]
        band = torch.cat([band[:, done:], band.new_zeros(len(band), done, size[1])], dim=1)


def upsample(
    bands: Iterable[Tensor], size: tuple[int, int], new_size: tuple[int, int], *, most: int = 256
) -> Iterator[Tensor]:
    """Resize what comes in bands as ``F.interpolate(mode="bilinear", align_corners=False)`` resizes the whole.

    Args:
        bands: rows [C, k, w] from top to bottom.
        size: (h, w) of the whole.
        new_size: (H, W).
        most: rows given at once.

    Yields:
        Rows [C, k, W] from top to bottom.
    """
    if size == new_size:
        yield from bands
        return
    (height, _), (new_height, new_width) = size, new_size
    # Pixel centres stay where they are; the first and the last row reach to the border.
    source = ((torch.arange(new_height) + 0.5) * (height / new_height) - 0.5).clamp(0, height - 1)
    above = source.floor().long()
    below = (above + 1).clamp(max=height - 1)
    held: Tensor | None = None  # rows from `first` on
    first = start = 0
    for band in bands:
        held = band if held is None else torch.cat([held, band], dim=1)
        ready = int((below < first + held.shape[1]).sum())
        while start < ready:
            stop = min(start + most, ready)
            one, other = (held[:, (rows[start:stop] - first).to(held.device)] for rows in (above, below))
            blended = torch.lerp(one, other, (source - above)[start:stop, None].to(held))
            # Over the rows nothing is left to do: there are as many before and after.
            yield F.interpolate(blended[None], (stop - start, new_width), mode="bilinear", align_corners=False)[0]
            start = stop
        if start < new_height:
            unneeded = min(int(above[start]) - first, held.shape[1])
            held, first = held[:, unneeded:], first + unneeded
