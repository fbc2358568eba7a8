"""A call of a loss → the report on it: where it stops being finite, and how to fix it."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edgeloss._checks import hints, inputs
from edgeloss.debug.calls import LEVELS, Finding, LossCall, Origin, Outcome
from edgeloss.debug.findings import (
    Labels,
    Terms,
    bad_input,
    bad_outcome,
    blame_term,
    evaluate_terms,
    odd_logits,
    odd_outcome,
)
from edgeloss.debug.trees import LINE, Node, first_line, make_node, measure
from edgeloss.loss import EdgeAwareLoss

if TYPE_CHECKING:
    from edgeloss.viz.drawing import TextFigure


@dataclass(frozen=True, repr=False)
class Report:
    """The result of :func:`diagnose`; ``print`` it.

    Attributes:
        ok: whether logits, target, loss and gradient are all finite, and nothing raised.
        name: the name of the loss.
        findings: problems and remarks, the most severe first.
        origin: the operation that produced the first non-finite value, None if unknown.
        gradient: the gradient of the loss with respect to the logits, in their shape and dtype; None if there is none.
        terms: of an :class:`~edgeloss.EdgeAwareLoss`, what ``return_terms`` returns; empty for other losses.
        gradient_norms: the L2 norm of the part of the gradient that comes from each weighted term, ``cross_entropy``,
            ``edge_focused`` and ``region``; empty for other losses.
    """

    ok: bool
    name: str
    findings: tuple[Finding, ...]
    origin: Origin | None
    gradient: Tensor | None
    terms: dict[str, float]
    gradient_norms: dict[str, float]
    _checked: tuple[str, ...]  # what was found healthy, where nothing was found
    _tree: Node
    _ignored: Tensor | None  # [B, *S] bool, the pixels that do not count; None if unknown

    def __str__(self) -> str:
        """Return the verdict, the findings, and the tree of tensors below them."""
        return f"{self.summary()}\n\n{self._tree.format()}"

    def summary(self) -> str:
        """Return the verdict and the findings."""
        lines = [f"diagnose({self.name}): {self.verdict}", *([""] if self.findings else [])]
        for level, message, advice in self.findings:
            lines += textwrap.wrap(message, LINE, initial_indent=f"{level:<9}", subsequent_indent=" " * 9)
            lines += textwrap.wrap(advice, LINE, initial_indent=" " * 7 + "→ ", subsequent_indent=" " * 9)
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """How many errors and warnings there are; without any, what was checked."""
        levels = [finding.level for finding in self.findings]
        counts = {level: levels.count(level) for level in ("error", "warning") if level in levels}
        if not counts:
            return f"the loss is healthy: {', '.join(self._checked)}"
        words = " and ".join(f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items())
        return f"finite, but {words}" if self.ok else f"NOT OK, {words}"

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to a dict that strict JSON can store.

        Returns:
            A dict with the keys ``ok``, ``name``, ``findings``, ``origin``, ``inputs``, and, where they exist,
            ``loss``, ``gradient``, ``terms`` and ``gradient_norms``. The four from ``inputs`` to ``terms`` hold the
            statistics of each tensor.
        """
        norms = {name: norm if math.isfinite(norm) else None for name, norm in self.gradient_norms.items()}
        return {
            "ok": self.ok,
            "name": self.name,
            "findings": [finding._asdict() for finding in self.findings],
            "origin": None if self.origin is None else dataclasses.asdict(self.origin),
            **{section.name: section.to_dict() for section in self._tree.children},
            **({"gradient_norms": norms} if norms else {}),
        }

    def figure(self) -> TextFigure:
        """Draw log10 of the gradient's L2 norm over the classes, one map per image.

        Non-finite pixels are magenta and counted, ignored pixels gray, and pixels with a gradient of exactly 0 black.
        For a volume, the slice with the most non-finite values is drawn, or the middle one if all are finite. Requires
        the extra ``viz``.

        Returns:
            A Matplotlib figure without window or global state.

        Raises:
            ValueError: if there is no gradient, or the logits are not [B, C, H, W] or [B, C, D, H, W].
        """
        from edgeloss.viz.panel import gradient_figure

        if self.gradient is None:
            raise ValueError(f"gradient: expected one to draw, but got none from {self.name}; see the findings")
        # The picture of a single image is named so itself.
        title = self.name if len(self.gradient) == 1 else f"|gradient| of {self.name}"
        return gradient_figure(self.gradient, self._ignored, title=title)


