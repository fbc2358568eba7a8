"""From arguments to a checked call, from a call to the backend that serves it, and to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from edgeloss._checks.inputs import (
    Call,
    Given,
    Inputs,
    check_device,
    check_inputs,
    check_label_map,
    check_labels,
    check_non_negative,
    check_pair,
    check_target,
    check_that,
    is_checked,
    plain,
    widest,
)
from edgeloss._checks.options import Options
from edgeloss._kernels.backends import NO_MAPS, Cpu, CudaPairs, Triton, no_kernels_for, warn_of_plain_pytorch
from edgeloss._reduction import LossResult, Sums, reduce, weights_of_pixels
from edgeloss._reference import terms
from edgeloss._reference.label_weights import edge_pixels
from edgeloss._reference.neighbor_nll import has_neighbors
from edgeloss._reference.neighborhoods import find_edges, within_reach

_ANY = 2**31 - 1  # classes: more than any labels have


# --------------------------------------------------------------------------------------------------------- the backends


class Backend(Protocol):
    """What computes the sums of a call."""

    name: str

    def is_for(self, call: Call) -> bool:
        """Return whether a call is of the kind that it serves, by its device and power."""

    def why_not(self, call: Call | None) -> str | None:
        """Return why it does not serve a call of its kind, None if it does; without a call, why it is not installed."""

    def evaluate(self, call: Call) -> Sums:
        """Return the sums, and the maps if the call has some; check the labels."""


class Reference:
    """Plain PyTorch, which serves any call."""

    name = "reference"

    def is_for(self, call: Call) -> bool:
        """Return True."""
        return True

    def why_not(self, call: Call | None) -> str | None:
        """Return None."""
        return None

    def evaluate(self, call: Call) -> Sums:
        """Return the sums of a call, and its maps if it has some."""
        return terms.evaluate(call)


# The first one whose kind a call is serves it, or the last one where that one can't.
BACKENDS: tuple[Backend, ...] = (Triton(), CudaPairs(), Cpu(), Reference())


def choose(call: Call) -> Backend:
    """Return the backend that serves a call: the one of its kind, or the reference where that one does not.

    Raises:
        RuntimeError: if ``backend="fused"`` and there are no kernels for the sums of the call.
    """
    reference, asked = BACKENDS[-1], call.options.backend
    if asked == "reference":
        return reference
    for found in BACKENDS:
        if found.is_for(call):
            break
    reason = no_kernels_for(call.inputs.logits) if found is reference else found.why_not(call)
    if reason is None:
        return found
    if asked == "fused" and reason != NO_MAPS:
        raise RuntimeError(refusal(reason))
    if asked == "auto" and isinstance(found, Triton):
        warn_of_plain_pytorch()
    return reference


def refusal(reason: str | None) -> str:
    """Return the message for ``backend="fused"`` where no kernels serve a call."""
    return f"backend: 'fused' does not support this call: {reason}; pass 'auto' or 'reference'"


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
    reasons = {backend.name: backend.why_not(None) for backend in reversed(BACKENDS)}
    return {name: f"unavailable: {reason}" if reason else "available" for name, reason in reasons.items()}


# --------------------------------------------------------------------------------------------------------- the calls


def evaluate(
    logits: Tensor, target: Tensor, options: Options, given: Given, *, with_maps: bool = False, with_terms: bool = False
) -> tuple[LossResult, Call]:
    """Return the loss of the arguments of :func:`edgeloss.functional.edge_aware_loss`, and the checked call.

    Args:
        logits: as there.
        target: as there.
        options: those without a tensor.
        given: the others.
        with_maps: compute the maps of the terms, too.
        with_terms: compute the edge terms even if they have no weight.
    """
    inputs = check_inputs(logits, target, options, given)
    check_distance(inputs, options)
    call = Call(
        inputs,
        options,
        edges=options.edge_weight > 0 or with_maps or with_terms,
        maps=with_maps or options.reduction == "none",
        distances=with_maps and options.decay is not None,
    )
    return reduce(choose(call).evaluate(call), call), call


def without_logits(target: Tensor, classes: int | None, options: Options, given: Given) -> Inputs:
    """Check the arguments of a call without logits, labels included; without ``classes``, each label ≥ 0 may be one."""
    check_label_map(target, multilabel=options.multilabel, classes=classes)
    if options.multilabel and classes is None:
        classes = target.shape[1]
    # Logits of no memory, whose number of classes the arguments are checked against.
    shape = target.shape[0], _ANY if classes is None else classes, *target.shape[1 + options.multilabel :]
    logits = torch.zeros((), dtype=widest(target.device), device=target.device).expand(shape)
    inputs = check_inputs(logits, target, options, given)
    if is_checked(target, options.validate):
        check_labels(target.long(), None if classes is None else inputs.logits.shape[1], options.ignore_index)
    return inputs


def check_distance(inputs: Inputs, options: Options) -> None:
    """Check the values of a distance field where the loss reads them.

    Raises:
        ValueError: if one is negative or not finite.
    """
    distance = inputs.distance
    if distance is not None and is_checked(distance, options.validate):
        y, valid = inputs.labels()
        read = valid & within_reach(find_edges(y, valid, inputs.radius), inputs.radius)
        check_non_negative("distance", inputs.as_given(distance), where=inputs.as_given(read))


def label_totals(target: Tensor, options: Options, given: Given, classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Return what :func:`normalizers` does."""
    target = plain(target)
    if classes is None and not options.multilabel:
        weights = (given.weight, given.edge_class_weight)
        classes = next((len(weight) for weight in weights if isinstance(weight, Tensor) and weight.dim()), None)
    inputs = without_logits(target, classes, options, given)
    y, valid = inputs.labels()
    if classes is None and not options.multilabel:
        classes = max(2, 1 + int(torch.where(valid, y, 0).max())) if y.numel() else 2
    classes = 2 if options.multilabel else max(2, classes or 2)
    mask = find_edges(y, valid, inputs.radius)
    n = edge_pixels(y, mask, inputs, classes)
    w = weights_of_pixels(inputs, y, valid).sum(dtype=n.dtype)
    return w, n if inputs.multilabel_classes is None else n.view(-1, 2)


def check_index(
    index: Tensor, logits: Tensor, weight: Tensor, mask: Tensor | None, radius: Sequence[int], reads_values: bool
) -> Tensor:
    """Return the index, 0 where it is out of range off the mask, or the indicator as bool."""
    classes = logits.shape[1]

    def on_mask() -> Tensor:
        return has_neighbors(weight, radius) if mask is None else mask

    if isinstance(index, Tensor) and index.shape == logits.shape:
        check_device("index", index, logits)
        if reads_values and index.dtype != torch.bool:
            is_indicator = ((index == 0) | (index == 1)).all()
            check_that(is_indicator, "index: expected an indicator [B, C, *S] of 0 and 1, but got other values")
        index = index.bool()
        any_class = index.any(1)
        if reads_values and (torch.compiler.is_compiling() or not any_class.all()):
            one = "index: expected at least one class per pixel of the mask, but got a pixel without any"
            check_that(~(on_mask() & ~any_class).any(), one)
        return index
    check_target(index, name="index")
    check_pair(logits, index, name="index")
    y = index.long()
    if reads_values and (torch.compiler.is_compiling() or ((y < 0) | (y >= classes)).any()):
        index = torch.where(on_mask(), y, 0)
        check_labels(index, classes, name="index")
    return index
