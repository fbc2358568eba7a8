"""Processes of a process group, for tests of distributed runs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

# They are forked from one process that has imported these and run nothing, which spares each of them seconds;
# DistributedDataParallel imports torch._dynamo.
PRELOADED = ["pytest", "torch.distributed", "torch._dynamo", "torchmetrics", "edgeloss.functional", "edgeloss.metrics"]
multiprocessing.set_forkserver_preload(PRELOADED)


def run_ranks(function: Callable[..., None], world: int, *arguments: Any) -> None:
    """Call ``function(rank, *arguments)`` in as many processes, and wait for them."""
    mp.start_processes(function, arguments, nprocs=world, start_method="forkserver")
