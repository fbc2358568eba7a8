"""A short form of the fuzzing of files: some damaged files for each reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from files import READERS, damaged, failures, write_damaged


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    assert list(failures([name], range(12), tmp_path)) == []


@pytest.mark.parametrize("name", READERS)
def test_whole_files_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}{READERS[name].suffix}"
    READERS[name].write(path)
    for read in READERS[name].reads[:1]:
        read(path)


def test_damage_follows_from_the_seed(tmp_path: Path) -> None:
    content = bytes(range(200))
    different = {damaged(content, np.random.default_rng(seed)) for seed in range(20)}
    assert len(different) == 20
    found = []
    for _ in range(2):
        write_damaged("npy", 3, tmp_path / "a.npy")
        found.append((tmp_path / "a.npy").read_bytes())
    assert found[0] == found[1]


def test_what_is_no_error_of_a_reader_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise IndexError(path)

    monkeypatch.setitem(READERS, "npy", READERS["npy"]._replace(reads=(fails,)))
    (failure,) = failures(["npy"], range(1), tmp_path)
    assert failure.startswith("npy, seed 0, reader 0: Traceback")
