"""The command ``diagnose``: its output and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import C, H, Run, W, arguments

from edgeloss.debug import Report


def test_diagnose_succeeds_on_finite_values(run: Run, folder: Path) -> None:
    np.save(folder / "pred.npy", torch.randn(C, H, W).numpy())
    ran = run("diagnose", *arguments(folder))
    assert ran.code == 0
    assert ran.out.startswith("diagnose(EdgeAwareLoss)")
    ran = run("diagnose", *arguments(folder), "--json", "--power", 0)
    assert ran.code == 0
    assert json.loads(ran.out)["ok"] is True


def test_diagnose_fails_on_non_finite_values(run: Run, folder: Path) -> None:
    logits = torch.randn(C, H, W)
    logits[1, 3, 4] = float("nan")
    np.save(folder / "pred.npy", logits.numpy())
    ran = run("diagnose", *arguments(folder), "--figure", folder / "figure.png")
    assert ran.code == 1
    assert "first at [0, 1, 3, 4]" in ran.out
    assert ran.err.startswith(f"edgeloss: note: {folder / 'pred.npy'}: 1 of {C * H * W} values are not finite\n")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    ran = run("diagnose", *arguments(folder), "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["ok"] is False


def test_diagnose_takes_folders(run: Run, folders: Path) -> None:
    source = ["diagnose", "--pred", folders / "preds", "--mask", folders / "masks"]
    ran = run(*source)
    assert ran.code == 0
    assert ran.out.count("diagnose(EdgeAwareLoss)") == 3
    assert ran.out.endswith("3 images; not finite: none\n")
    torch.save(torch.full((C, H, W), float("nan")), folders / "preds" / "b.pt")
    ran = run(*source, "--json", "--figure", folders / "figures")
    assert ran.code == 1
    diagnoses = json.loads(ran.out)
    assert diagnoses["ok"] is False
    assert {name: one["ok"] for name, one in diagnoses["images"].items()} == {"a": True, "b": False, "c": True}
    assert sorted(path.name for path in (folders / "figures").iterdir()) == ["a.png", "b.png", "c.png"]


def test_the_figure_shows_where_a_column_is_nan(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole image, over which the region term spreads it."""
    logits = torch.randn(C, H, W)
    logits[:, :, 7] = float("nan")
    np.save(folder / "pred.npy", logits.numpy())
    drawn = []
    figure = Report.figure
    monkeypatch.setattr(Report, "figure", lambda self: drawn.append(self) or figure(self))
    assert run("diagnose", *arguments(folder), "--figure", folder / "figure.png").code == 1
    (shown,) = drawn
    assert shown.gradient is not None
    assert "without the region term" in shown.name
    assert (~shown.gradient.isfinite()).any(1)[0].any(0).nonzero().flatten().tolist() == [7]
