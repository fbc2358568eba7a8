"""Statistics of a tensor of any kind."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeloss.inputs import widest

MAX_VALUES = 10  # distinct values that a line lists


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
        tensor: any dtype, layout and device, quantized and meta tensors included.
        device: the name to report instead of the tensor's device.
    """
    if tensor.is_nested:  # which has no shape
        return _measured_nested(tensor, device)
    empty = Stats(list(tensor.shape), dtype_name(tensor), str(tensor.device) if device is None else device)
    if tensor.is_meta:
        return dataclasses.replace(empty, remark="no values")
    try:
        with torch.no_grad():
            return _measured(empty, tensor.detach())
    except Exception as error:  # an unsupported kind of tensor must not cost the other lines of a tree
        return dataclasses.replace(empty, remark=f"no statistics: {first_line(error)}")


def _measured_nested(tensor: Tensor, device: str | None) -> Stats:
    parts = tensor.detach().unbind()
    stats = measure(torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0), device)
    shapes = ", ".join(str(list(part.shape)) for part in parts[:MAX_VALUES]) + (
        ", …" if len(parts) > MAX_VALUES else ""
    )
    return dataclasses.replace(stats, first_bad=None, remark=f"nested: {shapes}" if parts else "nested: empty")


def _measured(stats: Stats, x: Tensor) -> Stats:
    x, remark = _as_real(x)
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
        wide = widest(x.device)
        # Divide before the sum where the sum might overflow.
        mean = (finite / finite.numel()).sum() if finite.dtype == wide else finite.sum(dtype=wide) / finite.numel()
        counts |= {"min": finite.min().item(), "mean": float(mean), "max": finite.max().item()}
        counts |= {"zeros": int((finite == 0).sum()), "values": _distinct_values(finite)}
    return dataclasses.replace(stats, remark=remark, **counts)


def _as_real(x: Tensor) -> tuple[Tensor, str]:
    """Convert to a real dense tensor that supports arithmetic; add a remark."""
    remark = ""
    if x.layout != torch.strided:
        remark = str(x.layout).removeprefix("torch.")
        x = (x.coalesce() if x.layout == torch.sparse_coo else x).values()
        remark += f" of {x.shape[0]} values"
    if x.is_quantized:
        x = x.dequantize()
    if x.is_complex():
        return x.abs(), "of |z|"
    if x.is_floating_point() and x.dtype.itemsize == 1:  # float8, which supports no arithmetic
        x = x.float()
    elif x.dtype == torch.bool:
        x = x.to(torch.uint8)
    elif x.dtype in (torch.uint16, torch.uint32):
        x = x.long()
    elif x.dtype == torch.uint64:
        x = x.double()
    return x, remark


def _distinct_values(values: Tensor) -> list[float] | None:
    """Return the distinct values in ascending order, None if there are many."""
    limit = MAX_VALUES // 2 if values.is_floating_point() else MAX_VALUES  # floating ones need more room
    sample = values[:: max(1, values.numel() // 1000)]
    if len(torch.unique(sample)) > limit:
        return None
    distinct: list[float] = []
    while values.numel():
        if len(distinct) == limit:
            return None
        lowest = values.min()
        distinct.append(lowest.item())
        values = values[values > lowest]
    return distinct


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
    flat_index = mask.flatten().to(torch.uint8).argmax()
    return [int(i) for i in torch.unravel_index(flat_index, mask.shape)]


def dtype_name(x: Tensor) -> str:
    """Return the name of the dtype, without "torch."."""
    return str(x.dtype).removeprefix("torch.")


def first_line(error: BaseException) -> str:
    """Return type and message of an exception, shortened to one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}".splitlines()[0], 200, placeholder=" …").rstrip(".")
