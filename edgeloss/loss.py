"""The loss as a module."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from edgeloss import inputs
from edgeloss.functional import edge_aware_loss
from edgeloss.options import Backend, Options, Reduction, Validate
from edgeloss.reduction import Result


class EdgeAwareLoss(nn.Module):
    r"""Cross-entropy plus two terms at the edges of the labels, for segmentation networks that draw sharp borders.

    Called like :class:`torch.nn.CrossEntropyLoss`. With k the class of an edge pixel i and :math:`p_n(k)` what its
    neighbour n gives to that class,

    .. math::
        S_i &= -\log M_q\{p_n(k) : y_n = k\} \quad\text{(same side: the neighbours agree)} \\
        O_i &= -\log M_q\{1 - p_n(k) : y_n \ne k\} \quad\text{(other side: no leak across the edge)} \\
        \mathrm{loss} &= \texttt{ce\_weight} \frac{\sum \mathrm{CE}}{W} + \texttt{edge\_weight}
            \frac{\sum_{i \in E} (\texttt{other\_side\_weight}\, O_i + \texttt{same\_side\_weight}\, S_i)
            + \texttt{false\_edge\_weight} \sum_{i \in F} S_i}{|E|}

    where

    * :math:`E` is the set of edge pixels, those with a valid neighbour of another class, on both sides of a border;
    * :math:`F` is the set of false edges, pixels off E whose most likely class is not that of some neighbour: there
      :math:`S_i` makes the neighbours agree again;
    * :math:`M_q` is the power mean over those neighbours, of exponent ``power`` and weights
      :math:`w_n = e^{-d_n/\texttt{decay}}`, d the distance from n to the nearest pixel of another class;
    * :math:`W = \sum \texttt{weight}[y_i]` over valid pixels, as in torch's weighted mean.

    A pair of pixels with one ignored or outside the image does not exist: void regions have no edges. The loss and its
    gradient are finite for logits up to ±1e30 (and all of float16), and 0 without an edge or without any valid pixel.
    The loss is never negative.

    Source: a 2017 write-up of a PyTorch implementation of an edge- and consistency-aware segmentation loss (of the loss
    behind IEEE document 7801846). With two classes, ``power=1`` and equal weights O is its hardest line, public as
    :func:`edgeloss.functional.neighbor_nll`; the extension to any number of classes is ours. The paper's own text was
    not at hand.

    Args:
        weight: class weights [C], ≥ 0 (of length 2 for one logit), of the cross-entropy.
        edge_class_weight: the same of the edge terms: u = ``edge_class_weight[y_i]`` multiplies :math:`S_i` and
            :math:`O_i`, and :math:`|E|` becomes :math:`\sum_E u`. See
            :func:`edgeloss.functional.balanced_edge_class_weight`.
        ignore_index: the label of pixels that do not count. They get exactly no gradient, and nothing depends on their
            logits, not even nan.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for a map [B, *S].
        label_smoothing: in [0, 1], of the cross-entropy.
        ce_weight: weight of the cross-entropy, ≥ 0.
        edge_weight: weight of the edge terms, ≥ 0. 0 is plain cross-entropy.
        other_side_weight: weight of O among the edge terms, ≥ 0.
        same_side_weight: weight of S among the edge terms, ≥ 0.
        false_edge_weight: weight of S at false edges among the edge terms, ≥ 0. 0 leaves them out.
        radius: reach of the neighbourhood in pixels along every axis, or one an axis: (0, 1, 1) for thick slices.
        power: exponent q of the mean. 0 takes the mean of the logarithms; 1, the write-up's form, is content when the
            neighbours are right on average, -1 dwells on the worst neighbour.
        decay: length over which a neighbour's weight falls by e with its distance from the edge, in pixels or units of
            ``spacing``; None for equal weights.
        spacing: size of a pixel along every axis, or one an axis; it only enters the distance.
        upsample: accept logits of lower resolution than the target, and bring them to it as
            ``F.interpolate(logits.float(), size, mode="bilinear", align_corners=False)`` would (trilinear in 3-D).
        sync_normalizer: under ``torch.distributed``, share the denominators among the ranks, so that the gradient that
            DDP averages is that of one process with the whole batch. Only for ``reduction="mean"``.
        validate: when labels out of range raise. ``"sync"``: in the call. ``"async"``: too, but for the fused CUDA
            kernels, which never wait for the device: such pixels count as ignored, and the next call or
            :func:`edgeloss.check` raises. ``"never"``: not at all, and such pixels count as ignored. The values of
            CUDA tensors other than labels (``weight``, ``pixel_weight``, ``distance``, ``normalizer``) are looked at
            with ``"sync"`` only, and those of ``weight`` when the module is made.
        backend: ``"reference"`` is plain PyTorch, ``"fused"`` the compiled kernels or an error that says why not,
            ``"auto"`` the best of them that can serve the call. See :func:`edgeloss.backends`. Only the reference can
            be differentiated twice.

    Shape:
        * logits: [B, C, H, W] or [B, C, D, H, W]; float16, bfloat16, float32 or float64, any strides. C = 1 is binary:
          one logit a pixel, labels 0 and 1.
        * target: [B, H, W] or [B, D, H, W]; int64, int32, int16, uint8 or bool.
        * loss: a scalar, or [B, *S] with ``reduction="none"``; float32, or float64 for float64 logits.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value out of its range.

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
    edge_class_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        edge_class_weight: Tensor | None = None,
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
        """Hold the arguments; see the class."""
        super().__init__()
        for name, of_classes in {"weight": weight, "edge_class_weight": edge_class_weight}.items():
            if of_classes is not None:
                inputs.check_weight(of_classes, name=name)
            self.register_buffer(name, of_classes)
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

    def options(self) -> dict[str, Any]:
        """The keyword arguments that this module adds to a call of :func:`edgeloss.functional.edge_aware_loss`."""
        return {name: getattr(self, name) for name in _DEFAULTS}

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
        """The loss of logits and target, shaped as the class tells.

        Args:
            logits: [B, C, *S].
            target: [B, *S].
            pixel_weight: v ≥ 0 [B, *S], floating; multiplies the loss pixel by pixel, and W and |E| become
                Σ v · weight[y] and Σ v · edge_class_weight[y] over the edge pixels.
            distance: an own field d ≥ 0 [B, *S], floating, in place of the distance to the nearest other label; finite
                wherever an edge pixel has a neighbour. Detached. Needs ``decay``.
            normalizer: own denominators (W, E), see :func:`edgeloss.functional.normalizers`. With
                ``sync_normalizer=True`` they are this rank's share.
            return_maps: return the :class:`edgeloss.LossMaps` too, detached.
            return_terms: return a dict of detached 0-d tensors too: ``cross_entropy``, ``same_side``, ``other_side``,
                ``edge`` and ``false_edge``, reduced as the loss is (means for ``reduction="none"``) and before
                ``ce_weight``, ``edge_weight`` and, ``edge`` apart, the term's own weight; and ``edge_fraction``, the
                share of edge pixels among the valid ones.

        Returns:
            The loss; or a tuple of the loss, the maps and the terms as far as they are asked for, in this order.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for a shape, device or value that does not fit; the message says how to get there.
            RuntimeError: if ``backend="fused"`` can't serve the call.
        """
        return edge_aware_loss(
            logits,
            target,
            **self.options(),
            pixel_weight=pixel_weight,
            distance=distance,
            normalizer=normalizer,
            return_maps=return_maps,
            return_terms=return_terms,
        )

    def extra_repr(self) -> str:
        """The arguments that differ from their defaults, and the ones that people look for."""
        always = ("ignore_index", "edge_weight", "radius", "power")
        shown = []
        for name, value in self.options().items():
            if name in ("weight", "edge_class_weight"):
                if value is not None:
                    shown.append(f"{name}=[{len(value)}]")
            elif name in always or value != _DEFAULTS[name]:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)


# The arguments and their defaults, whatever a subclass makes of its own.
_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(EdgeAwareLoss.__init__).parameters.items()
    if name != "self"
}
