"""The calls of the library's operators, as they are made, and what torch knows of an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace.startswith("edgeloss"):
            names = [argument.name for argument in func._schema.arguments]
            self.calls.append((func, dict(zip(names, args, strict=False)) | (kwargs or {})))
        return func(*args, **(kwargs or {}))


def operators_of(function: Callable[[], Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Return the operators of the library that a function calls, each with its arguments by name."""
    with _Recorder() as recorder:
        function()
    return recorder.calls


def check_registration(operator: Any, arguments: Sequence[Any], *, writes_all: bool = True) -> None:
    """Check what torch knows of an operator, and, where it writes all that it returns, that it is the same compiled."""
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, tuple(arguments), test_utils=tests if writes_all else tests[:-1])
