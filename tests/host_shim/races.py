"""Call the CUDA kernels in all ways, for a tool that looks for races and wrong accesses.

Usage: python tests/host_shim/races.py {LIBRARY,cuda,cpu} [large]

LIBRARY is that of `host_shim.build`, compiled with -fsanitize=thread: tools/check_builds.py steps the kernels on the
host with it. cuda runs them on a device, under compute-sanitizer for one; large, one call each of the usual sizes,
for a profiler.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import host_shim
from edgeloss import fused
from edgeloss.functional import edge_aware_loss

OPTIONS: list[dict[str, Any]] = [
    {},
    {"radius": 2, "power": 1.0},
    {"power": -1.0, "decay": 1.0, "label_smoothing": 0.1},
]
# Logits, labels, and whether the classes of a pixel lie side by side, which shared memory is for. More than a block of
# 256 threads, and a last one that is not full.
SCENES = [
    ((2, 19, 17, 33), (17, 33), False),
    ((2, 3, 17, 33), (17, 33), True),
    ((1, 11, 20, 29), (20, 29), True),
    ((1, 5, 6, 7), (17, 23), False),
    ((1, 1, 9, 40), (9, 40), False),
    ((1, 2, 9, 40), (9, 40), False),
    ((1, 4, 3, 9, 10), (3, 9, 10), False),
]


LARGE = [
    ((8, 19, 512, 1024), (512, 1024), False),
    ((8, 150, 512, 512), (512, 512), False),
    ((16, 2, 512, 512), (512, 512), False),
    ((8, 19, 128, 256), (512, 1024), False),
]


def run(
    shape: tuple[int, ...], size: tuple[int, ...], last: bool, options: dict[str, Any], device: str, *, maps: bool
) -> None:
    """Compute the loss and its gradient, which a single read forms again in backward for the factor of 2."""
    x = torch.randn(shape, device=device) * 3
    if last:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    small = tuple(-(-n // (16 if min(size) > 100 else 1)) for n in size)
    y = torch.randint(max(2, shape[1]), (shape[0], *small), device=device)
    for axis, (n, m) in enumerate(zip(size, small, strict=True), 1):
        y = y.repeat_interleave(-(-n // m), axis).narrow(axis, 0, n)
    y = y.contiguous()
    y[torch.rand(y.shape, device=device) < 0.1 * (min(size) <= 100)] = 255
    upsample = shape[2:] != size
    found = edge_aware_loss(x, y, ignore_index=255, backend="fused", return_maps=maps, upsample=upsample, **options)
    (2 * (found[0] if maps else found)).backward()


def main() -> None:
    """Run every scene with every set of options; a tool ends the process at what it finds."""
    torch.manual_seed(0)
    where, device = sys.argv[1], "cuda" if sys.argv[1] == "cuda" else "cpu"
    if where not in ("cuda", "cpu"):
        host_shim.load(Path(where))
        fused.operators = torch.ops.edgeloss_host
    large = sys.argv[2:] == ["large"]
    calls = list(itertools.product(LARGE if large else SCENES, OPTIONS[:1] if large else OPTIONS))
    for scene, options in calls:
        for maps in (True, False) if options == {} else (True,):
            run(*scene, options, device, maps=maps)
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"races: {len(calls)} calls, none found")


if __name__ == "__main__":
    main()
