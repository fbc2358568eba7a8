"""From a loss and its arguments to its outcome in two precisions, and to its first non-finite operation."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import linecache
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from edgeloss.debug.report import TORCH, Finding, Origin, shown_line
from edgeloss.debug.trees import Node, all_finite, first_line, make_node, measure, short
from edgeloss.loss import EdgeAwareLoss

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@dataclass
class Outcome:
    """The result of one forward and backward pass.

    Attributes:
        loss: the returned loss, detached; None if the loss raised.
        gradient: the gradient with respect to the logits; None if there is none.
        error: the exception of the forward or backward pass in one line, with its place in the code.
        notes: what was done to the returned loss to compute a gradient.
        is_random: whether the loss drew random numbers.
        origin: of a watched pass, the operation that produced the first non-finite value; None if unknown.
        failed: of a watched pass, the derivative that raised, with its line; empty if none did.
    """

    loss: Tensor | None = None
    gradient: Tensor | None = None
    error: str = ""
    notes: list[Finding] = field(default_factory=list)
    is_random: bool = False
    origin: Origin | None = None
    failed: str = ""

    def is_finite(self) -> bool:
        """Return whether loss and gradient are finite, as far as they exist."""
        return all(tensor is None or all_finite(tensor) for tensor in (self.loss, self.gradient))


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
        outcome, watch, warned = Outcome(), Watch(), list[warnings.WarningMessage]()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._forked_rng())
            if dtype == torch.float64:
                stack.enter_context(_in_float64())
            if watched:
                warned = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")
                # It stores the lines of derivatives, and warns of the one that raises.
                stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
                stack.enter_context(watch)
            before = self._random_state()
            try:
                leaf, loss = self._forward(dtype, outcome.notes)
                outcome.loss = loss.detach()
                outcome.gradient = _gradient(loss, leaf)
            except Exception as error:  # any exception of the loss belongs into the report
                frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
                where = place(reversed(frames))
                is_users = where[0] and not where[0].startswith((TORCH, _PACKAGE))
                outcome.error = first_line(error) + (f" at {shown_line(*where)}" if is_users else "")
            outcome.is_random = not torch.equal(before, self._random_state())
        bad = [x for x in (outcome.loss, outcome.gradient) if x is not None and not all_finite(x)]
        outcome.origin = watch.origin_of(*bad[:1])
        for message in (str(warning.message) for warning in warned):
            if match := re.search(r"Error detected in (\w+)", message):
                outcome.failed = f"{match[1]} of {shown_line(*place(frames_in(message)))}"
        if outcome.loss is not None and outcome.gradient is None and not outcome.error:
            message = "gradient: none, since no differentiable path leads from the logits to the loss."
            advice = "Look for argmax, rounding, comparisons, .detach(), .item() or no_grad on the path."
            outcome.notes.append(Finding("warning", message, advice))
        return outcome

    def _forward(self, dtype: torch.dtype, notes: list[Finding]) -> tuple[Tensor, Tensor]:
        """Return the logits as a leaf, and the loss with its graph."""
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
        tensors = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        if not tensors:
            raise TypeError(f"expected a loss that returns a tensor, but got {short(result)}")
        if not isinstance(result, Tensor):
            notes.append(Finding("note", f"loss: the first tensor of the returned {type(result).__name__}."))
        if tensors[0].dim():
            notes.append(Finding("note", f"loss: a map {list(tensors[0].shape)}, summed for the gradient."))
        return leaf, tensors[0]

    def _forked_rng(self) -> contextlib.AbstractContextManager[None]:
        on_gpu = self.logits.is_cuda
        return torch.random.fork_rng([self.logits.device] if on_gpu else [], device_type="cuda")

    def _random_state(self) -> Tensor:
        states = [torch.get_rng_state()]
        if self.logits.is_cuda:
            states.append(torch.cuda.get_rng_state(self.logits.device))
        return torch.cat(states)


def _copied(dtype: torch.dtype, value: object) -> object:
    """Copy a tensor, and convert a floating one if the run is in float64."""
    if not isinstance(value, Tensor):
        return value
    to_float64 = dtype == torch.float64 and value.is_floating_point()
    return value.detach().to(dtype if to_float64 else value.dtype, copy=True)


def _gradient(loss: Tensor, leaf: Tensor) -> Tensor | None:
    """Return the gradient of the sum of the loss, which itself may overflow."""
    if not loss.requires_grad:
        return None
    return torch.autograd.grad(loss, leaf, torch.ones_like(loss), allow_unused=True)[0]


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    """Run a function that was written for another precision in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64Mode():
            yield
    finally:
        torch.set_default_dtype(before)


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


# --------------------------------------------------------------------------------------------- the operation to blame


def place(frames: Iterable[tuple[str, int]]) -> tuple[str, int, str]:
    """Return file, line and text of the innermost frame of the user's loss.

    Without one, frames of this package come next, then those of torch. Frames of the diagnosis are skipped.

    Args:
        frames: file and line, the innermost first.
    """

    def rank(frame: tuple[str, int]) -> int:
        return sum(frame[0].startswith(prefix) for prefix in (TORCH, TORCH + "_")) * 2 + frame[0].startswith(_PACKAGE)

    outward = itertools.dropwhile(lambda frame: frame[0] == __file__, frames)
    called = itertools.takewhile(lambda frame: frame[0] != __file__, outward)
    file, line = min(called, key=rank, default=("", 0))
    return file, line, linecache.getline(file, line).strip()


def frames_in(text: str) -> Iterator[tuple[str, int]]:
    """Return file and line of each frame in a traceback text, innermost first."""
    return ((file, int(line)) for file, line in reversed(re.findall(r'File "(.+)", line (\d+)', text)))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
        given = [value for value in tree_leaves((args, kwargs)) if _is_readable(value)]
        # Before they are overwritten.
        bad = _bad_among(given) if name.endswith("_") or "out" in kwargs else None
        result = func(*args, **kwargs)
        if "empty" in name:  # uninitialized memory
            return result
        for out in filter(_is_readable, tree_leaves(result)):
            if all_finite(out):
                origin = None
                if _address(out) in map(_address, given):
                    continue
            else:
                bad = _bad_among(given) if bad is None else bad
                origin = self._find(name, out, bad)
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
            stack = traceback.walk_stack(inspect.currentframe())
            frames: Iterable[tuple[str, int]] = ((frame.f_code.co_filename, line) for frame, line in stack)
        else:
            earlier = next((self._derived[_address(x)] for x, _ in bad if _address(x) in self._derived), None)
            if earlier is not None:  # of an earlier derivative, or of an earlier operation of this one
                return earlier if node != self._node else replace(earlier, made=made)
            self._node, name = node, node.name()
            frames = frames_in("".join(node.metadata.get("traceback_", [])))  # type: ignore[attr-defined]
        return Origin(name, made, *place(frames), self.origin_of(*(x for x, _ in bad)))


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _bad_among(tensors: Iterable[Tensor]) -> list[tuple[Tensor, bool]]:
    """Return those that are not finite, and whether they have nan."""
    return [(x, bool(x.isnan().any())) for x in tensors if not all_finite(x)]


def _is_readable(value: object) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided and not value.is_meta
    )


def base_name(operation: str) -> str:
    """Return "softmax" for both _softmax and its derivative SoftmaxBackward0."""
    return re.sub(r"(backward\d*|_)", "", operation.lower())
