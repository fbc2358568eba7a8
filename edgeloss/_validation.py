"""Every error a user can make, told as *expected ... but got ...* and how to get there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
Validate = Literal["async", "sync", "never"]
Backend = Literal["auto", "fused", "reference"]

LABEL_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
_CHOICES = {
    "reduction": ("mean", "sum", "none"),
    "validate": ("async", "sync", "never"),
    "backend": ("auto", "fused", "reference"),
}


def check_options(
    *,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    ce_weight: float,
    edge_weight: float,
    other_side_weight: float,
    same_side_weight: float,
    radius: int | Sequence[int],
    power: float,
    decay: float | None,
    spacing: float | Sequence[float] | None,
    upsample: bool,
    sync_normalizer: bool,
    validate: str,
    backend: str,
) -> None:
    """Check what does not depend on the inputs of a call.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value out of its range.
    """
    for name, value in {"reduction": reduction, "validate": validate, "backend": backend}.items():
        if value not in _CHOICES[name]:
            raise ValueError(f"{name}: expected one of {_CHOICES[name]}, but got {value!r}")
    for name, flag in {"upsample": upsample, "sync_normalizer": sync_normalizer}.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: expected a bool, but got {flag!r}")
    if not isinstance(ignore_index, int) or isinstance(ignore_index, bool):
        raise TypeError(f"ignore_index: expected an int, but got {ignore_index!r}")
    weights = {
        "ce_weight": ce_weight,
        "edge_weight": edge_weight,
        "other_side_weight": other_side_weight,
        "same_side_weight": same_side_weight,
    }
    for name, number in weights.items():
        if not _is_number(number) or not 0 <= number < math.inf:
            raise ValueError(f"{name}: expected a finite number ≥ 0, but got {number!r}")
    if not _is_number(label_smoothing) or not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing: expected a number in [0, 1], but got {label_smoothing!r}")
    if not _is_number(power) or not math.isfinite(power):
        raise ValueError(f"power: expected a finite number, but got {power!r}")
    if decay is not None and (not _is_number(decay) or not 0 < decay < math.inf):
        raise ValueError(f"decay: expected a finite number > 0 or None, but got {decay!r}")
    for dims in [2] if not isinstance(radius, Sequence) else [len(radius)]:
        radius_per_axis(radius, dims)
    if spacing is not None:
        spacing_per_axis(spacing, 2 if not isinstance(spacing, Sequence) else len(spacing))
    if weight is not None:
        check_weight(weight)


def check_weight(weight: Tensor) -> None:
    """Check that class weights are a floating tensor [C] of finite values ≥ 0.

    Raises:
        TypeError: if they are no tensor.
        ValueError: if not.
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight: expected a tensor [C] of class weights, but got {_kind(weight)}")
    if weight.dim() != 1 or not weight.is_floating_point():
        raise ValueError(f"weight: expected a floating tensor [C] of class weights, but got {describe(weight)}")
    check_non_negative("weight", weight)


def radius_per_axis(radius: int | Sequence[int], dims: int) -> list[int]:
    """One radius an axis.

    Raises:
        TypeError: if a radius is no integer.
        ValueError: if one is negative, none is ≥ 1, or their number is not that of the axes.
    """
    values = list(radius) if isinstance(radius, Sequence) else [radius] * dims
    if not all(isinstance(r, int) and not isinstance(r, bool) for r in values):
        raise TypeError(f"radius: expected an int or one int an axis, but got {radius!r}")
    if min(values, default=0) < 0 or max(values, default=0) < 1:
        raise ValueError(f"radius: expected ≥ 1 along at least one axis and ≥ 0 along every one, but got {radius!r}")
    if len(values) != dims:
        raise ValueError(f"radius: expected an int or {dims} ints, one a spatial axis, but got {radius!r}")
    return values


def spacing_per_axis(spacing: float | Sequence[float] | None, dims: int) -> list[float]:
    """The size of a pixel along each axis, 1 by default.

    Raises:
        ValueError: if one is not finite and > 0, or their number is not that of the axes.
    """
    values = list(spacing) if isinstance(spacing, Sequence) else [1.0 if spacing is None else spacing] * dims
    if len(values) != dims or not all(_is_number(s) and 0 < s < math.inf for s in values):
        raise ValueError(f"spacing: expected a number > 0 or {dims} of them, one a spatial axis, but got {spacing!r}")
    return [float(s) for s in values]


def check_logits(logits: Tensor) -> None:
    """Check type and shape of the logits.

    Raises:
        TypeError: if they are no floating tensor.
        ValueError: if they are not [B, C, H, W] or [B, C, D, H, W].
    """
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits: expected a tensor, but got {_kind(logits)}")
    if logits.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"logits: expected float16, bfloat16, float32 or float64, but got {describe(logits)}")
    if logits.dim() not in (4, 5) or logits.shape[1] < 1:
        hint = "; for a single image pass logits.unsqueeze(0)" if logits.dim() == 3 else ""
        raise ValueError(f"logits: expected [B, C, H, W] or [B, C, D, H, W], but got {describe(logits)}{hint}")


