"""The examples for frameworks run, on what they draw or on data/shapes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
# What frameworks warn of is theirs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_monai_volumes() -> None:
    pytest.importorskip("monai", reason="MONAI is not installed")
    assert runpy.run_path(str(FOLDER / "monai_volumes.py"))["main"]() > 0.5


def test_lightning_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    monkeypatch.chdir(tmp_path)
    trainer = runpy.run_path(str(FOLDER / "lightning_module.py"))["main"](epochs=2)
    assert trainer.callback_metrics["boundary_f1"] > 0.5
    assert trainer.lightning_module.criterion.counted_steps == 16  # not those of the validation
    assert "terms/other_side" in trainer.callback_metrics


def test_segformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    data = FOLDER.parents[1] / "data" / "shapes"
    words = ["--data", str(data), "--output", str(tmp_path), "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["segformer.py", *words])
    runpy.run_path(str(FOLDER / "segformer.py"), run_name="__main__")
    assert "eval_boundary_f1" in capfd.readouterr().out
