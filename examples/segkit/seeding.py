"""Seeds of the random number generators, in the training process and in the workers of a loader."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info


def seed_everything(seed: int, *position: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch.

    Called before each step with the position of the step, it makes what the step draws, such as the masks of a dropout,
    independent of everything that ran before: a resumed run needs no state of any generator.

    Args:
        seed: the seed, ≥ 0.
        position: further numbers ≥ 0; each combination gives another seed.
    """
    if position:
        seed = int(np.random.SeedSequence((seed, *position)).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_worker(worker: int) -> None:
    """Seed the global generators of a loader's worker; a ``worker_init_fn``.

    The samples of a `SegmentationDataset` need none of them. Anything else that draws from them in a worker then
    depends on the worker and on the data set's seed and epoch, and not on what the main process has drawn before.

    Args:
        worker: the number of the worker.
    """
    info = get_worker_info()
    assert info is not None, "not a loader's worker"
    dataset: Any = info.dataset
    sequence = np.random.SeedSequence((dataset.seed, dataset.epoch), spawn_key=(worker,))
    python, numpy, pytorch = sequence.generate_state(3).tolist()
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(pytorch)
