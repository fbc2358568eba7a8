"""From tensors and nested structures to lines of text: statistics, and trees of them."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from edgeloss._checks.inputs import dtype_name, widest

LINE = 110  # characters of a line
MAX_VALUES = 10  # distinct values that a line lists
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
        tensors = [[head, *cells] for head, _, cells in rows if len(cells) > 1]
        widths = [max(map(len, column), default=0) for column in zip(*tensors, strict=True)]
        name = min(max(len(head) for head, *_ in rows), _MAX_NAME)
        lines = []
        for head, below, cells in rows:
            *columns, last = cells
            padded = [cell.ljust(width) for cell, width in zip(columns, widths[1:], strict=False)]
            line = "  ".join([head.ljust(name), *(cell for cell in padded if cell)])  # leave out empty columns
            indent = below.ljust(name + 2)
            if columns and len(line) + 2 + len(last) > LINE:
                lines.append(line.rstrip())
                line = indent[:-2]
            wrapped = textwrap.wrap(last, LINE, initial_indent=f"{line}  ", subsequent_indent=indent)
            lines += wrapped or [line.rstrip()]
        return "\n".join(lines)

    def _rows(self, first: str, rest: str) -> Iterator[tuple[str, str, list[str]]]:
        """Return the head of each line, that of the lines that continue it, and its cells."""
        below = rest + ("│   " if self.children else "")
        yield first + self.name, below, [self.text] if self.stats is None else self.stats.cells()
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


# --------------------------------------------------------------------------------------------- statistics of a tensor


@dataclass(frozen=True)
class Stats:
    """Statistics of a tensor.

    Minimum, mean, maximum and distinct values include finite values only.
    """

    shape: list[int]
    dtype: str
    device: str
    min: float | None = None
    mean: float | None = None
    max: float | None = None
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    first_bad: list[int] | None = None
    values: list[float] | None = None  # None if there are too many to list
    remark: str = ""

    @property
    def bad(self) -> int:
        """The number of non-finite values."""
        return self.nan + self.posinf + self.neginf

    def bad_kinds(self) -> list[str]:
        """Return the kinds of non-finite values with their counts, such as "nan 3"."""
        counts = {"nan": self.nan, "+inf": self.posinf, "-inf": self.neginf}
        return [f"{kind} {count}" for kind, count in counts.items() if count]

    def cells(self) -> list[str]:
        """Return the columns of a line; the last one holds what only some tensors have."""
        numbers, notes = ["", "", ""], []
        if math.prod(self.shape) == 1 and (self.bad or self.min is not None):
            numbers[0] = self.bad_kinds()[0].split()[0] if self.min is None else _number(self.min)
        elif self.min is not None:
            numbers = [f"{key} {_number(getattr(self, key))}" for key in ("min", "mean", "max")]
        if math.prod(self.shape) > 1:
            notes = self.bad_kinds()
            if self.first_bad is not None:
                notes.append(f"first bad {self.first_bad}")
            if self.zeros:
                notes.append(f"zeros {self.zeros}")
            if self.values:
                notes.append(f"values {', '.join(map(_number, self.values))}")
        if self.remark:
            notes.append(self.remark)
        return [self.dtype, str(self.shape), self.device, *numbers, " · ".join(notes)]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.5g}"


def measure(tensor: Tensor, device: str | None = None) -> Stats:
    """Compute the statistics of a tensor without changing it.

    Args:
        tensor: any dtype, layout and device, quantized, nested and meta tensors included.
        device: the name to report instead of the tensor's device.
    """
    shape = [tensor.numel()] if tensor.is_nested else list(tensor.shape)  # a nested one has no shape
    stats = Stats(shape, dtype_name(tensor.dtype), str(tensor.device) if device is None else device)
    if tensor.is_meta:
        return dataclasses.replace(stats, remark="no values")
    try:
        with torch.no_grad():
            x, remark = _as_real(tensor.detach())
            is_whole = tensor.layout == torch.strided and not tensor.is_nested
            return dataclasses.replace(stats, remark=remark, **_measured(x, is_whole=is_whole))
    except Exception as error:  # an unsupported kind of tensor must not cost the other lines of a tree
        return dataclasses.replace(stats, remark=f"no statistics: {first_line(error)}")


def _measured(x: Tensor, *, is_whole: bool) -> dict[str, Any]:
    """Return the statistics of a real dense tensor, without an index unless it is a whole one."""
    counts: dict[str, Any] = {}
    finite = x.flatten()
    if not all_finite(x):
        bad = ~x.isfinite()
        counts = {"nan": int(x.isnan().sum()), "posinf": int((x == math.inf).sum())}
        counts |= {"neginf": int((x == -math.inf).sum()), "first_bad": first_index(bad) if is_whole else None}
        finite = x[~bad]
    if finite.numel():
        wide = widest(x.device)
        # Divide before the sum where the sum might overflow.
        mean = (finite / finite.numel()).sum() if finite.dtype == wide else finite.sum(dtype=wide) / finite.numel()
        counts |= {"min": finite.min().item(), "mean": float(mean), "max": finite.max().item()}
        counts |= {"zeros": int((finite == 0).sum()), "values": _distinct_values(finite)}
    return counts


def _as_real(x: Tensor) -> tuple[Tensor, str]:
    """Convert to a real dense tensor that supports arithmetic; add a remark."""
    remark = ""
    if x.is_nested:
        parts = x.unbind()
        shapes = [str(list(part.shape)) for part in parts[:MAX_VALUES]] + ["…"] * (len(parts) > MAX_VALUES)
        remark = f"nested: {', '.join(shapes) or 'empty'}"
        x = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0)
    elif x.layout != torch.strided:
        remark = str(x.layout).removeprefix("torch.")
        x = (x.coalesce() if x.layout == torch.sparse_coo else x).values()
        remark += f" of {x.shape[0]} values"
    if x.is_quantized:
        x = x.dequantize()
    if x.is_complex():
        return x.abs(), "of |z|"
    if not x.is_floating_point():  # unsigned ones of several bytes support no arithmetic
        x = x.double() if x.dtype == torch.uint64 else x.long()
    return x.float() if x.dtype.itemsize == 1 else x, remark  # and neither does float8


def _distinct_values(values: Tensor) -> list[float] | None:
    """Return the distinct values in ascending order, None if there are many."""
    limit = MAX_VALUES // 2 if values.is_floating_point() else MAX_VALUES  # floating ones need more room
    for chosen in (values[:: max(1, values.numel() // 1000)], values):  # most show it early
        distinct = torch.unique(chosen)
        if len(distinct) > limit:
            return None
    return list(distinct.tolist())


def all_finite(x: Tensor) -> bool:
    """Return whether no value is nan or infinite."""
    if not x.is_floating_point() and not x.is_complex():
        return True
    # One pass: a finite sum means finite values. A sum of finite values may overflow in float64 only.
    if x.is_floating_point() and x.dtype.itemsize > 1 and bool(x.sum(dtype=widest(x.device)).isfinite()):
        return True
    return bool(x.isfinite().all())


def first_index(mask: Tensor) -> list[int]:
    """Return the index of the first True."""
    flat_index = int(mask.flatten().to(torch.uint8).argmax())
    return [int(i) for i in np.unravel_index(flat_index, mask.shape)]  # that of torch imports sympy, for seconds


def first_line(error: BaseException) -> str:
    """Return type and message of an exception, shortened to one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}".splitlines()[0], 200, placeholder=" …").rstrip(".")
