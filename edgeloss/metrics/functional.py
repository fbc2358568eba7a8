"""Boundary IoU, Boundary F1 and trimap IoU of one batch, and the stages of each.

A function and its torchmetrics class share a :class:`~edgeloss.metrics.measure.Measure`: it checks the arguments,
counts by one of ``*_counts``, and scores by :func:`iou_from_counts` or :func:`f1_from_counts`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import groupby, product
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss.metrics.measure import Average, Measure, Score, Spacing
from edgeloss.neighborhoods import find_edges, sliding_max
from edgeloss.options import spacing_per_axis

_FIXED_POINT_ONE = 2**32  # the integer for a score of 1 where scores of images are summed: integer sums are exact


def boundary_iou(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    ratio: float = 0.02,
    spacing: Spacing = None,
    average: Average = "macro",
    validate: bool | None = None,
) -> Tensor:
    """Compute Boundary IoU: the IoU of the bands inside the border of each class.

    The band of a class contains the pixels that d erosions by 3 × 3 pixels, or 3 × 3 × 3 in 3-D, remove from it,
    d = max(1, round(ratio · image diagonal)): those with another label, or the outside of the image, at most d pixels
    away along every axis. Void pixels are in no band and erode nothing. A class occurs if the target or the prediction
    has a pixel in its band.

    Source: Cheng et al., "Boundary IoU: Improving Object-Centric Image Segmentation Evaluation", CVPR 2021.

    Args:
        pred: labels [B, *S], S = (H, W) or (D, H, W), or floating logits or probabilities [B, C, *S], whose argmax is
            used. For two classes also one logit [B, 1, *S], class 1 where it is > 0. It is not read on void pixels.
        target: labels [B, *S] on the same device. Labels are int64, int32, int16, uint8 or bool.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ignore_index: the label of void pixels; None for none. If it is one of 0 to C - 1, that class does not occur.
        multilabel: score classes that may overlap, each by itself: its score is that of label 1 in maps of two classes.
            ``target`` holds labels 0 and 1 of each class, [B, C, *S]; ``pred`` too, or logits, label 1 where they are
            > 0; pass probabilities as ``probabilities > 0.5``.
        ratio: width of the band relative to the image diagonal, > 0.
        spacing: size of a pixel, > 0, or one per axis; None for 1. Diagonal and d are measured in it; d is at least one
            pixel along every axis.
        average: ``"macro"`` for the mean over the classes that occur, ``"none"`` for one value per class.
        validate: whether to check for out-of-range labels, which synchronizes with the device; None checks on all
            devices but CUDA. Unchecked out-of-range labels count as void.

    Returns:
        0-d float in [0, 1], nan if no class occurs. With ``average="none"`` [C], nan for classes that do not occur.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option or label.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import boundary_iou
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> boundary_iou(pred, target, 2, average="none")  # 10 of 12 + 14 - 10 pixels, and 8 of 12 + 10 - 8
        tensor([0.6250, 0.5714])
    """
    counted, shared = {"ratio": ratio, "spacing": spacing}, (num_classes, ignore_index, multilabel, average, validate)
    measure = Measure(boundary_iou_counts, iou_from_counts, counted, *shared)
    return measure.score(measure.count(pred, target))


def trimap_iou(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    radius: float = 1,
    spacing: Spacing = None,
    average: Average = "macro",
    validate: bool | None = None,
) -> Tensor:
    """Compute trimap IoU: the mean IoU near the borders of the target.

    Only valid pixels count that are within ``radius`` pixels of a valid pixel of another label in the target, that is
    where :func:`edgeloss.fields.boundary_distance` ≤ radius. There is no border next to void. A class occurs if the
    target or the prediction has it on such a pixel.

    Args:
        pred: labels or logits as in :func:`boundary_iou`.
        target: labels as in :func:`boundary_iou`.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ignore_index: the label of void pixels; None for none.
        multilabel: score classes that may overlap, as in :func:`boundary_iou`.
        radius: Euclidean distance in pixels, an int ≥ 1, or any number > 0 of units of ``spacing``. A pixel next to a
            border has distance 1.
        spacing: size of a pixel, > 0, or one per axis; None for 1.
        average: ``"macro"`` or ``"none"``.
        validate: whether to check for out-of-range labels; None checks on all devices but CUDA.

    Returns:
        0-d float in [0, 1], nan if no class occurs. With ``average="none"`` [C], nan for classes that do not occur.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option or label.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import trimap_iou
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> trimap_iou(pred, target, 2, average="none")  # columns 3 and 4 count; column 4 is wrong
        tensor([0.5000, 0.0000])
    """
    counted, shared = {"radius": radius, "spacing": spacing}, (num_classes, ignore_index, multilabel, average, validate)
    measure = Measure(trimap_iou_counts, iou_from_counts, counted, *shared)
    return measure.score(measure.count(pred, target))


def boundary_f1(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    radius: float = 1,
    spacing: Spacing = None,
    average: Average = "macro",
    score: Score = "f1",
    class_agnostic: bool = False,
    per_image: bool = False,
    validate: bool | None = None,
) -> Tensor:
    """Compute Boundary F1 from the border pixels of prediction and target that match.

    A pixel is on the border of a class if it and its right, lower or lower-right neighbor, in 3-D also one of the four
    pixels at these places in the next slice, both valid, differ in whether they are of that class. With b_p and b_t the
    borders of a class in prediction and target, and D(·) their dilation by a disk or ball of ``radius`` pixels, all
    counted over the batch,

        precision P = |b_p ∩ D(b_t)| / |b_p|      recall R = |b_t ∩ D(b_p)| / |b_t|      F1 = 2 P R / (P + R)

    A class occurs if |b_p| + |b_t| > 0. If only one of the two is 0, all its scores are 0.

    Args:
        pred: labels or logits as in :func:`boundary_iou`.
        target: labels as in :func:`boundary_iou`.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ignore_index: the label of void pixels; None for none.
        multilabel: score classes that may overlap, as in :func:`boundary_iou`.
        radius: radius of the disk or ball in pixels, an int ≥ 1, or any number > 0 of units of ``spacing``.
        spacing: size of a pixel, > 0, or one per axis; None for 1.
        average: ``"macro"`` or ``"none"``. The macro F1 is the mean of the F1 scores.
        score: ``"f1"``, ``"precision"`` or ``"recall"``.
        class_agnostic: merge the borders of all classes into one, for a single score; not with ``multilabel``.
        per_image: score every image separately and average over the images, per class, as the DAVIS and GSCNN scripts
            do. P and R with denominator 0 are 1 then, and so is F1 of a class absent from an image: all classes occur.
        validate: whether to check for out-of-range labels; None checks on all devices but CUDA.

    Returns:
        0-d float in [0, 1], nan if no class occurs. With ``average="none"`` [C], nan for classes that do not occur.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option or label.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import boundary_f1
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> boundary_f1(pred, target, 2)  # the border is one pixel off
        tensor(1.)
        >>> boundary_f1(pred.roll(1, -1), target, 2, radius=2, score="precision")  # two off, and a false one
        tensor(0.5000)
    """
    counted = {"radius": radius, "spacing": spacing, "class_agnostic": class_agnostic, "per_image": per_image}
    shared = num_classes, ignore_index, multilabel, average, validate
    scored = {"score": score, "per_image": per_image}
    measure = Measure(boundary_f1_counts, f1_from_counts, counted, *shared, scored)
    return measure.score(measure.count(pred, target))


# ------------------------------------------------------------------- counts and scores: Boundary IoU, trimap IoU


def boundary_iou_counts(y: Tensor, num_classes: int, ratio: float, spacing: Spacing = None) -> Tensor:
    """Count the pixels in both bands and in either, per class: [2, C] int64."""
    sizes = spacing_per_axis(spacing, y.dim() - 2)
    width = ratio * math.hypot(*(length * size for length, size in zip(y.shape[2:], sizes, strict=True)))
    reach = [max(1, round(width / size)) for size in sizes]
    # The outside of the image has a label that differs from all others.
    framed = _pad(y, [1] * len(sizes), num_classes).flatten(0, 1)
    band = find_edges(framed, framed >= 0, reach)
    return _overlap(y, _pad(band, [-1] * len(sizes), 0).view_as(y), num_classes)


def trimap_iou_counts(y: Tensor, num_classes: int, radius: float, spacing: Spacing = None) -> Tensor:
    """Count pixels near borders with a class in both maps and in either: [2, C] int64."""
    rows, target = _ball_rows(radius, spacing_per_axis(spacing, y.dim() - 2)), y[1]
    # A pixel has another label in its ball if the largest label there is not the smallest one. The latter is the
    # largest of the reversed labels, where -1 for void never wins either.
    both_ends = torch.stack([target, num_classes - 1 - target]).masked_fill_(target < 0, -1)
    largest, smallest = _ball_max(both_ends, rows).unbind()
    return _overlap(y, (largest != num_classes - 1 - smallest) & (target >= 0), num_classes)


def _ball_rows(radius: float, sizes: Sequence[float]) -> dict[tuple[int, ...], int]:
    """Return half the lengths of the rows of a disk or ball along the last axis, by their offsets in the other axes."""
    *others, last = sizes
    near = 1 + 1e-9  # what rounding may take from a distance equal to the radius
    rows = {}
    for offset in product(*(range(-int(radius * near / s), int(radius * near / s) + 1) for s in others)):
        rest = (radius * near) ** 2 - sum((d * s) ** 2 for d, s in zip(offset, others, strict=True))
        if rest >= 0:
            rows[offset] = int(math.sqrt(rest) / last)
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


def _overlap(y: Tensor, band: Tensor, num_classes: int) -> Tensor:
    """Count intersection and union of maps [2, B, *S] on a band [2, B, *S], or [B, *S] for both: [2, C] int64."""
    pred, target = y.masked_fill(~band, -1)
    shared = pred.masked_fill(pred != target, -1)
    in_both, in_pred, in_target = (_count(labels, num_classes) for labels in (shared, pred, target))
    return torch.stack([in_both, in_pred + in_target - in_both])


def _count(labels: Tensor, bins: int) -> Tensor:
    """Count the labels 0 to bins - 1, without -1: [bins] int64."""
    index = labels.flatten().long() + 1
    counts = torch.zeros(bins + 1, dtype=torch.int64, device=labels.device)
    # bincount would synchronize with the device to find the largest label.
    return counts.scatter_add_(0, index, counts.new_ones(()).expand_as(index))[1:]


def iou_from_counts(counts: Tensor, average: Average, ignore_index: int | None) -> Tensor:
    """Compute the IoU from counts [2, C]: nan for a class that does not occur."""
    intersection, union = counts
    return _averaged(intersection / union, average, ignore_index)


def _averaged(score: Tensor, average: Average, ignore_index: int | None) -> Tensor:
    """Average scores [C] over the classes that occur; return a single score unchanged."""
    if len(score) == 1:
        return score[0]
    if ignore_index is not None and 0 <= ignore_index < len(score):
        score[ignore_index] = math.nan
    return score.nanmean() if average == "macro" else score


# ---------------------------------------------------------------------------------- counts and scores: Boundary F1


def boundary_f1_counts(
    y: Tensor, num_classes: int, radius: float, spacing: Spacing = None, *, class_agnostic: bool, per_image: bool
) -> Tensor:
    """Count border pixels per class, to be summed over batches: [4, C] int64.

    The rows are |b_p ∩ D(b_t)|, |b_p|, |b_t ∩ D(b_p)| and |b_t|. With ``per_image`` they are the sums over the images
    of F1, precision and recall, and the number of images, all times ``_FIXED_POINT_ONE``.
    """
    rows = _ball_rows(radius, spacing_per_axis(spacing, y.dim() - 2))
    counts = _border_counts(y, num_classes, rows, class_agnostic=class_agnostic)
    if not per_image:
        return counts.sum(0)
    sums = (_scores(counts, empty_score=1.0) * _FIXED_POINT_ONE).round().long().sum(0)
    return torch.cat([sums, torch.full_like(sums[:1], len(counts) * _FIXED_POINT_ONE)])


def _border_counts(y: Tensor, num_classes: int, rows: Mapping[tuple[int, ...], int], *, class_agnostic: bool) -> Tensor:
    """Count border pixels, those near the other border and all: [B, 4, C] int64.

    The rows are |b_p ∩ D(b_t)|, |b_p|, |b_t ∩ D(b_p)| and |b_t|, per image and class.

    The cost is proportional to the number of border pixels, since dilated borders are evaluated only at the pixels of
    the other border: a map of words stores one bit for each class whose border a pixel is on, and the words within the
    disk are combined by or.
    """
    ball = [(*offset, d) for offset, half in rows.items() for d in range(-half, half + 1)]
    # No shift by up to the radius, or to a neighbor, leaves a padded map or enters another image.
    reach = [max(1, *offsets) for offsets in zip(*ball, strict=True)]
    maps = _pad(y, reach, -1).contiguous()
    batch, (area, *strides) = y.shape[1], maps.stride()[1:]
    shifts = [sum(d * stride for d, stride in zip(offset, strides, strict=True)) for offset in ball]
    maps = maps.flatten(1)
    borders = [_border(labels, strides) for labels in maps]
    if class_agnostic:
        num_classes = 1
        borders = [(pixel, torch.zeros_like(label[:1])) for pixel, label in borders]

    near = [torch.zeros_like(label, dtype=torch.bool) for _, label in borders]
    dtype, word_bits = (torch.int32, 31) if num_classes <= 31 else (torch.int64, 63)  # without the sign
    for first in range(0, num_classes, word_bits):
        bits, words = [], []
        for pixel, label in borders:
            place = label - first
            bits.append(torch.where((place >= 0) & (place < word_bits), 1 << place.clamp(0, word_bits - 1), 0))
            of_pixels = torch.zeros(maps.shape[1], dtype=dtype, device=y.device)
            words.append(of_pixels.scatter_(0, pixel, bits[-1].sum(0, dtype=dtype)))
        for (pixel, _), bit, other_words, matched in zip(borders, bits, reversed(words), near, strict=True):
            covered = torch.zeros_like(pixel, dtype=dtype)
            for shift in shifts:
                covered |= other_words[pixel + shift]
            matched |= (bit & covered) != 0

    counts = []
    for (pixel, label), matched in zip(borders, near, strict=True):
        index = (label + pixel // area * num_classes).masked_fill(label < 0, -1)
        counts += [_count(index.masked_fill(~matched, -1), batch * num_classes), _count(index, batch * num_classes)]
    return torch.stack(counts).view(4, batch, num_classes).transpose(0, 1)


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


def _scores(counts: Tensor, *, empty_score: float) -> Tensor:
    """Compute F1, precision and recall [..., 3, C] from counts [..., 4, C]."""
    pred_near, pred_total, target_near, target_total = counts.unbind(-2)
    precision = (pred_near / pred_total).nan_to_num(empty_score)
    recall = (target_near / target_total).nan_to_num(empty_score)
    harmonic = (2 * precision * recall / (precision + recall)).nan_to_num(0.0)
    return torch.stack([harmonic, precision, recall], -2)


def f1_from_counts(
    counts: Tensor, average: Average, ignore_index: int | None, *, score: Score = "f1", per_image: bool = False
) -> Tensor:
    """Compute one of the scores from counts [4, C]."""
    if per_image:
        scores = counts[:3] / counts[3]
    else:
        occurs = (counts[1] + counts[3]) > 0
        scores = _scores(counts, empty_score=0.0).where(occurs, math.nan)
    return _averaged(scores[get_args(Score).index(score)], average, ignore_index)
