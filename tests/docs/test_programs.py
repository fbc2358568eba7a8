"""The programs in the documents run: the blocks that are no sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import DOCUMENTS, blocks, name_of
from torch import nn

from edgeloss import EdgeAwareLoss, metrics


def programs(document: Path) -> list[str]:
    """Return the blocks of Python without the prompts of a session."""
    return [block for block in blocks(document, "python") if not block.startswith(">>> ")]


def stand_ins(folder: Path) -> dict[str, Any]:
    """Return what the programs expect of their readers: data, a model, and names that an earlier section imports."""
    labels = torch.zeros(2, 24, 32, dtype=torch.long)
    labels[:, 4:20, 8:24], labels[:, 10:12], labels[:, :2] = 1, 2, 255
    images, model = torch.rand(2, 3, 24, 32), nn.Conv2d(3, 11, 3, padding=1)
    loader = [(images, labels)]
    (folder / "train").mkdir()
    (folder / "classes.txt").write_text("0 background\n1 body\n2 head\n")
    volume = np.random.default_rng(0).normal(size=(40, 50, 40)).astype(np.float32)
    np.savez(folder / "train" / "a.npz", image=volume, label=(volume > 1).astype(np.uint8), spacing=[2.0, 1.0, 1.0])
    return {
        "EdgeAwareLoss": EdgeAwareLoss,
        "BoundaryF1": metrics.BoundaryF1,
        "device": "cpu",
        "loader": loader,
        "train_loader": loader,
        "images": images,
        "labels": labels,
        "model": model,
        "logits": model(images).detach(),
        "step": 0,
    }


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if programs(document)], ids=name_of)
def test_programs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = stand_ins(tmp_path)
    if any("writer" in program for program in programs(document)):
        tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard is not installed")
        names["writer"] = tensorboard.SummaryWriter(tmp_path)
    try:
        for program in programs(document):
            exec(compile(program, name_of(document), "exec"), names)
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("edgeloss"):
            raise
        pytest.skip(f"{missing.name} is not installed")
