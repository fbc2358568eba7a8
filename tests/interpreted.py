"""Triton's interpreter, which runs the kernels of GPUs on CPUs: several times as fast as it comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
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
