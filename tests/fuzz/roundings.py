"""A call of the loss, and how far what it returns is from the answer of oracle.py.

Errors are in roundings of float32, or of float64 for float64 logits, of the units that oracle.py has. A
gradient of half precision may differ by half a unit of its last place more: it is rounded once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from oracle import Answer, solve
from oracle_pixels import LIMITS as BY_BITS
from torch import Tensor

from edgeloss.functional import edge_aware_loss

TRIALS = 0, 1, 12  # roundings of the logits, while slopes of the region term may change more than was seen
KINDS = ("loss", "terms", "gradient", "maps")  # of results
LIMITS = {dtype: BY_BITS[torch.finfo(dtype).bits] for dtype in (torch.float32, torch.float64)}  # roundings
DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(edge_aware_loss).parameters.items()}


@dataclass
class Case:
    """A call of the loss, and what is asked of it.

    Attributes:
        x: logits.
        y: labels.
        options: keywords of ``edge_aware_loss``; without ``return_terms`` and ``return_maps``.
        upstream: the gradient that arrives at the loss, in the dtype of the loss.
        unread: the value of logits that the loss does not depend on.
        has_gradient: whether the logits require one.
        returns: of maps and terms.
    """

    x: Tensor
    y: Tensor
    options: dict[str, Any]
    upstream: Tensor
    unread: float = 0.0
    has_gradient: bool = True
    returns: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a line for each argument."""
        lines = {name: value for name, value in (vars(self) | self.options).items() if name != "options"}
        for name, value in lines.items():
            if isinstance(value, Tensor) and value.numel() > 1:
                lines[name] = f"{value.dtype} {list(value.shape)} {value.stride()}, {value.min():g} to {value.max():g}"
        return "\n".join(f"{name}: {value}" for name, value in lines.items())

    def arguments(self) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return logits, labels and all options as arrays and numbers, with a radius and a spacing per axis."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(plain, value))
            return value.double().numpy() if isinstance(value, Tensor) else value

        options = {name: plain(value) for name, value in (DEFAULTS | self.options).items()}
        for name in ("radius", "spacing"):
            value = options[name] or 1.0
            options[name] = value if isinstance(value, (list, tuple)) else [value] * (self.x.dim() - 2)
        return self.x.double().numpy(), self.y.long().numpy(), options

    def answer(self, trials: int = 0) -> Answer:
        """Return the answer of the oracle, which rounds logits so many times to see how far the region term moves."""
        return solve(*self.arguments(), self.upstream.numpy(), trials)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """Return values [B, ..., *S] in another memory layout; an expanded one repeats some of them."""
    if layout == "channels last" and values.dim() > 3:
        return values.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "transposed" and values.dim() > 1:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "reversed":  # the first axis is the nearest in memory, as in Fortran
        return values.permute(*reversed(range(values.dim()))).contiguous().permute(*reversed(range(values.dim())))
    if layout == "expanded":
        return values[:1].expand(values.shape)
    if layout == "constant":
        return values[..., :1].expand(values.shape)
    if layout == "padded":
        return torch.cat([values, values], -1)[..., : values.shape[-1]]
    if layout == "sliced":
        return torch.stack([values, values], -1).flatten(-2)[..., ::2]
    if layout == "cropped":
        channels = values.shape[1]
        return F.pad(torch.cat([values] * 3, 1), [1, 1])[:, channels : 2 * channels, ..., 1:-1]
    if layout == "unaligned":  # to the length of a vector
        return values.new_empty(values.numel() + 3)[3:].view(values.shape).copy_(values)
    return values.contiguous()


def with_unread(case: Case, is_read: np.ndarray) -> Tensor:
    """Return the logits with a value where nothing may read them, in the same layout unless elements overlap."""
    read = torch.from_numpy(np.array(is_read))
    if read.all():
        return case.x.detach()
    x = case.x.masked_fill(~read, case.unread)
    return x if 0 in case.x.stride() else torch.empty_strided(x.shape, case.x.stride(), dtype=x.dtype).copy_(x)


