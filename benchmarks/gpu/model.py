"""What kernels of a call move, and the least time of that: a model that fits four large kernels on an H200 within 6 %.

time = bytes / BANDWIDTH + instructions of warps / ISSUED. The bytes are those of memory: what is read again comes from
cache. Instructions are known where a profiler counts them; what a kernel takes beyond its bytes is theirs.
"""

from __future__ import annotations

from typing import Any

BANDWIDTH = 4.23e12  # bytes per second of an H200
ISSUED = 1.045e12  # instructions of warps per second
# Microseconds that the prototypes are expected to take, for [4, 19, 512, 512] float32, and the kernels they replace.
EXPECTED = {
    "forward_few": (38, "forward, averages"),
    "backward_few": (62, "backward"),
    "products_few": (16, "products"),
    "slopes_few": (16, "slopes"),
    "sides_few": (10, "read_labels, find_sides"),
    "weights_few": (7, "weigh_pixels"),
    "solve_few": (8, "solve"),
}


def bytes_of(x: Any, target_bytes: int, maps: Any, grid: Any) -> dict[str, int]:  # noqa: ANN401
    """Return the bytes that each kernel of a call reads and writes.

    Args:
        x: the logits, as kernels get them.
        target_bytes: of a label, as given.
        maps: those of the call, after it.
        grid: its grid.
    """
    pixels, real = maps.label.numel(), maps.m.element_size() if maps.m is not None else 4
    logits, label, statistics = x.data.nbytes, 2 * pixels, (2 * real + 2) * pixels
    weights = (2 * real + 2 * (grid.classes.value > 2)) * pixels if maps.same_side is not None else 0
    distances = 3 * real * pixels if maps.other_least is not None else 0  # with decay
    gradient = logits if x.axes.value == 0 else x.data.shape[1] * real * pixels
    sides = label + 2 * real * pixels + distances
    moved = {
        "read_labels": target_bytes * pixels + label,
        "find_sides": sides,
        "weigh_pixels": sides + weights,
        "forward": label + logits + statistics,
        "backward": label + logits + statistics + weights + gradient,
        "sides_few": sides + (0 if distances else target_bytes * pixels),
        "weights_few": sides + weights,
        "forward_few": label + logits + statistics,
        "backward_few": label + logits + weights + gradient,
        "backward_many": label + logits + statistics + weights + gradient,
    }
    if maps.average_class is not None:
        count = grid.averages.depth * grid.averages.height * grid.averages.width * int((maps.average_class >= 0).sum())
        of_maps, classes = (1 + real) * count, int((maps.average_class >= 0).sum())
        moved["averages"] = label + statistics + classes * pixels // len(maps.label) * x.data.element_size() + of_maps
        moved["forward_few"] += of_maps
        moved["products"] = moved["products_few"] = of_maps
        moved["slopes"] = moved["slopes_few"] = of_maps + real * count
        for name in ("backward", "backward_few", "backward_many"):
            moved[name] += real * count
    return moved


def microseconds(moved: float, instructions: float = 0.0) -> float:
    """Return the least time that bytes and instructions take."""
    return round(1e6 * (moved / BANDWIDTH + instructions / ISSUED), 2)
