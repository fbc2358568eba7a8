"""From logits and labels to the loss, as a module that keeps what a training needs from step to step."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Literal

import torch
from torch import Tensor

from edgeloss.from_labels import label_totals
from edgeloss.functional import loss_and_evaluation
from edgeloss.inputs import RUNNING, Given, check_weight, label_maps
from edgeloss.options import HELP, MODULE_ONLY, Backend, Options, Reduction, Validate, is_integer, suggest_keywords
from edgeloss.reduction import Result
from edgeloss.steps import StatefulLoss


class EdgeAwareLoss(StatefulLoss):
    r"""Compute cross-entropy plus terms of edges and regions, for semantic segmentation.

    The module is called like :class:`torch.nn.CrossEntropyLoss`. In training it balances the classes at the edges and
    lowers the weight of the edge terms as the edges are learned, by what it has seen in the steps before; see below.
    With ``edge_class_weight=None, edge_focus=0`` it keeps nothing between steps, and with ``region_weight=0`` as well
    it is :func:`edgeloss.functional.edge_aware_loss` with its defaults.

    For an edge pixel i of class k, and :math:`p_n(k)` the probability that its neighbor n gives to that class,

    .. math::
        S_i &= -\log M_q\{p_n(k) : y_n = k\} \quad\text{(same side: the neighbors agree)} \\
        O_i &= -\log M_q\{1 - p_n(k) : y_n \ne k\} \quad\text{(other side: no leak across the edge)} \\
        \mathrm{loss} &= \texttt{ce\_weight} \frac{\sum \mathrm{CE}}{W} + \texttt{edge\_weight}
            \frac{\sum_{i \in E} (\texttt{other\_side\_weight}\, O_i + \texttt{same\_side\_weight}\, S_i)}{|E|}
            + \texttt{region\_weight}\, R

    where

    * :math:`E` is the set of edge pixels: those with a valid neighbor of another class, on both sides of a border;
    * :math:`M_q` is the power mean over those neighbors, with exponent ``power`` and weights
      :math:`w_n = e^{-d_n/\texttt{decay}}`, where :math:`d_n` is the distance from n to the nearest pixel of another
      class;
    * :math:`W = \sum \texttt{weight}[y_i]` over valid pixels, as in the weighted mean of PyTorch;
    * :math:`R` is the region term, see below.

    Pairs with an ignored pixel, or with one outside the image, do not exist: regions to ignore have no edges. Loss and
    gradient are finite for logits up to ±1e30 (and for all of float16). The loss is never negative; it is 0, with a
    gradient of 0, where there is no valid pixel, and so are the edge terms where there is no edge.

    Source: a 2017 write-up of a PyTorch implementation of an edge- and consistency-aware segmentation loss (of the loss
    behind IEEE document 7801846). With two classes, ``power=1`` and equal weights, O is the central line of the
    write-up, available as :func:`edgeloss.functional.neighbor_nll`. The extension to any number of classes is our own.
    The paper's own text was not at hand. The region term is after Zhao et al., "Region Mutual Information Loss for
    Semantic Segmentation", NeurIPS 2019.

    Args:
        weight: class weights [C] of the cross-entropy, floating, ≥ 0; [2] for one logit. With ``multilabel`` [C], or
            [C, 2] for labels 0 and 1 of each class.
        edge_class_weight: class weights of the edge terms: u = ``edge_class_weight[y_i]`` multiplies :math:`S_i` and
            :math:`O_i`, and :math:`|E|` becomes :math:`\sum_E u`. With ``"running"`` the module balances the
            classes by counting the edge pixels of each: see below. A tensor of the shape of ``weight``, floating, ≥ 0,
            such as that of :func:`edgeloss.functional.balanced_edge_class_weight`, stays as it is. None for ones.
        ignore_index: label of pixels to ignore; None for none. Their gradient is exactly 0, and the result does not
            depend on their logits, even if these are nan.
        multilabel: take the classes as C independent binary losses, for classes that may overlap: a sigmoid each, with
            labels 0 and 1 of their own and their own edges. Sums and denominators are added over the classes.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for a map in the shape of the target.
        label_smoothing: of the cross-entropy, in [0, 1].
        ce_weight: weight of the cross-entropy, ≥ 0.
        edge_weight: weight of the edge terms, ≥ 0; 0 leaves them out. With ``region_weight=0`` as well, the loss is
            plain cross-entropy.
        other_side_weight: weight of O among the edge terms, ≥ 0.
        same_side_weight: weight of S among the edge terms, ≥ 0.
        edge_focus: γ ≥ 0. ``edge_weight`` falls as the edges are learned: see below. 0 keeps it.
        region_weight: weight of the region term, ≥ 0; 0 leaves it out.
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
        validate: when out-of-range labels raise. ``"async"`` and ``"sync"``: in the call; but the kernels of GPUs
            record them with ``"async"`` for :func:`edgeloss.check`, and do not wait. ``"never"``: not checked. Labels
            that do not raise are ignored. Values of other CUDA tensors (``weight``, ``pixel_weight``, ``distance``,
            ``normalizer``) are checked with ``"sync"`` only, and not under ``torch.compile``; class weights also when
            the module is created.
        backend: ``"fused"`` for the compiled kernels, ``"reference"`` for plain PyTorch, ``"auto"`` for the fused
            kernels where they support the call; see :func:`edgeloss.backends`. Only the reference can be differentiated
            twice.

    **Regions.** The region term of an image is the share of what the labels say about small regions, windows of 9 × 9
    pixels, that the best linear estimate from the softmax probabilities of these regions leaves open, averaged over the
    classes of the image: 0 for the labels themselves, about 1 for a prediction that says nothing. It measures linear
    dependence, not correctness: only the cross-entropy and the edge terms penalize an inverted prediction. :math:`R` is
    the mean over the images, weighted by what each adds to W. It belongs to no pixel, so the loss maps do not contain
    it. It is 0 for images of a single class, and for those of less than 7 pixels along an axis.

    **Running class balance.** With ``edge_class_weight="running"``, the default, the weights of a step come from the
    edge pixels of the steps before it; in the first step they are 1. The counts are buffers in ``state_dict``, created
    by the first call, so outputs with different numbers of classes need a module each. ``train()`` counts; ``eval()``
    does not, nor do calls under ``torch.no_grad()`` or in a transform of ``torch.func``. A call without ``normalizer``
    is a step; :meth:`step_normalizer` is for steps of several calls.

    **Edges that are learned.** With ``edge_focus`` γ > 0, by default 8, the weight of the edge terms in a step is
    ``edge_weight`` · :math:`\bar e^\gamma`, where :math:`\bar e` is the average error of the edges over about the last
    100 steps, 1 for a uniform prediction. In the first step, and in ``eval()``, it is ``edge_weight``: validation
    losses are the same quantity in all epochs. The average is a buffer too, and changes when counts do.

    docs/loss.md has the formulas of all three, and what ranks and multilabel calls add up.

    Shape:
        * logits: [B, C, H, W] or [B, C, D, H, W]; float16, bfloat16, float32 or float64, any strides. C = 1 is binary:
          one logit per pixel, labels 0 and 1.
        * target: [B, H, W] or [B, D, H, W], with ``multilabel`` [B, C, H, W] or [B, C, D, H, W]; int64, int32, int16,
          uint8 or bool.
        * loss: a scalar, or a map with ``reduction="none"``; float32, or float64 for float64 logits.

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
        ['cross_entropy', 'edge', 'edge_fraction', 'other_side', 'region', 'same_side']
    """

    weight: Tensor | None
    edge_class_weight: Tensor | Literal["running"] | None

    @suggest_keywords
    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        edge_class_weight: Tensor | Literal["running"] | None = RUNNING,
        ignore_index: int | None = -100,
        multilabel: bool = False,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ce_weight: float = 1.0,
        edge_weight: float = 1.0,
        other_side_weight: float = 1.0,
        same_side_weight: float = 1.0,
        edge_focus: float = 8.0,
        region_weight: float = 3.0,
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
        if not isinstance(edge_class_weight, str):
            class_weights["edge_class_weight"] = edge_class_weight
        elif edge_class_weight == RUNNING:
            self.edge_class_weight = edge_class_weight
        else:
            got = f"but got {edge_class_weight!r}"
            raise ValueError(f"edge_class_weight: expected a tensor, {RUNNING!r} or None, {got}")
        for name, values in class_weights.items():
            if values is not None:
                check_weight(values, name=name, multilabel=multilabel)
            self.register_buffer(name, values)
        self.ignore_index = ignore_index
        self.multilabel = multilabel
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.ce_weight = ce_weight
        self.edge_weight = edge_weight
        self.other_side_weight = other_side_weight
        self.same_side_weight = same_side_weight
        self.edge_focus = edge_focus
        self.region_weight = region_weight
        self.radius = radius
        self.power = power
        self.decay = decay
        self.spacing = spacing
        self.upsample = upsample
        self.sync_normalizer = sync_normalizer
        self.validate = validate
        self.backend = backend
        self._options = Options.from_attributes(self)
        self._register_kept((0, 2) if multilabel else (0,))

    def options(self, *, training: bool | None = None) -> dict[str, Any]:
        """Return the arguments of :func:`edgeloss.functional.edge_aware_loss` that give the loss of the next call.

        Args:
            training: True for the next step of a training, with ``edge_weight`` as ``edge_focus`` has lowered it; False
                for ``eval()``, with ``edge_weight`` in full; None for the mode that the module is in.
        """
        training = self.training if training is None else training
        class_weights = {"weight": self.weight, "edge_class_weight": self.current_edge_class_weight}
        options = class_weights | {name: getattr(self, name) for name in HELP if name not in MODULE_ONLY}
        is_focused = self.edge_focus and training
        return options | {"edge_weight": self.current_edge_weight.item()} if is_focused else options

    @property
    def current_edge_class_weight(self) -> Tensor | None:
        """The class weights of the edge terms; with ``"running"`` those of the next step, None before the first.

        [C]; with ``"running"`` and ``multilabel`` [C, 2].
        """
        return self._class_weight()

    @property
    def current_edge_weight(self) -> Tensor:
        """The weight of the edge terms in the next step, 0-d: ``edge_weight`` times what ``edge_focus`` makes of it.

        ``eval()`` uses ``edge_weight`` instead.
        """
        scale, _ = self._focus()
        weight = self.edge_weight * (1.0 if scale is None else scale)
        return weight if isinstance(weight, Tensor) else torch.tensor(weight, dtype=torch.float64)

    def _checked_options(self) -> Options:
        """Return the options, checked again if one was set since the last call."""
        if torch.compiler.is_compiling():
            return Options.from_attributes(self)
        if not all(map(operator.is_, map(self.__dict__.get, HELP), vars(self._options).values())):
            self._options = Options.from_attributes(self)
        return self._options

    @suggest_keywords
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
            target: [B, *S] class indices; with ``multilabel`` [B, C, *S] of 0 and 1.
            pixel_weight: v ≥ 0 [B, *S], floating; multiplies the loss of each pixel. W becomes Σ v · weight[y], and |E|
                becomes Σ v · edge_class_weight[y] over the edge pixels. Not differentiable. With ``multilabel`` also
                [B, C, *S].
            distance: a field d ≥ 0 in the shape of the target, floating, to use instead of the distance to the nearest
                pixel of another class; finite wherever an edge pixel has a neighbor. Requires ``decay``. Not
                differentiable.
            normalizer: denominators (W, E), numbers or 0-d tensors ≥ 0, to use instead of those of the batch; see
                :meth:`step_normalizer`. With ``sync_normalizer=True``, the share of this rank.
            return_maps: also return :class:`edgeloss.LossMaps`, detached; the region term, which belongs to no pixel,
                is not among them.
            return_terms: also return a dict of detached 0-d tensors: ``cross_entropy``, ``same_side``, ``other_side``,
                ``edge`` and ``region``, reduced like the loss (averaged with ``reduction="none"``),
                without ``ce_weight``, ``edge_weight``, ``region_weight`` and the weights of the single edge terms,
                which only ``edge`` includes; and ``edge_fraction``, the fraction of edge pixels among the valid ones.
                ``region`` is 0 with ``region_weight=0``. The loss is ``ce_weight * cross_entropy``, plus
                ``current_edge_weight * edge``, with the weight before the call, in ``eval()`` with ``edge_weight``,
                plus ``region_weight * region``.

        Returns:
            The loss. With ``return_maps`` or ``return_terms``, a tuple of the loss, the maps and the terms, in this
            order.

        Raises:
            TypeError: if an argument has the wrong type.
            ValueError: if a shape, device or value does not fit; the message says what to do.
            RuntimeError: if ``backend="fused"`` does not support the call.
        """
        options, is_part, is_running = self._checked_options(), normalizer is not None, self._is_running()
        step, is_counted = self._step_of_call(target, is_part=is_part)
        result, evaluation = loss_and_evaluation(
            logits,
            target,
            options,
            Given(self.weight, step.edge_class_weight, pixel_weight, distance, normalizer, is_running),
            return_maps=return_maps,
            return_terms=return_terms,
            # Only the logits show the number of classes, so the calls of the first step count.
            count_edges=is_counted and is_running and (not is_part or step.edge_class_weight is None),
            edge_scale=step.edge_scale,
        )
        if is_counted:
            classes = 2 if self.multilabel else max(2, logits.shape[1])
            self._end_call(step, evaluation, options, classes, part=target.numel() if is_part else None)
        return result

    def of_class(self, index: int, *, training: bool | None = None) -> EdgeAwareLoss:
        """Return the binary loss of one class of a multilabel loss, such as for a figure of that class.

        It is called with ``logits[:, index : index + 1]`` and ``target[:, index]``, and keeps nothing between steps.
        The region term of the multilabel loss is a mean over its classes, with the weight of all of them.

        Args:
            index: the number of the class.
            training: whose weights it has, as in :meth:`options`.

        Returns:
            A new module.

        Raises:
            TypeError: if the index is not an integer.
            ValueError: if the loss is not multilabel, or has no such class.

        Example:
            >>> import torch
            >>> from edgeloss import EdgeAwareLoss
            >>> criterion = EdgeAwareLoss(torch.tensor([1.0, 5.0]), multilabel=True)
            >>> criterion.of_class(1).weight
            tensor([5., 5.])
        """
        if not self.multilabel:
            raise ValueError("multilabel: expected True for a loss of one class, but got False")
        if not is_integer(index):
            raise TypeError(f"index: expected an int, but got {index!r}")
        options = self.options(training=training) | {"multilabel": False, "edge_focus": 0.0}
        for name in ("weight", "edge_class_weight"):
            values = options[name]
            if index < 0 or (values is not None and index >= len(values)):
                raise ValueError(f"index: expected the number of a class, from 0, but got {index}")
            options[name] = None if values is None else values[index].expand(2).clone()
        return EdgeAwareLoss(**options)

    def step_normalizer(
        self, targets: Iterable[Tensor], pixel_weights: Iterable[Tensor | None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Begin a step of several calls, and return the ``normalizer`` to pass to each of them.

        The losses of the calls then add up to the loss of all targets in one batch: see gradient accumulation in
        docs/loss.md. In ``train()`` this fixes what the step takes from the steps before it: with ``edge_focus`` the
        weight of the edge terms, with ``edge_class_weight="running"`` their class weights, for which it counts the edge
        pixels, once; the calls do not.

        Args:
            targets: the target of every call.
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
            >>> criterion = EdgeAwareLoss()
            >>> logits, target = torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
            >>> total = criterion.step_normalizer(target.split(2))
            >>> parts = zip(logits.split(2), target.split(2))
            >>> loss = sum(criterion(x, y, normalizer=total) for x, y in parts)
            >>> torch.testing.assert_close(loss, EdgeAwareLoss()(logits, target))
            >>> criterion.current_edge_class_weight.shape
            torch.Size([3])
        """
        options, u = Options.from_attributes(self), self.current_edge_class_weight
        is_counted = self._is_running() and self.training
        weights = None if pixel_weights is None else list(pixel_weights)
        totals: list[tuple[Any, ...]] = []
        for target in label_maps(targets, multilabel=self.multilabel):  # one at a time: a loader may yield them
            v = weights[len(totals)] if weights is not None and len(totals) < len(weights) else None
            given = Given(self.weight, u, v)
            totals.append((target.numel(), *label_totals(target, options, given, count_edges=is_counted)))
        if weights is not None and len(weights) != len(totals):
            raise ValueError(
                f"pixel_weights: expected {len(totals)}, one per target, but got {len(weights)}; pass None for a target"
                " without one"
            )
        if not totals:
            raise ValueError("targets: expected the labels of at least one call, but got none")
        pixels, w, e, counts = zip(*totals, strict=True)
        if self.training:
            self._begin_parts(u, sum(pixels))
            if is_counted and u is not None:
                self._count(torch.stack(counts).sum(0), options)
        return torch.stack(w).sum(), torch.stack(e).sum()

    def extra_repr(self) -> str:
        """Return the options that differ from their defaults, the most used ones, and all weights that are not 0."""
        always = ("ignore_index", "edge_weight", "edge_focus", "radius", "power")
        shown = [
            f"{name}=[{len(values)}]" if isinstance(values, Tensor) else f"{name}={values!r}"
            for name, values in (("weight", self.weight), ("edge_class_weight", self.edge_class_weight))
            if name == "edge_class_weight" or values is not None
        ]
        for option in fields(Options):
            value = getattr(self, option.name)
            is_weight = option.name.endswith("_weight")
            if option.name in always or value != option.default or (is_weight and value):
                shown.append(f"{option.name}={value!r}")
        if self.training and self.edge_focus and not self._is_meta() and self.current_edge_weight != self.edge_weight:
            shown.append(f"current_edge_weight={self.current_edge_weight.item():.4g}")
        return ", ".join(shown)