def run(case: Case, is_read: np.ndarray, loss: Callable[..., Any]) -> dict[str, Any]:
    """Return what a loss returns, by kind, and its gradient; what it leaves unwritten is nan, not what memory held."""
    x = with_unread(case, is_read).requires_grad_(case.has_gradient)
    torch.use_deterministic_algorithms(True, warn_only=True)  # which fills new tensors
    try:
        result = loss(x, case.y, **case.options, **{f"return_{kind}": True for kind in case.returns})
        found = dict(zip(["loss", *case.returns], result if case.returns else [result], strict=True))
        if case.has_gradient:
            found["gradient"] = torch.autograd.grad(found["loss"], x, case.upstream.to(found["loss"].device))[0]
    finally:
        torch.use_deterministic_algorithms(False)
    return found


def compare(case: Case, answer: Callable[[int], Answer], found: dict[str, Any], *, by_torch: bool) -> dict[str, float]:
    """Return the largest error of each kind of result, in roundings; infinite where it is not of the right kind.

    Args:
        case: the call.
        answer: that of the oracle, for a number of trials; these take most of the time, and only make errors smaller,
            so small ones need none.
        found: what a loss returned, by kind.
        by_torch: whether it is plain PyTorch, whose derivative of a softmax is p - 1 for the label.
    """
    for trials in TRIALS:
        errors = errors_of(case, answer(trials), found, by_torch=by_torch)
        if max(errors.values()) <= LIMITS[case.upstream.dtype] / 4 or not answer(0).has_regions:
            break
    return errors


def errors_of(case: Case, answer: Answer, found: dict[str, Any], *, by_torch: bool) -> dict[str, float]:
    """Return what `compare` does, for one answer of the oracle."""
    errors, wide, factors = {}, torch.finfo(case.upstream.dtype), np.abs(case.upstream.numpy())
    for kind, values in found.items():
        right = getattr(answer, kind)
        right = right if isinstance(right, dict) else {kind: right}
        values = values._asdict() if hasattr(values, "_asdict") else values
        values = values if isinstance(values, dict) else {kind: values}
        values = {name: v.detach().cpu() for name, v in values.items() if v is not None}
        is_right = kind in ("gradient", "maps") or all(v.dtype == case.upstream.dtype for v in values.values())
        is_right = is_right and right.keys() == values.keys()
        is_right = is_right and all(v.shape == np.shape(right[name][0]) for name, v in values.items())
        errors[kind] = 0.0 if is_right else math.inf
        if not is_right or not values:
            continue
        value = np.array([v.double().numpy() for v in values.values()])
        exact, unit = (np.array([right[name][k] for name in values]) for k in (0, 1))
        if kind == "gradient":
            unit = unit + answer.by_softmax if by_torch else unit
            off = beyond_rounding(case, answer, value, exact)
        else:
            with np.errstate(invalid="ignore"):  # infinite distances are equal
                off = np.where(value == exact, 0, np.abs(value - exact)).astype(float)
        # Of a product, before a factor multiplies it: of a gradient, that may be all that arrives.
        factor = np.max(factors, initial=1) if kind == "gradient" else 1
        ratio = off / (unit * wide.eps + wide.tiny * max(factor, np.max(unit, initial=0)))
        errors[kind] = float(np.where(ratio < np.inf, ratio, np.inf).max(initial=0))
    return errors


def beyond_rounding(case: Case, answer: Answer, gradient: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the error of a gradient but for its last rounding, and for what may be lost."""
    stored = torch.finfo(case.x.dtype)
    gradient, exact = (np.clip(values, -stored.max, stored.max) for values in (gradient, exact))
    off = (np.abs(gradient - exact) - answer.lost).astype(float)
    if stored.bits == 16:
        _, exponent = np.frexp(np.maximum(np.abs(gradient), np.abs(exact)))
        off -= np.maximum(np.ldexp(np.longdouble(stored.eps), exponent - 2), stored.tiny * stored.eps / 2)
    off = np.where(answer.is_rough & np.isfinite(off), 0, off)
    return np.where(answer.is_read | (gradient == 0), off, np.inf)
