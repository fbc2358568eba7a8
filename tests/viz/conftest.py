"""Fixtures of the tests of figures and reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_page import Opened, Page

from edgeloss.viz import report


@pytest.fixture
def opened(browse: Callable[[Path], Any], tmp_path: Path) -> Opened:
    """Write a report and open it."""

    def open_page(*arguments: Any, **options: Any) -> Page:
        path = tmp_path / "a report #1?.html"
        path.write_text(report(*arguments, **options), encoding="utf-8")
        return Page(browse(path))

    return open_page
