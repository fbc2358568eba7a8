"""Boundary metrics of one batch.

A function and its torchmetrics class share a :class:`~edgeloss.metrics.measure.Measure`: it checks the arguments,
counts, and scores.
"""

from __future__ import annotations

from torch import Tensor

from edgeloss.metrics.counts import BOUNDARY_F1, BOUNDARY_IOU, TRIMAP_IOU
from edgeloss.metrics.measure import Average, Convention, Empty, Labels, Measure, Reduction, Score, Spacing
from edgeloss.metrics.surfaces import AVERAGE_DISTANCE, HAUSDORFF, SURFACE_DICE


def boundary_iou(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: Labels = -100,
    include_background: bool = True,
    multilabel: bool = False,
    ratio: float = 0.02,
    spacing: Spacing = None,
    across_void: int = 0,
    average: Average | None = "macro",
    reduction: Reduction = "set",
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
        target: labels [B, *S] on the same device, of any integer dtype or bool. An axis of length 1 after B is removed
            from labels.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ignore_index: the label of void pixels, or several; None for none. Pixels of a class 0 to C - 1 among them are
            void too, so that the borders of the class are not scored; a warning says so.
        include_background: False leaves class 0 out of the average, and gives it nan with ``average="none"``. Its
            borders with other classes are still theirs.
        multilabel: score classes that may overlap, each by itself: its score is that of label 1 in maps of two classes.
            ``target`` holds labels 0 and 1 of each class, [B, C, *S]; ``pred`` too, or logits, label 1 where they are
            > 0; pass probabilities as ``probabilities > 0.5``.
        ratio: width of the band relative to the image diagonal, > 0.
        spacing: size of a pixel, > 0, or one per axis; None for 1. Diagonal and d are measured in it; d is at least one
            pixel along every axis.
        across_void: continue the labels of both maps across void of at most so many pixels, each pixel with the label
            of the nearest valid one, so that a border in the middle of a void rim counts; 0 for not.
        average: ``"macro"`` for the mean over the classes that occur, ``"weighted"`` for that with the pixels of the
            target in each band as weights, ``"micro"`` for a score of the counts of all classes, ``"none"`` or None for
            one value per class.
        reduction: ``"set"`` adds up the counts of all images, ``"images"`` averages the scores of images, per class
            over those in which it occurs; ``"none"`` returns a score per image.
        validate: whether to check the values of labels and logits, which synchronizes with the device; None checks on
            all devices but CUDA. Unchecked out-of-range labels count as void.

    Returns:
        0-d float in [0, 1], nan if no class occurs. With ``average="none"`` [C], nan for classes that do not occur.
        With ``reduction="none"`` [B] or [B, C].

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import boundary_iou
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> boundary_iou(pred, target, 2, average="none")  # 10 of 12 + 14 - 10 pixels, and 8 of 12 + 10 - 8
        tensor([0.6250, 0.5714])
    """
    shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
    return Measure(BOUNDARY_IOU, {"ratio": ratio, "spacing": spacing}, *shared).evaluate(pred, target)


def trimap_iou(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: Labels = -100,
    include_background: bool = True,
    multilabel: bool = False,
    radius: float = 1,
    spacing: Spacing = None,
    across_void: int = 0,
    average: Average | None = "macro",
    reduction: Reduction = "set",
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
        ignore_index: the label of void pixels, or several, as in :func:`boundary_iou`.
        include_background: False leaves class 0 out, as in :func:`boundary_iou`.
        multilabel: score classes that may overlap, as in :func:`boundary_iou`.
        radius: Euclidean distance in pixels, an int ≥ 1, or any number > 0 of units of ``spacing``. A pixel next to a
            border has distance 1.
        spacing: size of a pixel, > 0, or one per axis; None for 1.
        across_void: the widest void to continue labels across, as in :func:`boundary_iou`.
        average: as in :func:`boundary_iou`.
        reduction: as in :func:`boundary_iou`.
        validate: whether to check values; None checks on all devices but CUDA.

    Returns:
        0-d float in [0, 1], nan if no class occurs. With ``average="none"`` [C], nan for classes that do not occur.
        With ``reduction="none"`` [B] or [B, C].

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import trimap_iou
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> trimap_iou(pred, target, 2, average="none")  # columns 3 and 4 count; column 4 is wrong
        tensor([0.5000, 0.0000])
    """
    shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
    return Measure(TRIMAP_IOU, {"radius": radius, "spacing": spacing}, *shared).evaluate(pred, target)


def boundary_f1(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: Labels = -100,
    include_background: bool = True,
    multilabel: bool = False,
    radius: float = 1,
    spacing: Spacing = None,
    across_void: int = 0,
    average: Average | None = "macro",
    reduction: Reduction = "set",
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
        ignore_index: the label of void pixels, or several, as in :func:`boundary_iou`.
        include_background: False leaves class 0 out, as in :func:`boundary_iou`.
        multilabel: score classes that may overlap, as in :func:`boundary_iou`.
        radius: radius of the disk or ball in pixels, an int ≥ 1, or any number > 0 of units of ``spacing``.
        spacing: size of a pixel, > 0, or one per axis; None for 1.
        across_void: the widest void to continue labels across, as in :func:`boundary_iou`.
        average: as in :func:`boundary_iou`; the weights are the border pixels of the target. The macro F1 is the mean
            of the F1 scores.
        reduction: as in :func:`boundary_iou`.
        score: ``"f1"``, ``"precision"`` or ``"recall"``.
        class_agnostic: merge the borders of all classes into one, for a single score; not with ``multilabel``.
        per_image: average over the images as the DAVIS and GSCNN scripts do: as ``reduction="images"``, but P and R
            with denominator 0 are 1, and so is F1 of a class absent from an image: all classes occur.
        validate: whether to check values; None checks on all devices but CUDA.

    Returns:
        0-d float in [0, 1], nan if no class occurs. With ``average="none"`` [C], nan for classes that do not occur.
        With ``reduction="none"`` [B] or [B, C].

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option, label or logit.

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
    reduction = "images" if per_image is True and reduction == "set" else reduction
    counted = {"radius": radius, "spacing": spacing, "class_agnostic": class_agnostic}
    shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
    scored = {"score": score, "per_image": per_image}
    return Measure(BOUNDARY_F1, counted, *shared, scored).evaluate(pred, target)


def hausdorff_distance(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: Labels = -100,
    include_background: bool = True,
    multilabel: bool = False,
    percentile: float = 95,
    convention: Convention = "surface-distance",
    empty: Empty = "nan",
    spacing: Spacing = None,
    across_void: int = 0,
    average: Average | None = "macro",
    reduction: Reduction = "images",
    validate: bool | None = None,
) -> Tensor:
    """Compute the Hausdorff distance of each class, or a percentile of distances between surfaces such as HD95.

    The surface of a class consists of elements, each with an area. The distance of an element is that to the nearest
    element of the class's surface in the other map, Euclidean and exact. The percentile is taken over the elements of
    either map, and the larger of the two is the score. Tools disagree about the rest; ``convention`` chooses:

    * ``"surface-distance"``: elements are the corners between pixels around which some pixels are of the class and
      others are not. The area of an element is the length of the contour, or the area of the surface, that marching
      squares or cubes draw there. The percentile is the least distance within which that share of the area is.
    * ``"monai"``: elements are the pixels of the class with a pixel of another one next to them along an axis. All
      have the same area. Percentiles are linear between the distances.
    * ``"medpy"``: the same elements; the percentile is that of the distances of both maps together.

    In all of them the outside of the image is of no class, and there is no surface next to void: a corner with a void
    pixel is no element, and a void neighbor is no other class. Distances are straight, also across void.

    Args:
        pred: labels or logits as in :func:`boundary_iou`.
        target: labels as in :func:`boundary_iou`.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ignore_index: the label of void pixels, or several, as in :func:`boundary_iou`.
        include_background: False leaves class 0 out, as in :func:`boundary_iou`.
        multilabel: score classes that may overlap, as in :func:`boundary_iou`.
        percentile: in [0, 100]; 100 for the largest distance.
        convention: the tool whose convention to follow.
        empty: the distance of a class that an image has in one map only: ``"nan"`` leaves the class out for this image,
            ``"diagonal"`` gives it the length of the image diagonal. A class in neither map is always left out.
        spacing: size of a pixel, > 0, or one per axis; None for 1. Distances have its unit.
        across_void: the widest void to continue labels across, as in :func:`boundary_iou`.
        average: as in :func:`boundary_iou`, but not ``"micro"``; the weights are areas of the target's surface.
        reduction: ``"images"`` or ``"none"``, as in :func:`boundary_iou`.
        validate: whether to check values; None checks on all devices but CUDA.

    Returns:
        0-d float ≥ 0, nan if no class has a distance. With ``average="none"`` [C]. With ``reduction="none"`` [B] or
        [B, C].

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import hausdorff_distance
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 0, 1, 1]] * 4])
        >>> hausdorff_distance(pred, target, 2, percentile=100)
        tensor(2.)
    """
    counted = {"percentile": percentile, "convention": convention, "empty": empty, "spacing": spacing}
    shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
    return Measure(HAUSDORFF, counted, *shared).evaluate(pred, target)


def average_surface_distance(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: Labels = -100,
    include_background: bool = True,
    multilabel: bool = False,
    symmetric: bool = True,
    convention: Convention = "surface-distance",
    empty: Empty = "nan",
    spacing: Spacing = None,
    across_void: int = 0,
    average: Average | None = "macro",
    reduction: Reduction = "images",
    validate: bool | None = None,
) -> Tensor:
    """Compute the average distance between the surfaces of each class.

    Surfaces, distances and areas are those of :func:`hausdorff_distance`. The average is weighted by area, and taken
    over the elements of both maps.

    Args:
        pred: labels or logits as in :func:`boundary_iou`.
        target: labels as in :func:`boundary_iou`.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ignore_index: the label of void pixels, or several, as in :func:`boundary_iou`.
        include_background: False leaves class 0 out, as in :func:`boundary_iou`.
        multilabel: score classes that may overlap, as in :func:`boundary_iou`.
        symmetric: False averages over the surface of the prediction alone.
        convention: as in :func:`hausdorff_distance`.
        empty: as in :func:`hausdorff_distance`.
        spacing: size of a pixel, > 0, or one per axis; None for 1. Distances have its unit.
        across_void: the widest void to continue labels across, as in :func:`boundary_iou`.
        average: as in :func:`boundary_iou`; the weights are areas of the target's surface.
        reduction: as in :func:`boundary_iou`; ``"set"`` averages over the surfaces of all images.
        validate: whether to check values; None checks on all devices but CUDA.

    Returns:
        0-d float ≥ 0, nan if no class has a distance. With ``average="none"`` [C]. With ``reduction="none"`` [B] or
        [B, C].

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import average_surface_distance
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 0, 1, 1]] * 4])
        >>> average_surface_distance(pred, target, 2, convention="monai", spacing=0.5)
        tensor(0.2571)
    """
    counted = {"convention": convention, "empty": empty, "spacing": spacing}
    shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
    scored = {"symmetric": symmetric}
    return Measure(AVERAGE_DISTANCE, counted, *shared, scored).evaluate(pred, target)


def surface_dice(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    ignore_index: Labels = -100,
    include_background: bool = True,
    multilabel: bool = False,
    tolerance: float = 1,
    convention: Convention = "surface-distance",
    spacing: Spacing = None,
    across_void: int = 0,
    average: Average | None = "macro",
    reduction: Reduction = "images",
    validate: bool | None = None,
) -> Tensor:
    """Compute surface Dice (NSD): the share of both surfaces of a class that is within a tolerance of the other one.

    Surfaces, distances and areas are those of :func:`hausdorff_distance`; shares are those of the area. A class in one
    map only scores 0.

    Source: Nikolov et al., "Clinically Applicable Segmentation of Head and Neck Anatomy for Radiotherapy", 2021.

    Args:
        pred: labels or logits as in :func:`boundary_iou`.
        target: labels as in :func:`boundary_iou`.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ignore_index: the label of void pixels, or several, as in :func:`boundary_iou`.
        include_background: False leaves class 0 out, as in :func:`boundary_iou`.
        multilabel: score classes that may overlap, as in :func:`boundary_iou`.
        tolerance: the largest distance that counts as near, ≥ 0, in pixels or units of ``spacing``.
        convention: as in :func:`hausdorff_distance`.
        spacing: size of a pixel, > 0, or one per axis; None for 1.
        across_void: the widest void to continue labels across, as in :func:`boundary_iou`.
        average: as in :func:`boundary_iou`; the weights are areas of the target's surface.
        reduction: as in :func:`boundary_iou`.
        validate: whether to check values; None checks on all devices but CUDA.

    Returns:
        0-d float in [0, 1], nan if no class occurs. With ``average="none"`` [C]. With ``reduction="none"`` [B] or
        [B, C].

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid shape, device, option, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import surface_dice
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 0, 1, 1]] * 4])
        >>> surface_dice(pred, target, 2, tolerance=2)
        tensor(1.)
    """
    counted = {"tolerance": tolerance, "convention": convention, "spacing": spacing}
    shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
    return Measure(SURFACE_DICE, counted, *shared).evaluate(pred, target)
