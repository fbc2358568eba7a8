#!/usr/bin/env python3
"""Time the loss, forward and backward, compared with cross-entropy.

Other ways to compute the same loss are timed as well. Every case runs in a process of its own, since torch.compile
changes how fast other code runs after it. Its candidates take turns, round after round, so that a change of clock rate
affects all of them; the table shows medians as ratios to eager ``F.cross_entropy`` on the same tensors, timed in the
same process. Memory is what a forward and backward pass adds to its process at the peak, without the gradient, divided
by the number of pixels.

On a CUDA device each is also recorded in a CUDA graph and replayed, which takes Python's share away. The part for CUDA
devices has not been run on one yet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import edgeloss
from edgeloss import EdgeAwareLoss
from edgeloss.functional import balanced_edge_class_weight
from label_maps import VOID, Labels, edge_fraction, regions, scenes
from measure import INSTRUCTIONS, Run, added_memory, alone, median_seconds, processor
from pictures import save_figure
from result_table import Row, add_rows

EXAMPLES = """\
examples:
  python benchmarks/speed.py                                # the quick table: cross-entropy, edgeloss, clone, memory
  python benchmarks/speed.py --only "19 classes" --rounds 25
  python benchmarks/speed.py --masks ../shared/camvid/val/masks --all --output speed.jsonl --plot speed.png
  python benchmarks/speed.py --device cuda --all            # CUDA_VISIBLE_DEVICES chooses the device
  python benchmarks/speed.py --upsample --all               # logits of lower resolution
"""

MEMORY_BAR = 32  # bytes per pixel, without the gradient
REPLAYED = ", replayed"  # after the name of a candidate: as a CUDA graph
CHECKERBOARD_BAR = 4  # times the time of edgeloss on ordinary labels

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """What is timed.

    Attributes:
        name: in the table.
        shape: of the logits, [B, C, *S].
        options: of the loss; ``edge_class_weight`` may be "balanced".
        dtype: of the logits.
        bar: the largest accepted ratio of edgeloss to cross-entropy.
        size: of the labels, S, if the logits have a lower resolution.
    """

    name: str
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    bar: float | None = None
    size: tuple[int, ...] = ()

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of the labels, [B, *S]."""
        return (self.shape[0], *(self.size or self.shape[2:]))

    @property
    def radius(self) -> int:
        """Radius of the neighborhood."""
        return int(self.options.get("radius", 1))

    @property
    def pixels(self) -> int:
        """Number of labels in the batch."""
        return int(np.prod(self.label_shape))

    @property
    def logits_bytes(self) -> int:
        """Size of the logits, and of their gradient."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


STATELESS: dict[str, Any] = {"edge_class_weight": None, "edge_focus": 0.0, "region_weight": 0.0}

CPU_CASES = [
    Case("19 classes", (4, 19, 512, 512), bar=0.8),
    Case("19 classes, stateless", (4, 19, 512, 512), STATELESS),
    Case("19 classes, balanced", (4, 19, 512, 512), STATELESS | {"edge_class_weight": "balanced"}),
    Case("150 classes", (2, 150, 512, 512), bar=0.4),
    Case("2 classes", (8, 2, 512, 512), bar=1.2),
    Case("radius 3, decay 2", (4, 19, 512, 512), {"radius": 3, "decay": 2.0}, bar=1.2),
    Case("volume", (1, 4, 96, 128, 128), bar=1.0),
    Case("bfloat16", (4, 19, 512, 512), dtype=torch.bfloat16, bar=0.45),
    Case("small", (1, 19, 64, 64), bar=3.0),
    Case("checkerboard", (4, 19, 512, 512)),
]
CUDA_CASES = [
    Case(f"{shape[1]} classes{suffix}", shape, dtype=dtype)
    for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ", bfloat16"))
    for shape in ((8, 19, 512, 1024), (8, 150, 512, 512), (16, 2, 512, 512))
]


def upsampled(shape: tuple[int, ...], size: tuple[int, ...], bar: float, dtype: torch.dtype = torch.float32) -> Case:
    """Return a case with logits of lower resolution."""
    suffix = ", bfloat16" if dtype == torch.bfloat16 else ""
    return Case(f"{shape[1]} classes × {size[0] // shape[2]}{suffix}", shape, {"upsample": True}, dtype, bar, size)


UPSAMPLE_CASES = {
    "cpu": [
        upsampled((2, 150, 128, 128), (512, 512), 0.35),
        upsampled((4, 19, 128, 128), (512, 512), 0.45),
        upsampled((4, 19, 64, 64), (512, 512), 0.45),
        upsampled((8, 2, 128, 128), (512, 512), 1.0),
    ],
    "cuda": [
        upsampled(shape, size, 0.25, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        for shape, size in (((8, 150, 128, 128), (512, 512)), ((8, 19, 128, 256), (512, 1024)))
    ],
}


@dataclass
class Timing:
    """What a process measures.

    Attributes:
        seconds: the median of each candidate that ran.
        notes: remarks on candidates, such as why one did not run.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def labels_of(case: Case, masks: Path | None) -> tuple[str, Labels]:
    """Return the kind of labels of a case, and the labels."""
    batch, *size = case.label_shape
    classes = case.shape[1]
    if case.name == "checkerboard":
        return case.name, np.tile(np.indices(size).sum(0) % 2, (batch, 1, 1)).astype(np.uint8)
    # A crop of a scene may have no edge at all, and a large radius makes edges wide.
    if masks is None or len(size) == 3 or case.name == "small" or case.radius > 1:
        return "regions", regions(batch, tuple(size), classes, case.radius)
    return "scenes", scenes(masks, batch, tuple(size), classes)


