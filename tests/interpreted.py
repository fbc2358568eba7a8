"""Triton's interpreter, which runs the kernels of GPUs on CPUs: several times as fast as it comes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

# As on a GPU, 0 · inf is nan without a word; where it may not reach a result, the tests compare the result.
np.seterr(invalid="ignore")
_patched = set()


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of a kernel.

    The interpreter replaces the functions of the language before each such call, which takes most of its time. Once
    is enough for those of the language itself, and those of others are called by kernels for which it has done so.
    """
    module = self.fn.__module__
    if module.startswith("triton.") and module not in _patched:
        interpreter._patch_lang(self.fn)
        _patched.add(module)
    return self.rewrite()(*args, **kwargs)


interpreter.InterpretedFunction.__call__ = _call

# The interpreter constructs a type and a shape for each value, and a dictionary of dtypes for each lookup: half of the
# remaining time. They are never modified, so equal ones are constructed once and shared.
_dtype_of, _make_block_type, _dtypes, _block_types = interpreter._get_np_dtype, core.block_type.__init__, {}, {}


def _get_np_dtype(of: Any) -> Any:
    element = of.element_ty if isinstance(of, tl.block_type) else of
    if element.name not in _dtypes:
        _dtypes[element.name] = _dtype_of(element)
    return _dtypes[element.name]


def _block_type(self: Any, element: Any, shape: Any) -> None:
    key = element.name, *map(core._unwrap_if_constexpr, shape)
    if key not in _block_types:
        _make_block_type(self, element, shape)
        _block_types[key] = vars(self).copy()
    vars(self).update(_block_types[key])


@cache
def _shape_and_count(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    return core.tuple([*map(core.constexpr, sizes)]), core.constexpr(math.prod(sizes))


def _tensor(self: Any, handle: Any, of: Any) -> None:
    self.handle, self.type, self.dtype = handle, of, of.scalar
    self.shape, self.numel = _shape_and_count(tuple(of.shape) if of.is_block() else ())


interpreter._get_np_dtype = _get_np_dtype
core.block_type.__init__ = _block_type
core.tensor.__init__ = _tensor
# No checks of integer overflow, which compute every operation again in 64 bits: indices of tests are too small for it.
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
_convert = interpreter._convert_float


def _convert_float(values: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Convert numbers; to bfloat16 as devices do, which round them, where the interpreter cuts digits off."""
    if target == tl.bfloat16 and values.dtype in (np.float32, np.float64):
        rounded = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
        return rounded.view(torch.int16).numpy().view(np.uint16)
    return _convert(values, source, target, rounding)


interpreter._convert_float = _convert_float


def _with_mask(name: str, place: int) -> None:
    """Let loads or stores take masks that are not bool, as those of a scalar and a tile are since Triton 3.9."""
    function = getattr(interpreter.InterpreterBuilder, name)

    def masked(self: Any, *args: Any) -> Any:
        args[place].data = args[place].data.astype(bool)
        return function(self, *args)

    setattr(interpreter.InterpreterBuilder, name, masked)


_with_mask("create_masked_load", 1)
_with_mask("create_masked_store", 2)
