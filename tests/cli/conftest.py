"""Fixtures of the tests of the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import C, H, Ran, Run, W, half_logits, mask_array
from PIL import Image

from edgeloss import cli


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process."""

    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(int(stopped.value.code or 0), out, err)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A picture, its mask and a prediction: a.png, mask.png and pred.npy."""
    Image.fromarray(np.full((H, W, 3), 90, np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(mask_array()).save(tmp_path / "mask.png")
    np.save(tmp_path / "pred.npy", half_logits().numpy())
    return tmp_path


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """images/, masks/ and preds/ of three images; c has the highest edge loss, b the lowest."""
    for kind in ("images", "masks", "preds"):
        (tmp_path / kind).mkdir()
    truth = torch.from_numpy(mask_array()).long().clamp(max=C - 1)
    for name, gain in {"a": 2.0, "b": 4.0, "c": -4.0}.items():
        Image.fromarray(np.full((H, W), 90, np.uint8)).save(tmp_path / "images" / f"{name}.jpg")
        Image.fromarray(mask_array()).save(tmp_path / "masks" / f"{name}.png")
        logits = gain * torch.nn.functional.one_hot(truth, C).permute(2, 0, 1).float()
        torch.save(logits, tmp_path / "preds" / f"{name}.pt")
    return tmp_path
