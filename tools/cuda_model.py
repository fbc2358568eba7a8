"""Estimate the time of the CUDA kernels from their machine code: a model, not a measurement.

Usage, from the repository's root: python tools/cuda_model.py [--device h200] [--hold bytes:150,loops] [--kernels WORD]

Per launch, it counts the instructions of the machine code, and the bytes that the kernel moves, and takes

    time = max(bytes / bandwidth, warp instructions / (0.65 · issue rate)) + 3 µs

Instructions of both sides of a branch are counted, so that kernels with many rare cases seem slower than they are. The
column `wait` is no part of the time: so long would the threads that fit on the device wait for memory if no iteration
of a loop began to load before the last one has its data, at 0.6 µs each. Where it is the largest, the time is rather
too short. It needs nvcc, but no device.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import sass
from check_cuda import compile_for, cubin_of, demangled, table
from toolchain import CUDA_SOURCES, HEADERS, Unbuildable, find_nvcc, find_torch

ISSUE_EFFICIENCY, LAUNCH, LATENCY, WARP = 0.65, 3e-6, 0.6e-6, 32
# Shares of the pixels of street scenes at radius 1: edge pixels, and those that are one or have one next to them; of
# groups of 32 and of 128 pixels with one of these. Per tile of 1024 pixels and warp of eight, what share of the warps
# has a pixel near an edge, and half a window of an edge pixel; of these, the most pixels on the other side of a half.
EDGE, NEAR, NEAR_WARPS, RUN_WARPS, NEAR_LISTS, SIDES, OTHERS = 0.05, 0.09, 0.36, 0.73, 3.3 / 8, 0.45, 2.95


@dataclass(frozen=True)
class Device:
    """What a GPU offers: `bandwidth` as a copy reaches it, in bytes per second."""

    arch: int
    processors: int
    clock: float
    bandwidth: float
    shared: int  # bytes per processor
    registers: int = 65536
    warps: int = 64
    blocks: int = 32

    def resident_warps(self, kernel: sass.Kernel, shared: int) -> int:
        """Return the warps of a kernel that run on a processor at a time."""
        warps = -(-kernel.threads // WARP)
        by_registers = self.registers // (-(-kernel.registers * WARP // 256) * 256 * warps)
        by_shared = self.shared // (shared + 1024)  # the system takes 1 KiB per block
        return warps * min(self.blocks, self.warps // warps, by_registers, by_shared)


DEVICES = {
    "h200": Device(90, 132, 1.98e9, 4.3e12, 228 * 1024),
    "a100": Device(80, 108, 1.41e9, 1.75e12, 164 * 1024),
}


@dataclass(frozen=True)
class Case:
    """A call: logits [B, C, *low] of a type, labels [B, *size]."""

    batch: int
    classes: int
    size: tuple[int, int]
    type: str  # float or c10::BFloat16
    low: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """As the table shows it."""
        shape = [self.batch, self.classes, *(self.low or self.size)]
        target = f" → {self.size[0]}×{self.size[1]}" if self.low else ""
        return f"{shape}{target} {'float32' if self.type == 'float' else 'bfloat16'}"

    @property
    def itemsize(self) -> int:
        """Bytes of a logit."""
        return 4 if self.type == "float" else 2

    @property
    def pixels(self) -> int:
        """Number of labels."""
        return self.batch * math.prod(self.size)

    @property
    def cells(self) -> int:
        """Number of pixels of the logits."""
        return self.batch * math.prod(self.low or self.size)

    @property
    def logits(self) -> int:
        """Bytes of the logits, and of their gradient."""
        return self.cells * self.classes * self.itemsize

    @property
    def floor(self) -> int:
        """Bytes to read the logits twice, to write the gradient, and 16 more per pixel, as in benchmarks/speed.py."""
        return 3 * self.logits + 16 * self.pixels


TYPES = ("float", "c10::BFloat16")
CASES = [
    Case(batch, classes, size, type_)
    for type_ in TYPES
    for batch, classes, size in ((8, 19, (512, 1024)), (8, 150, (512, 512)), (16, 2, (512, 512)))
]
LOW_CASES = [
    Case(8, classes, size, type_, low)
    for type_ in TYPES
    for classes, low, size in ((150, (128, 128), (512, 512)), (19, (128, 256), (512, 1024)))
]


def _layout(case: Case) -> str:
    return "(Layout)3" if case.classes == 2 else "(Layout)0"


@dataclass(frozen=True)
class Launch:
    """What the model must know of a kernel's launch that its machine code does not show.

    Attributes:
        kernel: its name; {T} is the type of the logits, {layout} how they lie in memory, {pair} whether there are two.
        bytes: to and from the device's memory.
        items: what its threads take: pixels, or entries of a list.
        per_thread: items that a thread takes at a time.
        is_repeated: whether the outermost loop takes one item after another; else a thread takes one and ends.
        per_load: logits side by side that a load of it takes; None: as many as items.
        per_class: logits that a thread takes per iteration of its main loop, the one that loads most with the fewest
            instructions, the last of which may be fewer; None: as many as it loads bytes of, and what is left is taken
            elsewhere; 0: there is no loop over classes. Two classes are read at once.
        trips: how often each other loop of an item runs every time it is entered, in the order of their addresses, the
            loops in a loop after it; 1 for the rest. A share of the warps for what only some of them do; what leads
            only there, and what only that leads to, is counted for this share too. None for a rare case: nothing.
        shared: bytes per block that the launch adds.
    """

    kernel: str
    bytes: Callable[[Case], float]
    items: Callable[[Case], float] = lambda case: case.pixels
    per_thread: int = 1
    is_repeated: bool = True
    per_load: int | None = None
    per_class: int | None = 0
    trips: Callable[[Case], Sequence[float | None]] = lambda case: ()
    shared: int = 0

    def name(self, case: Case) -> str:
        """Return the kernel of a call."""
        return self.kernel.format(T=case.type, layout=_layout(case), pair=str(case.classes == 2).lower())


def _pixels_of_intervals(case: Case) -> float:
    """Return the pixels of full intervals between two low-resolution rows, of which there is one more than rows."""
    assert case.low is not None
    return case.pixels * (1 + 1 / case.low[0])


def _rows_of_strip(case: Case) -> int:
    """Return the low-resolution rows of a strip of the gradient of upsampled logits, as csrc/cuda/strips.h has them."""
    assert case.low is not None
    rows = 32
    while rows > 4 and _threads_of_strips(case, rows) < 512 * 256:
        rows //= 2
    return rows


def _threads_of_strips(case: Case, rows: int) -> int:
    """Return the threads that it takes: at a ratio of 4, 64 for 15 low-resolution pixels of a row and 12 classes."""
    assert case.low is not None
    boxes = math.ceil(case.low[1] / 15) * math.ceil(case.low[0] / (4 * rows))
    return 256 * case.batch * math.ceil(case.classes / 12) * boxes


# One warp of eight lists the bits of a tile; a thread that has some, two of them.
LIST = [1 / 8, 2 * RUN_WARPS]
# In the order of a call: forward, then backward. A thread takes four pixels of a tile, or places of the tile's lists.
LABELS = Launch(
    "label_kernel<long, (Window)1, true>",
    lambda c: 10.2 * c.pixels,
    per_thread=4,
    is_repeated=False,
    trips=lambda c: [10 / 8, 1 / 8, 1 / 8],  # rows of a tile with those around, columns next to it, sums
)


def edge_terms(upsampled: str) -> Launch:
    """Return the launch of the edge terms: two threads an edge pixel."""
    return Launch(
        f"three_terms_kernel<{{T}}, float, {upsampled}, {{pair}}>",
        lambda c: (0.2 + 6 * NEAR + (16 + (c.itemsize + 36) * (c.classes > 2)) * EDGE) * c.pixels,
        per_thread=4,
        is_repeated=False,
        # No maps; rarely a sum that underflows; sums of a tile without edge pixels, and of one with four warps of them.
        trips=lambda c: [None, *LIST, SIDES, *([OTHERS, None] if c.classes > 2 else []), None, 1 / 8, 4],
    )


SUMS = Launch("sums_kernel", lambda c: 0, lambda c: 0)


def _rest(case: Case, block: int) -> int:
    """Return the iterations for the classes that are left after blocks of them, four at a time."""
    return math.ceil(case.classes % block / 4)


TWO_READS = [
    LABELS,
    Launch(
        "cross_entropy_kernel<{T}, float, {layout}, (Terms)1>",
        lambda c: c.logits + (10 + c.itemsize) * c.pixels,
        per_thread=4,
        is_repeated=False,
        per_class=None,
        trips=lambda c: [*([_rest(c, 8)] if c.classes > 2 else []), 1 / 8],
    ),
    edge_terms("false"),
    SUMS,
    Launch(
        "gradient_kernel<{T}, float, {layout}, true>",
        lambda c: 2 * c.logits + (2.2 + 20 * NEAR + (4 + c.itemsize * (1 + NEAR)) * (c.classes > 2)) * c.pixels,
        per_thread=4,
        is_repeated=False,
        per_class=None,
        # Pixels near edges; those that do not count; what is left of the classes; classes that are written again.
        trips=lambda c: [*LIST, NEAR_LISTS, 3, 0, *([_rest(c, 4), NEAR_LISTS, None] if c.classes > 2 else [])],
    ),
]
UPSAMPLED = [
    LABELS,
    # A thread takes four pixels between two low-resolution rows.
    Launch(
        "upsampled_cross_entropy_kernel<{T}, float, false, (Terms)1>",
        lambda c: c.logits + 14 * c.pixels,
        _pixels_of_intervals,
        per_thread=4,
        per_load=1,
        per_class=None,
        trips=lambda c: [1, 1, 1, _rest(c, 8)],  # where an interval begins; runs of pixels; what is left of the classes
    ),
    edge_terms("true"),
    SUMS,
    Launch(
        "records_kernel<{T}, float, true>",
        lambda c: (34.2 + 38 * NEAR) * c.pixels,
        per_thread=4,
        is_repeated=False,
        # Smoothed weights; lists; one of two versions for all pixels; those near edges, and rows of their windows.
        trips=lambda c: [0, *LIST, 4, 0, NEAR_LISTS, 3, *[None] * 4],
    ),
    # An item is a thread. Blocks with other classes of the same pixels find their records in the cache.
    Launch(
        "upsampled_gradient_kernel<{T}, float, true>",
        lambda c: 2 * c.logits + 24 * c.pixels,
        lambda c: _threads_of_strips(c, _rows_of_strip(c)),
        is_repeated=False,
        # Where intervals begin; rows of the strip and the one before; in each, a row of logits, 4 rows of pixels, rare
        # pixels, and the columns of a low-resolution pixel.
        trips=lambda c: [*[1] * 6, _rows_of_strip(c) + 1, 1, 0, 4, *[None] * 4, 1, 4, 4],
    ),
]
ONE_READ = [
    LABELS,
    SUMS,
    Launch(
        "single_read_kernel<20, true>",
        lambda c: 2 * c.logits + (2.2 + 20 * NEAR) * c.pixels,
        per_thread=4,
        is_repeated=False,
        # The list; pixels off the edges, and those that do not count; pixels near edges, the windows around them, their
        # terms, rare ways, and classes that are written again; sums of the tile.
        trips=lambda c: [*LIST, 4, None, NEAR_LISTS, 9, 1, *[None] * 5, 1, *[None] * 3, 3 / 8],
    ),
    SUMS,
    Launch("single_read_kernel<20, true>", lambda c: 0, lambda c: 0),  # in backward: nothing is left to do
]
# What the model applies to: calls, and the launches of each.
PATHS = {
    "two reads": (CASES, TWO_READS),
    "one read": ([case for case in CASES if case.type == "float" and 8 < case.classes <= 20], ONE_READ),
    "upsampled": (LOW_CASES, UPSAMPLED),
}


@dataclass(frozen=True)
class Estimate:
    """The figures of a launch. Times in seconds; instructions are those of one thread."""

    kernel: str
    registers: int
    occupancy: float
    loop: float | None  # instructions per logit in the main loop
    per_item: float  # instructions, those of all loops included
    instructions: float  # of all threads
    bytes: float
    memory: float
    issue: float
    wait: float

    @property
    def time(self) -> float:
        """The model's time."""
        return max(self.memory, self.issue) + LAUNCH


