"""Any nested structure as a tree of lines, with statistics of its tensors."""

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

from edgeloss.reference import _widest

FEW = 10  # distinct values that a line lists
_MANY = 40  # children of a node that are shown
_DEEP = 20  # levels of a tree
_LONGEST_NAME = 48  # beyond it a name pushes its line out of the columns

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = FEW


def tree(obj: object, *, name: str | None = None, file: TextIO | None = None) -> None:
    """Prints any nested structure as a tree, one line per tensor.

    Mappings, lists, tuples, named tuples, dataclasses and modules (parameters, buffers and ``.grad``) are walked
    through; tensors and NumPy arrays are shown by shape, dtype, device, minimum, mean and maximum of the finite values,
    and, where there are any, the numbers of nan, +inf, -inf and zeros and the first index that is not finite. A tensor
    of few values lists them. Nothing is changed, no statistic overflows, and a structure that contains itself or never
    ends is cut.

    Args:
        obj: anything.
        name: of the root; its type if None.
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
    """What :func:`tree` prints.

    Args:
        obj: anything.
        name: of the root; its type if None.

    Returns:
        The lines.

    Example:
        >>> import torch
        >>> print(format_tree([torch.tensor([1.0, float("nan"), float("inf")]), "text"], name="list"))
        list     list of 2
        ├── [0]  float32  [3]  cpu  min 1  mean 1  max 1  nan 1 · +inf 1 · first bad [1] · values 1
        └── [1]  'text'
    """
    return node(type(obj).__name__ if name is None else name, obj).format()


@dataclass(frozen=True)
class Stats:
    """A tensor in numbers; minimum, mean, maximum and the distinct values are those of its finite values."""

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
    values: list[float] | None = None  # if they are few
    remark: str = ""

    @property
    def bad(self) -> int:
        """The number of values that are not finite."""
        return self.nan + self.posinf + self.neginf

    def bad_kinds(self) -> list[str]:
        """What is not finite, with counts, such as "nan 3"."""
        counts = {"nan": self.nan, "+inf": self.posinf, "-inf": self.neginf}
        return [f"{kind} {count}" for kind, count in counts.items() if count]

    def cells(self) -> list[str]:
        """The columns of a line; the last one holds what only some tensors have."""
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
    """Looks at a tensor of any kind without changing it."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    empty = Stats(list(tensor.shape), dtype, str(tensor.device) if device is None else device)
    if tensor.is_meta:
        return dataclasses.replace(empty, remark="no values")
    try:
        with torch.no_grad():
            return _filled(empty, tensor.detach())
    except Exception as error:  # of a kind of tensor that knows no such operation: its line must not cost the others
        return dataclasses.replace(empty, remark=f"no statistics: {first_line(error)}")


def _filled(stats: Stats, x: Tensor) -> Stats:
    remark = ""
    if x.layout != torch.strided:
        remark = str(x.layout).removeprefix("torch.")
        x = (x.coalesce() if x.layout == torch.sparse_coo else x).values()
        remark += f" of {x.shape[0]} values"
    if x.is_quantized:
        x = x.dequantize()
    if x.is_complex():
        x, remark = x.abs(), "of |z|"
    elif x.is_floating_point() and x.dtype.itemsize == 1:  # float8, which knows no arithmetic
        x = x.float()
    elif x.dtype == torch.bool:
        x = x.to(torch.uint8)
    elif x.dtype in (torch.uint16, torch.uint32):
        x = x.long()
    elif x.dtype == torch.uint64:
        x = x.double()
    counts: dict[str, Any] = {}
    finite = x.flatten()
    if not all_finite(x):
        bad = ~x.isfinite()
        counts = {
            "nan": int(x.isnan().sum()),
            "posinf": int((x == math.inf).sum()),
            "neginf": int((x == -math.inf).sum()),
            "first_bad": None if stats.shape != list(x.shape) else first_index(bad),
        }
        finite = x[~bad]
    if finite.numel():
        wide = _widest(x.device)
        # Divided before it is added up where the sum might overflow.
        total = (finite / finite.numel()).sum() if finite.dtype == wide else finite.sum(dtype=wide) / finite.numel()
        counts |= {"min": finite.min().item(), "mean": float(total), "max": finite.max().item()}
        counts |= {"zeros": int((finite == 0).sum()), "values": _few_values(finite)}
    return dataclasses.replace(stats, remark=remark, **counts)


def all_finite(x: Tensor) -> bool:
    """Whether no value is nan or infinite."""
    if not x.is_floating_point() and not x.is_complex():
        return True
    # One pass: the sum is finite only if all are. It may overflow where they are, and for float64 alone.
    if x.is_floating_point() and x.dtype.itemsize > 1 and bool(x.sum(dtype=_widest(x.device)).isfinite()):
        return True
    return bool(x.isfinite().all())


def first_index(mask: Tensor) -> list[int]:
    """The index of the first True."""
    at = mask.flatten().to(torch.uint8).argmax()
    return [int(i) for i in torch.unravel_index(at, mask.shape)]


