"""Any nested structure as a tree of lines, with statistics of its tensors."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from edgeloss.debug.stats import MAX_VALUES, Stats, measure

_MAX_CHILDREN = 40  # children of a node that are shown
_MAX_DEPTH = 20  # levels of a tree
_MAX_NAME = 48  # a longer name pushes its line out of the columns

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = MAX_VALUES


def tree(obj: object, *, name: str | None = None, file: TextIO | None = None) -> None:
    """Print any nested structure as a tree, one line per tensor.

    Mappings, lists, tuples, named tuples, dataclasses and modules (parameters, buffers and ``.grad``) are expanded.
    A tensor or NumPy array is shown by its shape, dtype and device, the minimum, mean and maximum of its finite values,
    and, where they occur, the numbers of nan, +inf, -inf and zeros, the index of the first non-finite value, and the
    distinct values if they are few. Nothing is changed, no statistic overflows, and very deep structures or ones that
    contain themselves are cut.

    Args:
        obj: anything.
        name: the name of the root; the name of its type if None.
        file: where to write; standard output if None.

    Example:
        >>> import torch
        >>> tree({"target": torch.tensor([[0, 1], [1, 255]]), "lr": 0.1}, name="batch")
        batch       dict of 2
        ├── target  int64  [2, 2]  cpu  min 0  mean 64.25  max 255  zeros 1 · values 0, 1, 255
        └── lr      0.1
    """
    print(format_tree(obj, name=name), file=file)


def format_tree(obj: object, *, name: str | None = None) -> str:
    """Return the text that :func:`tree` prints.

    Args:
        obj: anything.
        name: the name of the root; the name of its type if None.

    Returns:
        The lines.

    Example:
        >>> import torch
        >>> print(format_tree([torch.tensor([1.0, float("nan"), float("inf")]), "text"], name="list"))
        list     list of 2
        ├── [0]  float32  [3]  cpu  min 1  mean 1  max 1  nan 1 · +inf 1 · first bad [1] · values 1
        └── [1]  'text'
    """
    return make_node(type(obj).__name__ if name is None else _printable(name), obj).format()


@dataclass(frozen=True)
class Node:
    """A line of a tree, and the lines below it."""

    name: str
    text: str = ""
    stats: Stats | None = None
    children: list[Node] = field(default_factory=list)

    def tensors(self) -> Iterator[tuple[str, Stats]]:
        """Iterate over the path and the statistics of every tensor from here down."""
        if self.stats is not None:
            yield self.name, self.stats
        for child in self.children:
            for path, stats in child.tensors():
                yield f"{self.name}.{path}", stats

    def to_dict(self) -> dict[str, Any] | str:
        """Convert to a dict of statistics and children, or to the text of a leaf."""
        own = {} if self.stats is None else dataclasses.asdict(self.stats)
        if not self.children:
            return own or self.text
        return own | {child.name: child.to_dict() for child in self.children}

    def format(self) -> str:
        """Format the node and all below it as an aligned tree."""
        rows = list(self._rows("", ""))
        tensors = [[head, *cells] for head, cells in rows if len(cells) > 1]
        widths = [max(map(len, column), default=0) for column in zip(*tensors, strict=True)]
        name = min(max(len(head) for head, _ in rows), _MAX_NAME)
        lines = []
        for head, cells in rows:
            padded = [cell.ljust(width) for cell, width in zip(cells, widths[1:], strict=False)]
            shown = padded if len(cells) > 1 else cells
            # Leave out empty columns.
            lines.append("  ".join([head.ljust(name), *(cell for cell in shown if cell)]).rstrip())
        return "\n".join(lines)

    def _rows(self, first: str, rest: str) -> Iterator[tuple[str, list[str]]]:
        yield first + self.name, [self.text] if self.stats is None else self.stats.cells()
        for child in self.children:
            last = child is self.children[-1]
            yield from child._rows(rest + ("└── " if last else "├── "), rest + ("    " if last else "│   "))


def make_node(name: str, obj: object, ancestors: tuple[int, ...] = ()) -> Node:
    """Build the tree of an object.

    Args:
        name: the name on its line.
        obj: anything.
        ancestors: the ids of the objects that contain it.
    """
    if isinstance(obj, Tensor):
        # Only leaves keep a gradient; reading that of others raises a warning.
        gradient = obj.grad if obj.is_leaf else None
        return Node(name, stats=measure(obj), children=[] if gradient is None else [make_node("grad", gradient)])
    if isinstance(obj, np.ndarray):
        try:
            return Node(name, stats=measure(torch.tensor(obj.copy()), "numpy"))
        except (TypeError, ValueError):  # torch has no such dtype
            return Node(name, f"{obj.dtype}  {list(obj.shape)}  numpy")
    contents = _contents(obj)
    if contents is None:
        return Node(name, short(obj))
    text, items = contents
    if id(obj) in ancestors:
        return Node(name, f"{text}: same object as above")
    if len(ancestors) == _MAX_DEPTH and items:
        return Node(name, f"{text}: …")
    path = (*ancestors, id(obj))
    children = [make_node(key, value, path) for key, value in items[:_MAX_CHILDREN]]
    if len(items) > _MAX_CHILDREN:
        children.append(Node("…", f"{len(items) - _MAX_CHILDREN} more"))
    return Node(name, text, children=children)


def _contents(obj: object) -> tuple[str, list[tuple[str, object]]] | None:
    """Return description and items of a container, None for other objects."""
    kind = type(obj).__name__
    if isinstance(obj, nn.Module):
        parts = (obj.named_parameters(recurse=False), obj.named_buffers(recurse=False), obj.named_children())
        return f"{kind}({' '.join(obj.extra_repr().split())})", [item for part in parts for item in part]
    if isinstance(obj, Mapping):
        return f"{kind} of {len(obj)}", [(_printable(str(key)), value) for key, value in obj.items()]
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        names = [f.name for f in dataclasses.fields(obj)]
        return kind, [(name, getattr(obj, name)) for name in names if hasattr(obj, name)]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return kind, list(zip(obj._fields, obj, strict=True))
    if isinstance(obj, (list, tuple)) and not all(isinstance(value, (int, float, str, type(None))) for value in obj):
        return f"{kind} of {len(obj)}", [(f"[{i}]", value) for i, value in enumerate(obj)]
    return None


def _printable(text: str) -> str:
    """Return text on one line: spaces for white space, and escapes for what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def short(obj: object) -> str:
    """Return one line for an object without tensors."""
    shown = _printable(_REPR.repr(obj))
    if isinstance(obj, (list, tuple, set, frozenset)) and len(obj) > MAX_VALUES:
        return f"{shown} ({len(obj)})"
    return shown
