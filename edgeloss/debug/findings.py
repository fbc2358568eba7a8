"""Logits, labels, loss, gradient and terms → findings, each with its advice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from edgeloss import _reduction as reduction
from edgeloss._checks import inputs
from edgeloss._checks.inputs import by_class, widest
from edgeloss._checks.options import NO_POWER, SUMMAND_OF, Options, radius_per_axis
from edgeloss._reduction import Sums
from edgeloss._reference import neighborhoods
from edgeloss._reference import terms as reference
from edgeloss.debug.calls import Finding, LossCall, Origin, Outcome
from edgeloss.debug.trees import MAX_VALUES, Stats, all_finite, first_index, measure, short
from edgeloss.loss import EdgeAwareLoss

_USUAL_VOID = (-100, -1, 255)  # labels that a loss may ignore although its ignore_index is unknown
_TOO_LATE = "masking its result is too late, since 0 · inf is nan in the backward pass"
_ADVICE = {
    ("div", "reciprocal"): f"Select the elements with a non-zero denominator before the division; {_TOO_LATE}.",
    ("sqrt", "rsqrt", "pow", "norm", "linalgvectornorm", "cdist", "acos", "asin"): (
        f"Its derivative is infinite at the end of its domain: exclude such elements before the call; {_TOO_LATE}."
    ),
    ("log", "log2", "log10", "log1p", "xlogy"): (
        "Compute the logarithm from the logits (log_softmax, logsigmoid, logsumexp), or select elements > 0 before the"
        f" call; {_TOO_LATE}."
    ),
    ("exp", "expm1", "exp2"): "Subtract the largest logit before the exponential, as log_softmax and logsumexp do.",
}


def _advice(origin: Origin | None) -> str:
    """Return what to do about an operation, or about its cause if that is known."""
    if origin is None:
        return ""
    base = re.sub(r"(backward\d*|_)", "", origin.operation.lower())  # softmax of _softmax and of SoftmaxBackward0
    known = (sentence for names, sentence in _ADVICE.items() if base in names)
    return _advice(origin.cause) or next(known, "")


# ------------------------------------------------------------------------------------------------------ the labels


class Labels(NamedTuple):
    """The class indices of a target; those of a multilabel loss are binary ones of B · C images, ordered as [B, C]."""

    y: Tensor  # [B, *S] int64
    valid: Tensor  # [B, *S] bool, a class and not ignored
    outside: Tensor  # [B, *S] bool, not a class, and not known to be ignored by the loss
    wrong: Tensor  # [B, *S] bool, those of ``outside`` that no loss is likely to ignore
    edge_mask: Tensor | None  # [B, *S] bool, edge pixels of the loss, or for radius 1; None unless 2-D or 3-D
    classes: int  # at least 2
    multilabel_classes: int | None = None  # C of a multilabel loss, else None

    @classmethod
    def from_call(cls, call: LossCall) -> Labels | None:
        """Return the labels of a call, None if its target does not hold class indices."""
        target, logits, ignore_index, of_class = call.target, call.logits, call.ignore_index, None
        if not isinstance(target, Tensor) or target.dtype not in inputs.LABEL_DTYPES or logits.dim() < 2:
            return None
        if isinstance(call.loss_fn, EdgeAwareLoss) and call.loss_fn.multilabel:
            if target.dim() != logits.dim() or target.shape[:2] != logits.shape[:2]:
                return None
            of_class, target, logits = logits.shape[1], target.flatten(0, 1), by_class(logits)
        size = logits.shape[2:]
        # Some losses upsample logits of lower resolution to the labels.
        fits = target.shape[1:] == size or (len(size) > 1 and target.dim() == len(size) + 1)
        if not fits or len(target) != len(logits):
            return None
        y, valid = inputs.labels(target, logits.shape[1], ignore_index)
        outside = ~valid if ignore_index is None else ~valid & (y != ignore_index)
        wrong = outside if ignore_index is not None else outside & ~torch.isin(y, y.new_tensor(_USUAL_VOID))
        edge_mask = None
        if len(size) in (2, 3):
            radius = call.loss_fn.radius if isinstance(call.loss_fn, EdgeAwareLoss) else 1
            edge_mask = neighborhoods.find_edges(y, valid, radius_per_axis(radius, len(size)))
        return cls(y, valid, outside, wrong, edge_mask, max(2, logits.shape[1]), of_class)

    def as_given(self, values: Tensor) -> Tensor:
        """Return values of each image in the first axes of the target: [B, ...], of a multilabel loss [B, C, ...]."""
        return inputs.as_given(values, self.multilabel_classes)

    def fit(self, logits: Tensor) -> bool:
        """Return whether the labels have the resolution of the logits."""
        return self.y.shape[1:] == logits.shape[2:]

    def ignored(self, logits: Tensor) -> Tensor | None:
        """Return the pixels that do not count, for any class; of volumes only in the resolution of the logits."""
        if not (self.fit(logits) or self.valid.dim() == 3):
            return None
        ignored = ~self.as_given(self.valid)
        return ignored if self.multilabel_classes is None else ignored.all(1)

    def images_without_edge(self) -> Tensor:
        """Return a mask [B] bool of the images without an edge pixel."""
        edge_mask = torch.ones_like(self.valid) if self.edge_mask is None else self.edge_mask
        return ~edge_mask.flatten(1).any(1)

    def findings(self, call: LossCall, raised: bool) -> Iterator[Finding]:
        """Report out-of-range labels, and images or batches with nothing to learn from."""
        wrong = self.outside if raised else self.wrong
        if wrong.any():
            values = torch.unique(self.y[wrong]).tolist()
            shown = ", ".join(map(str, values[:MAX_VALUES])) + (", …" if len(values) > MAX_VALUES else "")
            message = (
                f"target: labels outside the classes 0 to {self.classes - 1} at {int(wrong.sum())} of"
                f" {wrong.numel()} pixels: {shown}; first at {first_index(self.as_given(wrong))}."
            )
            yield Finding("warning", message, "Map them to classes, or pass ignore_index to the loss.")
        if self.y.numel() and not self.valid.any():
            message = "target: no valid label, so there is nothing to learn from."
            yield Finding("warning", message, "Check the data loader and ignore_index, or skip such batches.")
        elif self.classes == 2 and not self.y[self.valid].any() and (self.y[~self.valid & ~self.outside] == 255).any():
            advice = "Pass target == 255 as the labels if 255 is the object, as in a mask of 0 and 255."
            yield Finding("warning", "target: only 0 and 255, which is ignored.", advice)
        elif (finding := self._no_edges_by_void(call)) is not None:
            yield finding
        elif isinstance(call.loss_fn, EdgeAwareLoss) and self.images_without_edge().any():
            without = self.as_given(self.images_without_edge()).nonzero()
            where = "images" if without.shape[1] == 1 else "[image, class]"
            listed = short(without.squeeze(1).tolist())
            yield Finding("note", f"target: no edge in {where} {listed}; the edge terms are 0 there.")

    def _no_edges_by_void(self, call: LossCall) -> Finding | None:
        """Report ignored pixels that leave no edge in a batch: all but one class, or what is between the classes."""
        ignored, classes = ~self.valid & ~self.outside, torch.unique(self.y[self.valid])
        if not ignored.any() or self.multilabel_classes is not None or not self.images_without_edge().all():
            return None
        share = f"{float(ignored.float().mean()):.1%} of the pixels ignored"
        if len(classes) == 1:
            message = f"target: {share}, and all others of class {int(classes)}, so there are no edges."
            return Finding("warning", message, "Check that ignore_index is no label of an object.")
        if not isinstance(call.loss_fn, EdgeAwareLoss):
            return None
        message = f"target: {share}, between all classes, so there are no edges, and the edge terms are 0."
        return Finding("warning", message, "Label these pixels, or pass a radius wider than they are.")


# --------------------------------------------------------------------------------------------------- non-finite values


def _describe_bad(stats: Stats) -> str:
    """Return the text that follows the name of a tensor with non-finite values."""
    total, kinds = math.prod(stats.shape), stats.bad_kinds()
    if total == 1:
        return f" is {kinds[0].split()[0]}"
    share = f"{stats.bad} of {total} values ({stats.bad / total:.2%})"
    return f": {share} are not finite: {', '.join(kinds)}; first at {stats.first_bad}"


def bad_input(path: str, stats: Stats) -> Finding:
    """Report an argument with non-finite values."""
    message = f"{path}{_describe_bad(stats)}."
    if path == "logits":
        advice = "The network produced them: check its weights with tree(), clip gradients, lower the learning rate."
        return Finding("error", message, advice)
    if path.split(".")[0] == "target":
        return Finding("error", message, "Check the data loader: a target must be finite.")
    return Finding("warning", message, "Make sure that the loss never reads those values.")


def bad_outcome(
    call: LossCall, labels: Labels | None, given: Outcome, exact: Outcome, origin: Origin | None, *, bad_inputs: bool
) -> Iterator[Finding]:
    """Report a loss or a gradient that is not finite, in the precision of the logits and in float64.

    What follows from another error is a note, so that there is one error per cause.
    """
    advice = _advice(origin) or "Pass only valid values to that operation, by selecting them before the call."
    if origin is None:
        advice = "No operation was seen to produce it: check constants, buffers and arguments for non-finite values."
    if labels is not None and not labels.valid.any():
        advice = "Return 0 where no label is valid, or skip such batches: a mean over nothing is 0 / 0."
    bad = given.bad()
    for part, tensor in bad.items():
        message, part_advice, wide = part + _describe_bad(measure(tensor)), advice, getattr(exact, part)
        if part == "gradient":
            message += _where(~tensor.isfinite(), call.logits, labels)
            if "loss" in bad:
                yield Finding("note", f"{message}; this follows from the loss.")
                return
        if bad_inputs:
            yield Finding("note", f"{message}; this follows from the inputs.")
            continue
        if wide is not None and all_finite(wide):
            message += "; finite in float64, so the cause is the precision, not the formula"
            if call.logits.dtype.itemsize == 2 or tensor.dtype.itemsize == 2:
                part_advice = "Compute the loss in float32, loss_fn(logits.float(), target), outside autocast."
        elif wide is not None:
            message += "; not finite in float64 either, so the cause is the formula, not the precision"
        yield Finding("error", f"{message}{f'. It starts with {origin}' if origin else ''}.", part_advice)


def _where(bad: Tensor, logits: Tensor, labels: Labels | None) -> str:
    """Return what the bad pixels have in common, as text; bad is [B, C, *S] bool."""
    if labels is not None and labels.multilabel_classes is not None:
        bad, logits = by_class(bad), by_class(logits)
    if logits.dim() < 2 or bool((pixels := bad.any(1)).all()):
        return ""
    places = {"where the logits are not finite": ~logits.isfinite().all(1)}
    if labels is not None and labels.fit(logits):
        places["on ignored pixels"] = ~labels.valid
        if labels.edge_mask is not None:
            edgeless = labels.images_without_edge().view(-1, *[1] * (pixels.dim() - 1))
            places["in images without an edge"] = edgeless.expand_as(pixels)
            places |= {"off the edges": ~labels.edge_mask, "on edges": labels.edge_mask}
    for name, mask in places.items():
        # A place explains bad pixels only if they are at least half of it: a few scattered ones are off the edges too.
        if bool((mask | ~pixels).all()) and 2 * int(pixels.sum()) >= int(mask.sum()):
            return f", all of them {name}"
    return ""


# ----------------------------------------------------------------------------------- the terms of an EdgeAwareLoss


class Terms(NamedTuple):
    """What the loss of a call consists of.

    Attributes:
        each: each term with a weight > 0, before its weight. The loss is what ``return_terms`` returns, the gradient
            the part of the term in that of the whole loss, whose class weights u and focus φ it has: other weights
            would change t and with it φ.
        values: what ``return_terms`` returns.
        gradient_norms: of the ``SUMMANDS`` with a weight > 0: the L2 norm of the gradient of each, times its weight.
    """

    each: dict[str, Outcome]
    values: dict[str, float]
    gradient_norms: dict[str, float]


def evaluate_terms(call: LossCall, criterion: EdgeAwareLoss) -> Terms:
    """Evaluate each term of a loss separately, in plain PyTorch. A map is summed."""
    leaf = call.logits.clone().requires_grad_()
    reduced = "sum" if criterion.reduction == "none" else criterion.reduction
    options = replace(Options.from_attributes(criterion), sync_normalizer=False, reduction=reduced)
    tensors = {name: call.kwargs.get(name) for name in ("pixel_weight", "distance", "normalizer")}
    given = inputs.Given(criterion.weight, criterion.edge_class_weight, **tensors)
    checked = inputs.check_inputs(leaf, call.target.clone(), options, given)
    # As maps, each side is by itself: from the sums of both, a term without a part in the other leaves 0 · nan there.
    # Of power 0 they are sums of the same values, and listing all pairs of pixels would take much memory.
    checked_call = inputs.Call(checked, options, options.edge_weight > 0, maps=abs(options.power) > NO_POWER)
    sums = reference.evaluate(checked_call)
    combined = reduction.combine(sums, checked_call, reduction.shared_normalizer(sums, checked_call))
    values = {name: value.detach() for name, value in combined.values.items()}
    each: dict[str, Outcome] = {}
    gradients: dict[str, Tensor] = {}
    for name, weight in options.term_weights().items():
        if weight:
            part = _part_of_gradient(name, sums, checked, combined.loss)
            (gradient,) = torch.autograd.grad(part, leaf, retain_graph=True)
            each[name] = Outcome(values[name], gradient / weight)
            gradients[SUMMAND_OF[name]] = gradients.get(SUMMAND_OF[name], 0) + gradient
    norms = {
        name: float(torch.linalg.vector_norm(gradient, dtype=widest(leaf.device)))
        for name, gradient in gradients.items()
    }
    return Terms(each, {name: float(value) for name, value in values.items()}, norms)


def _part_of_gradient(name: str, sums: Sums, checked: inputs.Inputs, loss: Tensor) -> Tensor:
    """Return a function of the logits, 0-d, whose gradient is the part of a term in that of the loss."""
    of_term, row = sums.rows_of(name)
    (slopes,) = torch.autograd.grad(loss, of_term, retain_graph=True)
    if sums.maps is None or of_term is not sums.edges:
        return reduction.weigh(of_term[row], slopes[row]).sum()
    y, _ = checked.labels()
    places = reduction.Places(y, sums.maps.edge_mask, slopes.shape[-1] // checked.tables)
    slope = places.spread(slopes[row][0])
    return reference.weighted_total(getattr(sums.maps, name), reduction.weigh(slope, checked.pixel_weight))


def blame_term(terms: dict[str, Outcome]) -> Finding:
    """Say which term of a loss that is not finite is the cause."""
    # The terms share operations, and with them gradients of 0 · nan, but no values.
    bad = [name for name, term in terms.items() if "loss" in term.bad()]
    bad = bad or [name for name, term in terms.items() if term.bad()]
    good = [name for name in terms if name not in bad]
    if not bad:
        message = "terms: each of them is finite by itself in plain PyTorch."
        return Finding("note", message, 'Check what a subclass adds, if there is one, and try backend="reference".')
    message = f"terms: {', '.join(bad)} not finite" + (f"; {', '.join(good)} finite." if good else ".")
    return Finding("note", message, f"Set the weight of {bad[0]} to 0 to continue without it.")


# ------------------------------------------------------------------------------------------- finite and probably wrong


def odd_logits(logits: Tensor, stats: Stats) -> Iterator[Finding]:
    """Report logits that are very large, or that look like probabilities."""
    if stats.min is None or stats.max is None:
        return
    low, high, limit = stats.min, stats.max, torch.finfo(torch.float16).max
    if max(-low, high) > limit:
        message = f"logits: up to {max(-low, high):.3g} in magnitude; float16 overflows at {limit:.0f}."
        advice = "Compute the loss outside autocast, and find out why the logits are so large."
        yield Finding("warning", message, advice)
    if stats.bad or logits.dim() < 2 or not 0 <= low < high <= 1:
        return
    classes, sums = logits.shape[1], logits.sum(1, dtype=widest(logits.device))
    what, layer = ", without a sum of 1 over the classes, so they may be the output of a sigmoid", "sigmoid"
    if classes == 1:
        what = ", so they look like probabilities"
    elif bool(((sums - 1).abs() <= 4 * classes * torch.finfo(logits.dtype).eps).all()):
        what, layer = " with a sum of 1 over the classes, so they are probabilities", "softmax"
    advice = f"Pass the output before the {layer}, unless the loss expects probabilities."
    yield Finding("warning", f"logits: all in [0, 1]{what}.", advice)


def odd_outcome(labels: Labels | None, given: Outcome, exact: Outcome) -> Iterator[Finding]:
    """Report a finite loss or gradient that is 0, underflows, or differs from float64."""
    gradient, wide, underflows = given.gradient, exact.gradient, False
    if gradient is not None and gradient.numel() and (labels is None or labels.valid.any()):
        nonzero = torch.zeros_like(gradient, dtype=torch.bool) if wide is None or given.is_random else wide != 0
        lost, total = int((nonzero & (gradient == 0)).sum()), int(nonzero.sum())
        underflows = lost >= 0.01 * max(total, 1) and gradient.dtype == torch.float16
        if underflows:
            message = f"gradient: {lost} of {total} non-zero values ({lost / total:.2%}) underflow to 0 in float16."
            yield Finding("warning", message, "Scale the loss with torch.amp.GradScaler, or pass float32 logits.")
        elif not total and not gradient.any():
            advice = "Look for a clamp, a relu or a mask that holds everywhere, or a loss at its minimum."
            yield Finding("warning", "gradient: 0 everywhere, so nothing is learned from this batch.", advice)
    if given.is_random and exact.loss is not None:
        message = "float64: not compared, since the loss draws random numbers, which differ between precisions."
        yield Finding("note", message)
        return
    for part in ("loss", "gradient"):
        tensor, wide = getattr(given, part), getattr(exact, part)
        if tensor is None or wide is None or tensor.shape != wide.shape or not tensor.is_floating_point():
            continue
        if not all_finite(wide):
            message = f"{part}: finite, but{_describe_bad(measure(wide)).replace(':', '', 1)} in float64."
            yield Finding("warning", message, "Look for a constant that only suits the given precision.")
        elif (deviation := _relative_error(tensor, wide)) > max(0.01, math.sqrt(torch.finfo(tensor.dtype).eps)):
            if part == "gradient" and underflows:
                break  # which explains it
            message = f"{part}: differs from float64 by {deviation:.2%}."
            advice = "Look for a difference of large numbers or a very long sum, and compute it in float64."
            yield Finding("warning", message, advice)


def _relative_error(x: Tensor, exact: Tensor) -> float:
    """Return ‖x - exact‖ / ‖exact‖."""
    scale = exact.abs().max() if exact.numel() else exact.new_zeros(())  # whose square might overflow
    if not scale:
        return math.inf if x.any() else 0.0
    exact = exact / scale
    return float((x.double() / scale - exact).norm() / exact.norm())
