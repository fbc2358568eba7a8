"""Every option of the loss once: its default, its meaning and its check."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, get_args

from edgeloss.hints import of_sequence

Reduction = Literal["mean", "sum", "none"]
Validate = Literal["async", "sync", "never"]
Backend = Literal["auto", "fused", "reference"]
_CHOICES = {"reduction": get_args(Reduction), "validate": get_args(Validate), "backend": get_args(Backend)}

NO_POWER = 1e-30  # smaller exponents of the power mean are treated as 0
# Beyond these, sums and products of weights would leave float32, and lengths float64.
MOST_WEIGHT = 1e12
LENGTHS = 1e-100, 1e100

REMOVED = "false_edge_weight"  # in 0.3; functions with the weights of the terms had it

P = ParamSpec("P")
R = TypeVar("R")


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function name the nearest of its keywords in the error for an unknown one.

    A function with weights of the terms ignores 0 of the ``REMOVED`` one with a warning, and raises for other values.
    """
    known = inspect.signature(function).parameters.keys()

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - known:
            if name == REMOVED and "same_side_weight" in known:
                _check_removed(kwargs.pop(name))
                continue
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*args, **kwargs)

    return checked


def _check_removed(value: object) -> None:
    if not is_number(value) or value != 0:
        raise TypeError(
            f"{REMOVED}: expected no such argument since version 0.3, but got {value!r}; leave it out: the region term"
            " sees predicted edges where the labels have none"
        )
    message = f"{REMOVED}: removed in version 0.3, where the loss is that of {REMOVED}=0; leave it out"
    warnings.warn(message, FutureWarning, stacklevel=3)


# ----------------------------------------------------------------------------------------------------------- the checks


def radius_per_axis(radius: int | Sequence[int], dims: int) -> list[int]:
    """Return the radius along each of the ``dims`` spatial axes.

    Raises:
        TypeError: if a radius is not an integer.
        ValueError: if a radius is negative or beyond 64 bits, if none is ≥ 1, or if there is not one per axis.
    """
    if type(radius) is int and 1 <= radius < 2**63:  # for speed
        return [radius] * dims
    values = list(radius) if isinstance(radius, Sequence) else [radius] * dims
    if not all(is_integer(r) for r in values):
        raise TypeError(f"radius: expected an int, or one int per axis, but got {radius!r}{of_sequence(radius)}")
    if any(r < 0 for r in values) or not any(r >= 1 for r in values):
        raise ValueError(f"radius: expected ≥ 0 along every axis and ≥ 1 along at least one, but got {radius!r}")
    if len(values) != dims:
        raise ValueError(f"radius: expected an int, or {dims} ints, one per spatial axis, but got {radius!r}")
    if any(r >= 2**63 for r in values):
        raise ValueError(f"radius: expected 64-bit ints, but got {radius!r}; it needs not exceed the size of the image")
    return [int(r) for r in values]


def spacing_per_axis(spacing: float | Sequence[float] | None, dims: int) -> list[float]:
    """Return the size of a pixel along each of the ``dims`` spatial axes, by default 1.

    Raises:
        ValueError: if a size is not finite and > 0, or far out of range, or if there is not one per axis.
    """
    if spacing is None:
        return [1.0] * dims
    values = list(spacing) if isinstance(spacing, Sequence) else [spacing] * dims
    if len(values) != dims or not all(is_number(s) and 0 < s < math.inf for s in values):
        raise ValueError(
            f"spacing: expected a number > 0, or {dims} of them, one per spatial axis, but got {spacing!r}"
            f"{of_sequence(spacing)}"
        )
    if not all(LENGTHS[0] <= float(s) <= LENGTHS[1] for s in values):
        raise ValueError(f"spacing: expected numbers in [1e-100, 1e100], but got {spacing!r}; use another unit")
    return [float(s) for s in values]


def is_number(value: object) -> bool:
    """Return whether value is a real number; a bool is not."""
    # The test of the type is for speed: isinstance of an abstract class costs half a microsecond.
    return type(value) in (int, float) or (isinstance(value, Real) and not isinstance(value, bool))