def _few_values(values: Tensor) -> list[float] | None:
    """The distinct values in ascending order, if they are few; fewer of floating ones, which take more room."""
    few = FEW // 2 if values.is_floating_point() else FEW
    sample = values[:: max(1, values.numel() // 1000)]
    if len(torch.unique(sample)) > few:
        return None
    found: list[float] = []
    while values.numel():
        if len(found) == few:
            return None
        lowest = values.min()
        found.append(lowest.item())
        values = values[values > lowest]
    return found


@dataclass(frozen=True)
class Node:
    """A line of a tree and what hangs on it."""

    name: str
    text: str = ""
    stats: Stats | None = None
    children: list[Node] = field(default_factory=list)

    def tensors(self) -> Iterator[tuple[str, Stats]]:
        """Every tensor below and its path."""
        if self.stats is not None:
            yield self.name, self.stats
        for child in self.children:
            for path, stats in child.tensors():
                yield f"{self.name}.{path}", stats

    def to_dict(self) -> dict[str, Any] | str:
        """Statistics, text, or both under the names of the children."""
        own = {} if self.stats is None else dataclasses.asdict(self.stats)
        if not self.children:
            return own or self.text
        return own | {child.name: child.to_dict() for child in self.children}

    def format(self) -> str:
        """Format the node and those below it as an aligned tree."""
        rows = list(self._rows("", ""))
        tensors = [[head, *cells] for head, cells in rows if len(cells) > 1]
        widths = [max(map(len, column), default=0) for column in zip(*tensors, strict=True)]
        name = min(max(len(head) for head, _ in rows), _LONGEST_NAME)
        lines = []
        for head, cells in rows:
            padded = [cell.ljust(width) for cell, width in zip(cells, widths[1:], strict=False)]
            shown = padded if len(cells) > 1 else cells
            # A column that nobody fills is left out.
            lines.append("  ".join([head.ljust(name), *(cell for cell in shown if cell)]).rstrip())
        return "\n".join(lines)

    def _rows(self, first: str, rest: str) -> Iterator[tuple[str, list[str]]]:
        yield first + self.name, [self.text] if self.stats is None else self.stats.cells()
        for child in self.children:
            last = child is self.children[-1]
            yield from child._rows(rest + ("└── " if last else "├── "), rest + ("    " if last else "│   "))


def node(name: str, obj: object, above: tuple[int, ...] = ()) -> Node:
    """The tree of an object.

    Args:
        name: of its line.
        obj: the object.
        above: the ids of the objects that contain it.
    """
    if isinstance(obj, Tensor):
        # Only leaves keep a gradient; torch warns of a look at others'.
        gradient = obj.grad if obj.is_leaf else None
        return Node(name, stats=measure(obj), children=[] if gradient is None else [node("grad", gradient)])
    if isinstance(obj, np.ndarray):
        try:
            return Node(name, stats=measure(torch.tensor(obj.copy()), "numpy"))
        except (TypeError, ValueError):  # torch has no such dtype
            return Node(name, f"{obj.dtype}  {list(obj.shape)}  numpy")
    found = _contents(obj)
    if found is None:
        return Node(name, short(obj))
    text, items = found
    if id(obj) in above:
        return Node(name, f"{text}: the one above")
    if len(above) == _DEEP and items:
        return Node(name, f"{text}: …")
    inside = (*above, id(obj))
    children = [node(key, value, inside) for key, value in items[:_MANY]]
    if len(items) > _MANY:
        children.append(Node("…", f"{len(items) - _MANY} more"))
    return Node(name, text, children=children)


def _contents(obj: object) -> tuple[str, list[tuple[str, object]]] | None:
    """What a container is and holds; None of what is none."""
    kind = type(obj).__name__
    if isinstance(obj, nn.Module):
        parts = (obj.named_parameters(recurse=False), obj.named_buffers(recurse=False), obj.named_children())
        return f"{kind}({' '.join(obj.extra_repr().split())})", [item for part in parts for item in part]
    if isinstance(obj, Mapping):
        return f"{kind} of {len(obj)}", [(str(key), value) for key, value in obj.items()]
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        names = [f.name for f in dataclasses.fields(obj)]
        return kind, [(name, getattr(obj, name)) for name in names if hasattr(obj, name)]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return kind, list(zip(obj._fields, obj, strict=True))
    if isinstance(obj, (list, tuple)) and not all(isinstance(value, (int, float, str, type(None))) for value in obj):
        return f"{kind} of {len(obj)}", [(f"[{i}]", value) for i, value in enumerate(obj)]
    return None


def short(obj: object) -> str:
    """One line for a thing without tensors."""
    shown = " ".join(_REPR.repr(obj).split())
    return f"{shown} ({len(obj)})" if isinstance(obj, (list, tuple, set, frozenset)) and len(obj) > FEW else shown


def first_line(error: BaseException) -> str:
    """What an error is and says, in short."""
    return textwrap.shorten(f"{type(error).__name__}: {error}".splitlines()[0], 200, placeholder=" …").rstrip(".")
