"""Tables of results: rows are sorted, unique, and safe from other processes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from result_table import Row, add_rows, read_rows


def name_of(row: Row) -> str:
    return row["name"]


def add_twenty(path: Path, worker: int) -> None:
    for n in range(20):
        add_rows(path, [{"name": f"{worker}-{n:02}"}], name_of)


def test_rows_are_sorted_and_unique(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.jsonl"
    assert read_rows(path) == []
    add_rows(path, [{"name": "b", "value": 0.1}, {"name": "a", "value": None}], name_of)
    add_rows(path, [{"name": "b", "value": 1 / 3}], name_of)
    assert read_rows(path) == [{"name": "a", "value": None}, {"name": "b", "value": 1 / 3}]
    assert [file.name for file in path.parent.iterdir()] == ["table.jsonl"]


def test_processes_add_at_once(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        list(pool.map(add_twenty, repeat(path), range(2)))
    assert [row["name"] for row in read_rows(path)] == [f"{worker}-{n:02}" for worker in range(2) for n in range(20)]
