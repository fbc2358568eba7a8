#!/usr/bin/env python3
"""Measure time and memory: of the loss, of its other versions, of other losses, of a training step, of the HTML report.

Without the name of a mode, `speed.py` measures the loss. Each row of the printed table is one of the results, which
`--output` adds to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import edgeloss
from measure import INSTRUCTIONS, processor
from parsers import Option, make_parser
from result_table import Row, add_rows
from timing import losses, pages, peers, step, versions

EXAMPLES = """\
examples:
  python benchmarks/speed.py --masks ../shared/camvid/val/masks --threads 2              # the table of cases
  python benchmarks/speed.py --cliffs                                                    # the expensive cases
  python benchmarks/speed.py --case "2 classes" binary --rounds 24
  python benchmarks/speed.py peers --masks ../shared/camvid/val/masks
  python benchmarks/speed.py step --masks ../shared/camvid/train/masks
  python benchmarks/speed.py pages --sizes 512x1024
  python benchmarks/speed.py versions ../edgeloss-0.3 --masks ../shared/camvid/val/masks --threads 2
"""
MODES = {"loss": losses, "peers": peers, "step": step, "pages": pages, "versions": versions}
NAMES = [case.name for cases in losses.CASES.values() for case in cases]
ADDED = {"action": "append_const", "dest": "groups"}
# The modes that take an option, its name, default, meaning, and kind.
OPTIONS: list[Option] = [
    ("loss peers step pages versions", "--threads", 1, "of the measured process", {"type": int}),
    ("loss", "--rounds", 12, "of a case with 16 million logits", {"type": int}),
    ("peers step", "--rounds", 10, "whose median counts", {"type": int}),
    ("versions", "other", None, "the source tree of another version", {"type": Path}),
    ("versions", "--rounds", 15, "whose median counts", {"type": int}),
    ("pages", "--rounds", 3, "times to open a page", {"type": int}),
    ("loss peers step pages versions", "--output", None, "add the figures to a table of results", {"type": Path}),
    (
        "loss peers step versions",
        "--masks",
        None,
        "folder of masks (*.png) to tile, not generated ones",
        {"type": Path},
    ),
    *(
        ("loss versions", f"--{group}", None, ", ".join(case.name for case in cases), {**ADDED, "const": group})
        for group, cases in losses.CASES.items()
    ),
    (
        "loss versions",
        "--case",
        None,
        "time these, of any group, not --table",
        {"nargs": "+", "choices": NAMES} | {"metavar": "NAME"},
    ),
    ("peers step", "--shape", [4, 11, 180, 240], "of the logits, B C H W", {"type": int, "nargs": 4}),
    ("pages", "--sizes", ["512x1024", "1024x2048", "4000x6000"], "of the images", {"nargs": "+"}),
    ("pages", "--classes", 19, "of the images", {"type": int}),
]


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    if words[:1] not in (["-h"], ["--help"]) and not {*words[:1]} & MODES.keys():
        words = ["loss", *words]
    modes = {name: str(module.__doc__) for name, module in MODES.items()}
    return make_parser(str(__doc__), EXAMPLES, modes, OPTIONS).parse_args(words)


def key_of(row: Row) -> str:
    """Return the key of a row in the table of results."""
    machine = [row["machine"].get(k) for k in ("processor", "instructions", "torch", "threads")]
    return json.dumps([row["case"], *machine])


def cell(value: Any) -> str:  # noqa: ANN401
    """Return a figure, or several of one kind, as text."""
    if isinstance(value, Mapping):
        return ", ".join(map(cell, value.values()))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mode that the command line names."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    machine = {"processor": processor(), "instructions": INSTRUCTIONS, "cores": os.cpu_count()}
    machine |= {"threads": options.threads, "torch": torch.__version__, "edgeloss": edgeloss.__version__}
    machine |= {name: version(name) for name in getattr(MODES[options.command], "LIBRARIES", ())}
    print(f"{', '.join(f'{key} {value}' for key, value in machine.items())}\n")
    heads: list[str] = []
    try:
        for row in MODES[options.command].run(options):
            if options.output:  # as they come: what a time limit ends keeps its results
                threads = row.get("threads", options.threads)
                add_rows(options.output, [{**row, "machine": machine | {"threads": threads}}], key_of)
            if not heads:
                heads = list(row)
                print(f"| {' | '.join(heads)} |\n|---|{'--:|' * (len(heads) - 1)}")
            print(f"| {' | '.join(cell(row[name]) for name in heads)} |", flush=True)
    except KeyboardInterrupt:
        print("speed.py: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
