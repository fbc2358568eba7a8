"""The command ``view`` on one image: what it draws and what it notes."""

from __future__ import annotations

import json
import re
import webbrowser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from command_line import C, H, Run, W, arguments, half_logits, mask_array, wrote
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss, io
from edgeloss.cli import pages
from edgeloss.viz import compute_arrays
from edgeloss.viz.drawing import TextFigure


class Drawn(NamedTuple):
    """What a panel would show."""

    logits: Tensor
    target: Tensor
    criterion: EdgeAwareLoss
    image: Tensor | None
    names: list[str] | None
    palette: list[io.Rgb] | None
    title: str
    options: dict[str, Any]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """Record the panels that would be drawn; test_view_writes_the_format_of_the_suffix draws them."""
    calls: list[Drawn] = []
    examine, read_look = pages.examine_images, pages.read_look
    given: list[Any] = []

    def note_tensors(*tensors: Any, **options: Any) -> Any:
        given[:] = tensors
        return examine(*tensors, **options)

    def note_look(arrays: Any, *look: Any) -> Any:
        given.extend(look)
        return read_look(arrays, *look)

    def note(arrays: Any, look: Any, **options: Any) -> TextFigure:
        calls.append(Drawn(*given, options))
        return TextFigure(figsize=(1, 1))

    monkeypatch.setattr(pages, "examine_images", note_tensors)
    monkeypatch.setattr(pages, "read_look", note_look)
    monkeypatch.setattr(pages, "draw_panel", note)
    return calls


def test_view_draws_the_panel(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    output = folder / "panel.png"
    loss = ["--radius", 2, "--decay", 1.5, "--power", -1, "--same-side-weight", 0.25]
    loss += ["--terms", "--no-contours", "--width", 3.3]
    ran = run("view", *arguments(folder), "--image", folder / "a.png", "-o", output, *loss)
    assert (ran.code, ran.out) == (0, "")
    assert re.fullmatch(wrote(output), ran.err)
    assert output.read_bytes().startswith(b"\x89PNG")
    (call,) = drawn
    assert torch.equal(call.logits[0], half_logits())
    assert torch.equal(call.target[0], torch.from_numpy(mask_array()).long())
    assert call.image is not None
    assert call.image.shape == (1, 3, H, W)
    assert call.title == "pred: logits of 12 × 16 pixels, upsampled"
    assert {name: call.options[name] for name in ("terms", "contours", "width")} == {
        "terms": True,
        "contours": False,
        "width": 3.3,
    }
    criterion = call.criterion
    assert (criterion.radius, criterion.decay, criterion.power, criterion.same_side_weight) == (2, 1.5, -1.0, 0.25)
    assert (criterion.ignore_index, criterion.upsample) == (255, True)


def test_the_loss_has_its_defaults(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    run("view", *arguments(folder), "-o", folder / "panel.png")
    options = drawn[0].options
    assert drawn[0].criterion.options() == EdgeAwareLoss(ignore_index=255, upsample=True).options()
    assert {name: options[name] for name in ("terms", "contours", "width")} == {
        "terms": False,
        "contours": True,
        "width": None,
    }


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_view_writes_the_format_of_the_suffix(run: Run, folder: Path, suffix: str) -> None:
    output = folder / f"panel.{suffix}"
    assert run("view", *arguments(folder), "-o", output, "--dpi", 40, "--width", 3.3).code == 0
    assert output.read_bytes().startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix])
    assert suffix != "svg" or 'width="237.6pt"' in output.read_text("utf-8")


