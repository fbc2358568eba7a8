"""A loss and its arguments → the outcome of a pass in a precision."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from edgeloss.debug.origin import PACKAGE, TORCH, Origin, Watch, place, shown_line
from edgeloss.debug.trees import Node, all_finite, first_line, make_node, short
from edgeloss.loss import EdgeAwareLoss

LEVELS = ("error", "warning", "note")


class Finding(NamedTuple):
    """One problem, or one remark.

    Attributes:
        level: ``"error"`` for a non-finite value or an exception, ``"warning"`` for what is finite and probably wrong,
            ``"note"`` for context.
        message: what was found, and where.
        advice: how to fix it, in one sentence; empty if there is nothing to do.
    """

    level: Literal["error", "warning", "note"]
    message: str
    advice: str = ""


@dataclass
class Outcome:
    """The result of one forward and backward pass.

    Attributes:
        loss: the returned loss, detached; None if the loss raised.
        gradient: the gradient with respect to the logits; None if there is none.
        error: the exception of the forward or backward pass in one line, with its place in the code.
        notes: what was done to the returned loss to compute a gradient.
        is_random: whether the loss drew random numbers.
        origin: of a watched pass, the operation that produced the first non-finite value; None if unknown.
        failed: of a watched pass, the derivative that raised, with its line; empty if none did.
    """

    loss: Tensor | None = None
    gradient: Tensor | None = None
    error: str = ""
    notes: list[Finding] = field(default_factory=list)
    is_random: bool = False
    origin: Origin | None = None
    failed: str = ""

    def bad(self) -> dict[str, Tensor]:
        """Return those of loss and gradient that are not finite."""
        parts = {"loss": self.loss, "gradient": self.gradient}
        return {part: x for part, x in parts.items() if x is not None and not all_finite(x)}


class LossCall(NamedTuple):
    """A loss function and its arguments; every run starts from copies of them."""

    loss_fn: Callable[..., Any]
    logits: Tensor
    target: Any
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the function, or of the module's class."""
        function = self.loss_fn.func if isinstance(self.loss_fn, functools.partial) else self.loss_fn
        return str(getattr(function, "__name__", type(function).__name__))

    @property
    def ignore_index(self) -> int | None:
        """The label that does not count; None if unknown."""
        bound = self.loss_fn.keywords if isinstance(self.loss_fn, functools.partial) else {}
        value = (bound | self.kwargs).get("ignore_index", getattr(self.loss_fn, "ignore_index", None))
        return value if isinstance(value, int) else None

    def input_nodes(self) -> list[Node]:
        """Build the tree of every argument, and of the loss if it is a module."""
        inputs = {"logits": self.logits, "target": self.target, **self.kwargs}
        if isinstance(self.loss_fn, nn.Module):
            inputs["loss_fn"] = self.loss_fn
        return [make_node(name, value) for name, value in inputs.items()]

    def run(self, dtype: torch.dtype, *, watched: bool = False) -> Outcome:
        """Run forward and backward in a precision, always with the same random numbers.

        A watched pass takes longer, and some losses can't be watched: its error counts for nothing.
        """
        outcome, watch, warned = Outcome(), Watch(), list[warnings.WarningMessage]()
        devices = [self.logits.device] if self.logits.is_cuda else []
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices, device_type="cuda"))
            if dtype == torch.float64:  # also of what the loss creates
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)
                stack.enter_context(_Float64Mode())
            if watched:
                warned = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")
                # It stores the lines of derivatives, and warns of the one that raises.
                stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
                stack.enter_context(watch)
            states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
            try:
                self._run(dtype, outcome)
            except Exception as error:  # any exception of the loss belongs into the report
                where = place("".join(traceback.format_tb(error.__traceback__)))
                is_users = where[0] and not where[0].startswith((TORCH, PACKAGE))
                outcome.error = first_line(error) + (f" at {shown_line(*where)}" if is_users else "")
            after = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
            outcome.is_random = not all(map(torch.equal, states, after))
        first_bad = list(outcome.bad().values())[:1]
        outcome.origin = watch.origin_of(*first_bad)
        for message in (str(warning.message) for warning in warned):
            if match := re.search(r"Error detected in (\w+)", message):
                outcome.failed = f"{match[1]} of {shown_line(*place(message))}"
        return outcome

    def _run(self, dtype: torch.dtype, outcome: Outcome) -> None:
        """Compute the loss of copies of the arguments, and its gradient."""
        leaf = self.logits.to(dtype, copy=True).requires_grad_()
        logits = leaf.clone()  # the loss may write into it, as into the output of a network
        target, kwargs = tree_map(functools.partial(_copied, dtype), (self.target, self.kwargs))
        loss_fn = self.loss_fn
        if isinstance(loss_fn, nn.Module):
            loss_fn = copy.deepcopy(loss_fn)  # a call may change its state
            loss_fn = loss_fn.double() if dtype == torch.float64 else loss_fn
        if isinstance(loss_fn, EdgeAwareLoss):
            loss_fn.sync_normalizer = False  # the other ranks make no such call
            if loss_fn.validate == "async":
                loss_fn.validate = "sync"  # no next call would report an out-of-range label
        result = loss_fn(logits, target, **kwargs)
        loss = next((value for value in tree_leaves(result) if isinstance(value, Tensor)), None)
        if loss is None:
            raise TypeError(f"expected a loss that returns a tensor, but got {short(result)}")
        if not isinstance(result, Tensor):
            outcome.notes.append(Finding("note", f"loss: the first tensor of the returned {type(result).__name__}."))
        if loss.dim():
            outcome.notes.append(Finding("note", f"loss: a map {list(loss.shape)}, summed for the gradient."))
        outcome.loss = loss.detach()
        if loss.requires_grad:  # of the sum of the loss, which itself may overflow
            (outcome.gradient,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss), allow_unused=True)
        if outcome.gradient is None:
            message = "gradient: none, since no differentiable path leads from the logits to the loss."
            advice = "Look for argmax, rounding, comparisons, .detach(), .item() or no_grad on the path."
            outcome.notes.append(Finding("warning", message, advice))


def _copied(dtype: torch.dtype, value: object) -> object:
    """Copy a tensor, and convert a floating one if the run is in float64."""
    if not isinstance(value, Tensor):
        return value
    to_float64 = dtype == torch.float64 and value.is_floating_point()
    return value.detach().to(dtype if to_float64 else value.dtype, copy=True)


class _Float64Mode(TorchFunctionMode):
    """Convert constants, closures and casts in every call to float64."""

    _CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        def widened(value: object) -> object:
            if isinstance(value, torch.dtype):
                return torch.float64 if value.is_floating_point else value
            # Keep a float64 tensor itself, since the call may write into it.
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                return value.double()
            return value

        args, kwargs = tree_map(widened, (tuple(args), dict(kwargs or {})))
        return (Tensor.double if func in self._CASTS else func)(*args, **kwargs)
