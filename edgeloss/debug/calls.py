"""A loss and its arguments → the outcome of a pass in a precision, and the operation where it stops being finite."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import linecache
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from edgeloss.debug.trees import Node, all_finite, first_line, make_node, measure, short
from edgeloss.loss import EdgeAwareLoss

LEVELS = ("error", "warning", "note")
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Finding(NamedTuple):
    """One problem, or one remark.

    Attributes:
        level: ``"error"`` for a non-finite value or an exception, ``"warning"`` for what is finite and probably wrong,
            ``"note"`` for context and for what follows from an error.
        message: what was found, and where.
        advice: how to fix it, in one sentence; empty if there is nothing to do.
    """

    level: Literal["error", "warning", "note"]
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Origin:
    """The operation that returns non-finite values for finite ones.

    Attributes:
        operation: its name, such as ``"div"``, or ``"DivBackward0"`` for the derivative of a division.
        made: the kinds of values that it returns with their counts, such as ``"nan 3"``.
        file: the file of the innermost line outside torch that called it; empty if unknown.
        line: the number of that line, from 1.
        source: the text of that line.
        cause: an earlier operation: the one that returned the infinities from which this one computes nan, or, for a
            derivative, the one that returned the non-finite values that the loss masks.
    """

    operation: str
    made: str
    file: str = ""
    line: int = 0
    source: str = ""
    cause: Origin | None = None

    def __str__(self) -> str:
        """Return the operation with its line, followed by its cause."""
        text = f"{self.operation} ({self.made}) at {_shown_line(self.file, self.line, self.source)}"
        if self.cause is None:
            return text
        if (self.cause.file, self.cause.line) == (self.file, self.line):
            return f"{text}, on the result of {self.cause.operation} ({self.cause.made}) in the same line"
        return f"{text}, on the result of {self.cause}"


@dataclass
class Outcome:
    """The result of one forward and backward pass."""

    loss: Tensor | None = None  # detached; None if the loss raised
    gradient: Tensor | None = None  # with respect to the logits; None if there is none
    error: str = ""  # the exception of the forward or backward pass in one line, with its place in the code
    notes: list[Finding] = field(default_factory=list)  # what was done to the returned loss to compute a gradient
    is_random: bool = False  # whether the loss drew random numbers
    origin: Origin | None = None  # of a watched pass, what produced the first non-finite value; None if unknown
    failed: str = ""  # of a watched pass, the derivative that raised, with its line; empty if none did

    def bad(self) -> dict[str, Tensor]:
        """Return those of loss and gradient that are not finite."""
        parts = {"loss": self.loss, "gradient": self.gradient}
        return {part: x for part, x in parts.items() if x is not None and not all_finite(x)}


class LossCall(NamedTuple):
    """A loss function and its arguments; every run starts from copies of them."""

    loss_fn: Callable[..., Any]
    logits: Tensor
    target: Any
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the function, or of the module's class."""
        function = self.loss_fn.func if isinstance(self.loss_fn, functools.partial) else self.loss_fn
        return str(getattr(function, "__name__", type(function).__name__))

    @property
    def ignore_index(self) -> int | None:
        """The label that does not count; None if unknown."""
        bound = self.loss_fn.keywords if isinstance(self.loss_fn, functools.partial) else {}
        value = (bound | self.kwargs).get("ignore_index", getattr(self.loss_fn, "ignore_index", None))
        return value if isinstance(value, int) else None

    def input_nodes(self) -> list[Node]:
        """Build the tree of every argument, and of the loss if it is a module."""
        inputs = {"logits": self.logits, "target": self.target, **self.kwargs}
        if isinstance(self.loss_fn, nn.Module):
            inputs["loss_fn"] = self.loss_fn
        return [make_node(name, value) for name, value in inputs.items()]

    def run(self, dtype: torch.dtype, *, watched: bool = False) -> Outcome:
        """Run forward and backward in a precision, always with the same random numbers.

        A watched pass takes longer, and some losses can't be watched: its error counts for nothing.
        """
        outcome, watch, warned = Outcome(), _Watch(), list[warnings.WarningMessage]()
        devices = [self.logits.device] if self.logits.is_cuda else []
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices, device_type="cuda"))
            if dtype == torch.float64:  # also of what the loss creates
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)
                stack.enter_context(_Float64Mode())
            if watched:
                warned = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")
                # It stores the lines of derivatives, and warns of the one that raises.
                stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
                stack.enter_context(watch)
            states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
            try:
                self._run(dtype, outcome)
            except Exception as error:  # any exception of the loss belongs into the report
                where = _place("".join(traceback.format_tb(error.__traceback__)))
                is_users = where[0] and not where[0].startswith((_TORCH, _PACKAGE))
                outcome.error = first_line(error) + (f" at {_shown_line(*where)}" if is_users else "")
            after = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
            outcome.is_random = not all(map(torch.equal, states, after))
        first_bad = list(outcome.bad().values())[:1]
        outcome.origin = watch.origin_of(*first_bad)
        for message in (str(warning.message) for warning in warned):
            if match := re.search(r"Error detected in (\w+)", message):
                outcome.failed = f"{match[1]} of {_shown_line(*_place(message))}"
        return outcome

    def _run(self, dtype: torch.dtype, outcome: Outcome) -> None:
        """Compute the loss of copies of the arguments, and its gradient."""
        leaf = self.logits.to(dtype, copy=True).requires_grad_()
        logits = leaf.clone()  # the loss may write into it, as into the output of a network
        target, kwargs = tree_map(functools.partial(_copied, dtype), (self.target, self.kwargs))
        loss_fn = self.loss_fn
        if isinstance(loss_fn, nn.Module):
            loss_fn = copy.deepcopy(loss_fn)  # a call may change its state
            loss_fn = loss_fn.double() if dtype == torch.float64 else loss_fn
        if isinstance(loss_fn, EdgeAwareLoss):
            loss_fn.sync_normalizer = False  # the other ranks make no such call
            if loss_fn.validate == "async":
                loss_fn.validate = "sync"  # no next call would report an out-of-range label
        result = loss_fn(logits, target, **kwargs)
        loss = next((value for value in tree_leaves(result) if isinstance(value, Tensor)), None)
        if loss is None:
            raise TypeError(f"expected a loss that returns a tensor, but got {short(result)}")
        if not isinstance(result, Tensor):
            outcome.notes.append(Finding("note", f"loss: the first tensor of the returned {type(result).__name__}."))
        if loss.dim():
            outcome.notes.append(Finding("note", f"loss: a map {list(loss.shape)}, summed for the gradient."))
        outcome.loss = loss.detach()
        if loss.requires_grad:  # of the sum of the loss, which itself may overflow
            (outcome.gradient,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss), allow_unused=True)
        if outcome.gradient is None:
            message = "gradient: none, since no differentiable path leads from the logits to the loss."
            advice = "Look for argmax, rounding, comparisons, .detach(), .item() or no_grad on the path."
            outcome.notes.append(Finding("warning", message, advice))


