"""Counts and scores of Boundary IoU, trimap IoU and Boundary F1; counts are integers, so their sums are exact."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, product

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss._checks.options import spacing_per_axis
from edgeloss._reference.neighborhoods import find_edges, sliding_max
from edgeloss.metrics.measure import Kind, LabelMaps, Score, Spacing
from edgeloss.metrics.nearest import NEAR, distances_by_tree, nearest

MOST_OFFSETS = 1500  # of a window that is looked at pixel by pixel; beyond it, finding distances is faster

# --------------------------------------------------------------------------------------------- Boundary IoU, trimap IoU


def boundary_iou_counts(maps: LabelMaps, ratio: float, spacing: Spacing = None) -> Tensor:
    """Count the pixels in both bands, in either, and in that of the target, per image and class: [B, 3, C] int64."""
    y = maps.y
    sizes = spacing_per_axis(spacing, y.dim() - 2)
    width = ratio * math.hypot(*(length * size for length, size in zip(y.shape[2:], sizes, strict=True)))
    reach = [max(1, round(width / size)) for size in sizes]
    # The outside of the image has a label that differs from all others.
    framed = _pad(y, [1] * len(sizes), maps.num_classes).flatten(0, 1)
    band = find_edges(framed, framed >= 0, reach)
    return _overlap(maps, _pad(band, [-1] * len(sizes), 0).view_as(y))


def trimap_iou_counts(maps: LabelMaps, radius: float, spacing: Spacing = None) -> Tensor:
    """Count pixels near borders with a class in both maps, in either and in the target: [B, 3, C] int64."""
    target = maps.y[1]
    rows = ball_rows(radius, spacing_per_axis(spacing, target.dim() - 1), target.shape[1:])
    # A pixel has another label in its ball if the largest label there is not the smallest one. The latter is the
    # largest of the reversed labels, where -1 for void never wins either.
    last = maps.num_classes - 1
    both_ends = torch.stack([target, last - target]).masked_fill_(target < 0, -1)
    largest, smallest = _ball_max(both_ends, rows).unbind()
    return _overlap(maps, (largest != last - smallest) & (target >= 0))


def ball_rows(radius: float, sizes: Sequence[float], shape: Sequence[int]) -> dict[tuple[int, ...], int]:
    """Return half the lengths of the rows of a disk or ball along the last axis, by their offsets in the other axes.

    Offsets are at most those between two pixels of an image of that shape.
    """
    *others, last = sizes
    reach = [min(int(radius * NEAR / s), max(length - 1, 0)) for s, length in zip(sizes, shape, strict=True)]
    rows = {}
    for offset in product(*(range(-most, most + 1) for most in reach[:-1])):
        rest = (radius * NEAR) ** 2 - sum((d * s) ** 2 for d, s in zip(offset, others, strict=True))
        if rest >= 0:
            rows[offset] = min(int(math.sqrt(rest) / last), reach[-1])
    return rows


def _ball_max(x: Tensor, rows: Mapping[tuple[int, ...], int]) -> Tensor:
    """Return the maximum over disks or balls in the last axes, all rows of equal length at a time."""
    reach = [max(offsets) for offsets in zip(*rows, strict=True)]
    most, found = max(rows.values()), x
    padded = _pad(x, [*reach, most], -1)
    for half, offsets in groupby(sorted(rows, key=rows.__getitem__), rows.__getitem__):
        windows = []
        for offset in offsets:
            window = padded.narrow(-1, most - half, x.shape[-1] + 2 * half)
            for axis, (d, r) in enumerate(zip(offset, reach, strict=True), start=-1 - len(reach)):
                window = window.narrow(axis, r + d, x.shape[axis])
            windows.append(window)
        found = torch.maximum(found, sliding_max(reduce(torch.maximum, windows), 2 * half + 1, -1))
    return found


def _pad(x: Tensor, reach: Sequence[int], value: int) -> Tensor:
    """Pad the last axes by ``reach`` on both sides."""
    return F.pad(x, [amount for amount in reversed(reach) for _ in range(2)], value=value)


def _overlap(maps: LabelMaps, band: Tensor) -> Tensor:
    """Count intersection, union and target on a band [2, B, *S], or [B, *S] for both maps: [B, 3, C] int64."""
    pred, target = maps.y.masked_fill(~band, -1)
    shared = pred.masked_fill(pred != target, -1)
    in_both, in_pred, in_target = (_count(labels.flatten(1), maps.num_classes) for labels in (shared, pred, target))
    return torch.stack([in_both, in_pred + in_target - in_both, in_target], 1)


def _count(labels: Tensor, bins: int) -> Tensor:
    """Count the labels 0 to bins - 1, without -1, in each row [N, P]: [N, bins] int64."""
    counts = torch.zeros(len(labels), bins + 1, dtype=torch.int64, device=labels.device)
    if labels.is_cuda:  # bincount would synchronize with the device to find the largest label
        _add_ones(counts, labels.long() + 1)
    else:
        for row, total in zip(labels, counts, strict=True):
            total.copy_(torch.bincount(row + 1, minlength=bins + 1))
    return counts[:, 1:]


def _add_ones(counts: Tensor, index: Tensor) -> None:
    """Add 1 to the counts [N, bins] at each index [N, P], in place."""
    counts.scatter_add_(1, index, counts.new_ones(()).expand_as(index))


def score_iou(counts: Tensor) -> Tensor:
    """Compute the IoU [..., C] from counts [..., 3, C]: nan for a class that does not occur."""
    intersection, union, _ = counts.unbind(-2)
    return intersection / union


# ------------------------------------------------------------------------------------------------------- Boundary F1


def boundary_f1_counts(
    maps: LabelMaps, radius: float, spacing: Spacing = None, *, class_agnostic: bool = False
) -> Tensor:
    """Count border pixels, those near the other border and all, per image and class: [B, 4, C] int64.

    The rows are |b_p ∩ D(b_t)|, |b_p|, |b_t ∩ D(b_p)| and |b_t|. One pass counts for all of ``maps.radii``.
    """
    sizes, radii = spacing_per_axis(spacing, maps.y.dim() - 2), sorted({radius, *maps.radii})
    counts = maps.share(
        ("border counts", *sizes, class_agnostic, *radii),
        lambda: _border_counts(maps.y, maps.num_classes, radii, sizes, class_agnostic=class_agnostic),
    )
    selected: Tensor = counts[radii.index(radius)]
    return selected


def _shells(radii: Sequence[float], sizes: Sequence[float], shape: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Return the offsets that each radius adds to the disk or ball of those before, up to ``MOST_OFFSETS``."""
    shells: list[list[tuple[int, ...]]] = []
    inside: set[tuple[int, ...]] = set()
    for radius in radii:
        if math.prod(1 + 2 * min(radius / s, length) for s, length in zip(sizes, shape, strict=True)) > MOST_OFFSETS:
            break
        rows = ball_rows(radius, sizes, shape)
        ball = [(*offset, d) for offset, half in rows.items() for d in range(-half, half + 1)]
        shells.append([offset for offset in ball if offset not in inside])
        inside.update(ball)
    return shells


