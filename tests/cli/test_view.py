"""The command ``view`` on one image: what it draws and what it notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from command_line import H, Run, W, arguments, half_logits, mask_array
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss, viz


class Drawn(NamedTuple):
    """The arguments of a panel."""

    logits: Tensor
    target: Tensor
    options: dict[str, Any]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """Record the panels that are drawn."""
    calls: list[Drawn] = []
    panel = viz.panel

    def spy(logits: Tensor, target: Tensor, **options: Any) -> Any:
        calls.append(Drawn(logits, target, options))
        return panel(logits, target, **options)

    monkeypatch.setattr(viz, "panel", spy)
    return calls


def test_view_draws_the_panel(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    output = folder / "panel.png"
    loss = ["--radius", 2, "--decay", 1.5, "--power", -1, "--same-side-weight", 0.25, "--false-edge-weight", 0.5]
    assert run("view", *arguments(folder), "--image", folder / "a.png", "-o", output, "--terms", *loss) == (0, "", "")
    assert output.read_bytes().startswith(b"\x89PNG")
    (call,) = drawn
    assert torch.equal(call.logits[0], half_logits())
    assert torch.equal(call.target[0], torch.from_numpy(mask_array()).long())
    assert call.options["image"].shape == (1, 3, H, W)
    assert call.options["title"] == "pred: logits of 12 × 16 pixels, upsampled"
    assert call.options["terms"] is True
    criterion = call.options["criterion"]
    assert (criterion.radius, criterion.decay, criterion.power, criterion.same_side_weight) == (2, 1.5, -1.0, 0.25)
    assert criterion.false_edge_weight == 0.5
    assert (criterion.ignore_index, criterion.upsample) == (255, True)


def test_the_loss_has_its_defaults(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    run("view", *arguments(folder), "-o", folder / "panel.png")
    criterion = drawn[0].options["criterion"]
    assert criterion.options() == EdgeAwareLoss(ignore_index=255, upsample=True).options()


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_view_writes_the_format_of_the_suffix(run: Run, folder: Path, suffix: str) -> None:
    output = folder / f"panel.{suffix}"
    assert run("view", *arguments(folder), "-o", output, "--dpi", 40).code == 0
    assert output.read_bytes().startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix])


def test_names_and_colors_come_from_files(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    (folder / "classes.txt").write_text("0 ground\n1 $box^$\n\n2 _bar\n9 void\n")
    (folder / "colors.txt").write_text("0 1 2 3 ground\n2,#0a0B0c\n1, 255, 0, 9\n255 0 0 0 void\n")
    mask = mask_array()
    mask[mask == 255] = 9
    Image.fromarray(mask).save(folder / "mask.png")
    options = ["--classes", folder / "classes.txt", "--palette", folder / "colors.txt"]
    assert run("view", *arguments(folder), "-o", folder / "panel.png", *options) == (0, "", "")
    (call,) = drawn
    assert call.options["class_names"] == ["ground", "$box^$", "_bar"]
    assert call.options["palette"] == [(1, 2, 3), (255, 0, 9), (10, 11, 12)]
    assert call.options["criterion"].ignore_index == 9


def test_notes_non_finite_values_and_draws_them(run: Run, folder: Path) -> None:
    logits = half_logits()
    logits[0, 3, 4], logits[1, 3, 4] = float("nan"), float("inf")
    np.save(folder / "pred.npy", logits.numpy())
    ran = run("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran == (0, "", f"edgeloss: note: {folder / 'pred.npy'}: 2 of 576 values are not finite\n")
    assert (folder / "panel.png").exists()


def test_notes_a_binary_mask_whose_class_1_is_void(run: Run, folder: Path) -> None:
    Image.fromarray(np.where(mask_array() == 1, 255, 0).astype(np.uint8)).save(folder / "mask.png")
    np.save(folder / "pred.npy", half_logits()[:1].numpy())
    ran = run("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran.code == 0
    assert ran.err.endswith("mask.png: holds only 0 and 255, which is ignored; store class 1 as 1\n")


def test_view_writes_a_report(run: Run, folder: Path) -> None:
    (folder / "<b>$x$.npy").write_bytes((folder / "pred.npy").read_bytes())
    assert run("view", *arguments(folder, "<b>$x$.npy"), "-o", folder / "report.html") == (0, "", "")
    page = (folder / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;$x$: logits of 12 × 16 pixels, upsampled" in page
    assert "<b>$x$" not in page
