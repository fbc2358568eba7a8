"""From files to predictions: logits, probabilities or labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from edgeloss.io.arrays import PREDICTION_NAMES, QUANTIZED, VOLUME, label_map, read_array, squeeze
from edgeloss.io.files import ARRAY_SUFFIXES, InputError
from edgeloss.io.images import read_labels
from edgeloss.io.palettes import Rgb

PredictionKind = Literal["logits", "probabilities", "labels"]
# The probability that a predicted label stands for; the other classes share the rest.
LABEL_PROBABILITY = 0.9


class Prediction(NamedTuple):
    """The prediction for one image, as stored in a file.

    Attributes:
        kind: what the values are.
        values: [C, h, w] floating; for ``"labels"``, [h, w] int64.
        non_finite: how many values are nan or infinite.
    """

    kind: PredictionKind
    values: Tensor
    non_finite: int

    @property
    def num_classes(self) -> int | None:
        """The number of classes, 2 for one channel; None for labels, where it is unknown."""
        return None if self.kind == "labels" else max(2, len(self.values))

    def logits(self, num_classes: int) -> Tensor:
        """Return the values as logits.

        Probabilities become their logarithms, in float32 or float64; 0 counts as the smallest positive number of the
        stored dtype. A label becomes the logarithms of ``LABEL_PROBABILITY`` for its class and equal probabilities for
        the others.

        Args:
            num_classes: C, the number of classes of labels; not used otherwise.

        Returns:
            [C, h, w] floating; [1, h, w] for one channel.

        Example:
            >>> Prediction("labels", torch.tensor([[1]]), 0).logits(3).exp().flatten()
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
) -> Prediction:
    """Read the prediction for one image.

    Args:
        path: a file with one of ``ARRAY_SUFFIXES`` that holds [C, h, w], [1, C, h, w] or, for one channel, [h, w]; or
            labels as for :func:`read_labels`.
        kind: what the file holds. None infers it: integers are labels, values in [0, 1] that sum to 1 over the classes
            are probabilities, all others are logits. One channel in [0, 1] is the probability of class 1.
        colors: the label of each color, as for :func:`read_labels`.
        key: the name of the array in a file of several. By default, one must be named "logits", "pred", "prob", "out"
            or similar.
        region: the class to take from [C, h, w], as a binary prediction of its own.
        at: the slice to take from the prediction of a volume, [C, D, h, w].

    Returns:
        The prediction. Values of nan and infinity are counted, not rejected.

    Raises:
        InputError: if the file cannot be read or holds something else.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "prediction.npy"
        ...     np.save(path, np.full((4, 2, 3), 0.25, np.float32))
        ...     prediction = read_prediction(path)
        >>> prediction.kind, prediction.num_classes, prediction.values.shape
        ('probabilities', 4, torch.Size([4, 2, 3]))
    """
    path = Path(path)
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        if kind in ("logits", "probabilities"):
            raise InputError(
                f"{path}: expected {kind} in one of {', '.join(ARRAY_SUFFIXES)}, but got {path.suffix or 'no suffix'}"
            )
        return Prediction("labels", read_labels(path, colors=colors, region=region, at=at), 0)
    array = read_array(path, PREDICTION_NAMES, key, region, at)
    is_integer = not array.values.is_floating_point()
    values = squeeze(array.values, 3)
    values = values[None] if values.dim() == 2 else values
    if kind == "labels" or (kind is None and is_integer and len(values) == 1):
        return Prediction("labels", label_map(array, path), 0)
    if is_integer or values.dim() != 3:
        expected = "labels [H, W] or floating logits" if is_integer and kind is None else f"floating {kind or 'logits'}"
        hint = (VOLUME if values.dim() > 3 else "") + (QUANTIZED if is_integer else "")
        raise InputError(f"{path}: expected {expected} [C, H, W], but got {array.text}{hint}")
    in_range = _are_probabilities(values)
    if kind == "probabilities" and not in_range:
        raise InputError(f"{path}: expected probabilities in [0, 1] that sum to 1 over the classes, but got others")
    inferred: PredictionKind = "probabilities" if in_range else "logits"
    return Prediction(kind or inferred, values, int((~values.isfinite()).sum()))


def _are_probabilities(values: Tensor) -> bool:
    """Whether [C, h, w] is in [0, 1] and, for several channels, sums to 1; pixels with nan are left out."""
    x = values.flatten(1).float()
    x = x[:, ~x.isnan().any(0)]
    # Rounding changes each value, and so their sum, by a relative eps / 2 at most; the rest is for sums and resizing.
    tolerance = max(1e-3, 2 * torch.finfo(values.dtype).eps)
    if not x.numel() or x.min() < -tolerance or x.max() > 1 + tolerance:
        return False
    return len(x) == 1 or bool(((x.sum(0) - 1).abs() <= tolerance).all())