# ----------------------------------------------------------------------------------------------------------- candidates


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Compute cross-entropy; logits of lower resolution are interpolated first."""
    if logits.shape[2:] != target.shape[1:]:
        logits = F.interpolate(logits, target.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(logits, target, ignore_index=VOID)


def unfolded(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the loss of a first step in the plainest way, with all neighbors of all pixels at once."""
    classes = logits.shape[1]
    valid = target != VOID
    ce = F.cross_entropy(logits, target, ignore_index=VOID)

    def neighbors(x: Tensor) -> Tensor:  # [B, C, H, W] → [B, C, 8, H, W]
        patches = F.unfold(x, 3, padding=1).view(x.shape[0], x.shape[1], 9, *x.shape[2:])
        return torch.cat([patches[:, :, :4], patches[:, :, 5:]], 2)

    one_hot = F.one_hot(target.where(valid, 0), classes).movedim(-1, 1).to(logits.dtype)
    p = (neighbors(logits.softmax(1)) * one_hot[:, :, None]).sum(1)  # [B, 8, H, W]
    labels = neighbors(torch.where(valid, target + 1, 0)[:, None].to(logits.dtype))[:, 0]
    exists = (labels > 0) & valid[:, None]
    same = exists & (labels == (target + 1)[:, None])
    other = exists & ~same
    edge = other.any(1)
    tiny = torch.finfo(logits.dtype).tiny
    nll = -torch.where(same, p, 1 - p).clamp(min=tiny).log()
    s = (nll * same).sum(1) / same.sum(1).clamp(min=1)
    o = (nll * other).sum(1) / other.sum(1).clamp(min=1)
    return ce + EdgeAwareLoss().edge_weight * ((s + o) * edge).sum() / edge.sum().clamp(min=1)


def loss_named(name: str, options: dict[str, Any]) -> Loss:
    """Return the loss of a candidate."""
    if name.startswith("compiled "):
        return torch.compile(loss_named(name.removeprefix("compiled "), options))
    losses: dict[str, Loss] = {
        "cross-entropy": cross_entropy,
        "edgeloss": EdgeAwareLoss(ignore_index=VOID, backend="fused", **options),
        "reference": EdgeAwareLoss(ignore_index=VOID, backend="reference", **options),
        "unfold": unfolded,
    }
    return losses[name]


def candidate(name: str, logits: Tensor, target: Tensor, options: dict[str, Any]) -> Run:
    """Return a forward and backward pass.

    ``clone`` is the least that writing a gradient can cost.
    """
    if name == "clone":
        return lambda: logits.detach().clone()
    if options.get("edge_class_weight") == "balanced":
        weight = balanced_edge_class_weight([target], logits.shape[1], ignore_index=VOID)
        options = options | {"edge_class_weight": weight.to(logits.device)}
    loss = loss_named(name.removesuffix(REPLAYED), options)

    def run() -> None:
        loss(logits, target).backward()  # type: ignore[no-untyped-call]
        logits.grad = None  # here, so that each candidate pays for freeing its own gradient

    return replayed(run) if name.endswith(REPLAYED) else run


