"""Loss maps in TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from edgeloss._reduction import LossMaps
from edgeloss.viz.coloring import color_layer, map_to_rgb

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def log_maps(
    writer: SummaryWriter,
    tag: str,
    maps: LossMaps,
    step: int | None = None,
    *,
    high: float | None = None,
    count: int = 4,
) -> None:
    """Log loss maps as pictures and histograms, ``tag/cross_entropy``, ``tag/same_side`` and so on.

    Pictures have the colors of :func:`~edgeloss.viz.panel`: black off the edge mask, magenta where not finite.
    Histograms include finite values only, of the edge terms those on the edge mask.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter`` or an object with the same methods.
        tag: prefix of the names.
        maps: [B, H, W] each, on any device, as returned with ``return_maps=True``. Of volumes, the middle slice is
            drawn. Of a multilabel loss pass those of one class,
            ``LossMaps(*(m if m is None else m[:, c] for m in maps))``.
        step: the training step.
        high: the value of the brightest color. None adapts it to each map, leaving out the largest 0.5 % of values.
        count: how many images of the batch to draw.

    Example:
        >>> import torch
        >>> from edgeloss import EdgeAwareLoss
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> writer = SummaryWriter("runs/maps")  # doctest: +SKIP
        >>> loss, maps = EdgeAwareLoss()(torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8)), return_maps=True)
        >>> log_maps(writer, "train", maps, step=0)  # doctest: +SKIP
    """
    mask = _slices(maps.edge_mask)
    for name, values in maps._asdict().items():
        if values is None or name == "edge_mask":
            continue
        array = _slices(values)
        colored = color_layer(name, array, mask, np.zeros_like(mask))
        if high is not None:
            colored = colored._replace(low=0.0, high=high)
        finite = array[~colored.nothing & np.isfinite(array)]
        if finite.size:
            writer.add_histogram(f"{tag}/{name}", finite, step)
        if array.size:
            pictures = [map_to_rgb(colored, index) for index in range(min(count, len(array)))]
            writer.add_images(f"{tag}/{name}", np.stack(pictures).transpose(0, 3, 1, 2), step)


def _slices(values: Tensor) -> npt.NDArray[Any]:
    """Return [B, H, W], of volumes the middle slice."""
    values = values if values.ndim == 3 else values[:, values.shape[1] // 2]
    return np.asarray(values.detach().cpu().numpy())
