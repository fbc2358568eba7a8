"""Start several ranks of ``torch.distributed`` in a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Forked processes need not import everything again, but can't use CUDA. The warning is that of Python 3.12.
START_METHOD = "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"
fork_warns = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def run_ranks(world: int, folder: Path, function: Callable[..., object], *arguments: Any) -> None:
    """Call ``function(rank, *arguments)`` in each of `world` ranks; they meet in a file of the folder."""
    mp.start_processes(_run, (world, folder, function, arguments), nprocs=world, start_method=START_METHOD)


def _run(rank: int, world: int, folder: Path, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    function(rank, *arguments)
    dist.destroy_process_group()
