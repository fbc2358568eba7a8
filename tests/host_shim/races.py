"""Run the loss on CUDA kernels stepped on the host, for ThreadSanitizer to look for races between threads of a block.

Usage: python tests/host_shim/races.py LIBRARY

The library is that of `host_shim.build`, compiled with -fsanitize=thread; tools/check_builds.py calls this.
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
    {"false_edge_weight": 0.5},
]
# Logits, labels, and whether the classes of a pixel lie side by side, which shared memory is for. More than a block of
# 256 threads, and a last one that is not full.
SCENES = [
    ((2, 19, 17, 33), (17, 33), False),
    ((2, 3, 17, 33), (17, 33), True),
    ((1, 11, 20, 29), (20, 29), True),
    ((1, 5, 6, 7), (17, 23), False),
    ((1, 1, 9, 40), (9, 40), False),
    ((1, 4, 3, 9, 10), (3, 9, 10), False),
]


def run(shape: tuple[int, ...], size: tuple[int, ...], last: bool, options: dict[str, Any]) -> None:
    """Compute the loss and its gradient."""
    x = torch.randn(shape) * 3
    if last:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    y = torch.randint(max(2, shape[1]), (shape[0], *size))
    y[torch.rand(y.shape) < 0.1] = 255
    upsample = shape[2:] != size
    loss, _ = edge_aware_loss(x, y, ignore_index=255, backend="fused", return_maps=True, upsample=upsample, **options)
    loss.backward()


def main() -> None:
    """Run every scene with every set of options; ThreadSanitizer ends the process at a race."""
    torch.manual_seed(0)
    host_shim.load(Path(sys.argv[1]))
    fused.operators = torch.ops.edgeloss_host
    for scene, options in itertools.product(SCENES, OPTIONS):
        run(*scene, options)
    print(f"races: {len(SCENES) * len(OPTIONS)} calls, none found")


if __name__ == "__main__":
    main()