def estimate(kernel: sass.Kernel, launch: Launch, case: Case, device: Device) -> Estimate:
    """Apply the model to one launch."""
    item = kernel.body
    if launch.is_repeated and item.inner:  # what comes before and after runs once a thread
        item = max(item.inner, key=lambda loop: sum(len(inner.own) for inner in loop.walk()))
    loops = [loop for loop in item.walk() if loop is not item]
    main = None
    if launch.per_class != 0 and case.classes > 2:
        # Logits side by side, as no other loop loads them.
        vector = (launch.per_load or launch.per_thread) * case.itemsize
        loaded = {id(loop): sum(i.loaded for i in loop.own if i.loaded >= min(vector, 16)) for loop in loops}
        main = max(loops, key=lambda loop: (loaded[id(loop)], -len(loop.own)), default=item)
    others = [loop for loop in loops if loop is not main]
    trips = {id(loop): count for loop, count in zip(others, launch.trips(case), strict=False)}
    logits = launch.per_thread * case.classes
    if main and main is not item:
        logits = launch.per_class or sum(i.loaded for i in main.own) // case.itemsize
        iterations = launch.per_thread * case.classes / logits
        trips[id(main)] = math.ceil(iterations) if launch.per_class else int(iterations)

    share: dict[int, float] = {}  # of the warps that run an instruction
    for loop in others:
        share |= {address: min(trips.get(id(loop), 1) or 0, share.get(address, 1)) for address in loop.serving}

    def count(loop: sass.Loop) -> tuple[float, float]:  # instructions and waits, whenever the loop is entered
        inner = [count(each) for each in loop.inner]
        instructions = sum(share.get(i.address, 1) for i in loop.own) + sum(each[0] for each in inner)
        waits = any(i.loaded for i in loop.own) + sum(each[1] for each in inner)
        times = trips.get(id(loop), 1) or 0
        return times * instructions, times * waits

    instructions, waits = count(item)
    resident = device.resident_warps(kernel, kernel.shared + launch.shared)
    warps = launch.items(case) / launch.per_thread / WARP
    return Estimate(
        kernel=launch.name(case),
        registers=kernel.registers,
        occupancy=resident / device.warps,
        loop=len(main.own) / logits if main else None,
        per_item=instructions / launch.per_thread,
        instructions=warps * WARP * instructions,
        bytes=launch.bytes(case),
        memory=launch.bytes(case) / device.bandwidth,
        issue=warps * instructions / (device.processors * 4 * device.clock * ISSUE_EFFICIENCY),
        wait=warps * waits * LATENCY / (device.processors * max(resident, 1)),
    )


