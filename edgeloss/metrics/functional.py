"""Boundary IoU, Boundary F1 and trimap IoU as functions of one batch, and the counts that they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import inputs, reference

Average = Literal["macro", "none"]
Score = Literal["f1", "precision", "recall"]
_CHOICES = {"average": ("macro", "none"), "score": ("f1", "precision", "recall")}

_WORD = 63  # classes that a 64-bit word holds as bits, the sign left out
_ONE = 2**32  # a score of 1 where scores of images are added up: as integers, so that their sums are exact too


def boundary_iou(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: int = -100,
    ratio: float = 0.02,
    average: Average = "macro",
    validate: bool | None = None,
) -> Tensor:
    """Boundary IoU: intersection over union of the bands along the inside of each class's border.

    The band of a class is what d erosions by 3 × 3 pixels take from it, d = max(1, round(ratio · diagonal of the
    image)): its pixels with another label, or the outside of the image, at most d rows and columns off. Void pixels
    are in no band and erode nothing. A class occurs if the target or the prediction has a pixel in its band.

    Source: Cheng et al., "Boundary IoU: Improving Object-Centric Image Segmentation Evaluation", CVPR 2021.

    Args:
        pred: labels [B, H, W], or floating logits or probabilities [B, C, H, W], of which the largest counts; a single
            logit [B, 1, H, W] of two classes means class 1 where it is > 0. It is not read on void pixels.
        target: labels [B, H, W] on the same device, int64, int32, int16, uint8 or bool, as those of pred.
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels. If it is one of 0 to C - 1, that class does not occur.
        ratio: width of the band over the diagonal of the image, > 0.
        average: ``"macro"`` for the mean over the classes that occur, ``"none"`` for every class by itself.
        validate: whether to look for labels out of range, for which the host waits for the device; None looks on any
            device but CUDA. Such labels count as void where nobody looks.

    Returns:
        0-d float in [0, 1], nan if no class occurs; or [C], nan for those that do not.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device, option or label that does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import boundary_iou
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> boundary_iou(pred, target, 2, average="none")  # 10 of 12 + 14 - 10 pixels, and 8 of 12 + 10 - 8
        tensor([0.6250, 0.5714])
    """
    check_options(num_classes, ignore_index, average, validate, ratio=ratio)
    y = label_maps(pred, target, num_classes, ignore_index, validate)
    return iou(boundary_iou_counts(y, num_classes, ratio), average, ignore_index)


def trimap_iou(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: int = -100,
    radius: int = 1,
    average: Average = "macro",
    validate: bool | None = None,
) -> Tensor:
    """Trimap IoU: mean intersection over union near the borders of the target.

    Only valid pixels count that lie within ``radius`` pixels of a valid pixel of another label in the target: those
    with :func:`edgeloss.fields.boundary_distance` ≤ radius. Beside void there is no border. A class occurs if the
    target or the prediction has it on such a pixel.

    Args:
        pred: as :func:`boundary_iou` takes it.
        target: labels [B, H, W].
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels.
        radius: Euclidean, in pixels, ≥ 1. A pixel beside a border is within 1.
        average: ``"macro"`` or ``"none"``.
        validate: whether to look for labels out of range; None looks on any device but CUDA.

    Returns:
        0-d float in [0, 1], nan if no class occurs; or [C], nan for those that do not.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device, option or label that does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import trimap_iou
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> trimap_iou(pred, target, 2, average="none")  # of the columns 3 and 4 the latter is wrong
        tensor([0.5000, 0.0000])
    """
    check_options(num_classes, ignore_index, average, validate, radius=radius)
    y = label_maps(pred, target, num_classes, ignore_index, validate)
    return iou(trimap_iou_counts(y, num_classes, radius), average, ignore_index)


def boundary_f1(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: int = -100,
    radius: int = 1,
    average: Average = "macro",
    score: Score = "f1",
    class_agnostic: bool = False,
    per_image: bool = False,
    validate: bool | None = None,
) -> Tensor:
    """Boundary F1: how many border pixels of the prediction are near those of the target, and the other way round.

    A pixel is on the border of a class if one of its right, lower and lower right neighbours is of the class and the
    pixel is not, or the pixel is and the neighbour is not; both must be valid. With b_p and b_t the borders of a class
    in prediction and target, and D(·) their dilation by a disk of ``radius`` pixels,

        precision P = |b_p ∩ D(b_t)| / |b_p|      recall R = |b_t ∩ D(b_p)| / |b_t|      F1 = 2 P R / (P + R)

    of pixels counted over the whole batch. A class occurs if |b_p| + |b_t| > 0; if one of the two is 0, so are its
    scores.

    Args:
        pred: as :func:`boundary_iou` takes it.
        target: labels [B, H, W].
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels.
        radius: of the disk, in pixels, ≥ 1.
        average: ``"macro"`` or ``"none"``.
        score: ``"f1"``, ``"precision"`` or ``"recall"``; the mean F1 is a mean of F1s.
        class_agnostic: take all borders as one, whatever classes they part; there is a single score then.
        per_image: score every image by itself and take the mean over the images, for each class, as the scripts of
            DAVIS and of GSCNN do. P and R of nothing are 1 there, and so is F1 of a class that is absent from
            prediction and target: every class occurs, and rare ones look good.
        validate: whether to look for labels out of range; None looks on any device but CUDA.

    Returns:
        0-d float in [0, 1], nan if no class occurs; or [C], nan for those that do not.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device, option or label that does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import boundary_f1
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> boundary_f1(pred, target, 2)  # a border one pixel off
        tensor(1.)
        >>> boundary_f1(pred.roll(1, -1), target, 2, radius=2, score="precision")  # two off, and one more at the left
        tensor(0.5000)
    """
    check_options(
        num_classes,
        ignore_index,
        average,
        validate,
        radius=radius,
        score=score,
        class_agnostic=class_agnostic,
        per_image=per_image,
    )
    y = label_maps(pred, target, num_classes, ignore_index, validate)
    counts = boundary_f1_counts(y, num_classes, radius, class_agnostic=class_agnostic, per_image=per_image)
    return f1(counts, score, average, ignore_index, per_image=per_image)


# ------------------------------------------------------------------------------------------------------ what goes in


def check_options(
    num_classes: int,
    ignore_index: int,
    average: Average,
    validate: bool | None,
    *,
    ratio: float = 1.0,
    radius: int = 1,
    score: Score = "f1",
    class_agnostic: bool = False,
    per_image: bool = False,
) -> None:
    """Check what does not depend on the label maps.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value out of its range.
    """
    least = {"num_classes": (num_classes, 2), "ignore_index": (ignore_index, -math.inf), "radius": (radius, 1)}
    for name, (number, bound) in least.items():
        if not isinstance(number, Integral) or isinstance(number, bool):
            raise TypeError(f"{name}: expected an int, but got {number!r}")
        if number < bound:
            raise ValueError(f"{name}: expected an int ≥ {bound}, but got {number!r}")
    if not isinstance(ratio, Real) or isinstance(ratio, bool) or not 0 < ratio < math.inf:
        raise ValueError(f"ratio: expected a finite number > 0, but got {ratio!r}")
    for name, word in {"average": average, "score": score}.items():
        if word not in _CHOICES[name]:
            raise ValueError(f"{name}: expected one of {_CHOICES[name]}, but got {word!r}")
    for name, flag in {"class_agnostic": class_agnostic, "per_image": per_image, "validate": validate}.items():
        if not isinstance(flag, bool) and (name, flag) != ("validate", None):
            raise TypeError(f"{name}: expected a bool{' or None' * (name == 'validate')}, but got {flag!r}")


def label_maps(pred: Tensor, target: Tensor, num_classes: int, ignore_index: int, validate: bool | None) -> Tensor:
    """Prediction and target as labels [2, B, H, W], -1 on void pixels in both.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device or label that does not fit.
    """
    inputs.check_target(target)
    if target.dim() != 3:
        raise ValueError(
            f"target: expected labels [B, H, W] of 2-D images, but got {inputs.describe(target)};"
            " pass a single image as target.unsqueeze(0), labels with a channel as target.squeeze(1)"
        )
    if isinstance(pred, Tensor) and pred.is_floating_point():
        channels = (1, 2) if num_classes == 2 else (num_classes,)
        if pred.dim() != 4 or pred.shape[1] not in channels:
            raise ValueError(
                f"pred: expected logits [B, {' or '.join(map(str, channels))}, H, W] for num_classes={num_classes},"
                f" but got {inputs.describe(pred)}; pass labels stored as floats as pred.long()"
            )
        pred = pred[:, 0] > 0 if pred.shape[1] == 1 else pred.argmax(1)
    else:
        inputs.check_target(pred, name="pred")
    if pred.shape != target.shape:
        raise ValueError(
            f"pred: expected images {list(target.shape)}, as the target, but got {list(pred.shape)};"
            " bring logits of lower resolution to the target's by F.interpolate"
        )
    if pred.device != target.device:
        raise ValueError(f"pred: expected device {target.device}, as the target, but got {pred.device}")

    predicted = pred.long()
    y, valid = reference.labels(target, num_classes, ignore_index)
    if validate or (validate is None and inputs.may_read(target, "async")):
        inputs.check_labels(y, num_classes, ignore_index)
        inputs.check_labels(predicted.masked_fill(~valid, 0), num_classes, name="pred")
    valid &= (predicted >= 0) & (predicted < num_classes)
    dtype = torch.int16 if num_classes < 2**15 else torch.int32  # the narrower, the faster to go over
    return torch.stack([predicted.to(dtype), y.to(dtype)]).masked_fill_(~valid, -1)


# ------------------------------------------------------------------------------------ bands: Boundary IoU, trimap IoU


def boundary_iou_counts(y: Tensor, num_classes: int, ratio: float) -> Tensor:
    """Pixels in both bands, and in either, of every class: [2, C] int64."""
    distance = max(1, round(ratio * math.hypot(*y.shape[-2:])))
    # Beyond the image comes a label of its own, which every label differs from.
    return _overlap(y, _near_another_label(y, num_classes, distance, _square_max, outside=num_classes), num_classes)


def trimap_iou_counts(y: Tensor, num_classes: int, radius: int) -> Tensor:
    """Pixels near a border of the target that have the class in both maps, and in either: [2, C] int64."""
    return _overlap(y, _near_another_label(y[1], num_classes, radius, _disk_max, outside=-1), num_classes)


def _near_another_label(
    y: Tensor, num_classes: int, reach: int, window_max: Callable[[Tensor, int], Tensor], *, outside: int
) -> Tensor:
    """The pixels whose window holds another label than theirs: its largest label is not its smallest.

    One pair of pooled maps serves all classes, since each pixel is of one. The smallest label is found as the largest
    of the labels counted from the other end, so that -1 means nothing in either.
    """
    void = y < 0
    both_ends = torch.stack([y, num_classes - 1 - y]).masked_fill_(void, -1)
    largest, smallest = window_max(F.pad(both_ends, [reach] * 4, value=outside), reach).unbind()
    return (largest != num_classes - 1 - smallest) & ~void


def _square_max(x: Tensor, reach: int) -> Tensor:
    """The largest of the pixels at most so many rows and columns off, of maps padded by as much."""
    return _sliding_max(_sliding_max(x, 2 * reach + 1, dim=-1), 2 * reach + 1, dim=-2)


def _disk_max(x: Tensor, radius: int) -> Tensor:
    """The largest of the pixels within the radius, of maps padded by as much: two rows of the disk at a time."""
    height, width = x.shape[-2] - 2 * radius, x.shape[-1] - 2 * radius
    largest = x.narrow(-1, radius, width).narrow(-2, radius, height)
    for dy in range(radius + 1):
        half = math.isqrt(radius**2 - dy**2)
        rows = x.narrow(-1, radius - half, width + 2 * half)
        pair = torch.maximum(rows.narrow(-2, radius - dy, height), rows.narrow(-2, radius + dy, height))
        largest = torch.maximum(largest, _sliding_max(pair, 2 * half + 1, dim=-1))
    return largest


def _sliding_max(x: Tensor, size: int, *, dim: int) -> Tensor:
    """The maximum over each window that fits in: over two windows that make it up, and so on, in log2(size) steps."""
    done = 1
    while done < size:
        step = min(done, size - done)
        left = x.shape[dim] - step
        x = torch.maximum(x.narrow(dim, 0, left), x.narrow(dim, step, left))
        done += step
    return x


def _overlap(y: Tensor, band: Tensor, num_classes: int) -> Tensor:
    """Intersection and union of the two maps [2, B, H, W] on the band, one or one a map: [2, C]."""
    pred, target = y.masked_fill(~band, -1)
    shared = pred.masked_fill(pred != target, -1)
    both, predicted, there = (_count(labels, num_classes) for labels in (shared, pred, target))
    return torch.stack([both, predicted + there - both])


def _count(labels: Tensor, bins: int) -> Tensor:
    """How often each label from 0 to bins - 1 is there, -1 left out: [bins] int64."""
    index = labels.flatten().long() + 1
    counts = torch.zeros(bins + 1, dtype=torch.int64, device=labels.device)
    # Not bincount, which waits for the device to find the largest label.
    return counts.scatter_add_(0, index, counts.new_ones(()).expand_as(index))[1:]


def iou(counts: Tensor, average: Average, ignore_index: int) -> Tensor:
    """The IoU of counts [2, C]; 0 / 0 is the nan of a class that does not occur."""
    intersection, union = counts
    return _averaged(intersection / union, average, ignore_index)


def _averaged(score: Tensor, average: Average, ignore_index: int) -> Tensor:
    """The mean of scores [C] over the classes that occur, or the scores; a single one as it is."""
    if len(score) == 1:
        return score[0]
    if 0 <= ignore_index < len(score):
        score[ignore_index] = math.nan
    return score.nanmean() if average == "macro" else score


# ------------------------------------------------------------------------------------------------- borders: Boundary F1


def boundary_f1_counts(y: Tensor, num_classes: int, radius: int, *, class_agnostic: bool, per_image: bool) -> Tensor:
    """What the scores are made of, for each class, to be added up over batches: [4, C] int64.

    The rows are |b_p ∩ D(b_t)|, |b_p|, |b_t ∩ D(b_p)| and |b_t|; with ``per_image`` the sums over the images of F1,
    precision and recall, and the number of images, all four times ``_ONE``.
    """
    counts = _border_counts(y, num_classes, radius, class_agnostic=class_agnostic)
    if not per_image:
        return counts.sum(0)
    sums = (_scores(counts, of_nothing=1.0) * _ONE).round().long().sum(0)
    return torch.cat([sums, torch.full_like(sums[:1], len(counts) * _ONE)])


def _border_counts(y: Tensor, num_classes: int, radius: int, *, class_agnostic: bool) -> Tensor:
    """|b_p ∩ D(b_t)|, |b_p|, |b_t ∩ D(b_p)| and |b_t| for every image and class: [B, 4, C].

    Work follows the number of border pixels. What a dilated border covers is looked up where the other border is: a
    map of words has a bit for each class on whose border a pixel is, and the words within the disk are joined.
    """
    _, batch, height, width = y.shape
    # Of the padded maps, in which a shift by the radius leads neither out nor into another image.
    row = width + 2 * radius
    area = row * (height + 2 * radius)
    disk = [
        dy * row + dx
        for dy in range(-radius, radius + 1)
        for dx in range(-radius, radius + 1)
        if dx**2 + dy**2 <= radius**2
    ]
    maps = F.pad(y, [radius] * 4, value=-1).flatten(1)
    borders = [_border(labels, row) for labels in maps]
    if class_agnostic:
        num_classes = 1
        borders = [(pixel, torch.zeros_like(label[:1])) for pixel, label in borders]

    near = [torch.zeros_like(label, dtype=torch.bool) for _, label in borders]
    for first in range(0, num_classes, _WORD):
        bits = [
            torch.where((label >= first) & (label < first + _WORD), 1 << (label - first).clamp(0, _WORD - 1), 0)
            for _, label in borders
        ]
        words = [
            torch.zeros(maps.shape[1], dtype=torch.int64, device=y.device).scatter_(0, pixel, bit.sum(0))
            for (pixel, _), bit in zip(borders, bits, strict=True)
        ]
        for (pixel, _), bit, other, found in zip(borders, bits, reversed(words), near, strict=True):
            covered = torch.zeros_like(pixel)
            for shift in disk:
                covered |= other[pixel + shift]
            found |= (bit & covered) != 0

    counts = []
    for (pixel, label), found in zip(borders, near, strict=True):
        index = (label + pixel // area * num_classes).masked_fill(label < 0, -1)
        counts += [_count(index.masked_fill(~found, -1), batch * num_classes), _count(index, batch * num_classes)]
    return torch.stack(counts).view(4, batch, num_classes).transpose(0, 1)


def _border(labels: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """The border pixels of all classes in flattened, padded maps [N], and on which classes' borders they are.

    Returns:
        Their positions [P], and the labels [4, P]: theirs and those of their right, lower and lower right neighbours,
        each once, else -1.
    """
    shifts = (0, 1, row, row + 1)
    here, *neighbours = (labels[shift : len(labels) - shifts[-1] + shift] for shift in shifts)
    differs = torch.zeros_like(here, dtype=torch.bool)
    for there in neighbours:
        differs |= (there != here) & (there >= 0)
    pixel = (differs & (here >= 0)).nonzero().squeeze(1)
    label = torch.stack([labels[pixel + shift] for shift in shifts]).long()
    for k in range(1, len(shifts)):
        label[k].masked_fill_((label[k] == label[:k]).any(0), -1)
    return pixel, label


def _scores(counts: Tensor, *, of_nothing: float) -> Tensor:
    """F1, precision and recall [..., 3, C] of counts [..., 4, C]."""
    predicted_near, predicted, there_near, there = counts.unbind(-2)
    precision = (predicted_near / predicted).nan_to_num(of_nothing)
    recall = (there_near / there).nan_to_num(of_nothing)
    harmonic = (2 * precision * recall / (precision + recall)).nan_to_num(0.0)
    return torch.stack([harmonic, precision, recall], -2)


def f1(counts: Tensor, score: Score, average: Average, ignore_index: int, *, per_image: bool) -> Tensor:
    """One of the scores of counts [4, C]."""
    if per_image:
        scores = counts[:3] / counts[3]
    else:
        occurs = (counts[1] + counts[3]) > 0
        scores = _scores(counts, of_nothing=0.0).where(occurs, math.nan)
    return _averaged(scores[_CHOICES["score"].index(score)], average, ignore_index)
