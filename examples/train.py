#!/usr/bin/env python3
"""Train a compact U-Net with the edge-aware loss on a folder of images and masks, in one process or in several.

A run writes to its output folder: metrics.csv and metrics.json (loss terms, IoU per class, accuracy on and off the
edges), best.pt (by mean IoU) and last.pt, pictures of the loss maps in panels/, TensorBoard events in tensorboard/, and
report.html.
"""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch.distributed as dist
from omegaconf import OmegaConf
from rich.console import Console
from torch.distributed.elastic.multiprocessing.errors import record

from edgeloss.io import InputError
from segkit.checkpoint import CheckpointError
from segkit.config import Config, ConfigError, load_config
from segkit.distributed import process_group, rank
from segkit.guard import NonFiniteLossError
from segkit.loader import DataError
from segkit.placement import find_device
from segkit.run_files import locked_folder
from segkit.trainer import Trainer

EXAMPLES = """\
examples:
  python examples/train.py --config configs/shapes.yaml
  python examples/train.py --config configs/shapes.yaml output=runs/plain loss.edge_weight=0 loss.region_weight=0
  python examples/train.py --config configs/camvid.yaml epochs=3 data.workers=2
  python examples/train.py --config configs/camvid.yaml resume=auto   # resume an interrupted run
  torchrun --nproc_per_node=2 examples/train.py --config configs/camvid.yaml   # on two processes or GPUs
  tensorboard --logdir runs

keys and their defaults (??? marks required keys; configs/shapes.yaml explains each key):
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, train, and turn a user's error into one line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES + textwrap.indent(OmegaConf.to_yaml(OmegaConf.structured(Config)), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file, such as configs/shapes.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values that replace those of the file")
    options = parser.parse_intermixed_args(arguments)
    try:
        config = load_config(options.config, options.overrides)
        with process_group(find_device(config.device)) as device:
            console = Console(highlight=False, markup=False, soft_wrap=True, quiet=rank() != 0)
            with locked_folder(Path(config.output)) if rank() == 0 else nullcontext():
                return Trainer(config, console, device).run()
    except (CheckpointError, ConfigError, DataError, InputError, NonFiniteLossError, OSError) as error:
        if dist.is_torchelastic_launched():  # torchrun shows which process failed first, and why
            raise
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before or after the training loop, which stops in its own way
        print("train.py: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(record(main)())  # with torchrun, an error goes into its report
