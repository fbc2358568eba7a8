"""From logits and labels to the loss, as a module."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from edgeloss import _call
from edgeloss._checks.inputs import BALANCED, Given, check_tensor, check_weight, is_balance, plain, renamed_balance
from edgeloss._checks.options import HELP, BackendChoice, Options, Reduction, Validate, is_integer, suggest_keywords
from edgeloss._reduction import balance
from edgeloss.functional import Result, as_asked

# What 0.2 and 0.3 stored, and what they had: the loss was a function of the steps before it.
_DROPPED = ("edge_counts", "counted_steps", "edge_sums")
_REPLACED = {
    "step_normalizer": "pass the sums of functional.normalizers(target, num_classes) over the calls as normalizer",
    "current_edge_weight": "return_terms=True has edge_focus, the mean weight of the edge terms in a call",
    "current_edge_class_weight": "edge_class_weight='balanced' takes them from the labels of each call",
    **dict.fromkeys(_DROPPED, "the loss stores nothing between calls"),
}


class EdgeAwareLoss(nn.Module):
    r"""Compute cross-entropy plus terms of edges and regions, for semantic segmentation.

    The module is called like :class:`torch.nn.CrossEntropyLoss`, and is :func:`edgeloss.functional.edge_aware_loss`
    with its options stored: a function of logits and labels, the same in ``train()`` and ``eval()``.

    For an edge pixel i of class k, and :math:`p_n(k)` the probability that its neighbor n gives to that class,

    .. math::
        S_i &= -\log M_q\{p_n(k) : y_n = k\} \quad\text{(same side: the neighbors agree)} \\
        O_i &= -\log M_q\{1 - p_n(k) : y_n \ne k\} \quad\text{(other side: no leak across the edge)} \\
        \mathrm{loss} &= \texttt{ce\_weight} \frac{\sum \mathrm{CE}}{W} + \texttt{edge\_weight}
            \frac{\sum_{b,c} u_c n_{bc} \Phi(t_{bc})}{\sum_c u_c n_c} + \texttt{region\_weight}\, R

    where

    * :math:`E` is the set of edge pixels: those with a valid neighbor of another class, on both sides of a border;
    * :math:`M_q` is the power mean over those neighbors, with exponent ``power`` and weights
      :math:`w_n = e^{-d_n/\texttt{decay}}`, where :math:`d_n` is the distance from n to the nearest pixel of another
      class;
    * :math:`W = \sum \texttt{weight}[y_i]` over valid pixels, as in the weighted mean of PyTorch;
    * :math:`n_{bc}` is the number of edge pixels of class c in image b, and :math:`t_{bc}` the mean of
      ``other_side_weight`` :math:`O_i` + ``same_side_weight`` :math:`S_i` over them;
    * :math:`u_c` balances the classes, and :math:`\Phi` is the focus on edges that are not learned yet, see below;
    * :math:`R` is the region term, see below.

    Pairs with an ignored pixel, or with one outside the image, do not exist: regions to ignore have no edges. Loss and
    gradient are finite for logits up to ±1e30 (and for all of float16). The loss is never negative; it is 0, with a
    gradient of 0, where there is no valid pixel, and so are the edge terms where there is no edge. Its gradient is the
    derivative of its value, and the loss of a batch is the sum of those of its images with the same ``normalizer``.

    Source: a 2017 write-up of a PyTorch implementation of an edge- and consistency-aware segmentation loss (of the loss
    behind IEEE document 7801846). With two classes, ``power=1`` and equal weights, O is the central line of the
    write-up, available as :func:`edgeloss.functional.neighbor_nll`. The extension to any number of classes is our own.
    The paper's own text was not at hand. The region term is after Zhao et al., "Region Mutual Information Loss for
    Semantic Segmentation", NeurIPS 2019.

    Args:
        weight: class weights [C] of the cross-entropy, floating, ≥ 0; [2] for one logit. With ``multilabel`` [C], or
            [C, 2] for labels 0 and 1 of each class.
        edge_class_weight: u, class weights of the edge terms. ``"balanced"`` takes them from the edge pixels of each
            class in the batch: see below. A tensor of the shape of ``weight``, floating, ≥ 0, such as that of
            :func:`edgeloss.functional.balanced_edge_class_weight` for a whole data set, stays as it is. None for ones.
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
        edge_focus: γ in [0, 1000]. The edge terms of a class in an image count less as they are learned: see below. 0
            for equal weights.
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
    classes of the image: 0 for the labels themselves, about 1 for a prediction that says nothing, and up to 2 for an
    inverted one. :math:`R` is the mean over the images, weighted by what each adds to W. It belongs to no pixel, so
    loss maps do not contain it. It is 0 for images of a single class, and for those of less than 7 pixels along an
    axis.

    **Class balance.** With ``edge_class_weight="balanced"``, the default, :math:`u_c \propto 1 / (n_c + 0.05\, \bar n)`
    with the edge pixels :math:`n_c` of class c in the batch and their mean over the classes :math:`\bar n`, scaled to a
    mean of 1: each class at the edges has nearly the same share of the edge terms.

    **Edges that are learned.** With ``edge_focus`` γ, by default 3, :math:`\Phi` is the function with the slope
    :math:`\min(1, \varepsilon(t) / \varepsilon(t_0))^\gamma`, where :math:`\varepsilon` turns the mean edge term into a
    share of error, and :math:`t_0` is the edge term of a uniform prediction. The slope is the weight of the edge terms
    of a class in an image: 1 while they are no better than uniform, and less as they are learned.

    docs/loss.md has the formulas, and what ranks and multilabel calls add up.

    Shape:
        * logits: [B, C, H, W] or [B, C, D, H, W]; float16, bfloat16, float32 or float64, any strides. C = 1 is binary:
          one logit per pixel, labels 0 and 1.
        * target: [B, H, W] or [B, D, H, W], with ``multilabel`` [B, C, H, W] or [B, C, D, H, W]; int64, int32, int16,
          uint8 or bool.
        * loss: a scalar, or a map with ``reduction="none"``; float32, or float64 for float64 logits.

    Raises:
        TypeError: if class weights are not tensors, or a flag or an integer has the wrong type.
        ValueError: if any other argument has the wrong type or is out of range.

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
        ['cross_entropy', 'edge', 'edge_focus', 'edge_focused', 'edge_fraction', 'other_side', 'region', 'same_side']
    """

    weight: Tensor | None
    edge_class_weight: Tensor | str | None

    @suggest_keywords
    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        edge_class_weight: Tensor | str | None = BALANCED,
        ignore_index: int | None = -100,
        multilabel: bool = False,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ce_weight: float = 1.0,
        edge_weight: float = 1.0,
        other_side_weight: float = 1.0,
        same_side_weight: float = 1.0,
        edge_focus: float = 3.0,
        region_weight: float = 3.0,
        radius: int | Sequence[int] = 1,
        power: float = 0.0,
        decay: float | None = None,
        spacing: float | Sequence[float] | None = None,
        upsample: bool = False,
        sync_normalizer: bool = False,
        validate: Validate = "async",
        backend: BackendChoice = "auto",
    ) -> None:
        """Store and check the options."""
        super().__init__()
        edge_class_weight = renamed_balance(edge_class_weight)
        if weight is not None:
            check_weight(weight, multilabel=multilabel)
        if edge_class_weight is not None and not isinstance(edge_class_weight, str):
            check_weight(edge_class_weight, name="edge_class_weight", multilabel=multilabel)
        self.weight, self.edge_class_weight = weight, edge_class_weight
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

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Store class weights as buffers, and ``"balanced"`` as an ordinary attribute."""
        if name in ("weight", "edge_class_weight"):
            value = plain(value)  # nn.Module would train a parameter
            if name == "edge_class_weight" and is_balance(value):
                self._buffers.pop(name, None)
            elif name not in self._buffers:
                if value is not None:
                    check_tensor(name, value, "a tensor [C] of class weights")
                self.__dict__.pop(name, None)
                self.register_buffer(name, None)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Say what replaces an attribute of version 0.3."""
        if name in _REPLACED:
            raise AttributeError(f"EdgeAwareLoss has no {name!r} since version 0.4: {_REPLACED[name]}")
        return super().__getattr__(name)

    @suggest_keywords
    def options(self) -> dict[str, Any]:
        """Return the arguments of :func:`edgeloss.functional.edge_aware_loss` that give the same loss."""
        weights = {"weight": self.weight, "edge_class_weight": self.edge_class_weight}
        return weights | {name: getattr(self, name) for name in HELP}

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
            pixel_weight: v ≥ 0 [B, *S], floating; multiplies the loss of each pixel. W becomes Σ v · weight[y], and n
                Σ v over the edge pixels of a class. Not differentiable. With ``multilabel`` also [B, C, *S].
            distance: a field d ≥ 0 in the shape of the target, floating, to use instead of the distance to the nearest
                pixel of another class; finite wherever an edge pixel has a neighbor. Requires ``decay``. Not
                differentiable.
            normalizer: (W, n) of all images of a step, to use instead of those of the images in this call: the sums
                of :func:`edgeloss.functional.normalizers`. n is [C], with ``multilabel`` [C, 2]; it may be E, a number
                or 0-d, where ``edge_class_weight`` is not ``"balanced"``. With ``sync_normalizer=True``, the
                share of this rank.
            return_maps: also return :class:`edgeloss.LossMaps`, detached; the region term, which belongs to no pixel,
                is not among them.
            return_terms: also return a dict of detached 0-d tensors, reduced like the loss (averaged with
                ``reduction="none"``): ``cross_entropy``; ``same_side``, ``other_side`` and ``edge``, the means over the
                edge pixels with u before the focus, of which only ``edge`` has the weights of the single terms;
                ``edge_focused``, the edge terms of the loss, and ``edge_focus``, their mean weight φ in the gradient;
                ``region``, 0 with ``region_weight=0``; ``edge_fraction``, the fraction of edge pixels among the valid
                ones. The loss is ``ce_weight * cross_entropy + edge_weight * edge_focused + region_weight * region``.

        Returns:
            The loss. With ``return_maps`` or ``return_terms``, a tuple of the loss, the maps and the terms, in this
            order.

        Raises:
            TypeError: if an argument has the wrong type.
            ValueError: if a shape, device or value does not fit; the message says what to do.
            RuntimeError: if ``backend="fused"`` does not support the call.
        """
        given = Given(self.weight, self.edge_class_weight, pixel_weight, distance, normalizer)
        options = self._checked_options()
        found = _call.evaluate(logits, target, options, given, with_maps=return_maps, with_terms=return_terms)
        return as_asked(*found, maps=return_maps, terms=return_terms)

    @suggest_keywords
    def of_class(self, index: int, target: Tensor | None = None) -> EdgeAwareLoss:
        """Return the binary loss of one class of a multilabel loss, such as for a figure of that class.

        It is called with ``logits[:, index : index + 1]`` and ``target[:, index]``. Its focus is that of the multilabel
        loss, which has one for each image, class and label. The region term of the multilabel loss is a mean over its
        classes, with the weight of all of them.

        Args:
            index: the number of the class.
            target: [B, C, *S], the labels whose balance it keeps with ``edge_class_weight="balanced"``; without it, the
                binary loss balances the two labels of its class alone.

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
        options = self.options() | {"multilabel": False}
        if is_balance(self.edge_class_weight) and target is not None:
            n = _call.label_totals(target, self._checked_options(), Given())[1]
            options["edge_class_weight"] = balance(n.flatten()).view_as(n).float()
        for name in ("weight", "edge_class_weight"):
            values = options[name]
            is_tensor = isinstance(values, Tensor)
            if index < 0 or (is_tensor and index >= len(values)):
                raise ValueError(f"index: expected the number of a class, from 0, but got {index}")
            options[name] = values[index].expand(2).clone() if is_tensor else values
        return EdgeAwareLoss(**options)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401
        """Load the weights; drop what earlier versions stored between steps."""
        for name in _DROPPED:
            state_dict.pop(f"{prefix}{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

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
        return ", ".join(shown)
