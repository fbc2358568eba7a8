"""The minimal training loop, run as a user does."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from small_data import write_config

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_minimal.py"


@pytest.mark.parametrize("data", [None, pytest.param(ROOT / "data" / "shapes", marks=pytest.mark.slow)])
def test_it_learns_on_a_folder(
    data: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if data is None:
        write_config(tmp_path)
    epochs = 25 if data is None else 2
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--data", str(data or tmp_path), "--epochs", str(epochs)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    pattern = r"epoch (\d+)/(\d+)  loss (\d+\.\d+)  boundary F1 \(1 px\) (\d+\.\d)%"
    epoch, total, losses, scores = zip(*(re.fullmatch(pattern, line).groups() for line in lines), strict=True)
    assert [*epoch] == [str(number) for number in range(1, epochs + 1)]
    assert {*total} == {str(epochs)}
    assert float(losses[-1]) < (0.4 if data is None else 1) * float(losses[0])
    assert float(scores[-1]) > (60 if data is None else 0)


def test_it_is_short() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 80
