"""Fixtures of the tests of data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_masks import blocks, save, save_volume


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three pairs, 60 × 80, and of three volumes, 5 × 8 × 6, each with the same content."""
    for name in ("a", "b", "c"):
        save(tmp_path, name, blocks())
    for name in ("v0", "v1", "v2"):
        save_volume(tmp_path, name, np.random.default_rng(0).integers(0, 3, (5, 8, 6)))
    return tmp_path
