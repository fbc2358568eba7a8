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


def check_registration(operator: Any, arguments: Sequence[Any]) -> None:
    """Check what torch knows of an operator.

    Its results are not compared between eager and compiled, as test_aot_dispatch_dynamic would: what forward leaves to
    backward is filled only where backward reads it.
    """
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, tuple(arguments), test_utils=tests)
