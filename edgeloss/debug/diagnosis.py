"""What is wrong with a loss: where it stops being finite, in which operation, and what to do about it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import re
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from edgeloss import inputs, reference
from edgeloss.debug.tracing import Origin, Watch, base_name, frames_in, is_library, place, shown_line, watch_backward
from edgeloss.debug.trees import (
    FEW,
    Node,
    Stats,
    all_finite,
    first_index,
    first_line,
    measure,
    node,
    short,
)
from edgeloss.loss import EdgeAwareLoss
from edgeloss.options import radius_per_axis, spacing_per_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 110  # of what a report says below its tree
_LEVELS = ("error", "warning", "note")
_VOID = (-100, -1, 255)  # labels that a loss may be ignoring without telling


class Finding(NamedTuple):
    """One thing that is wrong or odd.

    Attributes:
        level: ``"error"`` for what is not finite or raised, ``"warning"`` for what is finite and likely wrong,
            ``"note"`` for what helps to read the rest.
        message: what and where.
        advice: what to do about it, in one sentence; empty where there is nothing to do, or nothing more.
    """

    level: Literal["error", "warning", "note"]
    message: str
    advice: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """What :func:`diagnose` found; ``print`` it.

    Attributes:
        ok: whether logits, target, loss and gradient are all finite, and nothing raised.
        name: of the loss.
        findings: what is wrong or odd, the worst first.
        origin: where a value stopped being finite, if it is known.
        gradient: of the loss with respect to the logits, in their shape and precision; None if there is none.
    """

    ok: bool
    name: str
    findings: tuple[Finding, ...]
    origin: Origin | None
    gradient: Tensor | None
    _tree: Node
    _ignored: Tensor | None  # the pixels that do not count, [B, *S] bool, if they are known

    def __str__(self) -> str:
        """The tree, and what to make of it."""
        lines = [self._tree.format(), ""]
        for level, message, advice in self.findings:
            lines += textwrap.wrap(message, _WIDTH, initial_indent=f"{level:<9}", subsequent_indent=" " * 9)
            lines += textwrap.wrap(advice, _WIDTH, initial_indent=" " * 7 + "→ ", subsequent_indent=" " * 9)
        if not self.findings:
            lines.append("Everything is finite, and nothing looks odd.")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dicts, lists, strings, finite numbers and None, which strict JSON can hold.

        Returns:
            ``ok``, ``name``, ``findings``, ``origin``, and ``inputs``, ``loss``, ``gradient`` and ``terms`` as far as
            there are such, with the statistics of each tensor.
        """
        return {
            "ok": self.ok,
            "name": self.name,
            "findings": [finding._asdict() for finding in self.findings],
            "origin": None if self.origin is None else dataclasses.asdict(self.origin),
            **{section.name: section.to_dict() for section in self._tree.children},
        }

    def figure(self) -> Figure:
        """Draws the gradient: log10 of its L2 norm over the classes, pixel by pixel, one picture an image.

        What is not finite is magenta and counted, an ignored pixel grey, a gradient of exactly 0 black. Of a volume the
        slice with the most values that are not finite is shown, the middle one if there are none. Needs the extra
        ``edgeloss[viz]``.

        Returns:
            A Matplotlib figure without window or global state.

        Raises:
            ValueError: if there is no gradient, or the logits are not [B, C, H, W] or [B, C, D, H, W].
        """
        from edgeloss.viz.gradient import gradient_figure

        if self.gradient is None:
            raise ValueError(f"expected a loss with a gradient but got none from {self.name}: see the findings")
        return gradient_figure(self.gradient, self._ignored, title=f"log10 |gradient| of {self.name}")


