"""From a call to why the compiled library does not support it, if it does not; loads the library."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from edgeloss._checks.extras import install_advice
from edgeloss._checks.options import NO_POWER, Backend


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
_NOTE = Path(__file__).parents[1] / "_build.json"
RECORD: dict[str, Any] = json.loads(_NOTE.read_text()) if _NOTE.exists() else {}
# Whether CPU tensors take the kernels of GPUs, interpreted; for tests, in a process with TRITON_INTERPRET=1.
interprets = False
# Why there is no library, None if there is one. Loaded at import: torch.compile and torch.load use its operators
# without a call of this module.
MISSING = _load()


def backends() -> dict[str, str]:
    """Return which backends this installation has, and why others are missing.

    Returns:
        For each of ``"reference"``, ``"cpu"``, ``"cuda"`` and ``"cuda, power != 0"``, ``"available"`` or
        ``"unavailable: <reason>"``. ``"cuda"`` stands for GPUs of NVIDIA and of AMD, whose kernels with ``power=0`` are
        those of Triton; ``"cuda, power != 0"`` for those that nvcc has compiled: of the edge terms with another
        ``power``, and of ``neighbor_nll``.

    Example:
        >>> from edgeloss import backends
        >>> backends()["reference"]
        'available'
    """
    reasons = {
        "reference": None,
        "cpu": MISSING,
        "cuda": _why_not_on_gpu(),
        "cuda, power != 0": _why_not_on_cuda(None),
    }
    return {name: f"unavailable: {reason}" if reason else "available" for name, reason in reasons.items()}


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


_WRONG: dict[torch.device, Tensor] = {}  # out-of-range labels of calls that nobody waited for, 0-d


def recorded_wrong(device: torch.device) -> Tensor:
    """Return the number of out-of-range labels that :func:`check` reports, 0-d float64, to add others to it."""
    if device not in _WRONG:
        _WRONG[device] = torch.zeros((), dtype=torch.float64, device=device)
    return _WRONG[device]


def gathers(logits: Tensor, power: float) -> bool:
    """Return whether the kernels of a call are those of the edge terms alone, for CUDA tensors and ``power`` ≠ 0."""
    return logits.is_cuda and abs(power) > NO_POWER


def uses_triton(logits: Tensor) -> bool:
    """Return whether the kernels of a call of the loss are those of Triton."""
    return logits.is_cuda or interprets


def why_not_fused(
    logits: Tensor, target: Tensor | None = None, lengths: Sequence[float] = (), power: float = 0.0
) -> str | None:
    """Return why the fused kernels do not support a call, None if they do; without target, of ``neighbor_nll``.

    ``lengths`` are the sizes of a pixel over the decay, where the kernels search for distances.
    """
    if logits.device.type not in ("cpu", "cuda"):
        return f"there are no kernels for {logits.device.type} tensors"
    if target is not None and uses_triton(logits) and not gathers(logits, power):
        reason = "the kernels of Triton are for power=0" if abs(power) > NO_POWER else _why_no_triton()
    else:
        reason = _why_not_on_cuda(logits.device.index) if logits.is_cuda else MISSING
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
    power: float = 0.0,
) -> str | None:
    """Return why the reference serves a call, None if the fused kernels do; arguments as :func:`why_not_fused`.

    Raises:
        RuntimeError: if ``backend="fused"`` and the fused kernels do not support the call.
    """
    reason = "the caller's choice" if backend == "reference" else why_not_fused(logits, target, lengths, power)
    if backend == "fused" and reason:
        raise RuntimeError(f"backend: 'fused' does not support this call: {reason}; pass 'auto' or 'reference'")
    is_for_triton = target is not None and logits.is_cuda and not gathers(logits, power)
    if backend == "auto" and is_for_triton and (missing := _why_no_triton()):
        _warn_of_plain_pytorch(missing)
    return reason


OLDEST_TRITON = (3, 6)  # that of torch 2.10
_REASONS: dict[str, str | None] = {}  # what _why_no_triton has found, and what was warned of


def _why_no_triton() -> str | None:
    """Return why the kernels of GPUs can't be compiled, None if they can. It does not import Triton."""
    if "triton" not in _REASONS:
        reason = None
        version = next(filter(None, map(_version_of, ("triton", "pytorch-triton-rocm", "triton-rocm"))), "")
        if importlib.util.find_spec("triton") is None:
            reason = "Triton is not installed, which compiles the kernels of GPUs; torch for CUDA brings it on Linux"
        elif version and tuple(map(int, version.split(".")[:2])) < OLDEST_TRITON:
            reason = (
                f"Triton {version} is too old for the kernels of GPUs, which need {_dotted(OLDEST_TRITON)} or newer"
            )
        _REASONS["triton"] = reason
    return _REASONS["triton"]


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _warn_of_plain_pytorch(reason: str) -> None:
    if "warned" not in _REASONS:
        _REASONS["warned"] = reason
        warnings.warn(f"the loss on GPUs is plain PyTorch: {reason}", RuntimeWarning, stacklevel=5)


# torch.compile uses the answers as constants, and does not trace the functions.
_why_no_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]
_warn_of_plain_pytorch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _why_not_on_gpu() -> str | None:
    if reason := _why_no_triton():
        return reason
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for CPUs; the kernels of GPUs need one for CUDA or ROCm"
    return None if torch.cuda.is_available() else "torch sees no GPU"


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
