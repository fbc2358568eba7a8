"""The command ``diagnose``: its output and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from command_line import C, H, Run, W, arguments


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
    assert ran.err == f"edgeloss: note: {folder / 'pred.npy'}: 1 of {C * H * W} values are not finite\n"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    ran = run("diagnose", *arguments(folder), "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["ok"] is False


def test_diagnose_takes_one_image(run: Run, folders: Path) -> None:
    ran = run("diagnose", "--pred", folders / "preds", "--mask", folders / "masks")
    assert ran.code == 2
    assert ran.err == f"edgeloss: error: {folders / 'preds'}: expected the file of one image, but got a folder\n"