def check_target(target: Tensor) -> None:
    """Check that the target holds class indices.

    Raises:
        TypeError: if it is no tensor, or of another dtype than the integral ones of labels.
        ValueError: if it requires grad.
    """
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a tensor of class indices, but got {_kind(target)}")
    if target.requires_grad:
        raise ValueError(
            f"target: expected class indices, which have no gradient, but got {describe(target)} that requires grad;"
            " pass target.detach(), as class indices"
        )
    if target.dtype not in LABEL_DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in LABEL_DTYPES)
        hint = "; for one-hot or soft labels pass target.argmax(1), for indices stored as floats target.long()"
        raise TypeError(
            f"target: expected class indices of dtype {names}, but got {describe(target)}"
            f"{hint if target.is_floating_point() else '; pass target.long()'}"
        )


def check_pair(logits: Tensor, target: Tensor, *, upsample: bool = False) -> None:
    """Check that logits and target fit together.

    Raises:
        ValueError: if shapes or devices differ.
    """
    batch, classes, *size = logits.shape
    expected, got = [batch, *size], list(target.shape)
    if target.device != logits.device:
        raise ValueError(f"target: expected device {logits.device}, as the logits, but got {target.device}")
    if upsample and target.dim() == len(expected) and target.shape[0] == batch:
        if any(low > high for low, high in zip(size, target.shape[1:], strict=True)):
            raise ValueError(
                f"target: expected at least the logits' resolution {size} with upsample=True, but got {got[1:]}"
            )
    elif got != expected:
        hint = ""
        if target.dim() == logits.dim() and got[0] == batch and got[1] in (1, classes):
            hint = f"; pass target.{'squeeze(1)' if got[1] == 1 else 'argmax(1)'}"
        elif len(got) == len(expected) and got[0] == batch:
            hint = "; for logits of lower resolution than the target pass upsample=True"
        raise ValueError(f"target: expected {expected} for logits {list(logits.shape)}, but got {got}{hint}")


def check_labels(y: Tensor, classes: int | None, ignore_index: int) -> None:
    """Check that every label is a class or ignored; waits for the device.

    Args:
        y: labels [B, *S] int64.
        classes: C, the number of logits a pixel; 1 means labels 0 and 1, None any label ≥ 0.
        ignore_index: the label that does not count.

    Raises:
        ValueError: with the first wrong label, its count and its position.
    """
    out_of_range = y < 0 if classes is None else (y < 0) | (y >= max(2, classes))
    wrong = (y != ignore_index) & out_of_range
    if not wrong.any():
        return
    expected = "≥ 0" if classes is None else f"0 to {classes - 1}"
    if classes == 1:
        expected = "0 or 1 (one logit a pixel is binary)"
    first = wrong.nonzero()[0].tolist()
    value = int(y[tuple(first)])
    count = int((y == value).sum())
    others = int(wrong.sum()) - count
    raise ValueError(
        f"target: expected labels {expected}, or ignore_index={ignore_index}, but got {value} at {_pixels(count)},"
        f" first at {first}{f', and other labels out of range at {_pixels(others)} more' if others else ''}"
    )


def check_class_weight(weight: Tensor, classes: int, device: torch.device) -> None:
    """Check that there is one class weight a class, on the right device.

    Raises:
        ValueError: if not.
    """
    if weight.shape[0] != max(2, classes):
        binary = " (labels 0 and 1 of one logit)" if classes == 1 else ""
        raise ValueError(f"weight: expected {max(2, classes)} class weights{binary}, but got {weight.shape[0]}")
    if weight.device != device:
        raise ValueError(
            f"weight: expected device {device}, as the logits, but got {weight.device}; move the loss with"
            f" criterion.to({str(device)!r})"
        )


def check_map(name: str, values: Tensor, target: Tensor, shape: Sequence[int] | None = None) -> None:
    """Check type, shape and device of a map that goes with the target, by default [B, *S].

    Raises:
        TypeError: if it is no floating tensor.
        ValueError: if shape or device differ.
    """
    if not isinstance(values, Tensor) or not values.is_floating_point():
        got = describe(values) if isinstance(values, Tensor) else _kind(values)
        raise TypeError(f"{name}: expected a floating tensor, but got {got}")
    expected = list(target.shape if shape is None else shape)
    if list(values.shape) != expected:
        raise ValueError(f"{name}: expected {expected}, but got {list(values.shape)}")
    if values.device != target.device:
        raise ValueError(f"{name}: expected device {target.device}, as the logits, but got {values.device}")


def check_non_negative(name: str, values: Tensor, where: Tensor | None = None) -> None:
    """Check that values are finite and ≥ 0 (where the mask is set); waits for the device.

    Raises:
        ValueError: with the first wrong value and its position.
    """
    wrong = ~(torch.isfinite(values) & (values >= 0))
    if where is not None:
        wrong &= where
    if wrong.any():
        first = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: expected finite values ≥ 0, but got {values[tuple(first)].item()} at {first}"
            f" ({int(wrong.sum())} such values)"
        )


def describe(tensor: Tensor) -> str:
    """Dtype and shape, as the messages print them."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _pixels(count: int) -> str:
    return f"{count} pixel{'' if count == 1 else 's'}"


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