def diagnose(loss_fn: Callable[..., Any], logits: Tensor, target: object, **kwargs: object) -> Report:
    """Finds out why a loss or its gradient is nan, infinite, 0 or imprecise, and says what to do about it.

    Runs any loss forward and backward, in the precision of the logits and in float64, and looks at inputs, loss and
    gradient. If something is not finite, it runs once more to find the first operation to blame: the one that makes a
    bad value of good ones, in the forward pass, and in the backward pass too, where a division by 0 that is masked away
    afterwards comes back as 0 · inf. Of an :class:`~edgeloss.EdgeAwareLoss` every term is looked at apart, in plain
    PyTorch whatever its backend.

    Nothing of the caller's is changed: it works on copies of the tensors and of a module, and puts the state of torch's
    random numbers back. In float64, constants and casts inside of the loss are float64 too.

    Args:
        loss_fn: called as ``loss_fn(logits, target, **kwargs)``: a function, a module, a lambda. The first tensor of
            what it returns is the loss; a loss that is no scalar is summed up.
        logits: floating, of any shape and device. Per-pixel findings need [B, C, *S].
        target: what the loss takes; per-label findings need class indices [B, *S].
        kwargs: passed on to the loss.

    Returns:
        The report. ``ok`` is False if logits, target, loss or gradient are not finite, or the loss raised. Other
        arguments, parameters and buffers that are not finite are a warning, since they may be meant so.

    Raises:
        TypeError: if ``loss_fn`` can't be called or the logits are no floating tensor. What the loss raises is in the
            report.

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
        raise TypeError(f"loss_fn: expected a function or module, but got {type(loss_fn).__name__}")
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = inputs.describe(logits) if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits: expected a floating tensor, but got {got}")
    # Tensors of inference mode know no backward; their copies do, out of it.
    with torch.inference_mode(False), torch.enable_grad():
        return _diagnose(_Case(loss_fn, logits.detach(), target, kwargs))


def _diagnose(case: _Case) -> Report:
    labels = _Labels.of(case)
    inputs = case.describe()
    findings = [_bad_input(path, stats) for line in inputs for path, stats in line.tensors() if stats.bad]
    findings += _odd_logits(case.logits)
    sections, origin = [Node("inputs", children=inputs)], None

    aborts = case.logits.is_cuda and not isinstance(case.loss_fn, EdgeAwareLoss)
    if aborts and labels is not None and labels.wrong.any():
        given = _Run(error="not run, since a label out of range may abort the CUDA context")
    else:
        given = case.run(case.logits.dtype)
    if labels is not None:
        findings += labels.findings(case, raised=bool(given.error))
    if given.loss is None:
        advice = "Give it what the message asks for; it did not get as far as a loss."
        findings.append(Finding("error", f"loss: {given.error}.", advice))
    else:
        exact = _Run() if case.logits.dtype == torch.float64 else case.run(torch.float64)
        runs = {_name(case.logits.dtype): given} | ({} if exact.loss is None else {"float64": exact})
        for part in ("loss", "gradient"):
            tensors = {name: getattr(run, part) for name, run in runs.items()}
            lines = [node(name, tensor) for name, tensor in tensors.items() if tensor is not None]
            sections.append(Node(part, "" if lines else "none", children=lines))
        findings += given.notes
        if given.error:
            advice = "Do what the message asks for; it is the backward pass that fails."
            findings.append(Finding("error", f"gradient: {given.error}{case.failing_derivative()}.", advice))
        elif exact.error:
            findings.append(Finding("note", f"float64: could not be run; {exact.error}."))
        if given.is_finite():
            findings += _odd_run(labels, given, exact)
        else:
            origin = case.trace()
            findings += _bad_run(case, labels, given, exact, origin)
        if isinstance(case.loss_fn, EdgeAwareLoss):
            sections.append(terms := _terms(case, case.loss_fn))
            if terms.children and not given.is_finite():
                findings.append(_guilty(terms, case.logits))

    findings.sort(key=lambda finding: _LEVELS.index(finding.level))
    ok = all(finding.level != "error" for finding in findings)
    root = Node(f"diagnose({case.name})", "ok" if ok else "NOT OK", children=sections)
    ignored = ~labels.valid if labels is not None and labels.fit(case.logits) else None
    return Report(ok, case.name, tuple(findings), origin, given.gradient, root, ignored)


# -------------------------------------------------------------------------------------------------------------- running


@dataclass
class _Run:
    """What one call of the loss gave.

    Attributes:
        loss: as it was returned, detached; None if it raised.
        gradient: None if there is none.
        error: what forward or backward raised, in one line, with the place.
        notes: what was done to the loss to have a gradient.
        is_random: it drew random numbers.
    """

    loss: Tensor | None = None
    gradient: Tensor | None = None
    error: str = ""
    notes: list[Finding] = field(default_factory=list)
    is_random: bool = False

    def is_finite(self) -> bool:
        return all(part is None or all_finite(part) for part in (self.loss, self.gradient))


class _Case(NamedTuple):
    """A call of a loss, to be made as often as need be."""

    loss_fn: Callable[..., Any]
    logits: Tensor
    target: Any
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        function = self.loss_fn.func if isinstance(self.loss_fn, functools.partial) else self.loss_fn
        return str(getattr(function, "__name__", type(function).__name__))

    @property
    def ignore_index(self) -> int | None:
        """The label that does not count; None if nobody tells."""
        bound = self.loss_fn.keywords if isinstance(self.loss_fn, functools.partial) else {}
        found = (bound | self.kwargs).get("ignore_index", getattr(self.loss_fn, "ignore_index", None))
        return found if isinstance(found, int) else None

    def describe(self) -> list[Node]:
        """The trees of all that goes in."""
        inputs = {"logits": self.logits, "target": self.target, **self.kwargs}
        if isinstance(self.loss_fn, nn.Module):
            inputs["loss_fn"] = self.loss_fn
        return [node(name, value) for name, value in inputs.items()]

    def run(self, dtype: torch.dtype) -> _Run:
        """Forward and backward in a precision, always with the same random numbers."""
        run = _Run()
        with self._forked(), _double() if dtype == torch.float64 else contextlib.nullcontext():
            before = self._random_state()
            try:
                leaf, loss = self._forward(dtype, run.notes)
                run.loss = loss.detach()
                run.gradient = _gradient(loss, leaf)
            except Exception as error:  # whatever a stranger's loss may raise is what the report is about
                frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
                where = place(reversed(frames))
                run.error = first_line(error) + ("" if is_library(where[0]) else f" at {shown_line(*where)}")
            run.is_random = not torch.equal(before, self._random_state())
        if run.loss is not None and run.gradient is None and not run.error:
            message = "gradient: there is none, since no differentiable way leads from the logits to the loss."
            advice = "Look for argmax, rounding, comparisons, .detach(), .item() or no_grad on the way."
            run.notes.append(Finding("warning", message, advice))
        return run

    def trace(self) -> Origin | None:
        """Where a value stops being finite, found by one more run in the given precision."""
        watch = Watch()
        with self._forked(), torch.autograd.set_detect_anomaly(True, check_nan=False):  # for watch_backward
            try:
                leaf, loss = self._forward(self.logits.dtype, [], watch)
                if not all_finite(loss):
                    return watch.origin_of(loss)
                found = watch_backward(loss, watch)
                _gradient(loss, leaf)
                return next(iter(found), None)
            except Exception:  # not all that runs can be watched; the rest of the report stands without
                return None

    def failing_derivative(self) -> str:
        """The operation and line of a backward pass that raises, which anomaly detection warns of."""
        with self._forked(), torch.autograd.set_detect_anomaly(True), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with contextlib.suppress(Exception):
                leaf, loss = self._forward(self.logits.dtype, [])
                _gradient(loss, leaf)
        for message in (str(warning.message) for warning in told):
            if match := re.search(r"Error detected in (\w+)", message):
                return f" in {match[1]} of {shown_line(*place(frames_in(message)))}"
        return ""

    def _forward(self, dtype: torch.dtype, notes: list[Finding], watch: Watch | None = None) -> tuple[Tensor, Tensor]:
        """The logits as a leaf, and the loss with its graph."""

        def copied(value: object) -> object:
            if not isinstance(value, Tensor):
                return value
            wider = dtype == torch.float64 and value.is_floating_point()
            return value.detach().to(dtype if wider else value.dtype, copy=True)

        leaf = self.logits.to(dtype, copy=True).requires_grad_()
        logits = leaf.clone()  # which the loss may write into, as into the output of a network
        target, kwargs = tree_map(copied, (self.target, self.kwargs))
        loss_fn = self.loss_fn
        if isinstance(loss_fn, nn.Module):
            loss_fn = copy.deepcopy(loss_fn)  # it may count its calls
            loss_fn = loss_fn.double() if dtype == torch.float64 else loss_fn
        if isinstance(loss_fn, EdgeAwareLoss):
            loss_fn.sync_normalizer = False  # the other ranks would be waited for in vain
            if loss_fn.validate == "async":
                loss_fn.validate = "sync"  # there is no next call that would tell of a bad label
        with watch or contextlib.nullcontext():
            result = loss_fn(logits, target, **kwargs)
        tensors = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        if not tensors:
            raise TypeError(f"expected a loss that returns a tensor, but got {short(result)}")
        if not isinstance(result, Tensor):
            notes.append(Finding("note", f"loss: the first tensor of the {type(result).__name__} that came back."))
        if tensors[0].dim():
            notes.append(Finding("note", f"loss: a map {list(tensors[0].shape)}, summed up for the gradient."))
        return leaf, tensors[0]

    def _forked(self) -> contextlib.AbstractContextManager[None]:
        on_gpu = self.logits.is_cuda
        return torch.random.fork_rng([self.logits.device] if on_gpu else [], device_type="cuda")

    def _random_state(self) -> Tensor:
        states = [torch.get_rng_state()]
        if self.logits.is_cuda:
            states.append(torch.cuda.get_rng_state(self.logits.device))
        return torch.cat(states)


def _gradient(loss: Tensor, leaf: Tensor) -> Tensor | None:
    """Of the sum of the loss, without forming it: it may overflow."""
    if not loss.requires_grad:
        return None
    return torch.autograd.grad(loss, leaf, torch.ones_like(loss), allow_unused=True)[0]


@contextlib.contextmanager
def _double() -> Iterator[None]:
    """Lets a function that was written for another precision run in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(before)


