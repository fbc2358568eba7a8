"""Triton's interpreter, which runs the kernels of GPUs on CPUs: several times as fast as it comes."""

from __future__ import annotations

from typing import Any

import numpy as np
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
