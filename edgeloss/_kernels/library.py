"""The compiled library: loaded, or why not, and why it is unfit for a device; and what :func:`check` reports."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from edgeloss._checks.extras import install_advice


def _load() -> str | None:
    """Load the library, which registers its operators with torch; return why it is missing, or None."""
    try:
        import edgeloss._C  # noqa: F401
    except ModuleNotFoundError:
        return cast("str", RECORD.get("missing", f"the library is not built; {install_advice()}"))
    except ImportError as error:
        return f"the library does not load with torch {torch.__version__} (it needs 2.10 or newer): {error}"
    return None


# The record of the build: compilers, targets, and why something was not built.
_NOTE = Path(__file__).parents[1] / "_build.json"
RECORD: dict[str, Any] = json.loads(_NOTE.read_text()) if _NOTE.exists() else {}
# Whether CPU tensors take the kernels of GPUs, interpreted; for tests, in a process with TRITON_INTERPRET=1.
interprets = False
# Why there is no library, None if there is one. Loaded at import: torch.compile and torch.load use its operators
# without a call of this module.
MISSING = _load()


def is_of_triton(logits: Tensor) -> bool:
    """Return whether the kernels that return sums of these logits are those of Triton."""
    return logits.is_cuda or interprets


def check() -> None:
    """Raise an error for out-of-range labels that earlier calls have recorded, which it waits for.

    Calls on a GPU with ``validate="async"`` record them, unless plain PyTorch serves the call; the labels count as
    ignored. Other calls raise the error themselves, except with ``validate="never"``.

    Raises:
        ValueError: if there were out-of-range labels since the last such error.

    Example:
        >>> import edgeloss
        >>> edgeloss.check()  # for example after the last call of an epoch
    """
    wrong = sum(int(count.item()) for count in _WRONG.values())
    if wrong:
        for count in _WRONG.values():
            count.zero_()
        pixels = "1 pixel" if wrong == 1 else f"{wrong} pixels"
        raise ValueError(
            f"target: expected labels that are classes or ignored, but got others at {pixels} of the calls before;"
            " pass validate='sync' to see which"
        )


_WRONG: dict[torch.device, Tensor] = {}  # how many labels were out of range in asynchronous calls, 0-d


def recorded_wrong(device: torch.device) -> Tensor:
    """Return the number of out-of-range labels that :func:`check` reports, 0-d float64, to add others to it."""
    if device not in _WRONG:
        _WRONG[device] = torch.zeros((), dtype=torch.float64, device=device)
    return _WRONG[device]


_FIT: dict[int, str | None] = {}  # the answer for each CUDA device


def why_not_on_cuda(index: int | None) -> str | None:
    """Return why there are no kernels for a CUDA device, None if there are; by default of the current device.

    It does not wait for the device.
    """
    if index in _FIT:
        return _FIT[index]
    if MISSING:
        return MISSING
    if not torch._C._dispatch_has_kernel_for_dispatch_key("edgeloss::neighbor_nll", "CUDA"):
        reason = RECORD.get("without_cuda")
        more = f": {reason}" if reason else "; edgeloss/_build.json, which has the reason, is missing"
        return f"the library was built without CUDA kernels{more}"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # no device, no driver, one too old for torch, a forked process: torch says which
        return " ".join(str(error).split())
    if index is None:
        return why_not_on_cuda(torch.cuda.current_device())
    _FIT[index] = _why_unfit(RECORD, _driver_version(), torch.cuda.get_device_capability(index))
    return _FIT[index]


# torch.compile uses the answer as a constant, and does not trace the function.
why_not_on_cuda._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _driver_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports; torch has no public function for it."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return divmod(version.value // 10, 100)


def _why_unfit(record: Mapping[str, Any], driver: tuple[int, int], capability: tuple[int, int]) -> str | None:
    """Return why a library does not run on a device of a compute capability, None if it does.

    The record of the build has the CUDA version ``toolkit``, and the architectures ``cubins`` and ``ptx``; ``driver``
    is the newest CUDA version that the driver supports.
    """
    if "toolkit" not in record:
        return f"the library has no record, edgeloss/_build.json; {install_advice()}"
    toolkit = tuple(record["toolkit"])
    built = f"the library is built with CUDA {_dotted(toolkit)}"
    if driver[0] < toolkit[0]:
        return f"{built}, but the driver supports CUDA up to {_dotted(driver)}; update the driver"
    # Machine code runs on devices of its own major capability from its own minor one on, under any driver of the
    # toolkit's major version.
    major, minor = capability
    if any(arch // 10 == major and arch % 10 <= minor for arch in record["cubins"]):
        return None
    # PTX is for all that come after, but only a driver as new as the toolkit can compile it.
    device = f"a device of compute capability {_dotted(capability)}"
    advice = install_advice(EDGELOSS_CUDA_ARCHS=f"{major}{minor}")
    if not any(divmod(arch, 10) <= capability for arch in record["ptx"]):
        return f"the library is not built for {device}; {advice}"
    if driver < toolkit:
        return (
            f"{built}, and for {device} its PTX needs a driver of that version, but this one supports CUDA up to"
            f" {_dotted(driver)}; update the driver, or {advice}"
        )
    return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
