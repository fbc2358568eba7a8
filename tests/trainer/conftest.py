"""Fixtures of the tests of data sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_masks import blocks, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three pairs, 60 × 80."""
    for name in ("a", "b", "c"):
        save(tmp_path, name, blocks())
    return tmp_path
