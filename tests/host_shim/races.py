"""Call the CUDA kernels in all ways, for ThreadSanitizer.

Usage: PYTHONPATH=tests:tools:. python tests/host_shim/races.py LIBRARY

LIBRARY is that of `host_shim.build`, compiled with -fsanitize=thread, by which tools/check_builds.py steps the kernels
on the host.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import torch

import host_shim
from edgeloss._kernels import evaluate, operators
from edgeloss._reference.neighborhoods import find_edges
from edgeloss.functional import neighbor_nll

# More than a block of 256 threads, and a last one that is not full; more classes than a thread takes at a time.
SCENES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 19, 17, 33), (1, 1)),
    ((2, 3, 17, 33), (2, 0)),
    ((1, 2, 9, 40), (3, 3)),
    ((1, 4, 3, 9, 10), (1, 1, 1)),
]


def run(shape: tuple[int, ...], radius: tuple[int, ...], *, indicator: bool, last: bool) -> None:
    """Compute the value and its gradient."""
    batch, classes, *size = shape
    x = torch.randn(shape)
    if last:
        x = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    x.requires_grad_()
    index = torch.randint(classes, (batch, *size))
    weight = torch.rand(batch, math.prod(2 * r + 1 for r in radius) - 1, *size)
    chosen = torch.nn.functional.one_hot(index, classes).movedim(-1, 1) if indicator else index
    mask = torch.rand(batch, *size) < 0.8
    neighbor_nll(x, chosen, weight, mask, radius=radius, backend="fused").sum().backward()
    edge = find_edges(index, mask, radius)
    same_side, other_side = evaluate.pair_terms(x, index, mask, edge, -weight[:, 0], radius, power=1.0)
    (same_side + other_side).sum().backward()


def main() -> None:
    """Run every scene; ThreadSanitizer ends the process at a race."""
    torch.manual_seed(0)
    host_shim.load(Path(sys.argv[1]))
    operators.of_library = torch.ops.edgeloss_host
    calls = list(itertools.product(SCENES, (False, True), (False, True)))
    for scene, indicator, last in calls:
        run(*scene, indicator=indicator, last=last)
    print(f"races: {len(calls)} calls, none found")


if __name__ == "__main__":
    main()
