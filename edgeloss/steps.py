"""Which step a call of the loss belongs to, where ``torch.utils.checkpoint`` repeats calls and parts are left out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """What a step of the loss takes from the steps before it.

    Attributes:
        edge_class_weight: u [C]; None for ones.
        edge_scale: f, the factor of ``edge_weight``, 0-d; None for 1.
        folded: what :func:`edgeloss.reduction.fold_step` returns of them; empty without ``edge_focus``.
    """

    edge_class_weight: Tensor | None
    edge_scale: Tensor | float | None = None
    folded: Sequence[Any] = ()


def may_count() -> bool:
    """Return whether a call may change the module; torch does not let the functions that it transforms do so."""
    return torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def is_repeated() -> bool:
    """Return whether a call is made inside a backward pass, which repeats one of the forward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def has_counted() -> bool:
    """Return whether the call that this one repeats has counted.

    With ``use_reentrant=True`` it was made under ``no_grad()``. Otherwise the repetition has hooks for what it saves.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class _Call:
    def __init__(self, step: Step, *, is_part: bool) -> None:
        self.step, self.is_part, self.repeated_by = step, is_part, -1


class OpenStep:
    """The step under way, as far as the tensors of the module do not say.

    Attributes:
        shared: what calls with a normalizer take from the steps before; None where no step of several calls is open.
        pixels_left: how many labels of that step no call has had.
    """

    def __init__(self) -> None:
        """Begin without a step."""
        self.shared: Step | None = None
        self.pixels_left = 0
        self._calls: dict[bool, dict[int, _Call]] = {}  # by grad mode and by the address of the labels

    def begin(self, shared: Step | None = None, pixels: int = 0) -> None:
        """Begin a step of one call, or of several ones that share what they take from the steps before."""
        self.shared, self.pixels_left = shared, pixels
        if shared is not None:
            self._calls.clear()

    def end_part(self, pixels: int) -> None:
        """Take the labels of a call off those that the step waits for; graphs do not count them."""
        self.pixels_left = 0 if torch.compiler.is_compiling() else self.pixels_left - pixels

    def check_complete(self) -> None:
        """Warn if calls of a step are missing when the next one begins."""
        if self.pixels_left > 0:
            warnings.warn(
                "normalizer: expected calls with all labels of step_normalizer(targets), but"
                f" {self.pixels_left} labels were in no call when the next step began; call step_normalizer once per"
                " step, and pass what it returns to each call of the step",
                stacklevel=2,
            )

    def take(self, target: Tensor, own: Step | None) -> Step:
        """Return the step of a call of the forward pass, and record it: the backward pass may repeat it.

        Args:
            target: of the call.
            own: the step of a call that is one; None for the shared step.

        Raises:
            ValueError: if there is no shared step.
        """
        step = self.shared if own is None else own
        if step is None:
            raise ValueError(
                "normalizer: expected that of criterion.step_normalizer(targets), which begins a step, but it was not"
                " called; call it once per step, or pass edge_class_weight=None and edge_focus=0 to EdgeAwareLoss to"
                " keep nothing between steps"
            )
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return step
        if own is not None and torch.is_grad_enabled():
            self.check_complete()
        calls = self._calls.setdefault(torch.is_grad_enabled(), {})
        if own is not None:
            calls.clear()
        calls[_address(target)] = _Call(step, is_part=own is None)
        return step

    def repeat(self, target: Tensor) -> Step:
        """Return the step of the call that this one repeats.

        Raises:
            RuntimeError: if there may be another call than the recorded one.
        """
        call, task = self._calls.get(has_counted(), {}).get(_address(target)), torch._C._current_graph_task_id()
        if call is None or (call.repeated_by == task and not call.is_part):
            raise RuntimeError(
                "target: expected a call in a backward pass, as torch.utils.checkpoint makes it, to repeat the last"
                f" step, but got {'other labels' if call is None else 'a second one'}; run backward() after each step,"
                " make the labels outside the checkpoint, or leave the loss out of it"
            )
        if torch.is_grad_enabled():  # other calls only look
            call.repeated_by = task
        return call.step


def _address(target: Tensor) -> int:
    return target.data_ptr() if type(target) is Tensor else 0  # a subclass may have no values
