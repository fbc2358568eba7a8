"""Find the operation that returns non-finite values for finite ones."""

from __future__ import annotations

import inspect
import itertools
import linecache
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgeloss.debug.stats import all_finite, measure


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
        text = f"{self.operation} ({self.made}) at {shown_line(self.file, self.line, self.source)}"
        if self.cause is None:
            return text
        if (self.cause.file, self.cause.line) == (self.file, self.line):
            return f"{text}, on the result of {self.cause.operation} ({self.cause.made}) in the same line"
        return f"{text}, on the result of {self.cause}"


_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_CALLERS = (__file__, os.path.join(os.path.dirname(__file__), "calls.py"))  # frames around the loss


def is_library(file: str) -> bool:
    """Return whether a file belongs to torch or to this package."""
    return not file or file.startswith((_TORCH, _PACKAGE))


def place(frames: Iterable[tuple[str, int]]) -> tuple[str, int, str]:
    """Return file, line and text of the innermost frame of the user's loss.

    Without one, frames of this package come next, then those of torch. Frames of the diagnosis are skipped.

    Args:
        frames: file and line, the innermost first.
    """

    def rank(frame: tuple[str, int]) -> int:
        return sum(frame[0].startswith(prefix) for prefix in (_TORCH, _TORCH + "_")) * 2 + frame[0].startswith(_PACKAGE)

    outward = itertools.dropwhile(lambda frame: frame[0] in _CALLERS, frames)
    called = itertools.takewhile(lambda frame: frame[0] not in _CALLERS, outward)
    file, line = min(called, key=rank, default=("", 0))
    return file, line, linecache.getline(file, line).strip()


def frames_in(text: str) -> Iterator[tuple[str, int]]:
    """Return file and line of each frame in a traceback text, innermost first."""
    return ((file, int(line)) for file, line in reversed(re.findall(r'File "(.+)", line (\d+)', text)))


def shown_line(file: str, line: int, source: str) -> str:
    """Format a line, its file relative to the working directory if possible."""
    for root in (os.path.dirname(_TORCH[:-1]), os.getcwd()):
        file = file.removeprefix(root + os.sep)
    return f"{file or 'an unknown file'}:{line} `{source}`" if source else f"{file or 'an unknown file'}:{line}"


_FINITE, _INFINITE, _NAN = range(3)


def _state(x: Tensor) -> int:
    return _FINITE if all_finite(x) else _NAN if bool(x.isnan().any()) else _INFINITE


def _made(x: Tensor) -> str:
    return ", ".join(measure(x).bad_kinds())


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follow non-finite values through the forward pass to their origin.

    An operation is an origin if all its inputs are finite, or if it returns nan and its inputs hold infinities but no
    nan. Values are identified by the address of their memory, which views share.
    """

    def __init__(self) -> None:
        """Start without any known value."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._origins: dict[int, Origin] = {}  # by address
        self._by_line: dict[tuple[str, int], list[tuple[str, Origin]]] = {}  # operations with a non-finite result

    def origin_of(self, *tensors: Tensor) -> Origin | None:
        """Return the origin of the first tensor that has one, None if none has."""
        return next((self._origins[a] for a in map(_address, tensors) if a in self._origins), None)

    def origin_in(self, file: str, line: int, derivative: str) -> Origin | None:
        """Return the origin of what an operation returned in a line, None if finite.

        Args:
            file: the file of the call.
            line: its line.
            derivative: the name of the operation's derivative.
        """
        operations = self._by_line.get((file, line), [])
        return next((origin for name, origin in operations if base_name(name) == base_name(derivative)), None)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Run an operation, and examine its inputs and outputs."""
        kwargs = kwargs or {}
        name = ".".join(str(func).split(".")[:-1]).removeprefix("aten.")  # without its overload
        writes = name.endswith("_") or "out" in kwargs
        given = [value for value in tree_leaves((args, kwargs)) if _is_readable(value)]
        states = [_state(x) for x in given] if writes else []  # before they are overwritten
        result = func(*args, **kwargs)
        if "empty" in name:  # uninitialized memory
            return result
        for out in filter(_is_readable, tree_leaves(result)):
            state = _state(out)
            if state == _FINITE:
                if _address(out) not in map(_address, given):  # memory that another tensor used before
                    self._origins.pop(_address(out), None)
                continue
            states = states or [_state(x) for x in given]
            worst = [x for x, s in zip(given, states, strict=True) if s in (state, _NAN)]
            infinite = [x for x, s in zip(given, states, strict=True) if s == _INFINITE]
            file, line, source = place(_stack(inspect.currentframe()))
            origin = self.origin_of(*worst)
            if not worst:
                origin = Origin(name, _made(out), file, line, source, self.origin_of(*infinite))
            if origin is None:  # an input was not finite; another tensor may have used this address before
                self._origins.pop(_address(out), None)
            else:
                self._origins[_address(out)] = origin
                self._by_line.setdefault((file, line), []).append((name, origin))
        return result


def _is_readable(value: object) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided and not value.is_meta
    )


def _stack(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    return ((outer.f_code.co_filename, line) for outer, line in traceback.walk_stack(frame))


def watch_backward(loss: Tensor, watch: Watch) -> list[Origin]:
    """Watch for the first derivative that returns non-finite values for finite ones.

    Hooks on all nodes of the graph see infinities too, which anomaly detection ignores until they become nan. Anomaly
    detection must still be on in the forward pass: it stores the line of each node.

    Args:
        loss: the root of the graph.
        watch: the watch of the forward pass.

    Returns:
        An empty list, to which the backward pass appends the origin.
    """
    origins: list[Origin] = []

    def hook(name: str, stack: str) -> Callable[[Sequence[Tensor | None], Sequence[Tensor | None]], None]:
        def look(after: Sequence[Tensor | None], before: Sequence[Tensor | None]) -> None:
            bad = None if origins else next((x for x in after if x is not None and not all_finite(x)), None)
            if bad is None or not all(x is None or all_finite(x) for x in before):
                return
            file, line, source = place(frames_in(stack))
            # A masked non-finite value comes back in the derivative of the operation that returned it.
            origins.append(Origin(name, _made(bad), file, line, source, watch.origin_in(file, line, name)))

        return look

    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            # The hook holds no reference to the node: such a cycle would never be freed.
            stack = "".join(node.metadata.get("traceback_", []))  # type: ignore[attr-defined]
            node.register_hook(hook(node.name(), stack))
    return origins


def base_name(operation: str) -> str:
    """Return "softmax" for both _softmax and its derivative SoftmaxBackward0."""
    return re.sub(r"(backward\d*|_)", "", operation.lower())