def _copied(dtype: torch.dtype, value: object) -> object:
    """Copy a tensor, and convert a floating one if the run is in float64."""
    if not isinstance(value, Tensor):
        return value
    to_float64 = dtype == torch.float64 and value.is_floating_point()
    return value.detach().to(dtype if to_float64 else value.dtype, copy=True)


class _Float64Mode(TorchFunctionMode):
    """Convert constants, closures and casts in every call to float64."""

    _CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        def widened(value: object) -> object:
            if isinstance(value, torch.dtype):
                return torch.float64 if value.is_floating_point else value
            # Keep a float64 tensor itself, since the call may write into it.
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                return value.double()
            return value

        args, kwargs = tree_map(widened, (tuple(args), dict(kwargs or {})))
        return (Tensor.double if func in self._CASTS else func)(*args, **kwargs)


# ------------------------------------------------------------------ the first operation that returns a non-finite value


def _shown_line(file: str, line: int, source: str) -> str:
    """Format a line, its file relative to the working directory if possible."""
    for root in (os.path.dirname(_TORCH[:-1]), os.getcwd()):
        file = file.removeprefix(root + os.sep)
    return f"{file or 'an unknown file'}:{line} `{source}`" if source else f"{file or 'an unknown file'}:{line}"


def _place(text: str) -> tuple[str, int, str]:
    """Return file, line and source of the innermost frame of the user's loss in a traceback.

    Without one, frames of this package come next, then those of torch. Frames of the diagnosis are skipped.
    """
    frames = [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+)', text)]

    def rank(frame: tuple[str, int]) -> int:
        return sum(frame[0].startswith(prefix) for prefix in (_TORCH, _TORCH + "_")) * 2 + frame[0].startswith(_PACKAGE)

    outward = itertools.dropwhile(lambda frame: frame[0] == __file__, reversed(frames))
    called = itertools.takewhile(lambda frame: frame[0] != __file__, outward)
    file, line = min(called, key=rank, default=("", 0))
    return file, line, linecache.getline(file, line).strip()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follow non-finite values through a forward and a backward pass to their origin.

    In the forward pass an operation is an origin if all its inputs are finite, or if it returns nan and its inputs hold
    infinities but no nan. In the backward pass a derivative is one if no non-finite value was made before it there; it
    may have read one that the loss masks. Values are identified by the address of their memory, which views share.
    """

    def __init__(self) -> None:
        """Start without any known value."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._origins: dict[int, Origin] = {}  # of values of the forward pass, by address
        self._derived: dict[int, Origin] = {}  # of those of the backward pass
        self._node: torch.autograd.graph.Node | None = None  # of the last origin in a backward pass

    def origin_of(self, *tensors: Tensor) -> Origin | None:
        """Return the origin of the first tensor that has one, None if none has."""
        known = (origins.get(_address(x)) for origins in (self._derived, self._origins) for x in tensors)
        return next((origin for origin in known if origin is not None), None)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Run an operation, and examine its inputs and outputs."""
        kwargs = kwargs or {}
        name = ".".join(str(func).split(".")[:-1]).removeprefix("aten.")  # without its overload
        given = list(_readable((args, kwargs)))
        # Before they are overwritten.
        bad = _bad_among(given) if name.endswith("_") or "out" in kwargs else None
        result = func(*args, **kwargs)
        if "empty" in name:  # uninitialized memory
            return result
        for out in _readable(result):
            origin = None
            if not all_finite(out):
                bad = _bad_among(given) if bad is None else bad
                origin = self._find(name, out, bad)
            elif _address(out) in map(_address, given):
                continue
            for origins in (self._origins, self._derived):  # another tensor may have used this memory before
                origins.pop(_address(out), None)
            if origin is not None:
                is_forward = torch._C._current_autograd_node() is None
                (self._origins if is_forward else self._derived)[_address(out)] = origin
        return result

    def _find(self, name: str, out: Tensor, bad: list[tuple[Tensor, bool]]) -> Origin | None:
        """Return the origin of what an operation returned; ``bad`` are its non-finite inputs, and which have nan."""
        node, made = torch._C._current_autograd_node(), ", ".join(measure(out).bad_kinds())
        if node is None:
            worst = [x for x, has_nan in bad if has_nan or not out.isnan().any()]
            if worst:
                return self.origin_of(*worst)
            stack = traceback.format_stack()
        else:
            earlier = next((self._derived[_address(x)] for x, _ in bad if _address(x) in self._derived), None)
            if earlier is not None:  # of an earlier derivative, or of an earlier operation of this one
                return earlier if node != self._node else replace(earlier, made=made)
            self._node, name = node, node.name()
            stack = node.metadata.get("traceback_", [])  # type: ignore[attr-defined]
        return Origin(name, made, *_place("".join(stack)), self.origin_of(*(x for x, _ in bad)))


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _bad_among(tensors: Iterable[Tensor]) -> list[tuple[Tensor, bool]]:
    """Return those that are not finite, and whether they have nan."""
    return [(x, bool(x.isnan().any())) for x in tensors if not all_finite(x)]


def _readable(values: object) -> Iterator[Tensor]:
    """Yield the floating tensors of a structure whose values and addresses can be read."""
    for x in tree_leaves(values):
        if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided and not x.is_meta:
            yield x
