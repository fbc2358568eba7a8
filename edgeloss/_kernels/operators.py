"""The operators of the kernels: the schemas of those of Triton, and what torch needs to know of all of them.

csrc has those of the others, where each is. ``edge_loss`` and ``reduce`` exist in two namespaces with the same
arguments, ``edgeloss`` for CPUs and ``edgeloss_triton`` for GPUs; :func:`run` calls them. Triton is imported by their
first call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, get_type_hints

import torch
from torch import Tensor

from edgeloss._checks.inputs import result_dtype
from edgeloss._checks.options import AFTER_SUMS
from edgeloss._kernels import library
from edgeloss._kernels.arguments import Arguments, KernelOptions, Outputs, new_outputs
from edgeloss._kernels.triton.workspace import new_state
from edgeloss._reduction import VALUES, EdgeRow, SumRow
from edgeloss._reference.custom_ops import register_derivative
from edgeloss._reference.region import averages_of, has_regions

TRITON = "edgeloss_triton"
_TYPES = {Tensor | None: "Tensor?", tuple[int, ...]: "int[]", tuple[float, ...]: "float[]"}
_ARGUMENTS = {name: f"{_TYPES.get(kind) or kind.__name__} {name}" for name, kind in get_type_hints(Arguments).items()}
_WEIGHTS = ", ".join(_ARGUMENTS[name] for name in ("weight", "pixel_weight", "distance"))
_OPTIONS = ", ".join(_ARGUMENTS[name] for name in KernelOptions._fields)
_NUMBERS = ", ".join(f"float {name}" for name in AFTER_SUMS)
_STATE = "Tensor label, Tensor memory"  # what backward reads
_SCHEMAS = {
    "edge_loss": f"({', '.join(_ARGUMENTS.values())}) -> ({', '.join(f'Tensor {name}' for name in Outputs._fields)},"
    f" {_STATE})",
    "edge_loss_backward": f"(Tensor? grad, Tensor slopes, Tensor? edge_pixel_weight, Tensor logits, {_WEIGHTS},"
    f" {_STATE}, {_OPTIONS}) -> Tensor",
    "reduce": "(Tensor sums, Tensor edge_sums, Tensor region, Tensor image_weight, Tensor? edge_class_weight, Tensor?"
    f" normalizer, int tables, bool balanced, bool mean, bool wide, {_NUMBERS})"
    " -> (Tensor loss, Tensor slopes, Tensor values)",
}
_FEW_CLASSES = 8  # as kFewClasses of csrc/cpu/saved_state.h
_ALIGNED = 64  # as kAligned of State there


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Return what is behind the operators of GPUs, by their names."""
    from edgeloss._kernels.triton import call, sums

    return {"edge_loss": call.forward, "edge_loss_backward": call.backward, "reduce": sums.reduce}


def _call(name: str, *args: Any) -> Any:  # noqa: ANN401
    hashable = (tuple(value) if isinstance(value, list) else value for value in args)
    return _functions()[name](*hashable)


_LIBRARY: Any = torch.library.Library(TRITON, "DEF")  # type: ignore[no-untyped-call]
for _name, _schema in _SCHEMAS.items():
    _LIBRARY.define(_name + _schema)
    for _device in ("CUDA", "CPU"):  # on CPUs there is the interpreter
        _LIBRARY.impl(_name, partial(_call, _name), _device)
of_triton = getattr(torch.ops, TRITON)
of_library = torch.ops.edgeloss
_PLAIN = {Tensor, torch.nn.Parameter, type(None)}


def run(name: str, tensors: Sequence[Any], *numbers: Any, of_gpus: bool, has_derivative: bool) -> Any:  # noqa: ANN401
    """Run an operator of the loss, whose first arguments are tensors, or None.

    Of GPUs the function behind it, if nothing would see the operator: to convert arguments and results for the
    dispatcher takes Python as long as to launch the kernels.
    """
    operator = getattr(of_triton if of_gpus else of_library, name).default
    if has_derivative:
        return operator(*tensors, *numbers)
    with torch._C._AutoDispatchBelowAutograd():
        return (_functions()[name] if of_gpus and not _is_seen(tensors) else operator)(*tensors, *numbers)


