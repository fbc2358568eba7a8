"""What the loss keeps from step to step, and which step a call belongs to, where checkpoints repeat calls."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from edgeloss import library
from edgeloss.inputs import RUNNING, widest
from edgeloss.options import Options
from edgeloss.reduction import (
    OF_STEP,
    Evaluation,
    Scalars,
    balanced_weight,
    edge_error_sums,
    edge_focus_scale,
    edge_sums_of_0_2,
    fold_step,
    is_shared,
    new_edge_sums,
    uniform_edge_term,
    vector,
    write,
)

KEPT = ("edge_counts", "counted_steps", "edge_sums")  # buffers that a step changes


class Step(NamedTuple):
    """What a step of the loss takes from the steps before it.

    Attributes:
        edge_class_weight: u [C]; None for ones.
        edge_scale: f, the factor of ``edge_weight``, 0-d; None for 1.
        folded: what :func:`edgeloss.reduction.fold_step` returns of them, empty without ``edge_focus``; None for a call
            that repeats one that has counted.
    """

    edge_class_weight: Tensor | None
    edge_scale: Tensor | float | None = None
    folded: Scalars | None = ()


def _has_counted() -> bool:
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
        """Return the step of a call of the forward pass, its own or the shared one, and record it.

        The backward pass may repeat the call.
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
        """Return the step of the call that this one repeats."""
        call, task = self._calls.get(_has_counted(), {}).get(_address(target)), torch._C._current_graph_task_id()
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


