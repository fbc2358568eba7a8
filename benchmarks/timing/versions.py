"""Time the loss of another source tree and of this one, forward and backward, in turns.

The other tree is a clone at another commit, in which ``EDGELOSS_BUILD=cpu python setup.py build_ext --inplace`` has
built the kernels. Each case runs in two processes, one per tree, which take turns and have the same logits and labels.
The ratio is the median over the turns of this tree's time to the other's, of the default and of ``region_weight=0``.
Bytes are what a pass adds at its peak, without the gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from label_maps import VOID
from result_table import Row
from timing.losses import Case, chosen, make_inputs

HERE = Path(__file__).resolve().parents[2]
LEAST = 20.0  # milliseconds of a turn: a pass of a small case is shorter than the jitter of the clock


def start(tree: Path, inputs: Path, case: Case, threads: int) -> subprocess.Popen[str]:
    """Start the process that times the loss of a tree."""
    options = [{"ignore_index": VOID, **case.options, **more} for more in ({}, {"region_weight": 0})]
    script = Path(__file__).with_name("one_version.py")
    paths = os.pathsep.join([str(tree), str(script.parents[1])])
    return subprocess.Popen(
        [sys.executable, script, inputs, tree, str(threads), json.dumps(options)],
        env=os.environ | {"PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], passes: int) -> list[float]:
    """Return the figures of one process."""
    assert process.stdin
    assert process.stdout
    print(passes, file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        sys.exit(process.wait() or 1)
    return [float(figure) for figure in json.loads(answer)]


def measure(case: Case, other: Path, masks: Path | None, threads: int, rounds: int) -> Row:
    """Return milliseconds, ratios and bytes of a case."""
    logits, target, _ = make_inputs(case, masks)
    with TemporaryDirectory() as folder, ExitStack() as started:
        inputs = Path(folder) / "inputs.pt"
        torch.save((logits.detach(), target), inputs)
        trees = [started.enter_context(start(tree, inputs, case, threads)) for tree in (other, HERE)]
        first = [ask(tree, 1) and ask(tree, 1) for tree in trees]  # the first pass also loads code
        passes = max(1, round(LEAST / max(map(min, first))))
        turns = []
        for i in range(rounds):
            order = trees if i % 2 else trees[::-1]
            figures = [ask(tree, passes) for tree in order]
            turns.append(figures if i % 2 else figures[::-1])
        added = [ask(tree, 0) for tree in trees]
    names = ("default", "region_weight=0")
    old, new = ([statistics.median(turn[k][n] for turn in turns) for n in range(2)] for k in range(2))
    ratios = [statistics.median(turn[1][n] / turn[0][n] for turn in turns) for n in range(2)]
    return {
        "milliseconds of the other": {name: round(value, 3) for name, value in zip(names, old, strict=True)},
        "milliseconds": {name: round(value, 3) for name, value in zip(names, new, strict=True)},
        "ratio": {name: round(value, 3) for name, value in zip(names, ratios, strict=True)},
        "bytes of the other": dict(zip(names, map(int, added[0]), strict=True)),
        "bytes": dict(zip(names, map(int, added[1]), strict=True)),
        "rounds": rounds,
    }


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each case."""
    for case in chosen(options):
        threads = min(options.threads, case.max_threads)
        result = measure(case, options.other.resolve(), options.masks, threads, options.rounds)
        yield {"case": case.name, "logits": case.shape, **result, "threads": threads}