@dataclass(frozen=True)
class Total:
    """The figures of a call."""

    path: str
    case: Case
    launches: list[Estimate]
    floor: float  # seconds

    @property
    def time(self) -> float:
        """Time as a multiple of the floor's."""
        return sum(launch.time for launch in self.launches) / self.floor

    @property
    def bytes(self) -> float:
        """Bytes as a multiple of the floor's."""
        return sum(launch.bytes for launch in self.launches) / self.case.floor

    @property
    def loop(self) -> float:
        """The most instructions per logit in a main loop."""
        return max((launch.loop for launch in self.launches if launch.loop is not None), default=0.0)

    @property
    def per_logit(self) -> float:
        """The most instructions per pixel and class in a launch."""
        return max(launch.instructions for launch in self.launches) / (self.case.pixels * self.case.classes)


def estimates(kernels: dict[str, sass.Kernel], device: Device) -> tuple[list[Total], list[str]]:
    """Apply the model to every case of every path; return what is missing too, as kernels are rewritten."""
    totals, missing = [], []
    for path, (cases, launches) in PATHS.items():
        for case in cases:
            found = []
            for launch in launches:
                name = launch.name(case)
                if name in kernels:
                    found.append(estimate(kernels[name], launch, case, device))
                else:
                    missing.append(f"{path}: there is no kernel {name}; update PATHS in tools/cuda_model.py")
            if len(found) == len(launches):
                totals.append(Total(path, case, found, case.floor / device.bandwidth))
    return totals, missing


