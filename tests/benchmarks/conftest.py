"""Data and places for small trainings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sample_results import PLAN

from quality.runs import Place, Run, runs_of
from quality.training import finish

SHAPES = Path(__file__).parents[2] / "data" / "shapes"


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy some of the shapes: 10 images to train on and 3 to score."""
    root = tmp_path_factory.mktemp("benchmarks") / "shapes"
    for split, count in {"train": 10, "val": 3}.items():
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
            for path in sorted((SHAPES / split / kind).iterdir())[:count]:
                shutil.copy(path, root / split / kind)
    shutil.copy(SHAPES / "classes.txt", root)
    return root


@pytest.fixture
def place(shapes: Path, tmp_path: Path) -> Place:
    return Place(shapes.parent, tmp_path / "results.jsonl", tmp_path / "state")


@pytest.fixture(scope="session")
def trained(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, list[Run]]:
    """Train the two runs of PLAN."""
    folder = tmp_path_factory.mktemp("trained")
    place, runs = Place(shapes.parent, folder / "results.jsonl", folder / "state"), runs_of(PLAN)
    for run in runs:
        finish(run, place)
    return place, runs
