"""Which operation makes values that are not finite of values that are."""

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

from edgeloss.debug.trees import all_finite, measure


@dataclass(frozen=True)
class Origin:
    """The operation that makes values which are not finite of values which are.

    Attributes:
        operation: its name, such as ``"div"``, or ``"DivBackward0"`` for the derivative of a division.
        made: what it makes, such as ``"nan 3"``.
        file: of the innermost line outside torch from which it was called; empty if there is none.
        line: its number there, from 1.
        source: the text of the line.
        cause: the operation that made the infinities of which this one makes nan, or, of a derivative, the values that
            the loss itself does not show.
    """

    operation: str
    made: str
    file: str = ""
    line: int = 0
    source: str = ""
    cause: Origin | None = None

    def __str__(self) -> str:
        """The operation and its line, the cause after it."""
        text = f"{self.operation} ({self.made}) at {shown_line(self.file, self.line, self.source)}"
        if self.cause is None:
            return text
        if (self.cause.file, self.cause.line) == (self.file, self.line):
            return f"{text}, out of what {self.cause.operation} ({self.cause.made}) made there"
        return f"{text}, out of what comes from {self.cause}"


_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_DIAGNOSIS = (__file__, os.path.join(os.path.dirname(__file__), "diagnosis.py"))


def is_library(file: str) -> bool:
    """Whether a file is none of the user's."""
    return not file or file.startswith((_TORCH, _PACKAGE))


def place(frames: Iterable[tuple[str, int]]) -> tuple[str, int, str]:
    """File, line and text of the innermost line that a diagnosis called: of the user's, else of this package or torch.

    Args:
        frames: file and line, the innermost first.
    """

    def rank(frame: tuple[str, int]) -> int:
        return sum(frame[0].startswith(prefix) for prefix in (_TORCH, _TORCH + "_")) * 2 + frame[0].startswith(_PACKAGE)

    outward = itertools.dropwhile(lambda frame: frame[0] in _DIAGNOSIS, frames)
    called = itertools.takewhile(lambda frame: frame[0] not in _DIAGNOSIS, outward)
    file, line = min(called, key=rank, default=("", 0))
    return file, line, linecache.getline(file, line).strip()


def frames_in(text: str) -> Iterator[tuple[str, int]]:
    """File and line of each frame of a traceback, the innermost first."""
    return ((file, int(line)) for file, line in reversed(re.findall(r'File "(.+)", line (\d+)', text)))


def shown_line(file: str, line: int, source: str) -> str:
    """A line as a reader finds it: relative to the working directory or to torch's, if it is there."""
    for root in (os.path.dirname(_TORCH[:-1]), os.getcwd()):
        file = file.removeprefix(root + os.sep)
    return f"{file or 'an unknown place'}:{line} `{source}`" if source else f"{file or 'an unknown place'}:{line}"


_FINE, _INFINITE, _NAN = range(3)


def _state(x: Tensor) -> int:
    return _FINE if all_finite(x) else _NAN if bool(x.isnan().any()) else _INFINITE


def _made(x: Tensor) -> str:
    return ", ".join(measure(x).bad_kinds())


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows values that are not finite through the forward pass, from the operation that made them.

    An operation makes them if no input has any; and it makes nan if none of its inputs is nan, though one may be
    infinite. A value is known by its memory, which views share.
    """

    def __init__(self) -> None:
        """Know of no such value yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._origins: dict[int, Origin] = {}  # by address
        self._at: dict[tuple[str, int], list[tuple[str, Origin]]] = {}  # operations that gave one on, by line

    def origin_of(self, *tensors: Tensor) -> Origin | None:
        """Where the first of them that is known stopped being finite; None if all came in so."""
        return next((self._origins[a] for a in map(_address, tensors) if a in self._origins), None)

    def origin_in(self, file: str, line: int, derivative: str) -> Origin | None:
        """Where what the operation of a derivative gave in that line stopped being finite; None if it was finite."""
        operations = self._at.get((file, line), [])
        return next((origin for name, origin in operations if base_name(name) == base_name(derivative)), None)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Make the call, and look at what goes in and comes out."""
        kwargs = kwargs or {}
        name = ".".join(str(func).split(".")[:-1]).removeprefix("aten.")  # without its overload
        writes = name.endswith("_") or "out" in kwargs
        given = [value for value in tree_leaves((args, kwargs)) if _is_readable(value)]
        states = [_state(x) for x in given] if writes else []  # before they are overwritten
        result = func(*args, **kwargs)
        if "empty" in name:  # memory that nobody has written yet
            return result
        for out in filter(_is_readable, tree_leaves(result)):
            state = _state(out)
            if state == _FINE:
                if _address(out) not in map(_address, given):  # memory that was another tensor's before
                    self._origins.pop(_address(out), None)
                continue
            states = states or [_state(x) for x in given]
            worst = [x for x, s in zip(given, states, strict=True) if s in (state, _NAN)]
            infinite = [x for x, s in zip(given, states, strict=True) if s == _INFINITE]
            file, line, source = place(_stack(inspect.currentframe()))
            origin = self.origin_of(*worst)
            if not worst:
                origin = Origin(name, _made(out), file, line, source, self.origin_of(*infinite))
            if origin is None:  # it came in so; another tensor may have been at its address before
                self._origins.pop(_address(out), None)
            else:
                self._origins[_address(out)] = origin
                self._at.setdefault((file, line), []).append((name, origin))
        return result


def _is_readable(value: object) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided and not value.is_meta
    )


def _stack(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    return ((outer.f_code.co_filename, line) for outer, line in traceback.walk_stack(frame))


def watch_backward(loss: Tensor, watch: Watch) -> list[Origin]:
    """Looks for the first derivative that makes values which are not finite of values which are.

    A hook on every node of the graph sees infinities too, which anomaly detection lets pass until they become nan. It
    must have been on in the forward pass, though: it is what lets the nodes remember their line.

    Args:
        loss: the root of the graph.
        watch: of the forward pass.

    Returns:
        An empty list, that the backward pass fills.
    """
    found: list[Origin] = []

    def hook(name: str, stack: str) -> Callable[[Sequence[Tensor | None], Sequence[Tensor | None]], None]:
        def look(after: Sequence[Tensor | None], before: Sequence[Tensor | None]) -> None:
            bad = None if found else next((x for x in after if x is not None and not all_finite(x)), None)
            if bad is None or not all(x is None or all_finite(x) for x in before):
                return
            file, line, source = place(frames_in(stack))
            # Bad values that the loss has masked away meet the derivative of the operation that saw them.
            found.append(Origin(name, _made(bad), file, line, source, watch.origin_in(file, line, name)))

        return look

    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            # The hook knows no node: together they would live for ever.
            stack = "".join(node.metadata.get("traceback_", []))  # type: ignore[attr-defined]
            node.register_hook(hook(node.name(), stack))
    return found


def base_name(operation: str) -> str:
    """The name that an operation shares with its derivative: softmax of _softmax and SoftmaxBackward0."""
    return re.sub(r"(backward\d*|_)", "", operation.lower())