# --------------------------------------------------------------------------------------------------------------- bounds


@dataclass(frozen=True)
class Bound:
    """A figure of some calls, and the most that it may be."""

    figure: str  # an attribute of Total
    most: float
    path: str = ""  # all
    classes: tuple[int, ...] = (2, 19, 150)

    def figures(self, totals: Sequence[Total]) -> list[tuple[str, float]]:
        """Return the figure of each call that the bound is for."""
        chosen = [t for t in totals if self.path in ("", t.path) and t.case.classes in self.classes]
        return [(total.case.name, getattr(total, self.figure)) for total in chosen]


BOUNDS = {
    "time": Bound("time", 1.25, "two reads", (19, 150)),
    "time-binary": Bound("time", 2.5, "two reads", (2,)),
    # No aims, but what was reached beyond them.
    "reached-19": Bound("time", 1.5, "two reads", (19,)),
    "reached-150": Bound("time", 1.1, "two reads", (150,)),
    "reached-2": Bound("time", 2.85, "two reads", (2,)),
    "time-one-read": Bound("time", 1.0, "one read"),
    "bytes": Bound("bytes", 1.07, "two reads", (19, 150)),
    "loops": Bound("loop", 12, "two reads", (19, 150)),
    "upsampled": Bound("per_logit", 15, "upsampled"),
    "reached-upsampled": Bound("per_logit", 40, "upsampled"),
}


