"""Labels and predicted labels → the scores of an image, its mistakes and its worst places."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from edgeloss._checks.options import TERMS
from edgeloss.metrics.counts import boundary_f1_counts, score_f1
from edgeloss.metrics.measure import LabelMaps

_Array = npt.NDArray[Any]
BORDER_RADIUS = 1  # pixels, the tolerance of boundary F1
STRAY_RADIUS = 3  # pixels around a class, beyond which its predictions are stray
_PLACES = 4  # the worst ones
_AROUND = 4  # a place is shown in a square of so many times its side, so that it is recognized
_MISTAKES = 6  # the most frequent ones
_PART = 2**20  # labels that are counted together: np.bincount copies them


class Figure(NamedTuple):
    """What is known of a figure of an image without its value.

    Attributes:
        name: to be shown.
        form: the format of its value, and its unit.
        is_score: the lowest is the worst, and nan means that it has no value.
        about: what it is, in one line.
        is_state: it is neither better nor worse where it is higher.
    """

    name: str
    form: str
    is_score: bool
    about: str
    is_state: bool = False


F1_ABOUT = "harmonic mean of precision and recall of borders matched within {}\N{NO-BREAK SPACE}px, mean of the classes"
_LOSS, _NATS = ".3f", ".3f nats"
# By key, what counts first: the first HEADLINES of them are shown large.
FIGURES = {
    "boundary_f1_1px": Figure(f"boundary F1 ({BORDER_RADIUS} px)", ".1%", True, F1_ABOUT.format(BORDER_RADIUS)),
    "mean_iou": Figure("mean IoU", ".1%", True, "overlap of predicted and true areas, mean of the classes"),
    "pixel_accuracy": Figure("pixel accuracy", ".1%", True, "share of the labeled pixels that are right"),
    "edge": Figure("edge loss", _NATS, False, "how wrong the pixels along edges and their neighbors are"),
    "loss": Figure("loss", _LOSS, False, "what training minimizes: all terms times their weights"),
    **{term.name: Figure(term.title, _NATS if term.has_map else _LOSS, False, term.about) for term in TERMS},
    "edge_focused": Figure("focused edges", _LOSS, False, "what the loss counts of the edge loss, after the focus"),
    "edge_focus": Figure(
        "edge focus", ".1%", False, "weight of the edge terms: 100 % at first, less as edges are learned", is_state=True
    ),
    "edge_fraction": Figure(
        "edge pixels", ".1%", False, "share of the labeled pixels that have another label next to them", is_state=True
    ),
}
HEADLINES = 4
ABOUT_STRAY = (
    f"wrong pixels more than {STRAY_RADIUS}\N{NO-BREAK SPACE}px from the nearest true pixel of the predicted class"
)


class Scores(NamedTuple):
    """Counts of a prediction, which are added over images, and the scores that follow from them.

    Attributes:
        counts: [8, C], per class: valid pixels, valid pixels predicted as it, those of them that are right, those of
            them that are stray, and border pixels as :func:`edgeloss.metrics.counts.boundary_f1_counts` returns them.
    """

    counts: _Array

    @property
    def pixels(self) -> _Array:
        """The number of valid pixels of each class."""
        return np.asarray(self.counts[0])

    @property
    def wrong(self) -> int:
        """The number of valid pixels predicted as another class."""
        return int(self.counts[0].sum() - self.counts[2].sum())

    @property
    def occurs(self) -> npt.NDArray[np.bool_]:
        """Whether each class occurs among labels or predictions."""
        return np.asarray((self.counts[:2] > 0).any(0))

    @property
    def iou(self) -> _Array:
        """IoU of each class, nan for one that does not occur."""
        pixels, predicted, correct = self.counts[:3]
        with np.errstate(invalid="ignore"):
            return np.asarray(correct / (pixels + predicted - correct))

    @property
    def stray(self) -> _Array:
        """The number of stray pixels of each predicted class, farther than ``STRAY_RADIUS`` from any pixel of it."""
        return np.asarray(self.counts[3])

    @property
    def boundary_f1(self) -> _Array:
        """Boundary F1 of each class within ``BORDER_RADIUS`` pixels, nan for a class without a border."""
        return np.asarray(score_f1(torch.from_numpy(self.counts[4:])))

    @property
    def means(self) -> dict[str, float]:
        """Mean IoU and mean boundary F1 over the classes that occur, and the share of valid pixels that are right."""
        total = int(self.pixels.sum())
        return {
            "mean_iou": mean_of_present(self.iou),
            "boundary_f1_1px": mean_of_present(self.boundary_f1),
            "pixel_accuracy": float(self.counts[2].sum() / total) if total else math.nan,
        }

    def plus(self, other: Scores) -> Scores:
        """Return the counts over both; one of them may know fewer classes."""
        total = np.zeros(np.maximum(self.counts.shape, other.counts.shape), np.int64)
        for counts in (self.counts, other.counts):
            total[:, : counts.shape[1]] += counts
        return Scores(total)


def compute_scores(target: _Array, prediction: _Array, classes: int) -> Scores:
    """Compute the scores of predicted labels.

    Args:
        target: [B, H, W] labels, -1 at ignored pixels.
        prediction: [B, H, W] labels, -1 where a logit is nan, which counts as wrong.
        classes: C ≥ 2, the number of classes.

    Returns:
        The scores.

    Example:
        >>> target = np.array([[[0, 0, 1, -1]]])
        >>> compute_scores(target, np.array([[[0, 1, 1, 0]]]), classes=2).iou.tolist()
        [0.5, 0.5]
    """
    void = target < 0
    labels = np.empty((2, *target.shape), np.int16 if classes < 2**15 else np.int32)  # narrow ones are faster
    labels[:] = prediction, target
    found, truth = labels
    found[void] = -1
    counts = [sum_by_class(values, classes) for values in (truth, found, np.where(truth == found, truth, -1))]
    counts.append(sum_by_class(stray_labels(truth, found), classes))
    failed = (found < 0) & ~void
    found[failed] = (truth[failed] + 1) % classes
    borders = boundary_f1_counts(LabelMaps(torch.from_numpy(labels), classes), BORDER_RADIUS).sum(0)
    return Scores(np.stack([*counts, *borders.numpy()]))


def stray_labels(truth: _Array, found: _Array) -> _Array:
    """Return the predicted labels, [n], of the pixels that are farther than ``STRAY_RADIUS`` from any pixel of these.

    Both arguments are labels [B, H, W], -1 where nothing counts.
    """
    radius = STRAY_RADIUS
    at, y, x = np.nonzero((truth != found) & (found >= 0))
    labels, around = found[at, y, x], np.pad(truth, ((0, 0), (radius, radius), (radius, radius)), constant_values=-1)
    is_stray = np.ones(len(labels), bool)
    for down, right in np.argwhere(np.hypot(*np.mgrid[-radius : radius + 1, -radius : radius + 1]) <= radius):
        is_stray &= around[at, y + down, x + right] != labels
    return np.asarray(labels[is_stray])


def sum_by_class(labels: _Array, classes: int, values: _Array | None = None) -> _Array:
    """Return the number of labels of each class, or the sums of their values, [C]; label -1 is of none.

    Example:
        >>> sum_by_class(np.array([0, 1, 1, -1]), 3, np.array([1.0, 2.0, 4.0, 8.0])).tolist()
        [1.0, 6.0, 0.0]
    """
    labels, total = labels.ravel(), np.zeros(classes + 1, np.int64 if values is None else np.float64)
    for at in range(0, labels.size, _PART):
        part = slice(at, at + _PART)
        total += np.bincount(labels[part] + 1, None if values is None else values.ravel()[part], classes + 1)
    return total[1:]


def mean_of_present(values: Any) -> float:  # noqa: ANN401
    """Return the mean without nan, the score of a class that does not occur; nan if there is no other value."""
    present = [float(value) for value in values if not math.isnan(value)]
    return sum(present) / len(present) if present else math.nan


def shown(value: float, form: str) -> str:
    r"""Return a number as text: in a format, which a unit may follow; a space that does not break precedes units.

    Example:
        >>> shown(0.96, ".1%"), shown(1.2714, ".3f nats"), shown(math.inf, ".3f nats")
        ('96.0\xa0%', '1.271\xa0nats', 'inf')
    """
    form, _, unit = form.partition(" ")
    text = format(value, form)
    if not math.isfinite(value):
        return text.rstrip("%")
    return f"{text}\xa0{unit}" if unit else text.replace("%", "\xa0%")


def shown_score(value: float, form: str) -> str:
    """Return a score as text, a dash for nan, which means that it has no value."""
    return "–" if math.isnan(value) else shown(value, form)


def shown_figures(figures: Mapping[str, float]) -> dict[str, str]:
    """Return figures of an image as they are shown, by their names, in the order of ``FIGURES``.

    A score of nan has no value, but a loss is not finite.
    """
    return {
        one.name: (shown_score if one.is_score else shown)(figures[key], one.form)
        for key, one in FIGURES.items()
        if key in figures
    }


def shown_change(before: float, after: float, form: str, *, is_score: bool) -> dict[str, str]:
    """Return how much larger a figure is, scores in points, and whether that is better; a dash if one has no value.

    It is the difference of the two figures as they are shown, which a reader can check.

    Example:
        >>> shown_change(0.6214, 0.6766, ".1%", is_score=True)  # 62.1 % and 67.7 %, while 5.52 points are between them
        {'text': '+5.6', 'tone': 'better'}
    """
    if not math.isfinite(after - before):
        return {"text": "–", "tone": ""}
    scale, digits = (100, 1) if form.endswith("%") else (1, 3)
    change = round(round(scale * after, digits) - round(scale * before, digits), digits)
    text = f"{change:+.{digits}f}"
    tone = "" if not change else "better" if (change > 0) == is_score else "worse"
    return {"text": text.replace("-", "−"), "tone": tone}


def shown_growth(before: int, after: int) -> dict[str, str]:
    r"""Return how much larger a number of wrong pixels is, in percent if it is not 0, and whether that is better.

    Example:
        >>> shown_growth(200, 150), shown_growth(0, 3)
        ({'text': '−25.0\xa0%', 'tone': 'better'}, {'text': '+3', 'tone': 'worse'})
    """
    text = shown(after / before - 1, "+.1%") if before else f"{after - before:+d}"
    return {"text": text.replace("-", "−"), "tone": "worse" if after > before else "better" if after < before else ""}


def shown_changes(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, dict[str, str]]:
    """Return how figures of an image change, by their names."""
    changes = {}
    for key, value in after.items():
        one = FIGURES[key]
        change = shown_change(before[key], value, one.form, is_score=one.is_score)
        changes[one.name] = change | {"tone": ""} if one.is_state else change
    return changes


def about_figures(classes: int) -> dict[str, str]:
    """Return what figures are, by their names; of the edge loss also its value where no class is more probable.

    Example:
        >>> about_figures(3)["edge loss"].rpartition("; ")[2]
        '1.504 if all classes are equally probable'
    """
    abouts = {one.name: one.about for one in FIGURES.values()}
    if classes > 1:
        even = math.log(classes) - math.log1p(-1 / classes)  # same side + other side of every edge pixel
        abouts[FIGURES["edge"].name] += f", with class weights; {even:.3f} if all classes are equally probable"
    return abouts


# ----------------------------------------------------------------------------------------------------- where it fails


def weakest_class(scores: Mapping[str, float], name: str) -> str:
    r"""Return which class has the lowest score of that name; nothing of fewer than two that have one.

    Example:
        >>> weakest_class({"road": 0.96, "car": 0.5, "bus": math.nan}, "IoU")
        'The weakest class is car, with IoU of 50.0\xa0%.'
    """
    present = {one: score for one, score in scores.items() if not math.isnan(score)}
    if len(present) < 2:
        return ""
    weakest = min(present, key=lambda one: present[one])
    return f"The weakest class is {weakest}, with {name} of {shown(present[weakest], '.1%')}."


def mistakes(target: _Array, prediction: _Array) -> list[list[int]]:
    """Return [true class, predicted class, wrong pixels] of the most frequent mistakes, from labels [H, W].

    Example:
        >>> mistakes(np.array([[0, 0, 1, -1]]), np.array([[1, 1, -1, 0]]))
        [[0, 1, 2], [1, -1, 1]]
    """
    wrong = (target != prediction) & (target >= 0)
    pairs, counts = np.unique(target[wrong].astype(np.int64) * 2**32 + prediction[wrong] + 1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MISTAKES]
    return [[int(pairs[k] >> 32), int(pairs[k] & (2**32 - 1)) - 1, int(counts[k])] for k in order]


def worst_places(losses: _Array, target: _Array, prediction: _Array) -> list[dict[str, Any]]:
    """Sum a map over square blocks, and return the largest sums that do not touch each other.

    Args:
        losses: [H, W], ≥ 0. A block with a number that is not finite comes first.
        target: [H, W] labels.
        prediction: [H, W] labels.

    Returns:
        ``row`` and ``column`` of the middles; ``top``, ``left`` and ``across`` of the squares to show; the ``sum``,
        None where it is not finite; and the ``labels`` of the most frequent mistake there, or of the middle.
    """
    size = min(max(round(min(losses.shape) / 12), 8), 64)
    blocks = torch.from_numpy(losses)[None].double()
    sums = F.avg_pool2d(blocks, size, ceil_mode=True, divisor_override=1)[0].nan_to_num(torch.inf, torch.inf).numpy()
    across = min(_AROUND * size, *losses.shape)
    places: list[dict[str, Any]] = []
    while len(places) < _PLACES and (total := float(sums.max())) > 0:
        y, x = np.unravel_index(sums.argmax(), sums.shape)
        sums[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] = 0
        middle = [min(int((at + 0.5) * size), length - 1) for at, length in zip((y, x), losses.shape, strict=True)]
        top, left = (
            min(max(at - across // 2, 0), length - across) for at, length in zip(middle, losses.shape, strict=True)
        )
        part = tuple(slice(size * at, size * (at + 1)) for at in (y, x))
        most = mistakes(target[part], prediction[part])
        place = {"row": middle[0], "column": middle[1], "top": top, "left": left, "across": across}
        labels = most[0][:2] if most else [int(target[tuple(middle)])]
        places.append(place | {"sum": total if math.isfinite(total) else None, "labels": labels})
    return places
