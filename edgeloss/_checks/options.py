"""Every option of the loss once: its default, its meaning and its check."""

from __future__ import annotations

import difflib
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial, wraps
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, ParamSpec, TypeGuard, TypeVar, get_args

Reduction = Literal["mean", "sum", "none"]
Validate = Literal["async", "sync", "never"]
BackendChoice = Literal["auto", "fused", "reference"]

NO_POWER = 1e-30  # smaller exponents of the power mean are treated as 0
# Beyond these, sums and products of weights would leave float32, and lengths float64.
MOST_WEIGHT = 1e12
LENGTHS = 1e-100, 1e100

REMOVED = "false_edge_weight"  # in 0.3; functions with the weights of the terms had it
# Keywords of other libraries, and of earlier versions: what to do instead.
ADVICE = {
    "class_weights": "pass weight for the cross-entropy, or edge_class_weight for the edge terms",
    "include_background": "leave it out; class weights, weight=..., leave classes out",
    "input": "did you mean 'logits'?",
    "labels": "did you mean 'target'?",
    "pred": "did you mean 'logits'?",
    "sigmoid": "leave it out: the loss takes logits; for classes that overlap pass multilabel=True",
    "softmax": "leave it out: the loss takes logits",
    "to_onehot_y": "leave it out: the loss takes class indices; edgeloss.adapters.as_labels makes them",
    "training": "leave it out: since version 0.4 the loss is the same in train() and eval()",
}

P = ParamSpec("P")
R = TypeVar("R")


class Term(NamedTuple):
    """A term of the loss.

    Attributes:
        name: of its row in the sums, its map and its value in ``return_terms``.
        title: in figures.
        about: what its mean is, in a line.
        denominator: what its mean divides by: ``"W"``, over the valid pixels, or ``"E"``, over the edge pixels.
        weights: the options whose product is its weight.
        has_map: whether :class:`edgeloss.LossMaps` has it.
        has_kernels: whether the kernels compute it. Calls that weight another one are of the reference.
    """

    name: str
    title: str
    about: str
    denominator: Literal["W", "E"]
    weights: tuple[str, ...]
    has_map: bool = True
    has_kernels: bool = True


# Every other list of the terms is read from this one, or compared with it by a test.
TERMS = (
    Term("cross_entropy", "cross-entropy", "of each pixel by its label, mean of all", "W", ("ce_weight",)),
    Term(
        "same_side",
        "same side",
        "at edges: how far neighbors of the same class miss it",
        "E",
        ("edge_weight", "same_side_weight"),
    ),
    Term(
        "other_side",
        "other side",
        "at edges: how far neighbors of another class take it on",
        "E",
        ("edge_weight", "other_side_weight"),
    ),
    Term(
        "region",
        "region term",
        "small regions: 0 as labeled, 1 unrelated, 2 inverted",
        "W",
        ("region_weight",),
        has_map=False,
    ),
)
EDGE_TERMS = tuple(term for term in TERMS if term.denominator == "E")
# What adds up to the loss, by its name in `return_terms`, and the option that weights it: edge terms after their focus.
SUMMAND_OF = {term.name: "edge_focused" if term in EDGE_TERMS else term.name for term in TERMS}
SUMMANDS = {SUMMAND_OF[term.name]: term.weights[0] for term in TERMS}
# The options of the formula that makes the loss of the sums of the terms: numbers, in the order in which the kernels'
# operator `reduce` has them.
AFTER_SUMS = ("ce_weight", "edge_weight", "other_side_weight", "same_side_weight", "region_weight", "edge_focus")


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function say in the error for an unknown keyword what to pass instead.

    A function with weights of the terms ignores 0 of the ``REMOVED`` one with a warning, and raises for other values.
    """
    known = frozenset(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        # Dynamo of torch 2.11 does not know operators between the keys of kwargs and a set.
        for name in [name for name in kwargs if name not in known] if kwargs else ():
            if name == REMOVED and "same_side_weight" in known:
                _check_removed(kwargs.pop(name))
                continue
            hint = f"; {ADVICE[name]}" if name in ADVICE else ""
            if not hint and (nearest := difflib.get_close_matches(name, known, n=1, cutoff=0.6)):
                hint = f"; did you mean {nearest[0]!r}?"
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
    """Return the radius along each of the ``dims`` spatial axes."""
    if type(radius) is int and 1 <= radius < 2**63:  # for speed
        return [radius] * dims
    values = _per_axis(radius, dims)
    if not all(is_integer(r) for r in values):
        raise TypeError(f"radius: expected an int, or one int per axis, but got {radius!r}")
    if any(r < 0 for r in values) or not any(r >= 1 for r in values):
        raise ValueError(f"radius: expected ≥ 0 along every axis and ≥ 1 along at least one, but got {radius!r}")
    if len(values) != dims:
        raise ValueError(f"radius: expected an int, or {dims} ints, one per spatial axis, but got {radius!r}")
    if any(r >= 2**63 for r in values):
        raise ValueError(f"radius: expected 64-bit ints, but got {radius!r}; it needs not exceed the size of the image")
    return [int(r) for r in values]


def spacing_per_axis(spacing: float | Sequence[float] | None, dims: int) -> list[float]:
    """Return the size of a pixel along each of the ``dims`` spatial axes, by default 1."""
    if spacing is None:
        return [1.0] * dims
    values = _per_axis(spacing, dims)
    if len(values) != dims or not all(is_number(s) and 0 < s < math.inf for s in values):
        raise ValueError(
            f"spacing: expected a number > 0, or {dims} of them, one per spatial axis, but got {spacing!r}"
        )
    if not all(LENGTHS[0] <= float(s) <= LENGTHS[1] for s in values):
        raise ValueError(f"spacing: expected numbers in [1e-100, 1e100], but got {spacing!r}; use another unit")
    return [float(s) for s in values]


def _per_axis(value: Any, dims: int) -> list[Any]:  # noqa: ANN401
    """Return a value of each axis, of one for all or of one per axis, which may be an array or a tensor."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, Sequence) else [value] * dims