def judge(totals: Sequence[Total], held: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return a line per bound, and those of held bounds that a figure exceeds.

    Args:
        totals: the figures.
        held: names of bounds, each with a word of the calls that it is held for.
    """
    lines, failed = [], []
    for name, bound in BOUNDS.items():
        figures = bound.figures(totals)
        above = [(case, value) for case, value in figures if value > bound.most]
        exceeded = [f"{case} {value:.3g}" for case, value in above if name in held and held[name] in case]
        others = [f"{case} {value:.3g}" for case, value in above if not (name in held and held[name] in case)]
        words = [f"EXCEEDED: {', '.join(exceeded)}"] * bool(exceeded) + [f"not reached: {', '.join(others)}"] * bool(
            others
        )
        most = max((value for _, value in figures), default=0.0)
        state = "; ".join(words) or (f"holds, at most {most:.3g}" if figures else "no such kernels")
        lines.append(f"{name} ≤ {bound.most:g}: {state}")
        if name in held and (exceeded or not any(held[name] in case for case, _ in figures)):
            failed.append(lines[-1])
    return lines, failed


# ------------------------------------------------------------------------------------------------------------------ run


def compiled(arch: int) -> list[Path]:
    """Return the cubins of all CUDA sources, and compile those that are older than a source."""
    try:
        nvcc, torch = find_nvcc(), find_torch()
    except Unbuildable as reason:
        print(f"cuda_model: skipped: {reason}")
        raise SystemExit(0) from None
    if torch is None:
        raise SystemExit("cuda_model: no torch from 2.10 on is installed")

    def compile_if_stale(source: Path) -> Path:
        cubin = cubin_of(source, arch)
        newest = max(path.stat().st_mtime for path in (source, *HEADERS))
        if not cubin.exists() or cubin.stat().st_mtime < newest:
            compile_for(source, arch, nvcc, torch)
        return cubin

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_if_stale, CUDA_SOURCES))


def kernels_of(cubins: Sequence[Path]) -> dict[str, sass.Kernel]:
    """Return the kernels of cubins by their names."""
    kernels = [kernel for cubin in cubins for kernel in sass.read(cubin)]
    return dict(zip(demangled([kernel.name for kernel in kernels]), kernels, strict=True))


def report(totals: Sequence[Total]) -> str:
    """Format all figures as a table, times in µs."""
    rows: list[Sequence[object]] = [
        ("", "registers", "occupancy", "loop/logit", "per item", "MB", "memory", "issue", "wait", "time", "× floor")
    ]
    for total in totals:
        floor = f"floor {total.case.floor / 1e6:.0f} MB, {total.floor * 1e6:.0f} µs"
        rows.append((f"{total.case.name}, {total.path} ({floor})", *[""] * 10))
        for launch in total.launches:
            loop = "" if launch.loop is None else f"{launch.loop:.1f}"
            moved = [f"{launch.bytes / 1e6:.0f}"]
            times = [f"{1e6 * t:.0f}" for t in (launch.memory, launch.issue, launch.wait, launch.time)]
            occupancy = f"{launch.occupancy:.0%}"
            shown = (f"  {launch.kernel}", launch.registers, occupancy, loop, f"{launch.per_item:.0f}")
            rows.append((*shown, *moved, *times, ""))
        sums = [sum(getattr(launch, name) for launch in total.launches) for name in ("bytes", "time")]
        together = f"  together, bytes {total.bytes:.2f} × floor"
        last = (f"{sums[0] / 1e6:.0f}", *[""] * 3, f"{sums[1] * 1e6:.0f}", f"{total.time:.2f}")
        rows.append((together, *[""] * 4, *last))
    return table(rows)


def main() -> None:
    """Print the table, and fail where a bound that is held does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", choices=DEVICES, default="h200", help="figures of (default: %(default)s)")
    names = ", ".join(f"{name} ({bound.figure} ≤ {bound.most:g})" for name, bound in BOUNDS.items())
    parser.add_argument(
        "--hold", default="", metavar="NAME[:WORD],...", help=f"fail where one of these bounds is exceeded: {names}"
    )
    parser.add_argument("--cubins", nargs="+", type=Path, metavar="FILE", help="read these, and compile nothing")
    parser.add_argument(
        "--kernels", metavar="WORD", help="print the loops of kernels with this word in their names only"
    )
    options = parser.parse_args()
    held = {name: word for name, _, word in (text.partition(":") for text in options.hold.split(",") if text)}
    if unknown := sorted(set(held) - set(BOUNDS)):
        parser.error(f"--hold: expected names of {', '.join(BOUNDS)}, but got {', '.join(unknown)}")
    device = DEVICES[options.device]
    kernels = kernels_of(options.cubins or compiled(device.arch))
    if options.kernels is not None:
        for name, kernel in kernels.items():
            if options.kernels in name:
                print(f"{name}: {kernel.registers} registers, {kernel.shared} bytes shared\n{sass.show(kernel)}")
        return
    totals, missing = estimates(kernels, device)
    print(f"A model of {options.device} from the machine code of sm_{device.arch}; nothing was measured. Times in µs.")
    print(report(totals))
    lines, failed = judge(totals, held)
    print("\n".join([*missing, "bounds:", *lines]))
    if failed:
        raise SystemExit("\n".join(["cuda_model: exceeded", *failed]))


if __name__ == "__main__":
    main()