def diagnose(loss_fn: Callable[..., Any], logits: Tensor, target: object, **kwargs: object) -> Report:
    """Find out why a loss or its gradient is nan, infinite, 0 or imprecise.

    Runs any loss forward and backward, in the precision of the logits and in float64, and examines inputs, loss and
    gradient. If something is not finite, one more run finds the operation to blame: the first one that returns a
    non-finite value for finite inputs, in the forward or in the backward pass. This includes a division by 0 that is
    masked afterwards and comes back as 0 · inf in the backward pass. For an :class:`~edgeloss.EdgeAwareLoss` each term
    is examined separately too, in plain PyTorch for every backend.

    Works on copies of tensors and modules, and restores the state of the random number generators. In the float64 run,
    constants and casts inside the loss are float64 too.

    Args:
        loss_fn: any callable, called as ``loss_fn(logits, target, **kwargs)``. The first tensor that it returns is the
            loss, summed if it is not a scalar.
        logits: floating tensor of any shape, on any device. Findings per pixel need [B, C, *S].
        target: the target of the loss. Findings per label need class indices [B, *S], or those [B, C, *S] of an
            ``EdgeAwareLoss(multilabel=True)``.
        kwargs: passed to the loss.

    Returns:
        The report. ``ok`` is False if logits, target, loss or gradient are not finite, or if the loss raised an
        exception, which is then a finding. Non-finite values in other arguments, parameters and buffers are a warning,
        since they may be intended.

    Raises:
        TypeError: if ``loss_fn`` is not callable or the logits are not a floating tensor.

    Example:
        >>> import torch
        >>> def masked_too_late(logits, target):
        ...     size = (target > 0).float() * logits.exp().sum(1)
        ...     return torch.where(target > 0, 1 / size, 0.0).sum()
        >>> report = diagnose(masked_too_late, torch.zeros(1, 2, 1, 2), torch.tensor([[[0, 1]]]))
        >>> report.ok, report.origin.operation, report.origin.cause.operation
        (False, 'ReciprocalBackward0', 'reciprocal')
    """
    if not callable(loss_fn):
        hint = "; pass the loss first, diagnose(loss_fn, logits, target)" if isinstance(loss_fn, Tensor) else ""
        raise TypeError(f"loss_fn: expected a function or module, but got {type(loss_fn).__name__}{hint}")
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = inputs.describe(logits) if isinstance(logits, Tensor) else hints.not_a_tensor("logits", logits)
        raise TypeError(f"logits: expected a floating tensor, but got {got}")
    inputs.check_kind("logits", logits)
    inputs.check_values("logits", logits)
    # Inference tensors have no backward pass; copies made outside inference mode have one.
    with torch.inference_mode(False), torch.enable_grad():
        return _diagnose(LossCall(loss_fn, logits.detach(), target, kwargs))


def _diagnose(call: LossCall) -> Report:
    labels, arguments, dtype = Labels.from_call(call), call.input_nodes(), call.logits.dtype
    findings = [bad_input(path, stats) for line in arguments for path, stats in line.tensors() if stats.bad]
    bad_inputs = any(finding.level == "error" for finding in findings)
    findings += odd_logits(call.logits, measure(call.logits))
    sections, origin, terms = [Node("inputs", children=arguments)], None, Terms({}, {}, {})
    criterion = call.loss_fn if isinstance(call.loss_fn, EdgeAwareLoss) else None
    exact = Outcome()
    if call.logits.is_cuda and not criterion and labels and labels.wrong.any():
        given = Outcome(error="not run, since an out-of-range label may abort the CUDA context")
    else:
        given = call.run(dtype)
    if labels is not None:
        findings += labels.findings(call, raised=bool(given.error))
    if given.loss is None:
        advice = "Fix what the message reports; the loss was not computed."
        findings.append(Finding("error", f"loss: {given.error}.", advice))
    else:
        exact = exact if dtype == torch.float64 else call.run(torch.float64)
        runs = {inputs.dtype_name(dtype): given} | ({} if exact.loss is None else {"float64": exact})
        sections.append(_section("loss", {name: run.loss for name, run in runs.items()}))
        sections.append(_section("gradient", {name: run.gradient for name, run in runs.items()}))
        watched = call.run(dtype, watched=True) if given.error or given.bad() else Outcome()
        findings += given.notes
        if given.error:
            where = f" in {watched.failed}" if watched.failed else ""
            advice = "Fix what the message reports; the backward pass failed."
            findings.append(Finding("error", f"gradient: {given.error}{where}.", advice))
        elif exact.error:
            findings.append(Finding("note", f"float64: failed; {exact.error}."))
        if given.bad():
            origin = watched.origin
            findings += bad_outcome(call, labels, given, exact, origin, bad_inputs=bad_inputs)
        else:
            findings += odd_outcome(labels, given, exact)
        if criterion:
            try:
                terms = evaluate_terms(call, criterion)
            except Exception as error:  # of a subclass with other arguments
                sections.append(Node("terms", f"not evaluated; {first_line(error)}"))
            else:
                each = {name: {"loss": term.loss, "gradient": term.gradient} for name, term in terms.each.items()}
                lines = [_section(name, tensors) for name, tensors in each.items()]
                sections.append(Node("terms", "each one separately, before its weight", children=lines))
                findings += [blame_term(terms.each)] if given.bad() and not bad_inputs else []
    ok = all(finding.level != "error" for finding in findings)
    checked = {
        "all values finite": True,
        "labels in range": labels is not None,
        "gradient not 0": given.gradient is not None,
        "same in float64": exact.loss is not None and not given.is_random,
    }
    return Report(
        ok=ok,
        name=call.name,
        findings=tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level))),
        origin=origin,
        gradient=given.gradient,
        terms=terms.values,
        gradient_norms=terms.gradient_norms,
        _checked=tuple(what for what, was_checked in checked.items() if was_checked),
        _tree=Node("values", children=sections),
        _ignored=None if labels is None else labels.ignored(call.logits),
    )


def _section(name: str, tensors: dict[str, Tensor | None]) -> Node:
    lines = [make_node(key, tensor) for key, tensor in tensors.items() if tensor is not None]
    return Node(name, "" if lines else "none", children=lines)