def replayed(run: Run) -> Run:
    """Record what a run does on the device in a CUDA graph, and return the graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def groups(case: Case, device: str, everything: bool) -> list[tuple[list[str], int]]:
    """Return the candidates that share a process, and the most rounds to time them.

    Each group includes a cross-entropy of its own.
    """
    chosen = [(["cross-entropy", "edgeloss", "clone"], sys.maxsize)]
    if everything or device == "cuda" or case.size:
        chosen.append((["cross-entropy", "compiled cross-entropy"], sys.maxsize))
    if device == "cuda":
        chosen.append((["cross-entropy", f"cross-entropy{REPLAYED}", f"edgeloss{REPLAYED}"], sys.maxsize))
    if everything:
        chosen.append((["cross-entropy", "compiled reference"], 3))
        plain = len(case.shape) == 4 and not case.options and case.dtype == torch.float32
        chosen.append((["cross-entropy", "reference", *(["unfold"] if plain else [])], 3))
    return chosen


# ------------------------------------------------------------------------------------- measured in a separate process


def inputs(case: Case, labels: Labels, device: str) -> tuple[Tensor, Tensor]:
    """Create logits and labels on the device."""
    torch.manual_seed(0)
    logits = torch.randn(case.shape, device=device).to(case.dtype).requires_grad_()
    return logits, torch.from_numpy(labels).to(device, torch.int64)


def measure_time(case: Case, labels: Labels, device: str, names: list[str], rounds: int) -> Timing:
    """Return the median time of each candidate, after a warm-up."""
    logits, target = inputs(case, labels, device)
    timing, runs = Timing(), {}
    for name in names:
        try:
            run = candidate(name, logits, target, case.options)
            run()
            run()
        except Exception as error:  # torch.compile may raise anything
            if not (name.startswith("compiled ") or name.endswith(REPLAYED)):
                raise
            timing.notes[name] = (
                f"does not {'compile' if name.startswith('compiled ') else 'replay'}: {first_line(error)}"
            )
            continue
        runs[name] = run
        if name.startswith("compiled ") and (breaks := graph_breaks()):
            timing.notes[name] = f"{breaks} graph breaks"
    timing.seconds = median_seconds(runs, rounds, device)
    return timing


def graph_breaks() -> int:
    """Return how often torch.compile has fallen back to Python in this process."""
    from torch._dynamo.utils import counters  # slow to import, and only needed where something is compiled

    return sum(counters["graph_break"].values())


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def measure_memory(case: Case, labels: Labels, device: str, name: str) -> float:
    """Return the peak bytes per pixel of a forward and backward pass.

    They do not include the gradient.
    """
    # The first call also loads code, threads and libraries, which are not part of the pass.
    low = [8] * (len(case.shape) - 2)
    tiny = replace(case, shape=(1, case.shape[1], *low), size=tuple(4 * n for n in low) if case.size else ())
    checkerboard = np.indices(tiny.label_shape[1:]).sum(0).astype(np.uint8)[None] % 2
    candidate(name, *inputs(tiny, checkerboard, device), case.options)()
    run = candidate(name, *inputs(case, labels, device), case.options)
    return (added_memory(run, device) - case.logits_bytes) / case.pixels


# --------------------------------------------------------------------------------------------------------------- report


def measure(case: Case, options: argparse.Namespace, log: Console) -> dict[str, Any]:
    """Measure all figures of a case."""
    log.print(f"{case.name}: labels")
    kind, labels = labels_of(case, options.masks)
    milliseconds: dict[str, float] = {}
    ratio: dict[str, float] = {}
    notes: dict[str, str] = {}
    for names, most in groups(case, options.device, options.all):
        log.print(f"{case.name}: {', '.join(names)}")
        rounds = min(options.rounds * (20 if case.name == "small" else 1), most)
        try:
            timing = alone(measure_time, case, labels, options.device, names, rounds)
        except (BrokenProcessPool, torch.OutOfMemoryError):
            if "edgeloss" in names:
                raise
            timing = Timing(notes=dict.fromkeys(names[1:], "out of memory"))
        notes |= timing.notes
        for name, seconds in timing.seconds.items():
            # The table shows the first group's cross-entropy; the other groups' only serve their ratios.
            milliseconds.setdefault(name, round(seconds * 1e3, 4))
            ratio.setdefault(name, round(seconds / timing.seconds["cross-entropy"], 3))
    log.print(f"{case.name}: memory")
    memory = {
        name: round(alone(measure_memory, case, labels, options.device, name), 1)
        for name in ("edgeloss", "cross-entropy")
    }
    # The floor: read the logits twice, write the gradient and 16 bytes per pixel, at the rate of clone, which moves 2N.
    n = case.logits_bytes
    floor = milliseconds["clone"] * (3 * n + 16 * case.pixels) / (2 * n)
    return {
        "case": case.name,
        "logits": list(case.shape),
        "labels_shape": list(case.label_shape),
        "dtype": str(case.dtype).removeprefix("torch."),
        "options": case.options,
        "labels": kind,
        "edge_fraction": round(edge_fraction(labels, case.radius), 4),
        "milliseconds": milliseconds,
        "ratio": ratio,
        "notes": notes,
        "bar": case.bar,
        "floor_milliseconds": round(floor, 4),
        "edgeloss_over_floor": round(milliseconds["edgeloss"] / floor, 2),
        "bytes_a_pixel": memory,
    }


def set_checkerboard_bar(rows: list[dict[str, Any]]) -> None:
    """Set the bar of the checkerboard: a multiple of the time for ordinary labels."""
    by_name = {row["case"]: row for row in rows}
    if {"19 classes", "checkerboard"} <= by_name.keys():
        row = by_name["checkerboard"]
        most = CHECKERBOARD_BAR * by_name["19 classes"]["milliseconds"]["edgeloss"]
        row["bar"] = round(most / row["milliseconds"]["cross-entropy"], 2)


def judged(text: str, good: bool) -> str:
    """Color the text green or red."""
    return f"[{'green' if good else 'red'}]{text}[/]"


def make_table(rows: list[dict[str, Any]], device: str) -> Table:
    """Return the rows as a table: ratios to cross-entropy, on CUDA with milliseconds."""
    others = list(dict.fromkeys(name for row in rows for name in (*row["ratio"], *row["notes"])))[2:]
    table = Table(caption=f"ratios to cross-entropy; bytes per pixel without the gradient (bar: {MEMORY_BAR})")
    table.add_column("case", no_wrap=True)
    table.add_column("logits", no_wrap=True)
    numbers = ["edges", "cross-entropy\nms", "edgeloss", "bar", *others]
    for name in [*numbers, *(["floor\nms", "edgeloss\n/ floor"] if device == "cuda" else [])]:
        table.add_column(name, justify="right", max_width=24)
    for name in ("edgeloss", "cross-entropy"):
        table.add_column(f"{name}\nbytes per pixel", justify="right")
    for row in rows:

        def cell(name: str, row: dict[str, Any] = row) -> str:
            words = []
            if name in row["ratio"]:
                absolute = f" ({row['milliseconds'][name]:.3f} ms)" if device == "cuda" else ""
                words.append(f"{row['ratio'][name]:.2f}{absolute}")
            if name in row["notes"]:
                words.append(row["notes"][name][:120].replace("[", r"\["))
            return ", ".join(words) or "–"

        bar, memory = row["bar"], row["bytes_a_pixel"]
        size = f" → {row['labels_shape'][1:]}" if row["labels_shape"][1:] != row["logits"][2:] else ""
        table.add_row(
            row["case"],
            f"{row['logits']} {row['dtype']}{size}".replace("[", r"\["),
            f"{row['edge_fraction']:.1%}",
            f"{row['milliseconds']['cross-entropy']:.{3 if device == 'cuda' else 1}f}",
            cell("edgeloss") if bar is None else judged(cell("edgeloss"), row["ratio"]["edgeloss"] <= bar),
            "–" if bar is None else f"{bar:.2f}",
            *map(cell, others),
            *([f"{row['floor_milliseconds']:.3f}", f"{row['edgeloss_over_floor']:.2f}"] if device == "cuda" else []),
            judged(f"{memory['edgeloss']:.1f}", memory["edgeloss"] <= MEMORY_BAR),
            f"{memory['cross-entropy']:.1f}",
        )
    return table


# Distinct for color-blind readers too, with the vermilion of edgeloss (Okabe and Ito).
COLORS = ("#56b4e9", "#999999", "#e69f00", "#009e73", "#0072b2", "#cc79a7", "#f0e442")


def plot(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draw the ratios as bars from 1, to the left if faster than cross-entropy."""
    from matplotlib.figure import Figure  # the processes that measure import this file, too

    names = list(dict.fromkeys(name for row in rows for name in row["ratio"] if name != "cross-entropy"))
    figure = Figure(figsize=(9, 1.2 + len(rows) * (0.25 + 0.17 * len(names))), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    height = 0.8 / len(names)
    for n, name in enumerate(names):
        points = [(i + (n - (len(names) - 1) / 2) * height, row) for i, row in enumerate(rows) if name in row["ratio"]]
        y, ratios = [y for y, _ in points], [row["ratio"][name] for _, row in points]
        color = "#d55e00" if name == "edgeloss" else COLORS[n % len(COLORS)]
        drawn = axes.barh(y, [ratio - 1 for ratio in ratios], height * 0.9, left=1, color=color, label=name)
        axes.bar_label(drawn, [f"{ratio:.2f}" for ratio in ratios], padding=2, fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row['case']}\n{row['edge_fraction']:.0%} edges" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.1, y=0.01)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("time of forward and backward / time of eager cross-entropy (← faster)")
    axes.set_title(title, fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save_figure(figure, path, 110)


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures depend on."""
    about = {
        "processor": processor(),
        "instructions": INSTRUCTIONS,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "edgeloss": version("edgeloss"),
        "labels": "regions" if options.masks is None else "scenes; regions for volume, small and radius 3",
        "rounds": options.rounds,
    }
    return {"device": torch.cuda.get_device_name(), **about} if options.device == "cuda" else about


def key_of(row: Row) -> str:
    """Return the key of a row in the table of results: a machine and its cases, also those still to be measured."""
    machine = [row["machine"].get(name) for name in ("device", "processor", "instructions", "threads", "torch")]
    return json.dumps([*machine, *(case["case"] for case in row["cases"]), *row.get("missing", [])])


def parse() -> tuple[argparse.Namespace, list[Case]]:
    """Parse the command line and return it, with the cases it selects."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--upsample",
        action="store_true",
        help="time logits of lower resolution, compared with interpolation and cross-entropy",
    )
    parser.add_argument("--all", action="store_true", help="also time torch.compile, the reference and a plain unfold")
    parser.add_argument("--only", metavar="WORD", default="", help="only the cases whose name contains the word")
    parser.add_argument("--rounds", type=int, default=9, help="rounds per case (default: %(default)s)")
    parser.add_argument(
        "--masks", type=Path, metavar="DIR", help="label masks to tile, *.png (default: generated ones)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="add all figures to a table of results")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the ratios as a bar chart")
    options = parser.parse_args()
    cases = CUDA_CASES if options.device == "cuda" else CPU_CASES
    if options.upsample:
        cases = UPSAMPLE_CASES[options.device]
    chosen = [case for case in cases if options.only in case.name]
    if not chosen:
        parser.error(f"--only: expected a word of {[case.name for case in cases]}, but got {options.only!r}")
    if options.rounds < 1:
        parser.error(f"--rounds: expected at least 1, but got {options.rounds}")
    if options.masks is not None and not any(options.masks.glob("*.png")):
        parser.error(f"--masks: expected a folder with *.png, but got {options.masks}")
    if (state := edgeloss.backends()[options.device]) != "available":
        parser.error(f"the fused kernels for {options.device} are {state}")
    return options, chosen


def main() -> int:
    """Read the command line and run the cases."""
    try:
        return run(*parse())
    except KeyboardInterrupt:
        print("speed.py: interrupted; the cases before are complete", file=sys.stderr)
        return 130


def run(options: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Run the cases and print the table."""
    # A file or pipe has no width.
    console, log = Console(width=None if sys.stdout.isatty() else 200), Console(stderr=True, highlight=False)
    about = machine(options)
    console.print(", ".join(f"{key} {value}" for key, value in about.items()), highlight=False)
    rows: list[dict[str, Any]] = []
    for case in cases:
        rows.append(measure(case, options, log))
        set_checkerboard_bar(rows)
        missing = [later.name for later in cases[len(rows) :]]
        # As they come: what a time limit ends keeps its results.
        log.print(make_table(rows[-1:], options.device))
        if options.output:
            row = {"machine": about, "cases": rows} | ({"missing": missing} if missing else {})
            add_rows(options.output, [row], key_of)
    console.print(make_table(rows, options.device))
    if options.plot:
        name = about.get("device", f"{about['processor']} ({about['instructions']}), {about['threads']} threads")
        plot(rows, f"{name}, torch {about['torch']}, {about['labels']}", options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