def _is_seen(tensors: Sequence[Any]) -> bool:
    """Return whether something sees an operator with these tensors: a subclass, a mode, a tracer, or the profiler."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
        or not _PLAIN.issuperset(map(type, tensors))
    )


# ---------------------------------------------------------------------------------------- their shapes and derivatives


def _fake_of_triton(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    arguments = Arguments(*args)
    return *new_outputs(arguments), *new_state(arguments)


def _fake_of_library(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    arguments = Arguments(*args)
    label = arguments.logits.new_empty(arguments.target.shape, dtype=torch.int16)
    return *new_outputs(arguments), label, arguments.logits.new_empty(_bytes_of_state(arguments), dtype=torch.uint8)


def _bytes_of_state(arguments: Arguments) -> int:
    """Return the bytes of State in csrc/cpu/saved_state.h, part by part."""
    logits, shape = arguments.logits, arguments.target.shape
    by_pairs, keeps_state, classes = arguments.by_pairs, arguments.keeps_state, max(2, logits.shape[1])
    real, pixels, is_upsampled = result_dtype(logits).itemsize, arguments.target.numel(), logits.shape[2:] != shape[1:]
    has_slopes = arguments.regions and keeps_state and has_regions(shape)
    has_statistics = by_pairs or (keeps_state and (is_upsampled or classes > _FEW_CLASSES))
    searches = arguments.edges and arguments.decay > 0 and arguments.distance is None
    of_classes = shape[0] * classes if has_slopes else 0
    parts = (
        pixels * by_pairs,
        2 * real * pixels * has_statistics,
        real * pixels * searches,
        real * of_classes * math.prod(averages_of(shape)),
        of_classes,
        6 * real * pixels * by_pairs,
    )
    return sum(-(-part // _ALIGNED) * _ALIGNED for part in parts)


def _gradients_of_sums(sums: Tensor, edge_sums: Tensor, region: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
    of_sums = sums[SumRow.CROSS_ENTROPY, None], edge_sums[EdgeRow.SAME_SIDE :].flatten(), region
    return None, torch.cat(of_sums), None


def _reduce_fake(sums: Tensor, edge_sums: Tensor, region: Tensor, *others: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    wide = others[6]
    slopes = sums.new_empty(1 + 2 * edge_sums[0].numel() + region.numel())
    return sums.new_empty((), dtype=torch.float64 if wide else torch.float32), slopes, sums.new_empty(len(VALUES))


def _keep_slopes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    ctx.save_for_backward(output[1])
    ctx.shapes, ctx.others = [x.shape for x in inputs[:3]], len(inputs) - 3
    ctx.mark_non_differentiable(*output[1:])


def _differentiate_reduce(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    """Return what arrives at the sums: only those of the terms have a derivative."""
    of_sums, of_edges, of_region = ctx.shapes
    slopes = ctx.saved_tensors[0] * grad
    rest = slopes.new_zeros(of_sums[0] - 1)
    of_terms = slopes[1 : slopes.shape[0] - of_region[0]].view(2, *of_edges[1:])
    no_weights = slopes.new_zeros((1, *of_edges[1:]))
    given = torch.cat([slopes[:1], rest]), torch.cat([no_weights, of_terms]), slopes[slopes.shape[0] - of_region[0] :]
    return *given, *(None for _ in range(ctx.others))


def _pair_terms_fake(
    logits: Tensor, label: Tensor, edge: Tensor, distance: Tensor | None, power: float, radius: list[int]
) -> tuple[Tensor, ...]:
    pixels = label.numel()
    return tuple(logits.new_empty(shape) for shape in ((2, *label.shape), (2, pixels), (pixels, 2, 3)))


def _neighbor_nll_fake(
    logits: Tensor, index: Tensor, weight: Tensor, mask: Tensor | None, radius: list[int]
) -> tuple[Tensor, ...]:
    value = logits.new_empty((logits.shape[0], *logits.shape[2:]), dtype=result_dtype(logits))
    pixels = value.numel()
    largest = weight.new_empty((1, pixels))
    return value, value.new_empty((2, pixels)), largest, value.new_empty((pixels, 3))


def _gradient_of_first(of_first: Tensor, *others: Tensor) -> tuple[Tensor]:
    return (of_first.contiguous(),)


def _refuse(ctx: Any, *grads: Tensor | None) -> None:  # noqa: ANN401
    raise RuntimeError("the fused loss can't be differentiated twice; pass backend='reference'")


def register(namespace: str) -> None:
    """Register shapes and derivatives of the operators that CPUs and CUDA have, in a namespace."""
    _register(namespace, "pair_terms", _pair_terms_fake, _gradient_of_first)
    _register(namespace, "neighbor_nll", _neighbor_nll_fake, _gradient_of_first)


def _register_loss(namespace: str, fake: Callable[..., tuple[Tensor, ...]]) -> None:
    _register(namespace, "edge_loss", fake, _gradients_of_sums)
    torch.library.register_fake(f"{namespace}::reduce", _reduce_fake)
    torch.library.register_autograd(f"{namespace}::reduce", _differentiate_reduce, setup_context=_keep_slopes)


def _register(namespace: str, name: str, *given: Any) -> None:  # noqa: ANN401
    register_derivative(namespace, name, *given)
    torch.library.register_autograd(f"{namespace}::{name}_backward", _refuse)


_register_loss(TRITON, _fake_of_triton)
if not library.MISSING:
    _register_loss("edgeloss", _fake_of_library)
    register("edgeloss")
