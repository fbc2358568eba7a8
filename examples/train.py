#!/usr/bin/env python3
"""Train a compact U-Net with the edge-aware loss on a folder of images and masks, on one device or on many.

The trainer is Lightning's: `fit --help` has its options with those of model and data, `fit --model.loss.help` those of
the loss, and --print_config all of them.

    python examples/train.py fit --config configs/shapes.yaml
    python examples/train.py fit --config configs/shapes.yaml --trainer.max_epochs=3 --model.loss.edge_weight=2
    python examples/train.py fit --config configs/camvid.yaml --ckpt_path=last   # continue an interrupted run
    python examples/train.py fit --config configs/camvid.yaml --trainer.devices=2

Exit codes: 0 success, 1 an error, 2 a wrong command line, 130 and 143 interrupted by Ctrl-C and by SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from multiprocessing import active_children


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and turn a user's error into one line."""
    if isinstance(sys.stdout, TextIOWrapper):  # a console may have no character for the name of a class
        sys.stdout.reconfigure(errors="replace")
    try:
        from segkit.run import run  # here, since its import takes seconds, which can be interrupted too

        run(None if arguments is None else list(arguments))
    except (FloatingPointError, OSError, ValueError) as error:
        print("train.py:", " ".join(str(error).splitlines()), file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning turns Ctrl-C into exit code 1.
        if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__context__)):
            raise
        for process in active_children():  # those of ddp_fork, which may not have got the signal
            process.terminate()
        print("train.py: interrupted; continue by the same command with --ckpt_path=last", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
