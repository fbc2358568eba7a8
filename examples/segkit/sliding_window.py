"""Logits of an image from overlapping windows, in memory that does not grow with the height of the image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

Network = Callable[[Tensor], Tensor]  # images [B, 3, h, w] to logits [B, C, h, w]
Crop = Callable[[slice, slice], Tensor]  # rows and columns to that part of the image: [3, h, w], normalized


def cover(length: int, window: int, overlap: int) -> list[tuple[int, Tensor]]:
    """Cover an axis evenly with as few windows as possible, and weight their pixels.

    Over the overlap with a neighbor, the weight of a window is 0 in the outer quarter, where the network sees least of
    the surroundings, rises linearly over the next two quarters, and is full from there on. So a network whose receptive
    field reaches no further than ``overlap // 4`` pixels returns exactly the logits of the whole image.

    Args:
        length: length of the axis.
        window: length of a window, ≤ `length`.
        overlap: minimum overlap of two neighbors, 0 ≤ overlap < window.

    Returns:
        The start and the weights [window] float32 of each window; at each pixel the weights sum to 1.
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
    """Yield the logits of an image, blended from windows by the weights of `cover`.

    Only the rows [C, h, W] that later windows add to are kept in memory, besides what the network needs for a batch.

    Args:
        network: images to logits of the same size.
        crop: returns a part of the image.
        size: size (H, W) of the image.
        window: size (h, w) of a window, cut to the image.
        overlap: minimum overlap of neighbors, in pixels.
        batch_size: windows that go through the network together.

    Yields:
        Finished rows [C, k, W], from top to bottom.
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
    """Resize logits band by band.

    The result is that of ``F.interpolate(mode="bilinear", align_corners=False)`` on the whole.

    Args:
        bands: rows [C, k, w] from top to bottom.
        size: size (h, w) of the whole.
        new_size: new size (H, W).
        most: maximum number of rows per band.

    Yields:
        Rows [C, k, W] from top to bottom.
    """
    if size == new_size:
        yield from bands
        return
    (height, _), (new_height, new_width) = size, new_size
    # Pixel centers keep their place; the first and the last row extend to the border.
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
            # The rows are final; this resizes the columns only.
            yield F.interpolate(blended[None], (stop - start, new_width), mode="bilinear", align_corners=False)[0]
            start = stop
        if start < new_height:
            unneeded = min(int(above[start]) - first, held.shape[1])
            held, first = held[:, unneeded:], first + unneeded
