"""The backends that have kernels: which calls are theirs, and why they do not serve one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad

from edgeloss._checks.inputs import Call
from edgeloss._checks.options import NO_POWER, TERMS
from edgeloss._kernels import library
from edgeloss._kernels.evaluate import evaluate, pair_terms
from edgeloss._reduction import Sums
from edgeloss._reference import terms

# Why kernels do not serve a call that they would serve without its maps.
NO_MAPS = "the kernels return no such maps"
_WITHOUT_KERNELS = [term for term in TERMS if not term.has_kernels]
_OLDEST_TRITON = (3, 6)  # that of torch 2.10


class Triton:
    """The kernels of GPUs, which Triton compiles: sums of all terms with ``power=0``."""

    name = "cuda"

    def is_for(self, call: Call) -> bool:
        """Return whether a call is of its kind."""
        return library.interprets or (call.inputs.logits.is_cuda and abs(call.options.power) <= NO_POWER)

    def why_not(self, call: Call | None) -> str | None:
        """Return why it does not serve a call of its kind, or any, None if it does."""
        if call is None:
            return _why_not_on_gpu()
        if abs(call.options.power) > NO_POWER:
            return "the kernels of Triton are for power=0"
        reason = why_no_triton() or _why_not_in_this_mode(call.inputs.logits) or _why_not_so_large(call)
        return reason or _why_not_all_terms(call) or _no_maps(call)

    def evaluate(self, call: Call) -> Sums:
        """Return the sums of a call."""
        return evaluate(call)


class Cpu:
    """The kernels of CPUs in C++: sums of all terms, and maps but for distances."""

    name = "cpu"

    def is_for(self, call: Call) -> bool:
        """Return whether a call is of its kind."""
        return call.inputs.logits.is_cpu

    def why_not(self, call: Call | None) -> str | None:
        """Return why it does not serve a call of its kind, or any, None if it does."""
        if library.MISSING or call is None:
            return library.MISSING
        reason = _why_not_in_this_mode(call.inputs.logits) or _why_not_so_large(call) or _why_not_all_terms(call)
        return reason or (_no_maps(call) if call.distances or torch.compiler.is_compiling() else None)

    def evaluate(self, call: Call) -> Sums:
        """Return the sums of a call, and its maps if it has some."""
        return evaluate(call)


class CudaPairs:
    """The kernels of GPUs that nvcc compiles: the edge terms with ``power`` ≠ 0, by pairs of pixels."""

    name = "cuda, power != 0"

    def is_for(self, call: Call) -> bool:
        """Return whether a call is of its kind."""
        return call.inputs.logits.is_cuda and abs(call.options.power) > NO_POWER

    def why_not(self, call: Call | None) -> str | None:
        """Return why it does not serve a call of its kind, or any, None if it does."""
        if call is None:
            return library.why_not_on_cuda(None)
        reason = library.why_not_on_cuda(call.inputs.logits.device.index)
        return reason or _why_not_in_this_mode(call.inputs.logits) or _why_not_so_large(call)

    def evaluate(self, call: Call) -> Sums:
        """Return the sums of a call, and its maps if it has some."""
        return terms.evaluate(call, by_kernels=pair_terms)


def why_no_neighbor_nll(logits: Tensor) -> str | None:
    """Return why no kernels serve a call of ``neighbor_nll``, None if some do."""
    if logits.device.type not in ("cpu", "cuda"):
        return no_kernels_for(logits)
    reason = library.why_not_on_cuda(logits.device.index) if logits.is_cuda else library.MISSING
    return reason or _why_not_in_this_mode(logits)


def no_kernels_for(logits: Tensor) -> str:
    """Return why no kernels serve logits of a device that none are for."""
    return f"there are no kernels for {logits.device.type} tensors"


def _why_not_in_this_mode(logits: Tensor) -> str | None:
    if torch._C._are_functorch_transforms_active():
        return "the kernels do not support transforms of torch.func"
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(logits).tangent is not None:  # type: ignore[no-untyped-call]
        return "the kernels do not support forward-mode differentiation"
    return None


def _why_not_so_large(call: Call) -> str | None:
    inputs, decay = call.inputs, call.options.decay
    # torch.export cannot state a bound of a product of sizes, so an exported graph does not check it.
    is_large = not torch.compiler.is_exporting() and inputs.target.numel() >= 2**31
    if inputs.logits.shape[1] > 2**15 - 1 or is_large:
        return "the kernels are for less than 2^15 classes and 2^31 pixels"
    if decay is None or inputs.distance is not None:
        return None
    if any(not 1e-25 <= length / decay <= 1e6 for length in inputs.spacing):  # float32 has no digits for differences
        return "the kernels are for spacing / decay in [1e-25, 1e6]"
    return None


def _why_not_all_terms(call: Call) -> str | None:
    weights = call.options.term_weights() if _WITHOUT_KERNELS else {}
    return next((f"there are no kernels for the {term.title}" for term in _WITHOUT_KERNELS if weights[term.name]), None)


def _no_maps(call: Call) -> str | None:
    return NO_MAPS if call.maps else None


_REASONS: dict[str, str | None] = {}  # what why_no_triton has found, and what was warned of


def why_no_triton() -> str | None:
    """Return why the kernels of GPUs can't be compiled, None if they can. It does not import Triton."""
    if "triton" not in _REASONS:
        reason = None
        version = next(filter(None, map(_version_of, ("triton", "pytorch-triton-rocm", "triton-rocm"))), "")
        if importlib.util.find_spec("triton") is None:
            reason = "Triton is not installed, which compiles the kernels of GPUs; torch for CUDA brings it on Linux"
        elif version and tuple(map(int, version.split(".")[:2])) < _OLDEST_TRITON:
            oldest = ".".join(map(str, _OLDEST_TRITON))
            reason = f"Triton {version} is too old for the kernels of GPUs, which need {oldest} or newer"
        _REASONS["triton"] = reason
    return _REASONS["triton"]


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def warn_of_plain_pytorch() -> None:
    """Warn once if no kernels serve GPUs since there is no Triton."""
    reason = why_no_triton()
    if reason and "warned" not in _REASONS:
        _REASONS["warned"] = reason
        warnings.warn(f"the loss on GPUs is plain PyTorch: {reason}", RuntimeWarning, stacklevel=6)


# torch.compile uses the answers as constants, and does not trace the functions.
why_no_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]
warn_of_plain_pytorch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _why_not_on_gpu() -> str | None:
    if reason := why_no_triton():
        return reason
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for CPUs; the kernels of GPUs need one for CUDA or ROCm"
    return None if torch.cuda.is_available() else "torch sees no GPU"