class _Double(TorchFunctionMode):
    """Brings every floating tensor and dtype that meets a torch function to float64: constants, closures and casts."""

    _CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        def widened(value: object) -> object:
            if isinstance(value, torch.dtype):
                return torch.float64 if value.is_floating_point else value
            # One that is float64 must stay itself, since the call may write into it.
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                return value.double()
            return value

        args, kwargs = tree_map(widened, (tuple(args), dict(kwargs or {})))
        return (Tensor.double if func in self._CASTS else func)(*args, **kwargs)


# ------------------------------------------------------------------------------------------------------- what is not ok

_TOO_LATE = "a mask afterwards is too late, since 0 · inf is nan in the backward pass"
_ADVICE = {
    ("div", "reciprocal"): f"Select the elements whose denominator is not 0 before dividing; {_TOO_LATE}.",
    ("sqrt", "rsqrt", "pow", "norm", "linalgvectornorm", "cdist", "acos", "asin"): (
        f"Its slope is infinite at the end of its range: select the elements off that end before it; {_TOO_LATE}."
    ),
    ("log", "log2", "log10", "log1p", "xlogy"): (
        "Form the logarithm from the logits (log_softmax, logsigmoid, logsumexp), or select what is > 0 before it; "
        f"{_TOO_LATE}."
    ),
    ("exp", "expm1", "exp2"): "Subtract the largest logit before the exponential, as log_softmax and logsumexp do.",
}


