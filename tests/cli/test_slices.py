"""Volumes: slices of them, and what is said without."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Run

SHAPE = (6, 20, 24)


@pytest.fixture
def volume(tmp_path: Path) -> list[object]:
    """Labels, logits and gray values of a volume, whose slices 2 to 4 have a box."""
    labels = np.zeros(SHAPE, np.uint8)
    labels[2:5, 5:12, 6:18] = 1
    logits = np.eye(2, dtype=np.float32)[labels].transpose(3, 0, 1, 2) * 4
    logits[:, 3, 0, 0] = [0, 9]  # one wrong pixel
    np.save(tmp_path / "pred.npy", logits)
    np.savez(tmp_path / "data.npz", image=np.arange(np.prod(SHAPE)).reshape(SHAPE), label=labels)
    return ["--pred", tmp_path / "pred.npy", "--mask", tmp_path / "data.npz"]


def test_a_slice_is_an_image(run: Run, tmp_path: Path, volume: list[object]) -> None:
    ran = run("view", *volume, "--image", tmp_path / "data.npz", "--slice", 3, "-o", tmp_path / "p.svg", "--json")
    assert ran.code == 0, ran.err
    assert 1 > json.loads(ran.out)["pixel_accuracy"] > 0.99
    assert "slice 3" in json.loads(ran.out)["prediction"]
    assert "pred: logits, slice 3" in (tmp_path / "p.svg").read_text("utf-8")


def test_a_report_has_several_slices_by_name(run: Run, tmp_path: Path, volume: list[object]) -> None:
    assert run("view", *volume, "--slice", "2-4", "-o", tmp_path / "r.html").code == 0
    page = (tmp_path / "r.html").read_text("utf-8")
    assert [name in page for name in ('"slice 1"', '"slice 2"', '"slice 3"', '"slice 4"', '"slice 5"')] == [
        False,
        *3 * [True],
        False,
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [],
            "but got float32 [2, 6, 20, 24]; of a volume [C, D, H, W], with labels [D, H, W], take slice N along D by",
        ),
        (["--slice", "6"], "expected a volume [..., D, H, W] with slice 6 along D, but got [2, 6, 20, 24]"),
        (["--slice", "4-2"], "--slice: expected N or FIRST-LAST, but got '4-2'"),
    ],
)
def test_what_is_no_slice_is_said(
    run: Run, tmp_path: Path, volume: list[object], words: list[str], message: str
) -> None:
    ran = run("view", *volume, *words, "-o", tmp_path / "p.png")
    assert ran.code == 2
    assert message in ran.err
