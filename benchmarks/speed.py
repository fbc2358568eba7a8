#!/usr/bin/env python3
"""Measure time and memory: of the loss, of a training step, of the metrics, of the HTML report.

Without the name of a mode, `speed.py` measures the loss.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from timing import losses, metrics, pages, step

EXAMPLES = """\
examples:
  python benchmarks/speed.py --masks ../shared/camvid/val/masks --threads 2              # the table of cases
  python benchmarks/speed.py --cliffs                                                    # the expensive cases
  python benchmarks/speed.py --case "2 classes" binary --rounds 24 --all
  python benchmarks/speed.py step --masks ../shared/camvid/train/masks
  python benchmarks/speed.py metrics --masks ../shared/camvid/val/masks --classes 11 --threads 2
  python benchmarks/speed.py pages --sizes 512x1024
"""
MODES = {"loss": losses, "step": step, "metrics": metrics, "pages": pages}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mode that the command line names."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    if words[:1] not in (["-h"], ["--help"]) and not {*words[:1]} & MODES.keys():
        words.insert(0, "loss")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=raw)
    modes = parser.add_subparsers(dest="mode", required=True)
    for name, module in MODES.items():
        about = str(module.__doc__)
        module.add_options(modes.add_parser(name, description=about, help=about.splitlines()[0], formatter_class=raw))
    options = parser.parse_args(words)
    try:
        MODES[options.mode].run(options)
    except KeyboardInterrupt:
        print("speed.py: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
