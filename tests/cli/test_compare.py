"""The command ``compare``: the same images under two networks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accessibility import Sized, violations
from command_line import C, Run, gallery_items, mask_array, wrote
from page_data import page_data, parts_of
from PIL import Image


@pytest.fixture
def two(folders: Path) -> list[object]:
    """The first network is wrong everywhere in c; the second is right in all images but b."""
    (folders / "better").mkdir()
    truth = torch.from_numpy(mask_array()).long().clamp(max=C - 1)
    for name, gain in {"a": 4.0, "b": -4.0, "c": 4.0}.items():
        logits = gain * torch.nn.functional.one_hot(truth, C).permute(2, 0, 1).float()
        torch.save(logits, folders / "better" / f"{name}.pt")
    return ["compare", folders / "preds", folders / "better", "--mask", folders / "masks"]


def test_one_page_has_both_networks(run: Run, folders: Path, two: list[object]) -> None:
    output = folders / "compare.html"
    ran = run(*two, "--image", folders / "images", "-o", output, "--json")
    assert ran.code == 0, ran.err
    assert re.fullmatch(wrote(output), ran.err)
    page = output.read_text("utf-8")
    assert page_data(page)["title"] == "preds compared with better"
    gains, losses = parts_of(page, "figures")
    assert (gains["title"], losses["title"]) == tuple(
        f"Where better {x} most boundary F1, 1 px" for x in ("gains", "loses")
    )
    assert [row["title"].split(": ")[0] for row in gains["rows"]] == ["c"]
    assert [row["title"].split(": ")[0] for row in losses["rows"]] == ["b"]
    assert len(gains["rows"][0]["figures"]) == 6  # image, truth, both networks, and two differences
    first, second = parts_of(page, "tiles")
    assert (first["title"], second["title"], first["changes"]) == ("preds", "better", {})
    scores = [float(dict(tiles["values"])["mean IoU"].rstrip("%")) for tiles in (first, second)]
    assert float(second["changes"]["mean IoU"]) == pytest.approx(scores[1] - scores[0], abs=0.11)
    figures = json.loads(ran.out)["images"]
    assert set(figures) == {"a", "b", "c"}
    before, after = figures["c"]
    assert before["boundary_f1_1px"] < after["boundary_f1_1px"] == 1.0
    assert [item["name"] for item in gallery_items(output)] == ["a", "b", "c"]
    ran = run(*two, "-o", output, "--names", "one", "<two>")
    assert "<title>one compared with &lt;two&gt;</title>" in output.read_text("utf-8")


def test_names_in_one_alone_can_be_skipped(run: Run, folders: Path, two: list[object]) -> None:
    (folders / "better" / "b.pt").unlink()
    ran = run(*two, "-o", folders / "compare.html", "--skip-missing", "--json")
    assert set(json.loads(ran.out)["images"]) == {"a", "c"}


def test_labels_have_the_given_number_of_classes(run: Run, folders: Path) -> None:
    for name, most in (("x", 2), ("y", 1)):
        Image.fromarray(mask_array().clip(max=most)).save(folders / f"{name}.png")
    command = ["compare", folders / "x.png", folders / "y.png", "--mask", folders / "y.png", "--classes", 3]
    assert run(*command, "-o", folders / "compare.html").code == 0


def test_the_page_sorts_by_what_is_gained(
    run: Run, folders: Path, two: list[object], browse: Callable[[Path], Any], sized: Sized, axe: str
) -> None:
    sized(390, 844, True)
    assert run(*two, "-o", folders / "compare.html").code == 0
    page = browse(folders / "compare.html")
    script = "return findAll('.gallery > li:not([hidden]) strong').map((one) => one.textContent)"
    assert page.execute_script(script) == ["b", "a", "c"]
    page.execute_script("find('#order').click()")
    assert page.execute_script(script) == ["c", "a", "b"]
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert violations(page, axe) == []
