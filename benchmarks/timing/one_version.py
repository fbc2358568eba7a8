"""Time the loss of the tree on PYTHONPATH: the process that timing/versions.py starts for each of two.

It imports nothing of benchmarks that imports edgeloss, whose private parts another version does not have.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import edgeloss
from measure import added_memory, make_pass


def main(inputs: str, tree: str, threads: int, options: list[dict[str, Any]]) -> None:
    """Answer each number of passes with the mean milliseconds of one for each of the options, and 0 with its memory."""
    if Path(edgeloss.__file__).parents[1] != Path(tree):
        sys.exit(f"{tree}: has no edgeloss; python imports that of {Path(edgeloss.__file__).parent}")
    torch.set_num_threads(threads)
    logits, target = torch.load(inputs)
    logits.requires_grad_()
    clock = time.thread_time if threads == 1 else time.perf_counter
    runs = [make_pass(edgeloss.EdgeAwareLoss(backend="fused", **of_one), logits, target) for of_one in options]

    for line in sys.stdin:
        passes, figures = int(line), []
        for run in runs:
            if passes == 0:
                figures.append(float(added_memory(run) - logits.nbytes))
                continue
            start = clock()
            for _ in range(passes):
                run()
            figures.append(1e3 * (clock() - start) / passes)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
