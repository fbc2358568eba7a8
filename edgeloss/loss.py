"""The loss as a module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import repeat
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from edgeloss.functional import label_totals, loss_and_edge_counts
from edgeloss.inputs import RUNNING, check_logits, check_weight, widest
from edgeloss.options import HELP, Backend, Options, Reduction, Validate
from edgeloss.reduction import Result, balanced_weight, is_shared


class EdgeAwareLoss(nn.Module):
    r"""Compute cross-entropy plus terms for sharp edges, for semantic segmentation.

    The module is called like :class:`torch.nn.CrossEntropyLoss`. For an edge pixel i of class k, and :math:`p_n(k)` the
    probability that its neighbor n gives to that class,

    .. math::
        S_i &= -\log M_q\{p_n(k) : y_n = k\} \quad\text{(same side: the neighbors agree)} \\
        O_i &= -\log M_q\{1 - p_n(k) : y_n \ne k\} \quad\text{(other side: no leak across the edge)} \\
        \mathrm{loss} &= \texttt{ce\_weight} \frac{\sum \mathrm{CE}}{W} + \texttt{edge\_weight}
            \frac{\sum_{i \in E} (\texttt{other\_side\_weight}\, O_i + \texttt{same\_side\_weight}\, S_i)
            + \texttt{false\_edge\_weight} \sum_{i \in F} S_i}{|E|}

    where

    * :math:`E` is the set of edge pixels: those with a valid neighbor of another class, on both sides of a border;
    * :math:`F` is the set of false edges: the pixels outside E whose most likely class is not that of some neighbor;
    * :math:`M_q` is the power mean over those neighbors, with exponent ``power`` and weights
      :math:`w_n = e^{-d_n/\texttt{decay}}`, where :math:`d_n` is the distance from n to the nearest pixel of another
      class;
    * :math:`W = \sum \texttt{weight}[y_i]` over valid pixels, as in the weighted mean of PyTorch.

    Pairs with an ignored pixel, or with one outside the image, do not exist: regions to ignore have no edges. Loss and
    gradient are finite for logits up to ±1e30 (and for all of float16). The loss is never negative; it is 0, with a
    gradient of 0, where there is no valid pixel, and so are the edge terms where there is no edge.

    Source: a 2017 write-up of a PyTorch implementation of an edge- and consistency-aware segmentation loss (of the loss
    behind IEEE document 7801846). With two classes, ``power=1`` and equal weights, O is the central line of the
    write-up, available as :func:`edgeloss.functional.neighbor_nll`. The extension to any number of classes is our own.
    The paper's own text was not at hand.

    Args:
        weight: class weights [C] of the cross-entropy, floating, ≥ 0; [2] for one logit.
        edge_class_weight: class weights [C] of the edge terms, floating, ≥ 0: u = ``edge_class_weight[y_i]`` multiplies
            :math:`S_i` and :math:`O_i` in E, and :math:`|E|` becomes :math:`\sum_E u`.
            :func:`edgeloss.functional.balanced_edge_class_weight` computes them from label maps. With ``"running"`` the
            module counts the edge pixels of each class instead: see below.
        ignore_index: label of pixels to ignore. Their gradient is exactly 0, and the result does not depend on their
            logits, even if these are nan.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for a map [B, *S].
        label_smoothing: of the cross-entropy, in [0, 1].
        ce_weight: weight of the cross-entropy, ≥ 0.
        edge_weight: weight of the edge terms, ≥ 0; 0 is plain cross-entropy.
        other_side_weight: weight of O among the edge terms, ≥ 0.
        same_side_weight: weight of S in E among the edge terms, ≥ 0.
        false_edge_weight: weight of S in F among the edge terms, ≥ 0; 0 leaves F out.
        radius: radius of the neighborhood in pixels, ≥ 1, or one per axis, such as (0, 1, 1) for thick slices.
        power: exponent q of the mean, in [-1e6, 1e6]. 0 averages the logarithms; 1, the form of the write-up, is the
            logarithm of the mean; -1 emphasizes the worst neighbor.
        decay: distance from the edge over which the weight of a neighbor falls by a factor of e, > 0, in pixels or
            units of ``spacing``; None for equal weights.
        spacing: size of a pixel, > 0, or one per axis; None for 1. Only ``decay`` uses it.
        upsample: accept logits of lower resolution than the target, and interpolate them as
            ``F.interpolate(logits.float(), size, mode="bilinear", align_corners=False)`` does (trilinear in 3-D).
        sync_normalizer: share the denominators across the ranks of ``torch.distributed``: the gradient that DDP
            averages is then that of one process with the whole batch. Not used by ``reduction="sum"``.
        validate: when out-of-range labels raise. ``"async"``: in the call; but the fused CUDA kernels do not wait for
            the device, ignore such pixels, and the next call or :func:`edgeloss.check` raises. ``"sync"``: in the call.
            ``"never"``: not checked, and such pixels are ignored. Values of other CUDA tensors (``weight``,
            ``pixel_weight``, ``distance``, ``normalizer``) are checked with ``"sync"`` only, and under
            ``torch.compile`` not at all; class weights also when the module is created.
        backend: ``"fused"`` for the compiled kernels, ``"reference"`` for plain PyTorch, ``"auto"`` for the fused
            kernels where they support the call; see :func:`edgeloss.backends`. Only the reference can be differentiated
            twice.

    **Running class balance.** With ``edge_class_weight="running"`` the weights of a step come from the edge pixels of
    the steps before it, so they are constants of the step; they converge to those that ``balanced_edge_class_weight``
    returns for the training labels. In the first step they are 1. The counts are buffers in ``state_dict``, created by
    the first call. ``train()`` counts; ``eval()`` does not, nor do calls under ``torch.no_grad()``. A call without
    ``normalizer`` is a step; :meth:`step_normalizer` is for steps of several calls. With ``sync_normalizer`` the counts
    are summed across the ranks.

    Shape:
        * logits: [B, C, H, W] or [B, C, D, H, W]; float16, bfloat16, float32 or float64, any strides. C = 1 is binary:
          one logit per pixel, labels 0 and 1.
        * target: [B, H, W] or [B, D, H, W]; int64, int32, int16, uint8 or bool.
        * loss: a scalar, or [B, *S] with ``reduction="none"``; float32, or float64 for float64 logits.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from edgeloss import EdgeAwareLoss
        >>> criterion = EdgeAwareLoss(ignore_index=255)
        >>> logits = torch.randn(2, 19, 64, 64, requires_grad=True)
        >>> target = torch.randint(19, (2, 64, 64))
        >>> target[:, :8] = 255
        >>> loss, terms = criterion(logits, target, return_terms=True)
        >>> loss.backward()
        >>> bool(logits.grad.isfinite().all()), bool((logits.grad[:, :, :8] == 0).all())
        (True, True)
        >>> sorted(terms)
        ['cross_entropy', 'edge', 'edge_fraction', 'false_edge', 'other_side', 'same_side']
    """

    weight: Tensor | None
    edge_class_weight: Tensor | Literal["running"] | None
    edge_counts: Tensor  # [C] int64, or [0] before the first step: edge pixels of all steps so far; "running" only
    counted_steps: Tensor  # 0-d int64
    _step_weight: Tensor | None  # of the calls with a normalizer: u of their step, [0] in the first one

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        edge_class_weight: Tensor | Literal["running"] | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ce_weight: float = 1.0,
        edge_weight: float = 1.0,
        other_side_weight: float = 1.0,
        same_side_weight: float = 1.0,
        false_edge_weight: float = 0.0,
        radius: int | Sequence[int] = 1,
        power: float = 0.0,
        decay: float | None = None,
        spacing: float | Sequence[float] | None = None,
        upsample: bool = False,
        sync_normalizer: bool = False,
        validate: Validate = "async",
        backend: Backend = "auto",
    ) -> None:
        """Store and check the options."""
        super().__init__()
        class_weights = {"weight": weight}
        if isinstance(edge_class_weight, str):
            self._register_counts(edge_class_weight)
        else:
            class_weights["edge_class_weight"] = edge_class_weight
        for name, values in class_weights.items():
            if values is not None:
                check_weight(values, name=name)
            self.register_buffer(name, values)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.ce_weight = ce_weight
        self.edge_weight = edge_weight
        self.other_side_weight = other_side_weight
        self.same_side_weight = same_side_weight
        self.false_edge_weight = false_edge_weight
        self.radius = radius
        self.power = power
        self.decay = decay
        self.spacing = spacing
        self.upsample = upsample
        self.sync_normalizer = sync_normalizer
        self.validate = validate
        self.backend = backend
        Options.from_attributes(self)

    def _register_counts(self, edge_class_weight: Literal["running"]) -> None:
        if edge_class_weight != RUNNING:
            raise ValueError(
                f"edge_class_weight: expected a tensor, {RUNNING!r} or None, but got {edge_class_weight!r}"
            )
        self.edge_class_weight = edge_class_weight
        self.register_buffer("edge_counts", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("counted_steps", torch.zeros((), dtype=torch.int64))
        self._step_weight = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that the module passes to :func:`edgeloss.functional.edge_aware_loss`."""
        class_weights = {"weight": self.weight, "edge_class_weight": self.current_edge_class_weight}
        return class_weights | {name: getattr(self, name) for name in HELP}

    @property
    def current_edge_class_weight(self) -> Tensor | None:
        """The class weights of the edge terms [C]; with ``"running"`` those of the next step, None before the first."""
        if not isinstance(self.edge_class_weight, str):
            return self.edge_class_weight
        weight = self._running_weight()
        return weight if len(weight) else None

    def _running_weight(self) -> Tensor:
        """Return u [C] of the edge pixels counted so far, or [0] if there are no counts yet."""
        # The prior is a step that showed every class equally often: it does not depend on the size of the images.
        total = self.edge_counts.sum(dtype=widest(self.edge_counts.device))
        prior = total / (self.counted_steps * max(1, len(self.edge_counts)))
        return balanced_weight(self.edge_counts, prior=prior)

    def _count(self, counts: Tensor, options: Options) -> None:
        """Add the edge pixels [C] of a step, or of a call of the first step."""
        if is_shared(options):
            dist.all_reduce(counts)
        if len(self.edge_counts):
            self.edge_counts.add_(counts)  # in place, for CUDA graphs
            return
        if torch.compiler.is_exporting():  # a graph can't create a buffer
            raise RuntimeError(
                f"edge_class_weight={RUNNING!r}: expected counts, but got none; call the loss before export"
            )
        self.edge_counts, self.counted_steps = counts, self.counted_steps.to(counts.device, non_blocking=True)

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        pixel_weight: Tensor | None = None,
        distance: Tensor | None = None,
        normalizer: tuple[float | Tensor, float | Tensor] | None = None,
        return_maps: bool = False,
        return_terms: bool = False,
    ) -> Result:
        """Compute the loss; the class describes the shapes and dtypes of logits and target.

        Args:
            logits: [B, C, *S].
            target: [B, *S] class indices.
            pixel_weight: v ≥ 0 [B, *S], floating; multiplies the loss of each pixel. W becomes Σ v · weight[y], and |E|
                becomes Σ v · edge_class_weight[y] over the edge pixels. Not differentiable.
            distance: a field d ≥ 0 [B, *S], floating, to use instead of the distance to the nearest pixel of another
                class; finite wherever an edge pixel has a neighbor. Requires ``decay``. Not differentiable.
            normalizer: denominators (W, E), numbers or 0-d tensors ≥ 0, to use instead of those of the batch; see
                :meth:`step_normalizer`. With ``sync_normalizer=True``, the share of this rank.
            return_maps: also return :class:`edgeloss.LossMaps`, detached.
            return_terms: also return a dict of detached 0-d tensors: ``cross_entropy``, ``same_side``, ``other_side``,
                ``edge`` and ``false_edge``, reduced like the loss (averaged with ``reduction="none"``), without
                ``ce_weight``, ``edge_weight`` and the weights of the single terms, which only ``edge`` includes; and
                ``edge_fraction``, the fraction of edge pixels among the valid ones.

        Returns:
            The loss. With ``return_maps`` or ``return_terms``, a tuple of the loss, the maps and the terms, in this
            order.

        Raises:
            TypeError: if an argument has the wrong type.
            ValueError: if a shape, device or value does not fit; the message says what to do.
            RuntimeError: if ``backend="fused"`` does not support the call.
        """
        weight, count_edges = self._class_weight_of_call(logits, is_part=normalizer is not None)
        options = Options.from_attributes(self)
        result, counts = loss_and_edge_counts(
            logits,
            target,
            options,
            return_maps=return_maps,
            return_terms=return_terms,
            count_edges=count_edges,
            weight=self.weight,
            edge_class_weight=weight,
            pixel_weight=pixel_weight,
            distance=distance,
            normalizer=normalizer,
        )
        if counts is not None:
            self._count(counts, options)
            if normalizer is None:
                self.counted_steps.add_(1)
                self._step_weight = None
        return result

    def _class_weight_of_call(self, logits: Tensor, *, is_part: bool) -> tuple[Tensor | None, bool]:
        """Return u [C] of a call, and whether the call counts the edge pixels.

        Args:
            logits: [B, C, *S].
            is_part: of a step of several calls, which :meth:`step_normalizer` began.
        """
        if not isinstance(self.edge_class_weight, str):
            return self.edge_class_weight, False
        check_logits(logits)
        counted, classes = len(self.edge_counts), max(2, logits.shape[1])
        if counted not in (0, classes):
            raise ValueError(
                f"logits: expected {counted} classes, as edge_class_weight={RUNNING!r} has counted, but got {classes};"
                " use one EdgeAwareLoss per number of classes"
            )
        may_train = self.training and torch.is_grad_enabled()
        if not (is_part and self.training):
            return self.current_edge_class_weight, may_train
        if self._step_weight is None:
            raise ValueError(
                f"normalizer: expected that of criterion.step_normalizer(targets) with edge_class_weight={RUNNING!r},"
                " but it was not called; it counts the edge pixels"
            )
        # Only the logits show the number of classes, so the calls of the first step count.
        is_first = not len(self._step_weight)
        return None if is_first else self._step_weight, is_first and may_train

    def step_normalizer(
        self, targets: Iterable[Tensor], pixel_weights: Iterable[Tensor | None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Begin a step of several calls, and return the ``normalizer`` to pass to each of them.

        The losses of the calls then add up to the loss of all targets in one batch: see gradient accumulation in
        docs/loss.md. With ``edge_class_weight="running"`` this fixes the class weights of the step and, in ``train()``,
        counts its edge pixels, once; the calls do not.

        Args:
            targets: the labels [B, *S] of every call.
            pixel_weights: the ``pixel_weight`` of every call.

        Returns:
            The denominators (W, E), 0-d float64: the sums of :func:`edgeloss.functional.normalizers` over the targets,
            with the options of the module.

        Raises:
            TypeError: if an argument has the wrong type.
            ValueError: if there is no target, or an argument does not fit.

        Example:
            >>> import torch
            >>> from edgeloss import EdgeAwareLoss
            >>> criterion = EdgeAwareLoss(edge_class_weight="running")
            >>> logits, target = torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
            >>> total = criterion.step_normalizer(target.split(2))
            >>> parts = zip(logits.split(2), target.split(2))
            >>> loss = sum(criterion(x, y, normalizer=total) for x, y in parts)
            >>> torch.testing.assert_close(loss, EdgeAwareLoss()(logits, target))  # in the first step all weights are 1
            >>> criterion.current_edge_class_weight.shape
            torch.Size([3])
        """
        options, u = Options.from_attributes(self), self.current_edge_class_weight
        is_counted = isinstance(self.edge_class_weight, str) and self.training
        pairs = zip(targets, repeat(None)) if pixel_weights is None else zip(targets, pixel_weights, strict=True)
        totals = [
            label_totals(
                target, options, weight=self.weight, edge_class_weight=u, pixel_weight=v, count_edges=is_counted
            )
            for target, v in pairs
        ]
        if not totals:
            raise ValueError("targets: expected the labels of at least one call, but got none")
        w, e, counts = zip(*totals, strict=True)
        if is_counted:
            self._step_weight = self._running_weight()
            if u is not None:
                self._count(torch.stack(counts).sum(0), options)
            self.counted_steps.add_(1)
        return torch.stack(w).sum(), torch.stack(e).sum()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401
        """Load the counts of any number of classes where there are none yet, or none in the state."""
        counts = state_dict.get(f"{prefix}edge_counts")
        if counts is not None and isinstance(self.edge_class_weight, str) and 0 in (len(counts), len(self.edge_counts)):
            self.edge_counts = self.edge_counts.new_zeros(counts.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Return the options that differ from their defaults, and the most used ones."""
        always = ("ignore_index", "edge_weight", "radius", "power")
        shown = [
            f"{name}={values!r}" if isinstance(values, str) else f"{name}=[{len(values)}]"
            for name, values in (("weight", self.weight), ("edge_class_weight", self.edge_class_weight))
            if values is not None
        ]
        for option in fields(Options):
            value = getattr(self, option.name)
            if option.name in always or value != option.default:
                shown.append(f"{option.name}={value!r}")
        return ", ".join(shown)