def _advice(origin: Origin | None) -> str:
    """What to do about an operation, or rather about its cause."""
    if origin is None:
        return ""
    known = (sentence for names, sentence in _ADVICE.items() if base_name(origin.operation) in names)
    return _advice(origin.cause) or next(known, "")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _badness(stats: Stats) -> str:
    """What follows the name of a tensor that is not finite."""
    total, kinds = math.prod(stats.shape), stats.bad_kinds()
    if total == 1:
        return f" is {kinds[0].split()[0]}"
    share = f"{stats.bad} of {total} values ({stats.bad / total:.2%})"
    return f": {share} are not finite: {', '.join(kinds)}; first at {stats.first_bad}"


def _bad_input(path: str, stats: Stats) -> Finding:
    message = f"{path}{_badness(stats)}."
    if path == "logits":
        advice = "They come from the network: look at its weights with tree(), clip gradients, lower the learning rate."
        return Finding("error", message, advice)
    if path.split(".")[0] == "target":
        return Finding("error", message, "Look at the data loader: targets are finite.")
    return Finding("warning", message, "Make sure that the loss never reads those values.")


def _bad_run(case: _Case, labels: _Labels | None, given: _Run, exact: _Run, origin: Origin | None) -> Iterator[Finding]:
    """What to say of a loss or a gradient that is not finite."""
    logits, inputs = case.logits, tree_leaves((case.logits, case.target))
    follows = False
    for part in ("loss", "gradient"):
        tensor, wide = getattr(given, part), getattr(exact, part)
        if tensor is None or all_finite(tensor):
            continue
        message = part + _badness(measure(tensor))
        if part == "gradient":
            message += _where(~tensor.isfinite(), logits, labels)
        if follows:
            yield Finding("error", f"{message}; as follows from the loss.")
            return
        advice = _advice(origin) or "Feed that operation only what is safe for it, by selecting before it."
        if origin is None:
            advice = "No operation was seen to make it: look for constants, buffers and arguments that are not finite."
        if labels is not None and not labels.valid.any():
            advice = "Return 0 where no label counts, or skip such batches: a mean over nothing is 0 / 0."
        if not all(all_finite(value) for value in inputs if isinstance(value, Tensor)):
            advice = "Mend what goes in first: no loss can put it right."
        elif wide is not None and all_finite(wide):
            message += "; float64 is fine, so it is the precision and not the formula"
            if logits.dtype.itemsize == 2 or tensor.dtype.itemsize == 2:
                advice = "Compute the loss in float32, loss_fn(logits.float(), target), out of autocast."
        elif wide is not None:
            message += "; float64 is no better, so it is the formula and not the precision"
        yield Finding("error", f"{message}{f'. It starts with {origin}' if origin else ''}.", advice)
        follows = True