def _border_counts(
    y: Tensor, num_classes: int, radii: Sequence[float], sizes: Sequence[float], *, class_agnostic: bool
) -> Tensor:
    """Count border pixels, those near the other border and all: [R, B, 4, C] int64, for R growing radii.

    The rows are |b_p ∩ D(b_t)|, |b_p|, |b_t ∩ D(b_p)| and |b_t|, per image and class.

    The cost is proportional to the number of border pixels, since dilated borders are evaluated only at the pixels of
    the other border: a map of words stores one bit for each class whose border a pixel is on, and the words within a
    small disk are combined by or. Of larger ones it is that of the distances of border pixels, for any radius.
    """
    shells = _shells(radii, sizes, y.shape[2:])
    # No shift by up to these radii, or to a neighbor, leaves a padded map or enters another image.
    reach = [max(offsets) for offsets in zip((1,) * len(sizes), *itertools.chain(*shells), strict=True)]
    maps = _pad(y, reach, -1).contiguous()
    batch, (area, *strides) = y.shape[1], maps.stride()[1:]
    shifts = [[sum(map(operator.mul, offset, strides)) for offset in shell] for shell in shells]
    shape, maps = maps.shape[1:], maps.flatten(1)
    borders = [_border(labels, strides) for labels in maps]
    if class_agnostic:
        num_classes = 1
        borders = [(pixel, torch.zeros_like(label[:1])) for pixel, label in borders]

    near = [torch.zeros(len(shells), *label.shape, dtype=torch.bool, device=y.device) for _, label in borders]
    dtype, word_bits = (torch.int32, 31) if num_classes <= 31 else (torch.int64, 63)  # without the sign
    for first in range(0, num_classes, word_bits):
        bits, words = [], []
        for pixel, label in borders:
            place = label - first
            bits.append(torch.where((place >= 0) & (place < word_bits), 1 << place.clamp(0, word_bits - 1), 0))
            of_pixels = torch.zeros(maps.shape[1], dtype=dtype, device=y.device)
            words.append(of_pixels.scatter_(0, pixel, bits[-1].sum(0, dtype=dtype)))
        for (pixel, _), bit, own, other, matched in zip(borders, bits, words, reversed(words), near, strict=True):
            for covered, of_radius in zip(_covered(pixel, own[pixel], other, shifts), matched, strict=True):
                of_radius |= (bit & covered) != 0
    if larger := radii[len(shells) :]:
        grid = num_classes, *shape
        near = [torch.cat(parts) for parts in zip(near, _near_by_distance(borders, larger, grid, sizes), strict=True)]

    counts = []
    for (pixel, label), matched in zip(borders, near, strict=True):
        index = (label + pixel // area * num_classes).masked_fill(label < 0, -1)
        every = _count(index.view(1, -1), batch * num_classes)
        found = _count(index.masked_fill(~matched, -1).flatten(1), batch * num_classes)
        counts += [found, every.expand_as(found)]
    return torch.stack(counts, 1).view(len(radii), 4, batch, num_classes).transpose(1, 2)


def _covered(pixel: Tensor, own: Tensor, other: Tensor, shifts: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Yield the words of the other map within each of the growing disks around pixels [P], by or; [P] each.

    Pixels all of whose own bits are found are not looked at again.
    """
    covered = other[pixel]
    left = (own & ~covered).nonzero().squeeze(1)
    for shell in shifts:
        place, found = pixel[left], covered[left]
        for shift in shell:
            found |= other[place + shift]
        covered[left] = found
        yield covered
        left = left[(own[left] & ~found) != 0]


def _near_by_distance(
    borders: Sequence[tuple[Tensor, Tensor]], radii: Sequence[float], grid: Sequence[int], sizes: Sequence[float]
) -> Iterator[Tensor]:
    """Yield which pixels of each border are within the radii of the other one's of their class: bool [R, 4, P].

    The grid is that of classes, images and pixels; classes and images are further apart than the largest radius.
    """
    apart = 2.0 * radii[-1]
    places = [(label * math.prod(grid[1:]) + pixel)[label >= 0].cpu().numpy() for pixel, label in borders]
    for (_, label), place, other in zip(borders, places, reversed(places), strict=True):
        distance = torch.from_numpy(nearest(place, other, grid, (apart, apart, *sizes), distances_by_tree))
        near = torch.zeros(len(radii), *label.shape, dtype=torch.bool, device=label.device)
        near[:, label >= 0] = torch.stack([distance <= radius * NEAR for radius in radii]).to(label.device)
        yield near


def _border(labels: Tensor, strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Find the border pixels of all classes in flattened, padded maps [N].

    Returns:
        Positions [P], and labels [4, P], in 3-D [8, P], of the classes whose border each pixel is on: its own and those
        of its right, lower and lower-right neighbors, and of these in the next slice, with -1 for duplicates.
    """
    shifts = [sum(steps) for steps in product(*((0, stride) for stride in strides))]
    here, *neighbors = (labels[shift : len(labels) - shifts[-1] + shift] for shift in shifts)
    differs = torch.zeros_like(here, dtype=torch.bool)
    for neighbor in neighbors:
        differs |= (neighbor != here) & (neighbor >= 0)
    pixel = (differs & (here >= 0)).nonzero().squeeze(1)
    label = torch.stack([labels[pixel + shift] for shift in shifts]).long()
    for k in range(1, len(shifts)):
        label[k].masked_fill_((label[k] == label[:k]).any(0), -1)
    return pixel, label


def score_f1(counts: Tensor, *, score: Score = "f1", per_image: bool = False) -> Tensor:
    """Compute F1, precision or recall [..., C] from counts [..., 4, C].

    Without borders they are nan, with ``per_image`` 1, as is each whose denominator is 0.
    """
    pred_near, pred_total, target_near, target_total = counts.unbind(-2)
    empty = 1.0 if per_image else 0.0
    precision = (pred_near / pred_total).nan_to_num(empty)
    recall = (target_near / target_total).nan_to_num(empty)
    if score == "f1":
        scores = (2 * precision * recall / (precision + recall)).nan_to_num(0.0)
    else:
        scores = precision if score == "precision" else recall
    return scores if per_image else scores.where((pred_total + target_total) > 0, math.nan)


BOUNDARY_IOU = Kind("boundary_iou", boundary_iou_counts, score_iou, rows=3)
TRIMAP_IOU = Kind("trimap_iou", trimap_iou_counts, score_iou, rows=3)
BOUNDARY_F1 = Kind("boundary_f1", boundary_f1_counts, score_f1, rows=4)
