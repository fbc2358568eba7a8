"""Operations of a pass → the first one that returned a non-finite value, with its line."""

from __future__ import annotations

import itertools
import linecache
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgeloss.debug.trees import all_finite, measure

TORCH = os.path.dirname(torch.__file__) + os.sep
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_OURS = (__file__, os.path.join(os.path.dirname(__file__), "calls.py"))  # the frames of the diagnosis


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


def shown_line(file: str, line: int, source: str) -> str:
    """Format a line, its file relative to the working directory if possible."""
    for root in (os.path.dirname(TORCH[:-1]), os.getcwd()):
        file = file.removeprefix(root + os.sep)
    return f"{file or 'an unknown file'}:{line} `{source}`" if source else f"{file or 'an unknown file'}:{line}"


def place(text: str) -> tuple[str, int, str]:
    """Return file, line and source of the innermost frame of the user's loss in a traceback.

    Without one, frames of this package come next, then those of torch. Frames of the diagnosis are skipped.
    """
    frames = [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+)', text)]

    def rank(frame: tuple[str, int]) -> int:
        return sum(frame[0].startswith(prefix) for prefix in (TORCH, TORCH + "_")) * 2 + frame[0].startswith(PACKAGE)

    outward = itertools.dropwhile(lambda frame: frame[0] in _OURS, reversed(frames))
    called = itertools.takewhile(lambda frame: frame[0] not in _OURS, outward)
    file, line = min(called, key=rank, default=("", 0))
    return file, line, linecache.getline(file, line).strip()


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
        return Origin(name, made, *place("".join(stack)), self.origin_of(*(x for x, _ in bad)))


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