def is_integer(value: object) -> bool:
    """Return whether value is an integer; a bool is not."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _check_choice(name: str, value: str) -> None:
    if value not in _CHOICES[name]:
        raise ValueError(f"{name}: expected one of {_CHOICES[name]}, but got {value!r}")


def _check_flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected a bool, but got {value!r}")


def _check_label(name: str, value: int | None) -> None:
    if value is None:
        return
    if not is_integer(value):
        raise TypeError(f"{name}: expected an int or None, but got {value!r}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: expected a 64-bit int, but got {value!r}")


def _check_weight(name: str, value: float) -> None:
    if not is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{name}: expected a finite number ≥ 0, but got {value!r}")
    if value > MOST_WEIGHT:
        raise ValueError(f"{name}: expected a number ≤ {MOST_WEIGHT:g}, but got {value!r}; scale all weights down")


def _check_fraction(name: str, value: float) -> None:
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number in [0, 1], but got {value!r}")


def _check_power(name: str, value: float) -> None:
    if not is_number(value) or not abs(value) <= 1e6:  # beyond it, power times a logit of 1e30 overflows float32
        raise ValueError(f"{name}: expected a number in [-1e6, 1e6], but got {value!r}")


def _check_decay(name: str, value: float | None) -> None:
    if value is not None and (not is_number(value) or not 0 < value < math.inf):
        raise ValueError(f"{name}: expected a finite number > 0, or None, but got {value!r}")
    if value is not None and not LENGTHS[0] <= float(value) <= LENGTHS[1]:
        raise ValueError(f"{name}: expected a number in [1e-100, 1e100], but got {value!r}; use another unit")


def _axes(name: str, value: object) -> int:
    """Return the number of spatial axes that an option is for, 2 if it is for any."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return 2
    if len(value) not in (0, 2, 3):
        raise ValueError(f"{name}: expected one number, or 2 or 3, one per spatial axis, but got {value!r}")
    return len(value)


def _check_radius(name: str, value: int | Sequence[int]) -> None:
    radius_per_axis(value, _axes(name, value))


def _check_spacing(name: str, value: float | Sequence[float] | None) -> None:
    if value is not None:
        spacing_per_axis(value, _axes(name, value))


# ---------------------------------------------------------------------------------------------------------- the options


