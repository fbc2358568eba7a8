"""Gradient shares: groups of pixels, and gradients that are computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradient_shares
from gradient_shares import LOSSES, describe, gradients_of, groups_of, main, one_hot, thin
from quality.runs import loss_title

VOID = 255
CLASSES = ["sky", "pole", "road"]


def logits(probabilities: list[list[list[float]]]) -> Tensor:
    """Return logits [1, C, H, W] of probabilities [H][W][C]; log 0 becomes finite."""
    return torch.tensor(probabilities, dtype=torch.float64).log().clamp(min=-1e4).movedim(-1, 0)[None]


def described(x: Tensor, y: list[list[int]], powers: tuple[float, ...] = (1, 0, -1)) -> dict[str, dict[str, Any]]:
    target = torch.tensor([y])
    valid = target != VOID
    return describe(
        gradients_of(x, target, valid, VOID, powers),
        target,
        valid,
        groups_of(x, target, valid, VOID, CLASSES[: x.shape[1]]),
    )


def test_sides_reach_different_pixels() -> None:
    # p = 1/2 everywhere. E is the two pixels in the middle; S reads their outer neighbors, O each the other.
    rows = described(torch.zeros(1, 2, 1, 4), [[0, 0, 1, 1]], powers=(0,))
    assert rows["pixels"]["shares"]["distance"] == {"E": 0.5, "2 px": 0.5, "3-4 px": 0, "farther": 0}
    assert rows["CE"]["shares"]["distance"]["E"] == 0.5
    assert rows["CE|E"]["shares"]["distance"]["E"] == 1
    assert rows["CE|E"]["shares"]["class"] == {"sky": 0.5, "pole": 0.5}
    assert rows["S q=0"]["shares"]["distance"] == {"E": 0, "2 px": 1, "3-4 px": 0, "farther": 0}
    assert rows["O q=0"]["shares"]["distance"]["E"] == 1
    # Each pixel of CE has 2 (1 - p) / 4, each that S or O reads 2 (1 - p) / |E|.
    assert [rows[name]["strength"] for name in ("CE", "CE|E", "S q=0", "O q=0")] == pytest.approx([1, 1, 1, 1])
    assert [rows[name]["effective"] for name in ("CE", "CE|E", "S q=0", "O q=0")] == pytest.approx([2, 1, 1, 1])
    # Of two classes, what leaves the one across the edge goes to the own one, as CE asks for.
    assert rows["O q=0"]["cos_edge_ce"] == pytest.approx(1)
    assert rows["S q=0"]["cos_edge_ce"] == pytest.approx(0)
    assert rows["S q=0"]["cos_ce"] == pytest.approx(math.sqrt(0.5))
    # Every pixel gets 1 / 4 from CE, and 1 / 2 from S or from O; the control weighs 5 : 5 : 1 : 1.
    assert rows["edgeloss (edge_weight 2)"]["strength"] == pytest.approx(1 + 2 * (1 + 1))
    assert rows["edge-weighted CE"]["shares"]["distance"]["E"] == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("q", "share"),
    # π ∝ p^q: 0.95 : 0.3, 1 : 1 and 0.3 : 0.95; the gradient is 2 π (1 - p).
    [(1, 0.3 * 0.7 / (0.3 * 0.7 + 0.95 * 0.05)), (0, 0.7 / 0.75), (-1, 0.95 * 0.7 / (0.95 * 0.7 + 0.3 * 0.05))],
)
def test_power_chooses_among_right_and_wrong(q: float, share: float) -> None:
    # The middle left pixel has one neighbor of its class that is right and one that is wrong; all others are certain.
    rows = described(logits([[[0.95, 0.05], [0, 1]], [[1, 0], [0, 1]], [[0.3, 0.7], [0, 1]]]), [[0, 1]] * 3, (q,))
    state = rows[f"S q={q}"]["shares"]["state"]
    assert state["leak 3×3"] == pytest.approx(share)
    assert state["right, p > 0.9"] == pytest.approx(1 - share)


def test_other_side_pushes_other_classes_too() -> None:
    # O lowers class 0 at the right pixel, by p = 0.5, and raises the others as 0.2 : 0.3.
    rows = described(logits([[[1, 0, 0], [0.5, 0.2, 0.3]]]), [[0, 1]], powers=(0,))
    assert rows["O q=0"]["to_label"] == pytest.approx(0.4)
    assert rows["CE"]["to_label"] == pytest.approx(1)
    # (0.5, -0.2, -0.3) and (0.5, -0.8, 0.3)
    assert rows["O q=0"]["cos_ce"] == pytest.approx(0.32 / math.sqrt(0.38 * 0.98))
    assert rows["O q=0"]["strength"] == pytest.approx(1 / 1.6)
    assert rows["O q=0"]["shares"]["state"]["leak 3×3"] == pytest.approx(1)


def test_a_leak_is_a_label_nearby() -> None:
    # Label 1 at the left, and all other pixels predicted as it: 1 pixel next to it, 1 within 5×5, the others farther.
    shares = described(logits([[[0, 1.0]] * 6]), [[1, 0, 0, 0, 0, 0]])["pixels"]["shares"]
    expected = {"right, p > 0.9": 1, "right, unsure": 0, "leak 3×3": 1, "leak 5×5": 1, "third class": 3}
    assert shares["state"] == pytest.approx({name: count / 6 for name, count in expected.items()})
    assert shares["distance"] == pytest.approx({"E": 2 / 6, "2 px": 1 / 6, "3-4 px": 2 / 6, "farther": 1 / 6})


def test_thin_structures() -> None:
    # A pole of 4 × 10 pixels in sky over a road.
    y = torch.zeros(1, 16, 20, dtype=torch.int64)
    y[:, :10, 8:12] = 1
    y[:, 10:] = 2
    valid = torch.ones_like(y, dtype=torch.bool)
    slender = thin(one_hot(y, valid, 3), valid)
    assert torch.equal(slender[:, 1], y == 1)
    assert not slender[:, [0, 2]].any()
    structure = groups_of(torch.zeros(1, 3, 16, 20), y, valid, VOID, CLASSES)["structure"]
    assert {name: int(mask.sum()) for name, mask in structure.items()} == {
        "thin": 40,
        "next to thin": 2 * 10 + 6,  # sky on both sides, road below
        "long border": 2 * 20 - 4 - 6 - 2,  # without thin pixels and those next to them; 2 of sky are next to both
        "inside": 320 - 40 - 26 - 28,
    }
    # Void next to it might be of its class.
    y[:, :10, 12:] = VOID
    valid = y != VOID
    assert not thin(one_hot(y, valid, 3), valid).any()


def test_void_is_ignored() -> None:
    x = torch.randn(1, 3, 6, 6)
    y = torch.randint(3, (1, 6, 6))
    y[:, 2] = VOID
    valid = y != VOID
    for kind in groups_of(x, y, valid, VOID, CLASSES).values():
        assert torch.equal(torch.stack([*kind.values()]).sum(0), valid.long())  # each valid pixel in one group
    for gradient in gradients_of(x, y, valid, VOID, (1, 0, -1)).values():
        assert not gradient[:, :, 2].any()


def test_an_image_without_edges() -> None:
    rows = described(torch.zeros(1, 2, 3, 3), [[0] * 3] * 3)
    assert rows["S q=1"]["strength"] == 0
    assert rows["S q=1"]["shares"]["state"]["right, unsure"] == 0
    assert rows["CE"]["strength"] == 1


def test_command(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "shares.json"
    common = ["--data", str(shapes), "--state", str(tmp_path / "state"), "--output", str(output)]
    arguments = [*common, "--size", "16", "16", "--epochs", "2", "--powers", "1", "--stages"]
    assert main([*arguments, "2"]) == 0
    result = json.loads(output.read_text())
    assert result["machine"]["torch"] == torch.__version__
    assert [(stage["epoch"], stage["images"]) for stage in result["stages"]] == [(2, 2)]
    terms = result["stages"][0]["terms"]
    assert [*terms][:5] == ["pixels", "CE", "CE|E", "S q=1", "O q=1"]
    assert [*terms][5:] == [loss_title(name, options) for name, options in LOSSES]
    assert sum(terms["S q=1"]["shares"]["structure"].values()) == pytest.approx(1, abs=1e-3)
    printed = capsys.readouterr().out
    assert "| CE\\|E |" in printed

    monkeypatch.setattr(gradient_shares.Staged, "train_epoch", None)  # trained before: calling it would raise
    assert main([*arguments, "1", "2"]) == 0
    both = json.loads(output.read_text())["stages"]
    assert both[1] == result["stages"][0]
    assert both[0]["terms"] != both[1]["terms"]


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--stages", "0", "9"])
    assert "--stages: expected epochs from 1 to 8, but got [0, 9]" in capsys.readouterr().err
    assert main(["--data", str(tmp_path), "--state", str(tmp_path), "--output", str(tmp_path / "x.json")]) == 1
    assert capsys.readouterr().err.startswith("gradient_shares.py: ")
