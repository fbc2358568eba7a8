"""Estimate the time of the kernels of GPUs from their machine code: a model, not a measurement.

Usage, from the repository's root: python tools/gpu_model.py [--kernels] [--check | --write]

Kernels are compiled for sm_90 without a GPU. Instructions are counted along the structure of the code: a loop as often
as it runs, and what a branch skips for the share of blocks that take it. A call takes, on an H200,

    time = Σ max(bytes / bandwidth, warp instructions / (0.65 · issue rate)) + 3 µs per launch

with torch's launches around the operators but not inside. The floor is the time to read the logits twice, to write the
gradient, and to move 16 bytes more per pixel.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from check_gpu import Form, kernels_of

BANDWIDTH, ISSUE, LAUNCH = 4.3e12, 0.65 * 4 * 132 * 1.98e9, 3e-6  # H200: a copy; warp instructions a second; a launch
# In street scenes, at radius 1: of blocks of 32 pixels in a row, and of 32 cells with one pixel each, those with a
# pixel next to an edge; of these, those with more than one class around a pixel, or a likely class across an edge; the
# classes in an image.
NEAR, RARE, PRESENT = 0.36, 0.1, 8
FURTHER = 1  # classes around the pixels of a rare block besides the first of each pixel
# Of tiles of 16 × 32 labels, those with others within the radius, and within twice that, if edges are lines, which
# cross rectangles in proportion to their perimeter, and rows of 32 as often as NEAR; classes in a tile, and one more.
NEAR_TILES, IN_TILE = {"find_sides": 0.47, "weigh_pixels": 0.49}, 3
UNROLLED = 4  # classes of a pixel at once, as in edgeloss/triton/loss.py
PART = 2**28  # bytes of the gradient of pixels at a time, as in edgeloss/triton/upsampled.py
SHORTEST = 16  # instructions that a branch skips; fewer count as executed


class Case(NamedTuple):
    """A call: logits [batch, classes, *low] of a dtype, labels [batch, *size]; the aim is of the floor."""

    batch: int
    classes: int
    size: tuple[int, int]
    dtype: str
    aim: float
    regions: bool = True
    low: tuple[int, int] | None = None

    @property
    def pixels(self) -> int:
        """Of the labels."""
        return self.batch * math.prod(self.size)

    @property
    def logits(self) -> int:
        """Bytes of the logits, and of their gradient."""
        of_channel = self.batch * math.prod(self.low or self.size)
        return of_channel * self.classes * (2 if self.dtype == "bfloat16" else 4)

    @property
    def floor(self) -> float:
        """Seconds to move what has to be moved."""
        return (3 * self.logits + 16 * self.pixels) / BANDWIDTH

    @property
    def aim_seconds(self) -> float:
        """The aim; of logits of lower resolution in seconds, as the floor of so few says nothing."""
        return UPSAMPLED_AIM if self.low else self.aim * self.floor

    @property
    def name(self) -> str:
        """What the tables call it."""
        size = "" if self.low is None else f" to {self.size[0]} × {self.size[1]}"
        regions = "" if self.regions else ", no regions"
        return f"{[self.batch, self.classes, *(self.low or self.size)]} {self.dtype}{size}{regions}"

    @property
    def maps(self) -> int:
        """Maps of averages that have a term, per image."""
        return 1 if self.classes == 2 else min(self.classes, PRESENT)

    @property
    def averages(self) -> tuple[int, int]:
        """The size of a map of averages."""
        height, width = ((n - 1) // 3 + 1 for n in self.size)
        return height, width

    def parts(self, kernel: str) -> int:
        """Return the launches of a kernel: gradients of pixels are formed for a few images at a time."""
        if self.low is None or kernel.split()[0] not in ("backward", "adjoint"):
            return 1
        return math.ceil(self.batch / max(1, PART // (self.classes * math.prod(self.size) * 4)))

    def form(self) -> Form:
        """Return what compiles to the same kernels, with small sizes that are as divisible."""
        size = (128, 128)
        low = (32, 32) if self.low else size
        options: dict[str, Any] = {"region_weight": 3.0 if self.regions else 0.0, "upsample": self.low is not None}
        return (2, self.classes, *low), size, self.dtype, options


DEFAULTS = [
    Case(8, 19, (512, 1024), "float32", 1.5),
    Case(8, 19, (512, 1024), "bfloat16", 1.8),
    Case(8, 150, (512, 512), "float32", 1.25),
    Case(8, 150, (512, 512), "bfloat16", 1.4),
    Case(16, 2, (512, 512), "float32", 2.5),
    Case(16, 2, (512, 512), "bfloat16", 3.5),
]
WITHOUT = [case._replace(regions=False, aim=aim) for case, aim in zip(DEFAULTS, (1.3,) * 4 + (2.1, 2.8), strict=True)]
UPSAMPLED = Case(8, 150, (512, 512), "float32", 0.0, low=(128, 128))
UPSAMPLED_AIM = 745e-6  # seconds: the floor of so few logits says nothing
CASES = [*DEFAULTS, *WITHOUT, UPSAMPLED]
BOUNDS = Path(__file__).with_name("gpu_bounds.json")  # instructions and bytes per pixel of each call
MORE = 1.1  # than its bound is too much


# -------------------------------------------------------------------------------------------------------- instructions


@dataclass
class Node:
    """A part of a kernel: a loop, or what a branch skips; ``own`` is what no part of it has."""

    kind: str
    first: int
    end: int
    own: list[str] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)


def tree_of(text: str) -> Node:
    """Return the structure of a kernel, which nvdisasm has printed."""
    labels, lines = {}, []
    for line in text.splitlines():
        if found := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[found[1]] = len(lines)
        elif found := re.search(r"/\*[0-9a-f]{4,5}\*/\s+(.*?)\s*;", line):
            lines.append(found[1])
    while lines and (lines[-1] == "NOP" or labels.get(lines[-1].split("(")[-1].strip("`)")) == len(lines) - 1):
        lines.pop()  # what follows the end, the last of which branches to itself
    nodes = []
    for i, line in enumerate(lines):
        if found := re.search(r"BRA .*(\.L_x_\d+)", line):
            to = labels[found[1]]
            if to <= i:
                nodes.append(Node("loop", to, i + 1))
            elif line.startswith("@") and to - i > SHORTEST:
                nodes.append(Node("skip", i + 1, to))
    root = Node("kernel", 0, len(lines))
    for node in sorted(nodes, key=lambda node: (node.first, -node.end)):
        outer = root
        while inside := [inner for inner in outer.inner if inner.first <= node.first and node.end <= inner.end]:
            outer = inside[0]
        outer.inner.append(node)
    for i, line in enumerate(lines):
        node = root
        while inside := [inner for inner in node.inner if inner.first <= i < inner.end]:
            node = inside[0]
        node.own.append(line)
    return root


def stores(node: Node) -> int:
    """Return how many stores to memory no part of a part of a kernel has."""
    return sum("STG" in line for line in node.own)


def count(case: Case, kernel: str, node: Node, outside: tuple[Node, ...] = ()) -> float:
    """Return the instructions of a warp in a part, each time that it is there."""
    times = 1.0
    if node.kind == "loop":
        times = trips(case, kernel, node)
    elif node.kind == "skip" and len(outside) == 1 and kernel in NEAR_TILES:
        times = NEAR_TILES[kernel]
    elif node.kind == "skip" and kernel in ("forward", "backward"):
        if any(map(stores, (node, *node.inner))):  # the gradient, next to several classes or to a likely one
            times = NEAR * RARE
        else:
            times = RARE if any(outer.kind == "skip" for outer in outside) else NEAR
    inner = sum(count(case, kernel, part, (*outside, node)) for part in node.inner)
    return times * (len(node.own) + inner)


def row_parts(case: Case) -> int:
    """Return into how many parts edgeloss/triton/region.py divides the rows of averages."""
    return 4 + math.ceil((case.averages[0] - 4) / 28)


def trips(case: Case, kernel: str, loop: Node) -> float:
    """Return how often a loop runs, by the numbers that it counts to."""
    rows = case.averages[0] / row_parts(case)  # which a program walks down, and those around them
    known = {"weigh_pixels": 3, "products": rows + 2, "solve": 9, "slopes": rows + 4, "read_labels": IN_TILE}
    known["collect"] = math.ceil(case.pixels / 64 / 4096)  # of sums of programs, 4096 at once
    if kernel in known:
        return known[kernel]
    numbers = {int(found[1], 16) for line in loop.own if (found := re.search(r"ISETP.*, (0x[0-9a-f]+),", line))}
    whole = case.classes // UNROLLED
    if kernel == "averages":
        return 3 if 3 in numbers else case.maps  # groups of pixels of a cell
    if kernel == "backward" and loop.inner:
        return FURTHER
    at_once = 1 if 0 < stores(loop) < UNROLLED else UNROLLED
    if kernel == "backward" and numbers & {case.classes - 1, case.classes - 2}:  # that there is another map
        return math.ceil(case.maps / at_once)
    if kernel == "backward" and stores(loop):
        return math.ceil(case.classes / at_once)
    if 9 in numbers:  # the neighbors of a pixel
        return 9
    if case.classes - UNROLLED in numbers:  # as many at a time
        return math.ceil(case.classes / UNROLLED)
    if case.classes in numbers or (case.classes < UNROLLED and 3 not in numbers):
        return case.classes
    if UNROLLED * (whole - 1) in numbers:
        return whole
    return 9


# --------------------------------------------------------------------------------------------------------------- time


def work(case: Case, kernel: str) -> tuple[float, float]:
    """Return the warps of a launch, and the bytes that it moves: labels are int64, and what is kept is in float32."""
    pixels, logits, maps = case.pixels, case.logits, case.batch * case.maps
    averages = pixels / 9 * case.maps
    first, kept = (0, 10) if case.classes == 2 else (2, 10)
    block = 32 if case.low else 64 if case.classes > 2 else 128
    of_rows = maps * row_parts(case) * math.ceil(case.averages[1] / 32)
    full = pixels * case.classes * 4  # the gradient at the resolution of the labels
    halfway = full // case.size[0] * case.low[0] if case.low else 0  # of fewer rows
    return {
        "read_labels": (pixels / 128, pixels * 10),
        "find_sides": (pixels / 128, pixels * 7),
        "weigh_pixels": (pixels / 128, pixels * (13 + first)),
        "forward": (pixels / block, logits + pixels * (10 + first + kept)),
        "averages": (pixels / 9 / 32, logits * min(1, PRESENT / case.classes) + pixels * kept + averages * 5),
        "collect": (8 * (8 + case.batch), pixels * (24 / 64 + 40 / 512)),
        "weigh": (1, 0.0),
        "products": (of_rows, averages * 5),
        "solve": (maps * 4, 0.0),
        "slopes": (of_rows, averages * 9),
        "backward": (
            pixels / block,
            logits + pixels * (10 + first + kept) + averages * 4 * case.regions + (full if case.low else logits),
        ),
        "adjoint": (halfway / 4 / 128, full + halfway),
        "adjoint 2": (logits / 4 / 128, halfway + logits),
    }[kernel]


class Estimate(NamedTuple):
    """Of a kernel: instructions of a thread per pixel of the labels, bytes per pixel, and seconds."""

    kernel: str
    instructions: float
    bytes: float
    time: float


def estimate(case: Case) -> tuple[list[Estimate], int]:
    """Return the estimates of the kernels of a call, and how many other operations of torch it launches."""
    import triton
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        launches = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
            makes = function.namespace == "aten" and "empty" not in str(function) and not function.is_view
            self.launches += bool(makes)
            return function(*args, **(kwargs or {}))

    kernels_of(case.form(), "sm_90")  # what is made once
    with Counter() as counter:
        kernels = kernels_of(case.form(), "sm_90")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    estimates = []
    for kernel, compiled in kernels.items():
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            text = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
        warps, moved = work(case, kernel)
        issued = warps * count(case, kernel, tree_of(text))
        time = max(moved / BANDWIDTH, issued / ISSUE) + LAUNCH * case.parts(kernel)
        estimates.append(Estimate(kernel, issued * 32 / case.pixels, moved / case.pixels, time))
    return estimates, counter.launches


def lines(case: Case, estimates: Iterable[Estimate], others: int, *, kernels: bool) -> Iterable[str]:
    """Yield the row of a case, and those of its kernels."""
    estimates = list(estimates)
    time = sum(each.time for each in estimates) + others * LAUNCH
    labels = sum(each.instructions for each in estimates[:3])  # the kernels that read labels come first
    passes = dict.fromkeys(("forward", "averages", "backward"), 0.0)
    passes |= {each.kernel: each.instructions / case.classes for each in estimates}
    yield (
        f"{case.name:44} {labels:6.0f} {passes['forward'] + passes['averages']:7.1f}"
        f" {passes['backward']:8.1f} {len(estimates):7} {others:5} {time * 1e6:7.0f}"
        f" {time / case.floor:6.2f} {case.aim_seconds / case.floor:5.2f}"
    )
    if kernels:
        for each in estimates:
            yield f"    {each.kernel:16} {each.instructions:8.1f} {each.bytes:8.1f} {each.time * 1e6:8.1f} µs"


def excess(bounds: dict[str, dict[str, float]], found: dict[str, dict[str, float]]) -> list[str]:
    """Return what is said of calls that take more than their bounds, or have none."""
    messages = []
    for name, figures in found.items():
        for kind, value in figures.items():
            bound = bounds.get(name, {}).get(kind, 0.0)
            if value > MORE * bound:
                messages.append(f"{name}: expected at most {MORE} · {bound} {kind} per pixel, but got {value}")
    return messages


def main() -> int:
    """Print a table of the cases; return 1 if one takes more than its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernels", action="store_true", help="print instructions and bytes per pixel of each kernel")
    parser.add_argument("--check", action="store_true", help=f"fail on more than {MORE} times what {BOUNDS.name} has")
    parser.add_argument("--write", action="store_true", help=f"write {BOUNDS.name}")
    given, found = parser.parse_args(), {}
    print("instructions per pixel for labels, per logit of forward and backward; launches of kernels, of torch")
    print(f"{'logits':44} {'labels':>6} {'forward':>7} {'backward':>8} {'kernels':>7} {'torch':>5}", end=" ")
    print(f"{'µs':>7} {'/floor':>6} {'aim':>5}")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for case, (estimates, others) in zip(CASES, pool.map(estimate, CASES), strict=True):
            print(*lines(case, estimates, others, kernels=given.kernels), sep="\n", flush=True)
            sums = {kind: sum(getattr(each, kind) for each in estimates) for kind in ("instructions", "bytes")}
            found[case.name] = {kind: round(value, 1) for kind, value in sums.items()}
    if given.write:
        BOUNDS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    messages = excess(json.loads(BOUNDS.read_text()), found) if given.check else []
    print(*messages, sep="\n", end="\n" * bool(messages), file=sys.stderr)
    return bool(messages)


if __name__ == "__main__":
    sys.exit(main())