def is_number(value: object) -> TypeGuard[float]:
    """Return whether value is a real number; a bool is not."""
    # The test of the type is for speed: isinstance of an abstract class costs half a microsecond.
    return type(value) in (int, float) or (isinstance(value, Real) and not isinstance(value, bool))


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether value is an integer; a bool is not."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Check an option that is one of several words."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {choices}, but got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Check an option that is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected a bool, but got {value!r}")


def check_in(name: str, value: object, low: float, high: float) -> None:
    """Check a number with bounds."""
    if not is_number(value) or not low <= value <= high:
        bounds = f"[{low:g}, {high:g}]".replace("e+0", "e")
        raise ValueError(f"{name}: expected a number in {bounds}, but got {value!r}")


def check_positive(name: str, value: object, alternative: str = "") -> None:
    """Check a finite number > 0; the message names the alternative, such as ", or None"."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a finite number > 0{alternative}, but got {value!r}")


def check_count(name: str, value: object, least: int) -> None:
    """Check an integer with a lower bound."""
    if not is_integer(value):
        raise TypeError(f"{name}: expected an int, but got {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected an int ≥ {least}, but got {value!r}")


def check_label(name: str, value: object) -> None:
    """Check a label, or None."""
    if value is not None and not is_integer(value):
        hint = ""
        if isinstance(value, (list, tuple, set)) and value and all(map(is_integer, value)):
            labels = sorted(value)
            some = f"torch.isin(target, torch.tensor({labels}))"
            hint = f"; pass {name}={labels[-1]} and the target torch.where({some}, {labels[-1]}, target)"
        raise TypeError(f"{name}: expected an int or None, but got {value!r}{hint}")
    if value is not None and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: expected a 64-bit int, but got {value!r}")


def _check_weight(name: str, value: float) -> None:
    if not is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{name}: expected a finite number ≥ 0, but got {value!r}")
    if value > MOST_WEIGHT:
        raise ValueError(f"{name}: expected a number ≤ {MOST_WEIGHT:g}, but got {value!r}; scale all weights down")


def _check_decay(name: str, value: float | None) -> None:
    if value is None:
        return
    check_positive(name, value, ", or None")
    if not LENGTHS[0] <= float(value) <= LENGTHS[1]:
        raise ValueError(f"{name}: expected a number in [1e-100, 1e100], but got {value!r}; use another unit")


def _check_axes(name: str, value: Any) -> None:  # noqa: ANN401
    dims = 2 if isinstance(value, str) else len(_per_axis(value, 2))
    if dims not in (0, 2, 3):
        raise ValueError(f"{name}: expected one number, or 2 or 3, one per spatial axis, but got {value!r}")
    (radius_per_axis if name == "radius" else spacing_per_axis)(value, dims)


# ---------------------------------------------------------------------------------------------------------- the options


def _option(default: Any, check: Callable[[str, Any], None], meaning: str) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"help": meaning, "check": check})


def _one_of(words: Any) -> Callable[[str, Any], None]:  # noqa: ANN401
    return partial(check_choice, choices=get_args(words))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the loss that are not tensors; an instance has passed all checks.

    Names, order and defaults are those of :class:`edgeloss.EdgeAwareLoss`, which describes them in full. ``radius`` and
    ``spacing`` are stored as given; :func:`radius_per_axis` and :func:`spacing_per_axis` resolve them.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if an option is out of range.

    Example:
        >>> from edgeloss._checks.options import HELP, Options
        >>> Options(power=1.0).radius
        1
        >>> HELP["ce_weight"]
        'Weight of the cross-entropy, ≥ 0.'
    """

    ignore_index: int | None = _option(
        -100,
        check_label,
        "Label of pixels to ignore: they have no gradient and no edges, and their logits are not read. None for none.",
    )
    multilabel: bool = _option(
        False, check_flag, "Take each class as a binary loss of its own, with labels per class; classes may overlap."
    )
    reduction: Reduction = _option("mean", _one_of(Reduction), "Reduction of the loss: mean, sum, or none for a map.")
    label_smoothing: float = _option(
        0.0, partial(check_in, low=0, high=1), "Label smoothing of the cross-entropy, in [0, 1]."
    )
    ce_weight: float = _option(1.0, _check_weight, "Weight of the cross-entropy, ≥ 0.")
    edge_weight: float = _option(1.0, _check_weight, "Weight of the edge terms, ≥ 0; 0 leaves them out.")
    other_side_weight: float = _option(1.0, _check_weight, "Weight of the other-side term among the edge terms, ≥ 0.")
    same_side_weight: float = _option(1.0, _check_weight, "Weight of the same-side term among the edge terms, ≥ 0.")
    edge_focus: float = _option(
        3.0,
        partial(check_in, low=0, high=1000),
        "Exponent γ ≥ 0: the weight of the edge terms of a class in an image is its error there to the power of γ, so"
        " that edges which are learned count less; 0 for equal weights.",
    )
    region_weight: float = _option(
        3.0,
        _check_weight,
        "Weight of the region term, ≥ 0: the share of what the labels say about small regions that the prediction"
        " leaves open.",
    )
    radius: int | Sequence[int] = _option(
        1, _check_axes, "Radius of the neighborhood in pixels; in Python also one per axis."
    )
    power: float = _option(
        0.0,
        partial(check_in, low=-1e6, high=1e6),  # beyond it, power times a logit of 1e30 overflows float32
        "Exponent of the power mean: 0 averages the logarithms, 1 is the logarithm of the mean, -1 emphasizes the"
        " worst neighbor.",
    )
    decay: float | None = _option(
        None,
        _check_decay,
        "Distance from the edge over which the weight of a neighbor falls by a factor of e, in pixels, in"
        " Python also in units of spacing; by default all weigh the same.",
    )
    spacing: float | Sequence[float] | None = _option(
        None, _check_axes, "Size of a pixel, or one per axis; None for 1. Only decay uses it."
    )
    upsample: bool = _option(
        False, check_flag, "Accept logits of lower resolution than the labels, and interpolate them."
    )
    sync_normalizer: bool = _option(
        False, check_flag, "Share the denominators of the mean across the ranks of torch.distributed."
    )
    validate: Validate = _option(
        "async",
        _one_of(Validate),
        "When out-of-range labels raise. async: in the call, or on GPUs in edgeloss.check(). sync: in the call, as do"
        " values of other CUDA tensors. never: not checked.",
    )
    backend: BackendChoice = _option(
        "auto",
        _one_of(BackendChoice),
        "Implementation: fused (compiled kernels), reference (plain PyTorch), or auto (fused where it supports the"
        " call).",
    )

    @classmethod
    def from_attributes(cls, holder: object) -> Options:
        """Return the options stored as attributes of ``holder``, such as an :class:`edgeloss.EdgeAwareLoss`."""
        return cls(**{name: getattr(holder, name) for name in HELP})

    def term_weights(self) -> dict[str, float]:
        """Return the weight of each term in the loss."""
        return {term.name: math.prod(getattr(self, name) for name in term.weights) for term in TERMS}

    def __post_init__(self) -> None:
        """Check every option."""
        values = self.__dict__
        for name, check in _CHECKS.items():
            value, default = values[name], _DEFAULTS[name]
            if type(value) is not type(default) or value != default:  # most are, and need no check
                if name in ("radius", "spacing") and hasattr(value, "tolist"):  # an array or a tensor
                    value = values[name] = value.tolist()
                check(name, value)
                if is_number(value) and type(value) not in (int, float):  # of NumPy: its products have its precision
                    values[name] = int(value) if is_integer(value) else float(value)
        if self.spacing is not None and self.decay is None:
            raise ValueError(
                f"spacing: expected decay with it, but got decay=None, spacing={self.spacing!r}; pass the decay length,"
                " or leave spacing out: only decay uses it"
            )
        for name in ("other_side_weight", "same_side_weight"):
            if self.edge_weight * getattr(self, name) > MOST_WEIGHT:
                raise ValueError(
                    f"edge_weight · {name}: expected at most {MOST_WEIGHT:g}, but got {self.edge_weight!r} ·"
                    f" {getattr(self, name)!r}; scale all weights down"
                )


HELP: dict[str, str] = {option.name: option.metadata["help"] for option in fields(Options)}
_CHECKS: dict[str, Callable[[str, Any], None]] = {option.name: option.metadata["check"] for option in fields(Options)}
_DEFAULTS = {option.name: option.default for option in fields(Options)}


def check_option(name: str, value: Any) -> None:  # noqa: ANN401
    """Check one option by its name."""
    _CHECKS[name](name, value)
