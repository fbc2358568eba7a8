"""From array and picture files to predictions: logits, probabilities in any of the ways they are stored, or labels.

What a file holds follows from its values. Integers are labels: whole numbers [h, w], or one-hot [C, h, w]; so are
floats [h, w] that are whole numbers up to 2 or more. Values whose sum over the classes is 1 within rounding are
probabilities, and so are those that add up to 100 or to 255. One channel in [0, 1] is the probability of class 1. Other
floats are logits. Probabilities are divided by their sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgeloss.io.arrays import Array, Choice, Size, check_fits, read_array, squeeze
from edgeloss.io.class_lists import Rgb
from edgeloss.io.files import ARRAY_SUFFIXES, InputError, wrong_suffix
from edgeloss.io.images import Note, no_note, open_picture
from edgeloss.io.labels import VOLUME, are_whole, labels_of_array, one_hot_axis, read_labels

# Names that are looked for in a file of several arrays.
PREDICTION_NAMES = ("logits", "pred", "prediction", "predictions", "prob", "probs", "probabilities", "out")
_QUANTIZED = "; store logits in a floating dtype, or probabilities [C, H, W] of 8 bits that add up to 255"

PredictionKind = Literal["logits", "probabilities", "labels"]
# The probability that a predicted label stands for; the other classes share the rest.
LABEL_PROBABILITY = 0.9


class Prediction(NamedTuple):
    """The prediction for one image, as stored in a file.

    Attributes:
        kind: what the values are.
        values: [C, h, w] floating; for ``"labels"``, [h, w] int64.
    """

    kind: PredictionKind
    values: Tensor

    @property
    def non_finite(self) -> int:
        """How many values are nan or infinite; as many logits are."""
        return 0 if self.kind == "labels" else int((~self.values.isfinite()).sum())

    @property
    def num_classes(self) -> int | None:
        """The number of classes, 2 for one channel; None for labels, where it is unknown."""
        return None if self.kind == "labels" else max(2, len(self.values))

    def logits(self, num_classes: int) -> Tensor:
        """Return the values as logits.

        Probabilities become their logarithms, in float32 or float64; 0 counts as the smallest positive number of the
        dtype. A label becomes the logarithms of ``LABEL_PROBABILITY`` for its class and equal probabilities for the
        others.

        Args:
            num_classes: C, the number of classes of labels; not used otherwise.

        Returns:
            [C, h, w] floating; [1, h, w] for one channel.

        Example:
            >>> Prediction("labels", torch.tensor([[1]])).logits(3).exp().flatten()
            tensor([0.0500, 0.9000, 0.0500])
        """
        if self.kind == "logits":
            return self.values
        if self.kind == "probabilities":
            limits = torch.finfo(self.values.dtype)
            least = limits.tiny * limits.eps
            # The dtype of a file of probabilities is not that of the network's logits.
            values = self.values if self.values.dtype == torch.float64 else self.values.float()
            p = values.clamp(min=least)
            return p.log() if len(p) > 1 else p.log() - (1 - values).clamp(min=least).log()
        others = (1 - LABEL_PROBABILITY) / (num_classes - 1)
        p = torch.full((num_classes, *self.values.shape), others)
        return p.scatter_(0, self.values[None], LABEL_PROBABILITY).log_()


def read_prediction(
    path: str | Path,
    kind: PredictionKind | None = None,
    *,
    colors: Mapping[Rgb, int] | None = None,
    key: str | None = None,
    region: int | None = None,
    at: int | None = None,
    page: int | None = None,
    within: Size | None = None,
    note: Note = no_note,
) -> Prediction:
    """Read the prediction for one image.

    Args:
        path: a file with one of ``ARRAY_SUFFIXES`` that holds [C, h, w], [1, C, h, w] or, for one channel, [h, w]; or
            labels as for :func:`read_labels`.
        kind: what the file holds. None infers it, see :mod:`edgeloss.io.predictions`.
        colors: the label of each color, as for :func:`read_labels`.
        key: the name of the array in a file of several. By default, one must be named "logits", "pred", "prob", "out"
            or similar.
        region: the class to take from [C, h, w], as a binary prediction of its own.
        at: the slice to take from the prediction of a volume, [C, D, h, w].
        page: the page of a TIFF of several, from 0.
        within: the size of the mask; a larger prediction is refused before memory is taken for it.
        note: takes a line about how the file was read, where its values may be another kind.

    Returns:
        The prediction. Values of nan and infinity are counted, not rejected.

    Raises:
        InputError: if the file cannot be read or holds something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "prediction.npy"
        ...     np.save(path, np.full((4, 2, 3), 0.25, np.float32))
        ...     prediction = read_prediction(path)
        >>> prediction.kind, prediction.num_classes, prediction.values.shape
        ('probabilities', 4, torch.Size([4, 2, 3]))
    """
    path = Path(path)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        array = read_array(path, Choice(PREDICTION_NAMES, key, region, at, within))
    elif kind == "probabilities":
        array = _gray_array(path, page, within)
    elif kind == "logits":
        raise wrong_suffix(path, "logits", ARRAY_SUFFIXES)
    else:
        labels = read_labels(path, colors=colors, region=region, at=at, page=page, note=note)
        return Prediction("labels", labels)
    return _of_array(array, kind, path, note)


def _of_array(array: Array, kind: PredictionKind | None, path: Path, note: Note) -> Prediction:
    """Return the prediction that an array holds."""
    values = squeeze(array.values, 3)
    values = values[None] if values.dim() == 2 else values
    if kind == "labels":
        return Prediction("labels", labels_of_array(array, path))
    if values.dim() != 3:
        expected = (
            "labels [H, W] or floating logits" if array.is_integer and kind is None else f"floating {kind or 'logits'}"
        )
        raise InputError(
            f"{path}: expected {expected} [C, H, W], but got {array.text}{VOLUME if values.dim() > 3 else ''}"
        )
    if kind is None and _are_labels(values):
        return Prediction("labels", labels_of_array(array, path))
    return _floating(values, kind, array, path, note)


def _floating(values: Tensor, kind: PredictionKind | None, array: Array, path: Path, note: Note) -> Prediction:
    """Return the prediction of [C, h, w] that holds no labels."""
    seen = _Seen.of(values)
    scale = None if kind == "logits" else seen.scale(values, array, is_given=kind == "probabilities")
    if scale is not None:
        p, off = _normalized(values, scale)
        if off > 1e-3 and not array.is_integer:  # exact sums leave no doubt, and integers are no logits
            divided = "each pixel is divided by its sum"
            reason = f"{seen.whole}; {divided}"
            about = f"{divided}, since {seen.whole}" if kind else _read_as("probabilities", reason, "logits")
            note(f"{path}: {about}")
        elif kind is None and ((values == 0) | (values == 1)).all():
            note(f"{path}: {_read_as('probabilities', 'its values are 0 or 1', 'labels')}")
        return Prediction("probabilities", p)
    if kind == "probabilities" or (kind is None and array.is_integer):
        hint = _QUANTIZED if array.is_integer else "; --pred-kind logits takes any floating values"
        expected = "probabilities, in 0 to 1, 0 to 100 or 0 to 255," if kind else "labels [H, W] or floating logits"
        raise InputError(f"{path}: expected {expected} [C, H, W], but got {array.text}, {seen.whole}{hint}")
    if array.is_integer:
        raise InputError(f"{path}: expected floating {kind} [C, H, W], but got {array.text}{_QUANTIZED}")
    if kind is None and seen.scale(values, array, is_given=True) is not None:
        note(f"{path}: {_read_as('logits', seen.whole, 'probabilities')}")
    return Prediction("logits", values)


def _read_as(kind: PredictionKind, reason: str, other: PredictionKind) -> str:
    """Return what values that may be of two kinds were read as."""
    return f"read as {kind}, since {reason}; if they are {other}, pass --pred-kind {other}"


class _Seen(NamedTuple):
    """C, the range of a map [C, h, w], and that of its sums over C; of pixels without nan and infinity."""

    classes: int
    low: float
    high: float
    least_sum: float
    most_sum: float
    non_finite: int

    @classmethod
    def of(cls, values: Tensor) -> _Seen:
        x = values.flatten(1).double() if values.dtype == torch.float64 else values.flatten(1).float()
        bad = ~x.isfinite()
        kept = x[:, ~bad.any(0)] if bad.any() else x
        if not kept.numel():
            return cls(len(values), 0.0, 0.0, 0.0, 0.0, int(bad.sum()))
        sums = kept.sum(0)
        low, high, least, most = (float(value) + 0.0 for value in (*kept.aminmax(), *sums.aminmax()))
        return cls(len(values), low, high, least, most, int(bad.sum()))

    def __str__(self) -> str:
        return f"values are {self.low:.4g} to {self.high:.4g}"

    @property
    def whole(self) -> str:
        """The values and, of several classes, their sums, in words."""
        if self.classes == 1:
            return str(self)
        return f"{self} and add up to {self.least_sum:.4g} to {self.most_sum:.4g} over the classes"

    def scale(self, values: Tensor, array: Array, *, is_given: bool) -> int | None:
        """Return what a probability of 1 is stored as, None if the values are no probabilities."""
        eps = 0.0 if array.is_integer else torch.finfo(values.dtype).eps
        # Of a value, rounding to a dtype changes at most eps / 2 of it; the rest is for sums and resizing.
        slack = max(1e-3, 2 * eps)
        if self.low < -slack or self.non_finite == values.numel():
            return None
        if len(values) == 1:
            return self._scale_of_one(array, slack, is_given=is_given) if is_given or not array.is_integer else None
        # Rounding to two decimals, to whole percent or to 8 bits changes each of C values by half a step.
        off = min(0.5 * len(values), 80)
        allowed = {1: max(slack, off / 100), 100: off, 255: off}
        for scale in (100, 255) if array.is_integer else (1, 100, 255):
            wrong = max(abs(self.least_sum - scale), abs(self.most_sum - scale))
            if wrong <= allowed[scale] and self.high <= scale + allowed[scale]:
                return scale
        return 1 if is_given and not array.is_integer and self.high <= 1 + slack else None

    def _scale_of_one(self, array: Array, slack: float, *, is_given: bool) -> int | None:
        """Return what a probability of 1 is stored as in a map of one class."""
        if array.is_integer:
            scales = {"uint8": (255,), "uint16": (65535,)}.get(array.text.partition(" ")[0], (100, 255, 65535))
        else:
            scales = (1, 100, 255) if is_given else (1,)
        return next((scale for scale in scales if self.high <= scale * (1 + slack)), None)


def _are_labels(values: Tensor) -> bool:
    """Return whether a map [C, h, w] holds labels."""
    if not values.is_floating_point():
        return len(values) == 1 or one_hot_axis(values) is not None
    values = (
        values[values.isfinite()] if len(values) == 1 else values[:0]
    )  # with a nan, they are labels that are refused
    return bool(values.numel()) and float(values.min()) >= 0 and float(values.max()) >= 2 and are_whole(values)


def _normalized(values: Tensor, scale: int) -> tuple[Tensor, float]:
    """Return probabilities that add up to 1, and how far from that their sums were; what is not finite becomes nan."""
    values = values.float() / scale if scale > 1 or not values.is_floating_point() else values
    values = values.masked_fill(~values.isfinite(), math.nan)  # clamped, an infinity would be a probability
    if len(values) == 1:
        return values.clamp(0, 1), 0.0
    wide = values if values.dtype == torch.float64 else values.float()
    off = (wide.sum(0) - 1).abs()
    off = off[off.isfinite()]
    # A probability that was rounded to 0 is smaller than half a step, and its logarithm is not that of 0.
    wide = wide.clamp(min=_step(wide, scale) / 4)
    sums = wide.sum(0)
    p = wide / sums.nan_to_num(1.0)  # next to a nan, the other probabilities stay as they are stored
    p[:, sums == 0] = 1 / len(p)
    return p.to(values.dtype), float(off.max()) if len(off) else 0.0


def _step(values: Tensor, scale: int) -> float:
    """Return what probabilities are multiples of, 0 if that is the precision of their dtype."""
    values = values.flatten()[:: max(1, values.numel() // 100_000)]
    percent = values * 100
    is_rounded = torch.allclose(percent, percent.round(), rtol=0, atol=1e-4, equal_nan=True)
    if scale == 1 and not (is_rounded and ((values > 0) & (values < 1)).any()):
        return 0.0
    return 1 / max(scale, 100)


def _gray_array(path: Path, page: int | None, within: Size | None) -> Array:
    """Read a gray picture whose levels are probabilities."""
    picture, _ = open_picture(path, page, upright=False)
    if picture.mode not in ("L", "I", "F") and not picture.mode.startswith("I;16"):
        raise InputError(f"{path}: expected probabilities in gray, but got mode {picture.mode}")
    pixels = np.array(picture)
    if within is not None:
        check_fits(path, pixels.shape, within)
    is_float = pixels.dtype.kind == "f"
    values = torch.from_numpy(pixels if is_float else pixels.astype(np.int64))
    return Array(values, f"{pixels.dtype.name} {list(pixels.shape)}")
