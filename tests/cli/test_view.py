"""The command ``view`` on one image, and on slices of a volume: what it draws and what it notes."""

from __future__ import annotations

import json
import re
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import H, Run, W, arguments, half_logits, mask_array, options, wrote
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.cli.cases import Reader
from edgeloss.viz import compute_arrays

PALE = ["--dpi", 20]  # which is quicker


def test_view_draws_the_panel(run: Run, folder: Path) -> None:
    command = ["view", *arguments(folder), "--image", folder / "a.png", "-o", folder / "panel.svg", *PALE]
    shown = []
    for more in ([], ["--no-contours"], ["--terms", "--width", 3.3]):
        ran = run(*command, *more)
        assert (ran.code, ran.out) == (0, "")
        assert re.fullmatch(wrote(folder / "panel.svg"), ran.err)
        shown.append((folder / "panel.svg").read_text("utf-8"))
    assert all(
        "right, from logits of 16 × 12 pixels<" in one.replace("\xa0", " ") and f"{W} × {H} pixels" in one
        for one in shown
    )
    assert ["same side" in one for one in shown] == [False, False, True]
    assert ['width="237.6pt"' in one for one in shown] == [False, False, True]
    assert shown[0].count("<image") > shown[1].count("<image")  # borders are images, too


def test_the_loss_has_the_options_and_defaults_of_the_library(folder: Path) -> None:
    files = folder / "pred.npy", folder / "mask.png"
    given = ["--radius", 2, "--decay", 1.5, "--power", -1, "--same-side-weight", 0.25]
    expected = EdgeAwareLoss(radius=2, decay=1.5, power=-1.0, same_side_weight=0.25, ignore_index=255, upsample=True)
    assert Reader(options(*files, *given)).criterion.options() == expected.options()
    default = EdgeAwareLoss(ignore_index=255, upsample=True)
    assert Reader(options(*files)).criterion.options() == default.options()


@pytest.mark.parametrize("suffix", ["png", pytest.param("pdf", marks=pytest.mark.slow)])
def test_view_writes_the_format_of_the_suffix(run: Run, folder: Path, suffix: str) -> None:
    output = folder / f"panel.{suffix}"
    assert run("view", *arguments(folder), "-o", output, *PALE).code == 0
    assert output.read_bytes().startswith({"png": b"\x89PNG", "pdf": b"%PDF"}[suffix])


def test_names_and_colors_come_from_files(folder: Path) -> None:
    (folder / "classes.txt").write_text("0 ground\n1 $box^$\n\n2 _bar\n9 void\n")
    (folder / "colors.txt").write_text("0 1 2 3 ground\n2,#0a0B0c\n1, 255, 0, 9\n255 0 0 0 void\n")
    words = ["--classes", folder / "classes.txt", "--palette", folder / "colors.txt"]
    reader = Reader(options(folder / "pred.npy", folder / "mask.png", *words))
    assert reader.names == ["ground", "$box^$", "_bar"]
    assert reader.palette(3) == [(1, 2, 3), (255, 0, 9), (10, 11, 12)]
    assert reader.ignore_index == reader.criterion.ignore_index == 9


BINARY = np.where(mask_array() == 1, 255, 0).astype(np.uint8)
NOT_FINITE = half_logits()
NOT_FINITE[0, 3, 4], NOT_FINITE[1, 3, 4] = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("mask", "logits", "note"),
    [
        (mask_array(), NOT_FINITE, "pred.npy: 2 of 576 values are not finite"),
        (
            BINARY,
            half_logits()[:1],
            "all masks hold only 0 and 255, which is ignored, maybe all foreground; where 255 is class 1, pass --mask",
        ),
        (np.full((H, W), 255, np.uint8), half_logits(), "have the label 255, which is ignored: no loss, no score"),
    ],
)
def test_notes_what_is_odd(run: Run, folder: Path, mask: Any, logits: Tensor, note: str) -> None:
    Image.fromarray(mask).save(folder / "mask.png")
    np.save(folder / "pred.npy", logits.numpy())
    ran = run("view", *arguments(folder), "-o", folder / "panel.png", *PALE)
    assert ran.code == 0
    assert note in ran.err
    assert (folder / "panel.png").exists()
    if mask is BINARY:
        ran = run("view", *arguments(folder), "-o", folder / "panel.png", "--remap", "255:1", *PALE)
        assert re.fullmatch(wrote(folder / "panel.png"), ran.err)