def test_names_and_colors_come_from_files(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    (folder / "classes.txt").write_text("0 ground\n1 $box^$\n\n2 _bar\n9 void\n")
    (folder / "colors.txt").write_text("0 1 2 3 ground\n2,#0a0B0c\n1, 255, 0, 9\n255 0 0 0 void\n")
    mask = mask_array()
    mask[mask == 255] = 9
    Image.fromarray(mask).save(folder / "mask.png")
    options = ["--classes", folder / "classes.txt", "--palette", folder / "colors.txt"]
    assert run("view", *arguments(folder), "-o", folder / "panel.png", *options).code == 0
    (call,) = drawn
    assert call.names == ["ground", "$box^$", "_bar"]
    assert call.palette == [(1, 2, 3), (255, 0, 9), (10, 11, 12)]
    assert call.criterion.ignore_index == 9


BINARY = np.where(mask_array() == 1, 255, 0).astype(np.uint8)
NOT_FINITE = half_logits()
NOT_FINITE[0, 3, 4], NOT_FINITE[1, 3, 4] = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("mask", "logits", "note"),
    [
        (mask_array(), NOT_FINITE, "pred.npy: 2 of 576 values are not finite"),
        (BINARY, half_logits()[:1], "mask.png: holds only 0 and 255, which is ignored; for class 1, --remap 255:1"),
        (np.full((H, W), 255, np.uint8), half_logits(), "have the label 255, which is ignored: no loss, no score"),
    ],
)
@pytest.mark.usefixtures("drawn")
def test_notes_what_is_odd(run: Run, folder: Path, mask: Any, logits: Tensor, note: str) -> None:
    Image.fromarray(mask).save(folder / "mask.png")
    np.save(folder / "pred.npy", logits.numpy())
    ran = run("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran.code == 0
    assert ran.err.startswith("edgeloss: note: ")
    assert f"{note}\n" in ran.err
    assert (folder / "panel.png").exists()
    if mask is BINARY:
        ran = run("view", *arguments(folder), "-o", folder / "panel.png", "--remap", "255:1")
        assert re.fullmatch(wrote(folder / "panel.png"), ran.err)


def test_view_writes_a_report(run: Run, folder: Path) -> None:
    (folder / "<b>$x$.npy").write_bytes((folder / "pred.npy").read_bytes())
    assert run("view", *arguments(folder, "<b>$x$.npy"), "-o", folder / "report.html").code == 0
    page = (folder / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;$x$: logits of 12 × 16 pixels, upsampled" in page
    assert "<b>$x$" not in page


def test_creates_the_folder_and_prints_figures(run: Run, folder: Path) -> None:
    output = folder / "new" / "pages" / "panel.png"
    ran = run("view", *arguments(folder), "-o", output, "--dpi", 20, "--json")
    figures = json.loads(ran.out)
    assert (figures["page"], figures["bytes"]) == (str(output), output.stat().st_size)
    assert 0 <= figures["mean_iou"] <= 1
    assert list(figures["iou"]) == ["0", "1", "2"]
    assert all(figures[name] == float(f"{figures[name]:.6g}") for name in ("edge", "cross_entropy"))
    assert re.fullmatch(wrote(output), ran.err)


@pytest.mark.parametrize("has_browser", [True, False])
@pytest.mark.usefixtures("drawn")
def test_opens_the_page(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, has_browser: bool) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or has_browser)
    ran = run("view", *arguments(folder), "-o", folder / "panel.png", "--open")
    assert ran.code == 0
    assert opened == [(folder / "panel.png").as_uri()]
    assert ("no browser found" in ran.err) == (not has_browser)


def test_reads_colors_and_named_arrays(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    colors = io.read_palette("voc")
    mask = np.array([[colors[label] for label in row] for row in mask_array().tolist()], np.uint8)
    Image.fromarray(mask).save(folder / "mask.png")
    np.savez(folder / "both.npz", first=half_logits(1).numpy(), second=half_logits(2).numpy())
    options = ["--palette", "voc", "--key", "second"]
    assert run("view", *arguments(folder, "both.npz"), "-o", folder / "panel.png", *options).code == 0
    (call,) = drawn
    assert torch.equal(call.target[0], torch.from_numpy(mask_array()).long())
    assert torch.equal(call.logits[0], half_logits(2))
    assert call.palette == [colors[c] for c in range(C)]


def test_view_metrics_and_diagnose_take_a_region(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    mask = np.stack([mask_array() == 1, mask_array() >= 1, mask_array() >= 2]).astype(np.uint8)
    np.save(folder / "mask.npy", mask)
    files = ["--pred", folder / "pred.npy", "--mask", folder / "mask.npy", "--region", 1]
    assert run("view", *files, "-o", folder / "p.png").code == 0
    (call,) = drawn
    assert torch.equal(call.logits, half_logits()[None, 1:2])
    assert torch.equal(call.target[0], torch.from_numpy(mask[1]).long())
    assert call.names == ["other", "1"]
    ran = run("metrics", *files, "--json", "--classes", 3)
    assert ran.code == 0, ran.err
    expected = compute_arrays(half_logits()[None, 1:2], call.target, EdgeAwareLoss(upsample=True)).prediction
    right = float(((expected == 1) & (mask[1:2] == 1)).sum() / ((expected == 1) | (mask[1:2] == 1)).sum())
    assert right == pytest.approx(json.loads(ran.out)["classes"]["1"]["iou"], rel=1e-5)
    ran = run("diagnose", *files, "--json")
    assert ran.code == 0, ran.err