def _where(bad: Tensor, logits: Tensor, labels: _Labels | None) -> str:
    """What the bad pixels have in common.

    Args:
        bad: [B, C, *S] bool.
        logits: [B, C, *S].
        labels: of the pixels.
    """
    if logits.dim() < 2 or bool((pixels := bad.any(1)).all()):
        return ""
    places = {"where the logits are not finite": ~logits.isfinite().all(1)}
    if labels is not None and labels.fit(logits):
        places["on ignored pixels"] = ~labels.valid
        if labels.edges is not None:
            edgeless = labels.without_edge().view(-1, *[1] * (pixels.dim() - 1)).expand_as(pixels)
            places |= {"in images without an edge": edgeless, "off the edges": ~labels.edges, "on edges": labels.edges}
    for name, mask in places.items():
        # A few scattered ones are off the edges too, which explains nothing.
        if bool((mask | ~pixels).all()) and 2 * int(pixels.sum()) >= int(mask.sum()):
            return f", all of them {name}"
    return ""


# --------------------------------------------------------------------------------------------------------- what is odd


def _odd_logits(logits: Tensor) -> Iterator[Finding]:
    """Finite logits that are too large, or none."""
    finite = logits if all_finite(logits) else logits[logits.isfinite()]
    if not finite.numel():
        return
    low, high = float(finite.min()), float(finite.max())
    limit = torch.finfo(torch.float16).max
    if max(-low, high) > limit:
        message = f"logits: up to {max(-low, high):.3g} in magnitude; beyond {limit:.0f} float16 is infinite."
        yield Finding("warning", message, "Keep the loss out of autocast, and find out why they grow so large.")
    if finite is not logits or logits.dim() < 2 or low < 0 or high > 1 or low == high:
        return
    classes = logits.shape[1]
    if classes == 1:
        message = "logits: all in [0, 1], so they look like probabilities."
        yield Finding("warning", message, "Pass the output before the sigmoid, unless the loss expects probabilities.")
    else:
        sums = logits.sum(1, dtype=reference._widest(logits.device))
        if bool(((sums - 1).abs() <= 4 * classes * torch.finfo(logits.dtype).eps).all()):
            message = "logits: all in [0, 1] with a sum of 1 over the classes, so they are probabilities."
            advice = "Pass the output before the softmax, unless the loss expects probabilities."
            yield Finding("warning", message, advice)


