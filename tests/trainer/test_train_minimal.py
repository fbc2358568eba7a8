"""The minimal training loop, run as a user does."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from small_run import write_config

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_minimal.py"


def losses_and_scores(output: str, epochs: int) -> tuple[list[float], list[float]]:
    """Return the loss and the score in percent of each epoch."""
    lines = output.splitlines()
    pattern = r"epoch (\d+)/(\d+)  loss (\d+\.\d+)  boundary F1 \(1 px\) (\d+\.\d)%"
    values = [match.groups() for line in lines if (match := re.fullmatch(pattern, line))]
    assert [(epoch, total) for epoch, total, *_ in values] == [(str(i + 1), str(epochs)) for i in range(epochs)], output
    assert len(lines) == epochs, output
    return [float(loss) for *_, loss, _ in values], [float(score) for *_, score in values]


def test_it_learns_on_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--data", str(tmp_path), "--epochs", "25"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    losses, scores = losses_and_scores(capsys.readouterr().out, 25)
    assert losses[-1] < 0.4 * losses[0]
    assert scores[-1] > 60


@pytest.mark.slow
def test_it_runs_on_the_generated_images(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--epochs", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    (loss,), (score,) = losses_and_scores(capsys.readouterr().out, 1)
    assert 0 < loss < 10
    assert score > 0


def test_it_is_short() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 80
