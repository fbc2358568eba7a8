"""What is drawn, by whatever draws: the maps with their colours, and the user's images, names and colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from torch import Tensor

from edgeloss.viz.arrays import Arrays
from edgeloss.viz.palette import LOUD, NOTHING, VOID, distinct_colors

_Array = npt.NDArray[Any]
Extend = Literal["neither", "min", "max", "both"]

# Perceptually uniform, without its darkest colours: a small loss on an edge is told from the black around it.
CMAP = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.2, 1, 256))).with_extremes(bad=LOUD)


class Drawn(NamedTuple):
    """One kind of map for the whole batch, as it is coloured."""

    name: str
    stats: list[str]  # one line an image
    values: np.ma.MaskedArray[Any, Any]  # [B, h, w], masked where not finite
    void: _Array  # [B, h, w] bool, painted grey
    nothing: _Array  # [B, h, w] bool, painted black
    norm: Normalize
    extend: Extend
    outline: str  # the colour of the borders of the truth


def maps_of(seen: Arrays, *, terms: bool) -> list[Drawn]:
    """Cross-entropy, edge map and gradient; with ``terms`` same side, other side and, if they count, false edges."""
    void, edges = seen.target < 0, seen.maps["edge_mask"]
    same_size = seen.gradient.shape == void.shape  # the cells of a lower resolution have no label of their own
    cell_void = void if same_size else np.zeros(seen.gradient.shape, dtype=bool)
    still = (seen.gradient == 0) & ~cell_void

    def of_edges(name: str, values: _Array, edges: _Array = edges) -> Drawn:
        return drawn_map(name, values, edges, void, ~edges & ~void, outline="black")

    maps = [
        drawn_map("cross-entropy", seen.maps["cross_entropy"], ~void, void, np.zeros_like(void), outline="white"),
        of_edges("edge map", seen.maps["edge"]),
        drawn_map("log10 |gradient|", seen.gradient, ~cell_void, cell_void, still, outline="white", log=True),
    ]
    if terms:
        maps += [of_edges("same side", seen.maps["same_side"]), of_edges("other side", seen.maps["other_side"])]
        if (false := seen.maps.get("false_edge")) is not None:
            maps.append(of_edges("false edge", false, false != 0))
    return maps


def drawn_map(
    name: str,
    values: _Array,
    counted: _Array,
    void: _Array,
    nothing: _Array,
    *,
    outline: str,
    log: bool = False,
) -> Drawn:
    """Statistics and colours of a map [B, h, w] ≥ 0; the colours of its logarithm, with ``log``.

    Mean, maximum and the range of the colours come from the finite values among those ``counted``.
    """
    finite = np.isfinite(values)
    values = values.astype(np.float64)
    stats = []
    for image, inside, failed in zip(values, counted & finite, (~finite).sum((1, 2)), strict=True):
        some = image[inside]
        mean = np.sum(some / max(some.size, 1))  # which no sum of huge values overflows
        line = f"mean {mean:.3g} · max {some.max():.3g}" if some.size else "nothing to measure"
        stats.append(f"{line} · {failed} not finite" if failed else line)
    if log:
        values = np.log10(np.maximum(values, np.nextafter(0, 1)))  # finite at 0, which is painted over
    norm, extend = _norm(values[counted & finite & ~nothing], log)
    return Drawn(name, stats, np.ma.array(values, mask=~finite), void, nothing, norm, extend, outline)


def painted(drawn: Drawn) -> npt.NDArray[np.uint8]:
    """A map's colours, [B, h, w, 3]."""
    colors = CMAP(drawn.norm(drawn.values), bytes=True)[..., :3]
    for color, mask in {NOTHING: drawn.nothing, VOID: drawn.void}.items():
        colors[mask] = np.rint(255 * np.array(color))
    return np.asarray(colors)


def _norm(values: _Array, log: bool) -> tuple[Normalize, Extend]:
    """The range of the colours, from 0 or, of logarithms, over 1 to 8 decades, and the arrows that it calls for."""
    if not values.size:
        return Normalize(-1, 0) if log else Normalize(0, 1), "neither"
    # Of a few values none is an outlier: "higher" takes the largest of up to 200.
    high = float(np.percentile(values, 99.5, method="higher"))
    if not log and high == 0:  # nearly all of it 0
        high = float(values.max()) or 1.0
    low = min(max(float(np.percentile(values, 0.5, method="lower")), high - 8), high - 1) if log else 0.0
    below, above = values.min() < low, values.max() > high
    return Normalize(low, high), "both" if below and above else "min" if below else "max" if above else "neither"


def rgb_images(image: Tensor, shape: tuple[int, ...]) -> _Array:
    """An image of the user's as [B, H, W, 3] in [0, 1]."""
    pictures = image[None] if image.ndim == 3 else image
    batch, height, width = shape
    if pictures.shape not in ((batch, 3, height, width), (batch, 1, height, width)):
        raise ValueError(
            f"expected image [{batch}, 3, {height}, {width}] or one grey channel but got {list(image.shape)}"
        )
    array = pictures.detach().cpu().double().numpy()
    if image.dtype == torch.uint8:
        array = array / 255
    if not (array.min() >= -0.01 and array.max() <= 1.01):  # a resize may overshoot a little
        raise ValueError(
            f"expected a floating image in [0, 1] or a uint8 one but got {image.dtype} from {array.min():.3g} to "
            f"{array.max():.3g}: undo the normalisation"
        )
    return np.broadcast_to(np.moveaxis(array.clip(0, 1), 1, -1), (batch, height, width, 3))


def class_colors(palette: Sequence[Any] | _Array | None, classes: int) -> _Array:
    """The user's colours or ours, [classes, 3] in [0, 1]."""
    if palette is None:
        return distinct_colors(classes)
    if len(palette) < classes:
        raise ValueError(f"expected at least {classes} colours in palette but got {len(palette)}")
    of_255 = [not isinstance(color, str) and np.asarray(color).dtype.kind in "iu" for color in palette]
    scaled = [tuple(np.asarray(c) / 255) if whole else c for c, whole in zip(palette, of_255, strict=True)]
    return np.array([to_rgb(color) for color in scaled[:classes]])


def class_labels(class_names: Sequence[str] | None, classes: int) -> list[str]:
    """The user's names or the numbers."""
    names = [str(c) for c in range(classes)] if class_names is None else [str(name) for name in class_names]
    if len(names) < classes:
        raise ValueError(f"expected at least {classes} class_names but got {len(names)}")
    return names