class _Labels(NamedTuple):
    """Class indices, if the target holds such.

    Attributes:
        y: [B, *S] int64.
        valid: [B, *S] bool, a class and not ignored.
        outside: [B, *S] bool, no class, and not what the loss is known to ignore.
        wrong: [B, *S] bool, those of them that no loss is likely to ignore.
        edges: [B, *S] bool, the valid pixels with a valid neighbour of another label; None without such a grid.
        classes: at least 2.
    """

    y: Tensor
    valid: Tensor
    outside: Tensor
    wrong: Tensor
    edges: Tensor | None
    classes: int

    @classmethod
    def of(cls, case: _Case) -> _Labels | None:
        target, logits, ignored = case.target, case.logits, case.ignore_index
        dims = logits.dim() - 2
        if not isinstance(target, Tensor) or target.dtype not in inputs.LABEL_DTYPES or dims < 0:
            return None
        # Logits of lower resolution than the labels are brought to it by some losses.
        if target.shape[1:] != logits.shape[2:] and (dims < 2 or target.dim() != dims + 1):
            return None
        if len(target) != len(logits):
            return None
        y, classes = target.long(), max(2, logits.shape[1])
        outside = (y < 0) | (y >= classes)
        valid = ~outside
        wrong = outside & ~torch.isin(y, y.new_tensor(_VOID))
        if ignored is not None:
            valid = valid & (y != ignored)
            outside = wrong = outside & (y != ignored)
        edges = reference.edge_mask(y, valid, [1] * dims) if dims in (2, 3) else None
        return cls(y, valid, outside, wrong, edges, classes)

    def fit(self, logits: Tensor) -> bool:
        """Whether every label has its logits."""
        return self.y.shape[1:] == logits.shape[2:]

    def without_edge(self) -> Tensor:
        """The images that have none, [B] bool."""
        edges = torch.ones_like(self.valid) if self.edges is None else self.edges
        return ~edges.flatten(1).any(1)

    def findings(self, case: _Case, raised: bool) -> Iterator[Finding]:
        wrong = self.outside if raised else self.wrong
        if wrong.any():
            values = torch.unique(self.y[wrong]).tolist()
            shown = ", ".join(map(str, values[:FEW])) + (", …" if len(values) > FEW else "")
            message = (
                f"target: labels outside of the classes 0 to {self.classes - 1} at {int(wrong.sum())} of"
                f" {wrong.numel()} places: {shown}; first at {first_index(wrong)}."
            )
            yield Finding("warning", message, "Map them to classes, or tell the loss to ignore them by ignore_index.")
        if self.y.numel() and not self.valid.any():
            message = "target: no label counts, so there is nothing to learn from."
            yield Finding("warning", message, "Look at the data loader and at ignore_index, or skip such batches.")
        elif isinstance(case.loss_fn, EdgeAwareLoss) and self.without_edge().any():
            images = self.without_edge().nonzero().flatten().tolist()
            yield Finding("note", f"target: no edge in images {short(images)}; only the cross-entropy counts there.")


def _odd_run(labels: _Labels | None, given: _Run, exact: _Run) -> Iterator[Finding]:
    """What is finite, but likely wrong."""
    gradient, wide, underflows = given.gradient, exact.gradient, False
    if gradient is not None and gradient.numel() and (labels is None or labels.valid.any()):
        there = torch.zeros_like(gradient, dtype=torch.bool) if wide is None or given.is_random else wide != 0
        lost, of = int((there & (gradient == 0)).sum()), int(there.sum())
        underflows = lost >= 0.01 * max(of, 1) and gradient.dtype == torch.float16
        if underflows:
            message = f"gradient: {lost} of {of} values ({lost / of:.2%}) that float64 finds are 0 in float16."
            yield Finding("warning", message, "Scale the loss (torch.amp.GradScaler), or give it float32 logits.")
        elif not of and not gradient.any():
            advice = "Look for a clamp, a relu or a mask that holds everywhere, or a loss that is already at its least."
            yield Finding("warning", "gradient: 0 everywhere, so nothing is learnt from this batch.", advice)
    if given.is_random and exact.loss is not None:
        message = "float64: not compared, since the loss draws random numbers, which differ between precisions."
        yield Finding("note", message)
        return
    for part in ("loss", "gradient"):
        tensor, wide = getattr(given, part), getattr(exact, part)
        if tensor is None or wide is None or tensor.shape != wide.shape or not tensor.is_floating_point():
            continue
        if not all_finite(wide):
            message = f"{part}: finite, but{_badness(measure(wide)).replace(':', '', 1)} in float64."
            yield Finding("warning", message, "Look for a constant that is tuned to the precision.")
        elif (deviation := _deviation(tensor, wide)) > max(0.01, math.sqrt(torch.finfo(tensor.dtype).eps)):
            if part == "gradient" and underflows:
                break  # which explains it
            message = f"{part}: differs from float64 by {deviation:.2%}."
            advice = "Look for a difference of large numbers or a sum of very many, and form that in float64."
            yield Finding("warning", message, advice)


def _deviation(x: Tensor, exact: Tensor) -> float:
    """‖x - exact‖ / ‖exact‖."""
    scale = exact.abs().max() if exact.numel() else exact.new_zeros(())  # whose square might overflow
    if not scale:
        return math.inf if x.any() else 0.0
    exact = exact / scale
    return float((x.double() / scale - exact).norm() / exact.norm())


