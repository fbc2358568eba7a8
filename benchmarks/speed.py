#!/usr/bin/env python3
"""Time the loss, forward and backward, beside cross-entropy and other ways to compute the same.

All candidates of a case run in turn in one process, round after round, so that a change of the machine's speed meets
them all; the table shows medians as ratios to eager ``F.cross_entropy`` on the same tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import edgeloss
from edgeloss import EdgeAwareLoss
from edgeloss.reference import edge_mask

VOID = 255

# Name, shape of the logits, options of the loss, dtype.
CASES: list[tuple[str, tuple[int, ...], dict[str, Any], torch.dtype]] = [
    ("19 classes", (4, 19, 512, 512), {}, torch.float32),
    ("150 classes", (2, 150, 512, 512), {}, torch.float32),
    ("2 classes", (8, 2, 512, 512), {}, torch.float32),
    ("radius 3, decay 2", (4, 19, 512, 512), {"radius": 3, "decay": 2.0}, torch.float32),
    ("volume", (1, 4, 96, 128, 128), {}, torch.float32),
    ("bfloat16", (4, 19, 512, 512), {}, torch.bfloat16),
    ("small", (1, 19, 64, 64), {}, torch.float32),
    ("checkerboard", (4, 19, 512, 512), {}, torch.float32),
]


def unfolded(logits: Tensor, target: Tensor) -> Tensor:
    """The loss with radius 1 and power 1 as one would write it first: all neighbours of all pixels at once."""
    classes = logits.shape[1]
    valid = target != VOID
    ce = F.cross_entropy(logits, target, ignore_index=VOID)

    def neighbours(x: Tensor) -> Tensor:  # [B, C, H, W] → [B, C, 8, H, W]
        patches = F.unfold(x, 3, padding=1).view(x.shape[0], x.shape[1], 9, *x.shape[2:])
        return torch.cat([patches[:, :, :4], patches[:, :, 5:]], 2)

    one_hot = F.one_hot(target.where(valid, 0), classes).movedim(-1, 1).to(logits.dtype)
    p = (neighbours(logits.softmax(1)) * one_hot[:, :, None]).sum(1)  # [B, 8, H, W]
    labels = neighbours(torch.where(valid, target + 1, 0)[:, None].to(logits.dtype))[:, 0]
    exists = (labels > 0) & valid[:, None]
    same = exists & (labels == (target + 1)[:, None])
    other = exists & ~same
    edge = other.any(1)
    tiny = torch.finfo(logits.dtype).tiny
    s = -((p * same).sum(1) / same.sum(1).clamp(min=1)).clamp(min=tiny).log() * same.any(1)
    o = -(((1 - p) * other).sum(1) / other.sum(1).clamp(min=1)).clamp(min=tiny).log()
    return ce + 0.5 * ((s + o) * edge).sum() / edge.sum().clamp(min=1)


def blobs(batch: int, size: tuple[int, ...], classes: int, points: int) -> Tensor:
    """Labels of smooth regions: the class of the nearest of random points."""
    random = np.random.default_rng(0)
    out = np.empty((batch, *size), dtype=np.int64)
    for image in out:
        best = np.full(size, np.inf)
        for n in range(points):
            point = random.random(len(size)) * size
            axes = [np.square(np.arange(length) - c) for length, c in zip(size, point, strict=True)]
            distance = sum(np.meshgrid(*axes, indexing="ij"))
            image[distance < best] = n % classes
            best = np.minimum(best, distance)
    return torch.from_numpy(out)


def regions(batch: int, size: tuple[int, ...], classes: int, radius: int) -> Tensor:
    """Blobs, as many as it takes for 4 % of edge pixels: street scenes have 4 to 6 % at radius 1."""
    points = 2
    while True:
        target = blobs(batch, size, classes, points)
        if float(edge_mask(target, target >= 0, [radius] * len(size)).float().mean()) >= 0.04:
            return target
        points += 1


def scenes(masks: Path, batch: int, size: tuple[int, ...], classes: int) -> Tensor:
    """Real masks, tiled to the size; labels modulo the classes."""
    paths = sorted(masks.glob("*.png"))
    if not paths:
        raise SystemExit(f"speed.py: no masks (*.png) in {masks}")
    out = []
    for i in range(batch):
        mask = np.asarray(Image.open(paths[i * len(paths) // batch])).astype(np.int64)
        tiles = [-(-n // m) for n, m in zip(size, mask.shape, strict=True)]
        tiled = np.tile(mask, tiles)[: size[0], : size[1]]
        out.append(np.where(tiled == VOID, VOID, tiled % classes))
    return torch.from_numpy(np.stack(out))


def labels_of(name: str, shape: tuple[int, ...], radius: int, masks: Path | None) -> Tensor:
    """The labels of a case."""
    batch, classes, *size = shape
    if name == "checkerboard":
        return (torch.arange(size[0])[:, None] + torch.arange(size[1])).remainder(2).expand(batch, -1, -1).contiguous()
    # A crop of a scene may have no edge at all, and a wide neighbourhood makes edges wide.
    if masks is None or len(size) == 3 or name == "small" or radius > 1:
        return regions(batch, tuple(size), classes, radius)
    return scenes(masks, batch, tuple(size), classes)


def candidates(
    logits: Tensor, target: Tensor, options: dict[str, Any], *, compiled: bool, slow: bool
) -> dict[str, Callable[[], object]]:
    """What is timed: each forward and backward, but for ``clone``, the least that writing a gradient costs."""
    logits.requires_grad_()

    def training(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            loss(logits, target).backward()
            logits.grad = None  # here, so that each pays for freeing its own gradient and not for its neighbour's

        return run

    def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x, y, ignore_index=VOID)

    fused = EdgeAwareLoss(ignore_index=VOID, backend="fused", **options)
    reference = EdgeAwareLoss(ignore_index=VOID, backend="reference", **options)
    found: dict[str, Callable[[], object]] = {
        "cross-entropy": training(cross_entropy),
        "edgeloss": training(fused),
        "clone": lambda: logits.detach().clone(),
    }
    if compiled:
        found["compiled cross-entropy"] = training(torch.compile(cross_entropy))
    if slow:
        found["reference"] = training(reference)
        if logits.dim() == 4 and not options and logits.dtype == torch.float32:
            found["unfold"] = training(unfolded)
    return found


def medians(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each run, after a warm-up, interleaved."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--masks", type=Path, metavar="DIR", help="label masks to tile (*.png); generated ones if absent"
    )
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of each case")
    parser.add_argument("--only", metavar="WORD", help="only the cases with the word in their name")
    parser.add_argument("--compile", action="store_true", help="time torch.compile of cross-entropy too")
    parser.add_argument("--slow", action="store_true", help="time the reference and a plain unfold implementation too")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()
    if edgeloss.backends()["cpu"] != "available":
        print(f"speed.py: fused kernels {edgeloss.backends()['cpu']}", file=sys.stderr)
        return 1

    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "edgeloss": version("edgeloss"),
        "labels": "generated" if options.masks is None else "real masks, tiled (volume and small: generated)",
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    rows = []
    for name, shape, arguments, dtype in CASES:
        if options.only and options.only not in name:
            continue
        torch.manual_seed(0)
        logits, target = torch.randn(shape).to(dtype), labels_of(name, shape, arguments.get("radius", 1), options.masks)
        runs = candidates(logits, target, arguments, compiled=options.compile, slow=options.slow)
        seconds = medians(runs, options.rounds * (20 if name == "small" else 1))
        _, terms = EdgeAwareLoss(ignore_index=VOID, **arguments)(logits.detach(), target, return_terms=True)
        base = seconds["cross-entropy"]
        row = {
            "case": name,
            "logits": list(shape),
            "dtype": str(dtype).removeprefix("torch."),
            "edge_fraction": round(float(terms["edge_fraction"]), 4),
            "milliseconds": {key: round(value * 1e3, 3) for key, value in seconds.items()},
            "ratio": {key: round(value / base, 3) for key, value in seconds.items()},
        }
        rows.append(row)
        ratios = "  ".join(f"{key} {value:.2f}" for key, value in row["ratio"].items() if key != "cross-entropy")
        print(
            f"{name:18} {shape!s:22} {row['edge_fraction']:6.1%} edges  CE {base * 1e3:7.1f} ms   {ratios}", flush=True
        )
    if options.output:
        options.output.write_text(json.dumps({"machine": machine, "cases": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