def test_view_writes_a_report(run: Run, folder: Path) -> None:
    (folder / "<b>$x$.npy").write_bytes((folder / "pred.npy").read_bytes())
    assert run("view", *arguments(folder, "<b>$x$.npy"), "-o", folder / "report.html").code == 0
    page = (folder / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert f"&lt;b&gt;$x$ · {folder.name}" in page
    assert "12 pixels, upsampled" in page
    assert "<b>$x$" not in page


@pytest.mark.parametrize("has_browser", [True, False])
def test_creates_the_folder_prints_figures_and_opens_the_page(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, has_browser: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or has_browser)
    output = folder / "new" / "pages" / "panel.png"
    ran = run("view", *arguments(folder), "-o", output, "--dpi", 20, "--json", "--open")
    figures = json.loads(ran.out)
    assert (figures["page"], figures["bytes"]) == (str(output), output.stat().st_size)
    assert 0 <= figures["mean_iou"] <= 1
    assert list(figures["iou"]) == ["0", "1", "2"]
    assert all(figures[name] == float(f"{figures[name]:.6g}") for name in ("edge", "cross_entropy"))
    assert opened == [output.as_uri()]
    no_browser = "" if has_browser else re.escape(f"edgeloss: note: no browser found; open {output} yourself\n")
    assert re.fullmatch(wrote(output) + no_browser, ran.err)


def test_view_metrics_and_diagnose_take_a_region(run: Run, folder: Path) -> None:
    mask = np.stack([mask_array() == 1, mask_array() >= 1, mask_array() >= 2]).astype(np.uint8)
    np.save(folder / "mask.npy", mask)
    files = ["--pred", folder / "pred.npy", "--mask", folder / "mask.npy", "--region", 1]
    ran = run("view", *files, "-o", folder / "p.png", "--json", *PALE)
    assert list(json.loads(ran.out)["iou"]) == ["other", "1"]
    ran = run("metrics", *files, "--json", "--classes", 3)
    assert json.loads(ran.out)["images"] == 1, ran.err
    target = torch.from_numpy(mask[1:2]).long()
    expected = compute_arrays(half_logits()[None, 1:2], target, EdgeAwareLoss(upsample=True)).prediction
    right = float(((expected == 1) & (mask[1:2] == 1)).sum() / ((expected == 1) | (mask[1:2] == 1)).sum())
    assert right == pytest.approx(json.loads(ran.out)["classes"]["1"]["iou"], rel=1e-5)
    ran = run("diagnose", *files, "--json")
    assert ran.code == 0, ran.err


def test_a_slice_of_a_volume_is_an_image(run: Run, tmp_path: Path) -> None:
    shape = 6, 20, 24
    labels = np.zeros(shape, np.uint8)
    labels[2:5, 5:12, 6:18] = 1
    logits = np.eye(2, dtype=np.float32)[labels].transpose(3, 0, 1, 2) * 4
    logits[:, 3, 0, 0] = [0, 9]  # one wrong pixel
    np.save(tmp_path / "pred.npy", logits)
    np.savez(tmp_path / "data.npz", image=np.arange(np.prod(shape)).reshape(shape), label=labels)
    volume = ["view", *arguments(tmp_path)[2:], "--mask", tmp_path / "data.npz", "--image", tmp_path / "data.npz"]
    ran = run(*volume, "--slice", 3, "-o", tmp_path / "p.svg", "--json")
    assert ran.code == 0, ran.err
    assert 1 > json.loads(ran.out)["pixel_accuracy"] > 0.99
    assert "slice 3" in json.loads(ran.out)["prediction"]
    picture = (tmp_path / "p.svg").read_text("utf-8")
    assert "pred · boundary F1" in picture
    assert "slice 3 · 24 × 20 pixels" in picture
    assert run(*volume, "--slice", "2-4", "-o", tmp_path / "r.html").code == 0
    page = (tmp_path / "r.html").read_text("utf-8")
    assert [at for at in range(6) if f'"slice {at}"' in page] == [2, 3, 4]
