#!/usr/bin/env python3
"""Measure time and memory: of the loss, of other losses, of a training step, of the HTML report.

Without the name of a mode, `speed.py` measures the loss. Each row of the printed table is one of the results, which
`--output` adds to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from measure import INSTRUCTIONS, processor
from result_table import Row, add_rows
from timing import losses, pages, peers, step

EXAMPLES = """\
examples:
  python benchmarks/speed.py --masks ../shared/camvid/val/masks --threads 2              # the table of cases
  python benchmarks/speed.py --cliffs                                                    # the expensive cases
  python benchmarks/speed.py --case "2 classes" binary --rounds 24
  python benchmarks/speed.py peers --masks ../shared/camvid/val/masks
  python benchmarks/speed.py step --masks ../shared/camvid/train/masks
  python benchmarks/speed.py pages --sizes 512x1024
"""
MODES = {"loss": losses, "peers": peers, "step": step, "pages": pages}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    if words[:1] not in (["-h"], ["--help"]) and not {*words[:1]} & MODES.keys():
        words = ["loss", *words]
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=raw)
    modes = parser.add_subparsers(dest="mode", required=True)
    for name, module in MODES.items():
        about = str(module.__doc__)
        mode = modes.add_parser(name, description=about, help=about.splitlines()[0], formatter_class=raw)
        mode.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
        mode.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")
        mode.add_argument("--output", type=Path, metavar="FILE.jsonl", help="add the figures to a table of results")
        if module is not pages:
            about = "label masks to tile, *.png (default: generated)"
            mode.add_argument("--masks", type=Path, metavar="DIR", help=about)
        module.add_options(mode)
    return parser.parse_args(words)


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
    machine |= {"threads": options.threads, "torch": torch.__version__}
    print(f"{', '.join(f'{key} {value}' for key, value in machine.items())}\n")
    heads: list[str] = []
    try:
        for row in MODES[options.mode].run(options):
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