class StatefulLoss(nn.Module):
    """A loss that keeps the counts of ``edge_class_weight="running"`` and the sums of ``edge_focus`` between steps."""

    edge_class_weight: Tensor | Literal["running"] | None
    edge_focus: float
    edge_counts: Tensor  # [C] or [C, 2] int64, C = 0 before the first step: edge pixels of all steps; "running" only
    counted_steps: Tensor  # 0-d int64
    edge_sums: Tensor  # [5] float64: a place for each reduction.EdgeSum; with edge_focus only

    def _register_kept(self, counts: tuple[int, ...]) -> None:
        """Create the buffers before the first step; ``counts`` is the shape of those counts."""
        self._open_step = OpenStep()
        if self._is_running():
            self.register_buffer("edge_counts", torch.zeros(counts, dtype=torch.int64))
            self.register_buffer("counted_steps", torch.zeros((), dtype=torch.int64))
        if self.edge_focus:
            self.register_buffer("edge_sums", new_edge_sums())

    def _is_running(self) -> bool:
        return isinstance(self.edge_class_weight, str)

    def _class_weight(self) -> Tensor | None:
        """Return u of the next step."""
        if not self._is_running():
            return cast("Tensor | None", self.edge_class_weight)
        counts = self._counts()
        return None if counts is None else balanced_weight(counts, steps=self.counted_steps)

    def _focus(self) -> tuple[Tensor | float | None, Scalars]:
        """Return f, None for 1, and the sums that it comes from, of the steps so far."""
        sums = self._sums()
        if sums is None:
            return None, ()
        folded = fold_step(sums)
        return edge_focus_scale(folded[0], self.edge_focus), folded

    def _step_of_call(self, target: Tensor, *, is_part: bool) -> tuple[Step, bool]:
        """Return what a call takes from the steps before it, and whether what it finds counts for those after it.

        ``is_part`` is whether the call is one of several of a step, which :meth:`_begin_parts` began.
        """
        if not self._is_running() and not self.edge_focus:
            return Step(self._class_weight()), False
        if self._is_meta() and not target.is_meta:
            raise RuntimeError(
                "criterion: expected buffers with values, but got those of device meta; call"
                " criterion.to_empty(device=...), or load_state_dict(..., assign=True)"
            )
        if not self.training:
            return Step(self._class_weight()), False
        # torch does not let the functions that it transforms change a module.
        may_count = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
        # A call inside a backward pass repeats one of the forward pass.
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            step = self._open_step.repeat(target)
            # It need not come after the last step that has counted.
            return step._replace(folded=None if _has_counted() else self._focus()[1]), may_count
        return self._open_step.take(target, None if is_part else self._next_step()), may_count

    def _next_step(self) -> Step:
        """Return what the next step takes from those before it."""
        counts, kept = self._counts(), self._sums()
        like = counts if kept is None else kept
        kernels = None if like is None else library.step_kernels(like)
        if kernels is None:
            return Step(self._class_weight(), *self._focus())
        u, scale, folded = kernels.begin(counts, None if counts is None else self.counted_steps, kept, self.edge_focus)
        return Step(self._class_weight() if counts is None else u, scale, folded)

    def _counts(self) -> Tensor | None:
        """Return the counts of the steps so far; None where nothing was counted."""
        return self.edge_counts if self._is_running() and self.edge_counts.shape[0] else None

    def _sums(self) -> Tensor | None:
        """Return the sums of the steps so far; None without ``edge_focus``."""
        if not self.edge_focus:
            return None
        if "edge_sums" not in self._buffers:  # edge_focus was 0 so far
            self.register_buffer("edge_sums", new_edge_sums())
        return self.edge_sums

    def _begin_parts(self, edge_class_weight: Tensor | None, pixels: int) -> None:
        """Begin a step of several calls, with so many labels in all."""
        if self._is_running() or self.edge_focus:
            self._open_step.check_complete()
            scale, folded = self._focus()
            self._open_step.begin(Step(edge_class_weight, scale), pixels)
            self._begin_step(folded)

    def _begin_step(self, folded: Scalars, errors: Scalars = (0.0, 0.0, 0.0)) -> None:
        if self._is_running():
            self.counted_steps.add_(1)
        if self.edge_focus:
            write([*errors, *folded], self.edge_sums)

    def _end_call(self, step: Step, evaluation: Evaluation, options: Options, classes: int, part: int | None) -> None:
        """Add what a call found to that of the steps before it, or to that of its step.

        ``part`` is the number of labels of one of several calls of a step; None for a step of its own.
        """
        if step.folded is None:
            return
        sums, counts, kept, kernels = evaluation.sums, self._counts(), self._sums(), None
        if kept is not None and kept.device != sums.device:  # in the first call of a module that was not moved
            self.edge_sums = kept = kept.to(sums, non_blocking=True)
        if part is None:
            self._open_step.begin()
            is_known = counts is not None or not self._is_running()
            kernels = library.step_kernels(sums) if is_known and not is_shared(options) else None
        if kernels is not None:
            counted = None if counts is None else self.counted_steps
            of_call, uniform = evaluation.edge_counts, uniform_edge_term(classes, options)
            kernels.end(sums, counts, of_call, counted, kept, step.folded, options, uniform)
            return
        errors = edge_error_sums(sums, options, classes) if self.edge_focus else ()
        if part is None:
            self._begin_step(step.folded, errors)
        else:
            self._open_step.end_part(part)
            if self.edge_focus:
                self.edge_sums[OF_STEP].add_(vector(errors, sums))
        if evaluation.edge_counts is not None:
            self._count(evaluation.edge_counts, options)

    def _count(self, counts: Tensor, options: Options) -> None:
        """Add the edge pixels of a step, or of a call of the first step."""
        if is_shared(options):
            dist.all_reduce(counts)
        before = self.edge_counts
        if before.shape[0]:
            before.add_(counts)  # in place, for CUDA graphs
            return
        if torch.compiler.is_exporting():  # a graph can't create a buffer
            raise RuntimeError(
                f"edge_class_weight={RUNNING!r}: expected counts, but got none; call the loss before export, or export"
                " it in eval()"
            )
        self.edge_counts, self.counted_steps = counts, self.counted_steps.to(counts.device, non_blocking=True)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401
        """Load the counts of any number of classes where there are none yet, or none in the state."""
        sums = state_dict.get(f"{prefix}edge_sums")
        if sums is not None and len(sums) == 3:  # of version 0.2
            state_dict[f"{prefix}edge_sums"] = edge_sums_of_0_2(sums)
        counts = state_dict.get(f"{prefix}edge_counts")
        if counts is not None and self._is_running():
            own = self.edge_counts
            # Counts of a multilabel loss have another number of axes.
            if 0 in (len(counts), len(own)) and counts.shape[1:] == own.shape[1:]:
                self.edge_counts = own.new_zeros(counts.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, *args: Any, **kwargs: Any) -> StatefulLoss:  # noqa: ANN401
        """Move what the module keeps with it, without casts: half() would overflow, and to_empty() leave any values."""
        kept = self._kept()
        self._buffers.update({name: torch.zeros_like(values, dtype=torch.uint8) for name, values in kept.items()})
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        for name, values in kept.items():
            device = getattr(self, name).device
            if values.is_meta and device.type != "meta":  # there are no values: begin again
                shape = [0, *values.shape[1:]] if values.dim() else []
                values = new_edge_sums() if name == "edge_sums" else torch.zeros(shape, dtype=values.dtype)
            self._buffers[name] = values.to(device, widest(device) if values.is_floating_point() else values.dtype)
        return self

    def _is_meta(self) -> bool:
        return any(values.is_meta for values in self._kept().values())

    def _kept(self) -> dict[str, Tensor]:
        return {name: values for name in KEPT if (values := self._buffers.get(name)) is not None}