def _about(meaning: str, check: Callable[[str, Any], None], *, module_only: bool = False) -> dict[str, Any]:
    return {"help": meaning, "check": check, "module_only": module_only}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the loss that are not tensors; an instance has passed all checks.

    Names, order and defaults are those of :class:`edgeloss.EdgeAwareLoss`, which describes them in full; functions have
    no ``edge_focus`` and pass 0, and their ``region_weight`` is 0 by default. ``radius`` and ``spacing`` are stored as
    given; :func:`radius_per_axis` and :func:`spacing_per_axis` resolve them.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if an option is out of range.

    Example:
        >>> from edgeloss.options import HELP, Options
        >>> Options(power=1.0).radius
        1
        >>> HELP["ce_weight"]
        'Weight of the cross-entropy, ≥ 0.'
    """

    ignore_index: int | None = field(
        default=-100,
        metadata=_about(
            "Label of pixels to ignore: they have no gradient and no edges, and their logits are not read. None for"
            " none.",
            _check_label,
        ),
    )
    multilabel: bool = field(
        default=False,
        metadata=_about(
            "Take each class as a binary loss of its own, with labels per class; classes may overlap.", _check_flag
        ),
    )
    reduction: Reduction = field(
        default="mean",
        metadata=_about("Reduction of the loss: mean, sum, or none for a map.", _check_choice),
    )
    label_smoothing: float = field(
        default=0.0,
        metadata=_about("Label smoothing of the cross-entropy, in [0, 1].", _check_fraction),
    )
    ce_weight: float = field(
        default=1.0,
        metadata=_about("Weight of the cross-entropy, ≥ 0.", _check_weight),
    )
    edge_weight: float = field(
        default=1.0,
        metadata=_about("Weight of the edge terms, ≥ 0; 0 leaves them out.", _check_weight),
    )
    other_side_weight: float = field(
        default=1.0,
        metadata=_about("Weight of the other-side term among the edge terms, ≥ 0.", _check_weight),
    )
    same_side_weight: float = field(
        default=1.0,
        metadata=_about("Weight of the same-side term among the edge terms, ≥ 0.", _check_weight),
    )
    edge_focus: float = field(
        default=8.0,
        metadata=_about(
            "Exponent ≥ 0 by which the weight of the edge terms falls as the edges are learned; 0 keeps it.",
            _check_weight,
            module_only=True,
        ),
    )
    region_weight: float = field(
        default=3.0,
        metadata=_about(
            "Weight of the region term, ≥ 0: the share of what the labels say about small regions that the prediction"
            " leaves open.",
            _check_weight,
        ),
    )
    radius: int | Sequence[int] = field(
        default=1,
        metadata=_about("Radius of the neighborhood in pixels; in Python also one per axis.", _check_radius),
    )
    power: float = field(
        default=0.0,
        metadata=_about(
            "Exponent of the power mean: 0 averages the logarithms, 1 is the logarithm of the mean, -1 emphasizes the"
            " worst neighbor.",
            _check_power,
        ),
    )
    decay: float | None = field(
        default=None,
        metadata=_about(
            "Distance from the edge over which the weight of a neighbor falls by a factor of e, in pixels or units of"
            " spacing; None for equal weights.",
            _check_decay,
        ),
    )
    spacing: float | Sequence[float] | None = field(
        default=None,
        metadata=_about("Size of a pixel, or one per axis; None for 1. Only decay uses it.", _check_spacing),
    )
    upsample: bool = field(
        default=False,
        metadata=_about("Accept logits of lower resolution than the labels, and interpolate them.", _check_flag),
    )
    sync_normalizer: bool = field(
        default=False,
        metadata=_about("Share the denominators of the mean across the ranks of torch.distributed.", _check_flag),
    )
    validate: Validate = field(
        default="async",
        metadata=_about(
            "When out-of-range labels raise. async: in the call, or on GPUs in edgeloss.check(). sync: in the call, as"
            " do values of other CUDA tensors. never: not checked.",
            _check_choice,
        ),
    )
    backend: Backend = field(
        default="auto",
        metadata=_about(
            "Implementation: fused (compiled kernels), reference (plain PyTorch), or auto (fused where it supports the"
            " call).",
            _check_choice,
        ),
    )

    @classmethod
    def from_attributes(cls, holder: object) -> Options:
        """Return the options stored as attributes of ``holder``, such as an :class:`edgeloss.EdgeAwareLoss`."""
        return cls(**{name: getattr(holder, name) for name in HELP})

    def __post_init__(self) -> None:
        """Check every option."""
        values = self.__dict__
        for name, check in _CHECKS.items():
            value, default = values[name], _DEFAULTS[name]
            if type(value) is not type(default) or value != default:  # most are, and need no check
                check(name, value)
        for name in ("other_side_weight", "same_side_weight"):
            if self.edge_weight * getattr(self, name) > MOST_WEIGHT:
                raise ValueError(
                    f"edge_weight · {name}: expected at most {MOST_WEIGHT:g}, but got {self.edge_weight!r} ·"
                    f" {getattr(self, name)!r}; scale all weights down"
                )


HELP: dict[str, str] = {option.name: option.metadata["help"] for option in fields(Options)}
# Only EdgeAwareLoss has these: they need what it stores between steps.
MODULE_ONLY = frozenset(option.name for option in fields(Options) if option.metadata["module_only"])
_CHECKS: dict[str, Callable[[str, Any], None]] = {option.name: option.metadata["check"] for option in fields(Options)}
_DEFAULTS = {option.name: option.default for option in fields(Options)}


def check_option(name: str, value: Any) -> None:  # noqa: ANN401
    """Check one option by its name.

    Raises:
        TypeError: if it has the wrong type.
        ValueError: if it is out of range.
    """
    _CHECKS[name](name, value)
