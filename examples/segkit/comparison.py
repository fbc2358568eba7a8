"""What is read of several runs to compare them."""

from __future__ import annotations

import json
from pathlib import Path

from edgeloss.integrations.run_page import Row
from edgeloss.io import check_file


def read_history(folder: Path) -> list[Row]:
    """Read the figures of each epoch of a run.

    Raises:
        ValueError: if the folder has no metrics of a run.
    """
    path = folder / "metrics.json"
    check_file(path)
    try:
        epochs: list[Row] = json.loads(path.read_text(encoding="utf-8"))["epochs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected the metrics of a run, but got an error ({error})") from error
    return epochs
