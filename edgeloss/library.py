"""The compiled library: load it, and report why it does not support a call."""

from __future__ import annotations

import ctypes
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from edgeloss.extras import install_advice
from edgeloss.options import Backend


def _load() -> str | None:
    """Load the library, which registers its operators with torch; return why it is missing, or None."""
    try:
        importlib.import_module("edgeloss._C")
    except ModuleNotFoundError:
        return cast("str", RECORD.get("missing", f"the library is not built; {install_advice()}"))
    except ImportError as error:
        return f"the library does not load with torch {torch.__version__} (it needs 2.10 or newer): {error}"
    return None


# The record of the build: compilers, targets, and why something was not built.
_NOTE = Path(__file__).with_name("_build.json")
RECORD: dict[str, Any] = json.loads(_NOTE.read_text()) if _NOTE.exists() else {}
# Why CUDA tensors take the reference with power=0.
_NO_CUDA_KERNELS = "the CUDA kernels are for power other than 0; with power=0 the loss is plain PyTorch there"
# Why there is no library, None if there is one. Loaded at import: torch.compile and torch.load use its operators
# without a call of this module.
MISSING = _load()


def backends() -> dict[str, str]:
    """Return which backends this installation has, and why others are missing.

    Returns:
        For each of ``"reference"``, ``"cpu"`` and ``"cuda"``, ``"available"`` or ``"unavailable: <reason>"``. Where
        ``"cuda"`` is available, the text names the calls that it serves: others are plain PyTorch on CUDA tensors.

    Example:
        >>> from edgeloss import backends
        >>> backends()["reference"]
        'available'
    """
    reasons = {"reference": None, "cpu": MISSING, "cuda": _why_not_on_cuda(None)}
    served = {"cuda": "available for neighbor_nll, and for the edge terms with power other than 0"}
    return {
        name: f"unavailable: {reason}" if reason else served.get(name, "available") for name, reason in reasons.items()
    }


def check() -> None:
    """Raise an error for out-of-range labels that earlier calls have recorded; in this version none of them does.

    Every call raises the error itself, except with ``validate="never"``.

    Example:
        >>> import edgeloss
        >>> edgeloss.check()  # for example after the last call of an epoch
    """


def why_not_fused(
    logits: Tensor, target: Tensor | None = None, lengths: Sequence[float] = (), *, has_power: bool = False
) -> str | None:
    """Return why the fused kernels do not support a call, None if they do; without target, of ``neighbor_nll``.

    Args:
        logits: of the call.
        target: of the call.
        lengths: the size of a pixel along each axis over the decay, where the kernels search for distances.
        has_power: whether ``power`` is other than 0.
    """
    if logits.device.type not in ("cpu", "cuda"):
        return f"there are no kernels for {logits.device.type} tensors"
    if logits.is_cuda:
        reason = _NO_CUDA_KERNELS if target is not None and not has_power else _why_not_on_cuda(logits.device.index)
    else:
        reason = MISSING
    if reason:
        return reason
    if torch._C._are_functorch_transforms_active():
        return "the kernels do not support transforms of torch.func"
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(logits).tangent is not None:  # type: ignore[no-untyped-call]
        return "the kernels do not support forward-mode differentiation"
    if target is None:
        return None
    if logits.shape[1] > 2**15 - 1 or target.numel() >= 2**31:
        return "the kernels are for less than 2^15 classes and 2^31 pixels"
    if any(not 1e-25 <= length <= 1e6 for length in lengths):  # float32 has no digits for differences of distances
        return "the kernels are for spacing / decay in [1e-25, 1e6]"
    return None


def why_reference(
    backend: Backend,
    logits: Tensor,
    target: Tensor | None = None,
    lengths: Sequence[float] = (),
    *,
    has_power: bool = False,
) -> str | None:
    """Return why the reference serves a call, None if the fused kernels do; arguments as :func:`why_not_fused`.

    Raises:
        RuntimeError: if ``backend="fused"`` and the fused kernels do not support the call.
    """
    if backend == "reference":
        return "the caller's choice"
    reason = why_not_fused(logits, target, lengths, has_power=has_power)
    if backend == "fused" and reason:
        raise RuntimeError(f"backend: 'fused' does not support this call: {reason}; pass 'auto' or 'reference'")
    return reason


_FIT: dict[int, str | None] = {}  # the answer for each CUDA device


def _why_not_on_cuda(index: int | None) -> str | None:
    """Return why there are no kernels for a CUDA device, None if there are; by default of the current device.

    It does not wait for the device.
    """
    if index in _FIT:
        return _FIT[index]
    if MISSING:
        return MISSING
    if not torch._C._dispatch_has_kernel_for_dispatch_key("edgeloss::neighbor_nll", "CUDA"):
        return f"the library was built without CUDA kernels: {RECORD.get('without_cuda', 'no record says why')}"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # no device, no driver, one too old for torch, a forked process: torch says which
        return " ".join(str(error).split())
    if index is None:
        return _why_not_on_cuda(torch.cuda.current_device())
    _FIT[index] = _why_unfit(RECORD, _driver_version(), torch.cuda.get_device_capability(index))
    return _FIT[index]


# torch.compile uses the answer as a constant, and does not trace the function.
_why_not_on_cuda._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _driver_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports; torch has no public function for it."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return divmod(version.value // 10, 100)


def _why_unfit(record: Mapping[str, Any], driver: tuple[int, int], capability: tuple[int, int]) -> str | None:
    """Return why a library does not run on a device, None if it does.

    Args:
        record: of the build: the CUDA version ``toolkit``, and the architectures ``cubins`` and ``ptx``.
        driver: the newest CUDA version that the driver supports.
        capability: the compute capability of the device.
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