# ------------------------------------------------------------------------------------------- the terms of EdgeAwareLoss


def _terms(case: _Case, criterion: EdgeAwareLoss) -> Node:
    """Value and gradient of each term that has a weight, by itself and before that weight.

    From the terms' maps in plain PyTorch, since to set the other terms' weights to 0 would leave 0 · nan of them.
    """
    dims = case.logits.dim() - 2
    dtype = torch.float64 if case.logits.dtype == torch.float64 else torch.float32
    leaf = case.logits.clone().requires_grad_()
    pixel_weight = case.kwargs.get("pixel_weight")
    weight, of_classes = (
        None if values is None else values.detach().to(dtype)
        for values in (criterion.weight, criterion.edge_class_weight)
    )
    try:
        labels, valid = reference.labels(case.target, leaf.shape[1], criterion.ignore_index)
        if pixel_weight is not None:
            pixel_weight = torch.where(valid, pixel_weight.detach().to(dtype), 0.0)
        found = reference.evaluate(
            leaf,
            case.target.clone(),
            weight=weight,
            edge_class_weight=of_classes,
            ignore_index=criterion.ignore_index,
            label_smoothing=criterion.label_smoothing,
            other_side_weight=criterion.other_side_weight,
            same_side_weight=criterion.same_side_weight,
            radius=radius_per_axis(criterion.radius, dims),
            power=criterion.power,
            decay=criterion.decay,
            spacing=spacing_per_axis(criterion.spacing, dims),
            pixel_weight=pixel_weight,
            distance=case.kwargs.get("distance"),
            edges=criterion.edge_weight > 0,
            false_edges=criterion.edge_weight * criterion.false_edge_weight > 0,
            maps=True,
        )
    except Exception as error:  # of a subclass that calls it by other arguments
        return Node("terms", f"could not be told apart; {first_line(error)}")
    weights = {
        "cross_entropy": criterion.ce_weight,
        "same_side": criterion.edge_weight * criterion.same_side_weight,
        "other_side": criterion.edge_weight * criterion.other_side_weight,
        "false_edge": criterion.edge_weight * criterion.false_edge_weight,
    }
    counts = case.kwargs.get("normalizer") or found.normalizer
    w, e = (torch.as_tensor(count, dtype=reference._widest(leaf.device), device=leaf.device) for count in counts)
    if criterion.reduction == "sum":
        w, e = torch.ones_like(w), torch.ones_like(e)
    maps = cast("reference.LossMaps", found.maps)
    of_edges = reference.edge_pixel_weight(labels, maps.edge_mask, pixel_weight, of_classes)
    terms = []
    of_pixels = (pixel_weight, of_edges, of_edges, pixel_weight)
    for (name, factor), v, count in zip(weights.items(), of_pixels, (w, e, e, e), strict=True):
        if factor:
            values = getattr(maps, name)
            total = (values if v is None else values * v).sum(dtype=reference._widest(leaf.device))
            loss = total * (1 / count).nan_to_num(0.0, 0.0, 0.0)
            (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
            terms.append(Node(name, children=[node("loss", loss.detach()), node("gradient", gradient)]))
    return Node("terms", "each by itself, before its weight", children=terms)


def _guilty(terms: Node, logits: Tensor) -> Finding:
    """Which term of a loss that is not finite is to blame."""

    def bad_in(part: str) -> list[str]:
        lines = ((term.name, line.stats) for term in terms.children for line in term.children if line.name == part)
        return [name for name, stats in lines if stats is not None and stats.bad]

    # The terms share operations, and with them gradients of 0 · nan, but no values.
    bad = bad_in("loss") or bad_in("gradient")
    good = [term.name for term in terms.children if term.name not in bad]
    if not bad:
        message = "terms: each of them is finite by itself in plain PyTorch."
        return Finding("error", message, 'Look at what a subclass adds, if there is one, and try backend="reference".')
    message = f"terms: {', '.join(bad)} not finite" + (f"; {', '.join(good)} fine." if good else ".")
    advice = f"Set the weight of {bad[0]} to 0 to go on without it."
    return Finding("error", message, advice if all_finite(logits) else "They pass on what the logits bring in.")
