"""The page about a run: its curves, its tables, and its pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accessibility import Sized, violations
from page_data import page_data, parts_of
from PIL import Image
from selenium.webdriver.common.keys import Keys

from edgeloss.viz import compute_arrays
from edgeloss.viz.coloring import read_look
from edgeloss.viz.run_page import SUMMANDS, Row, best_epoch, write_run_page
from edgeloss.viz.scores import shown_figures

CLASSES = ["road", "<b>car</b>", "</script><script>document.title='caught'</script>"]
Browse = Callable[[Path], Any]
TERMS = ["Cross-entropy", "Focused edges", "Region term"]
HOSTILE = """x" onerror="document.title='caught'"><img src=x onerror="document.title='caught'">.png"""


def row_of(epoch: int, miou: float | None = None) -> Row:
    """Return the figures of an epoch, with a mean IoU of ``miou`` or one that grows."""
    miou = epoch / 10 if miou is None else miou
    row: dict[str, float | None] = {"epoch": epoch, "lr": 0.01 / epoch, "edge_weight": 0.5, "seconds": 40.0}
    row |= {"images_per_second": 12.5}
    for split in ("train", "val"):
        row |= {f"{split}/{name}": place + 1 / epoch for place, name in enumerate(("loss", *SUMMANDS))}
    row |= {f"train/gradient_share/{name}": 1 / 3 for name in SUMMANDS}
    row |= {"val/miou": miou, "val/boundary_iou": miou / 2, "val/boundary_f1_1": None}
    for k, name in enumerate(CLASSES):
        row |= {f"val/iou/{name}": miou + k / 100, f"val/boundary_iou/{name}": None, f"val/boundary_f1_1/{name}": miou}
    return row


def worst() -> list[tuple[str, Any, Any]]:
    target = torch.zeros(16, 24, dtype=torch.int64)
    target[4:, 6:] = 1
    drawn = [compute_arrays(torch.randn(3, 16, 24), target) for _ in range(2)]
    return [
        (name, one, read_look(one, None, None, None, None)) for name, one in zip((HOSTILE, "plain"), drawn, strict=True)
    ]


def curves_of(path: Path) -> dict[tuple[str, str], list[float | None]]:
    """Return the values of each curve of a page, by title and name."""
    curves = [curve for part in parts_of(path.read_text("utf-8"), "curves") for curve in part["curves"]]
    assert all(curve["epochs"] == [1, 2, 4] for curve in curves)
    return {(curve["title"], one["name"]): one["values"] for curve in curves for one in curve["series"]}


def test_curves_hold_the_history_times_the_weights_but_for_what_never_changes(tmp_path: Path) -> None:
    weights = {"edge_weight": 0.5, "region_weight": 100.0, "radius": 2}
    history = [row_of(1), {**row_of(2), "val/miou": None}, row_of(4)]  # a gap is a gap
    with pytest.raises(ValueError, match="history: expected at least one epoch, but got none"):
        write_run_page(tmp_path, [], CLASSES, [])
    assert not any(tmp_path.iterdir())
    path = write_run_page(tmp_path, history, CLASSES, [], weights=weights)
    drawn = curves_of(path)
    assert drawn["Loss", "training"] == [row["train/loss"] for row in history]
    assert drawn["Loss", "validation"] == [row["val/loss"] for row in history]
    assert drawn["IoU", "mean IoU"] == [0.1, None, 0.4]
    assert drawn["Region term", "training"] == [400.0, 350.0, 325.0]
    assert drawn["Focused edges", "validation"] == [1.5, 1.25, 1.125]
    assert drawn["Learning rate", "learning rate"] == [0.01, 0.005, 0.0025]
    assert "boundary F1 (1 px)" not in [name for _, name in drawn]  # nothing was measured
    assert not {title for title, _ in drawn} & {"Weight of the edge terms", "Share of each term in the gradient"}
    notes = {name: text for part in parts_of(path.read_text("utf-8"), "curves") for name, text in part["notes"]}
    assert notes["focused edges, Share of each term in the gradient"] == "33.3\xa0% in all epochs, so it is not drawn"
    groups = {part["title"]: part["about"] for part in parts_of(path.read_text("utf-8"), "curves")}
    about = "The region term is 400 at first and 325 in the end, of a training loss of 0.25: it stays near its weight"
    assert groups["The loss and its terms"].startswith(f"{about} of 100 until")
    assert groups["The loss and its terms"].endswith("is its share in the gradient, 33.3\xa0% in the last epoch.")
    abouts = {
        curve["title"]: curve["about"]
        for part in parts_of(path.read_text("utf-8"), "curves")
        for curve in part["curves"]
    }
    shares = {
        title for title, about in abouts.items() if about.endswith("; 33.3\xa0% of the gradient in the last epoch")
    }
    assert shares == set(TERMS)


def test_the_best_epoch_is_that_of_the_best_checkpoint(tmp_path: Path) -> None:
    scores = zip((0.35, 0.39, 0.42), (0.62, 0.58, 0.60), strict=True)
    history = [{**row_of(k, miou), "val/boundary_f1_1": f1} for k, (miou, f1) in enumerate(scores, 1)]
    assert best_epoch(history) == ("val/miou", history[2])
    assert best_epoch(history, "val/boundary_f1_1") == ("val/boundary_f1_1", history[0])
    assert best_epoch(history, "val/boundary_f1_1", "min") == ("val/boundary_f1_1", history[1])
    assert best_epoch(history, "nothing") == ("val/miou", history[2])
    assert best_epoch([{**history[0], "val/miou": None}, history[0]])[1] == history[0]
    page = write_run_page(tmp_path, history, CLASSES, [], best=("val/boundary_f1_1", history[0])).read_text("utf-8")
    (tiles,) = parts_of(page, "tiles")
    assert tiles["title"] == "Scores after epoch 3, the last"
    scores = "boundary F1 (1 px)", "mean IoU", "boundary IoU"
    assert [(name, value) for name, value, _ in tiles["values"]] == [
        *zip(scores, ("60.0\xa0%", "42.0\xa0%", "21.0\xa0%"), strict=True)
    ]
    best = {"text": "best: 62.0\xa0% after epoch 1", "tone": ""}
    assert tiles["changes"] == {"boundary F1 (1 px)": best}  # the others are best in the last
    assert page_data(page)["lead"] == (
        "After epoch 3, the last, boundary F1 (1 px) is 60.0\xa0%; the best is 62.0\xa0% after epoch 1. The"
        " last epoch gained nothing over the best before, 62.0\xa0% (epoch 1)."
        " The weakest class is road, with IoU of 42.0\xa0%."
    )
    scores, *others = ([curve["best"] for curve in part["curves"]] for part in parts_of(page, "curves"))
    assert {(best["epoch"], best["name"]) for best in scores} == {(1, "best boundary F1 (1 px)")}
    assert not any(best for group in others for best in group)
    (tables,) = parts_of(page, "tables")
    assert [table["title"] for table in tables["tables"]] == ["epoch 3, the last", "epoch 1, the best"]


def test_what_the_last_part_of_a_run_gained_is_read_off_two_epochs(tmp_path: Path) -> None:
    history = [{**row_of(k, 0.5), "val/loss": loss} for k, loss in enumerate((3.0, 2.0, 2.5, 2.25, 1.5, 1.75), 1)]
    page = write_run_page(tmp_path, history, CLASSES, [], best=("val/loss", history[4])).read_text("utf-8")
    assert "The last 2 epochs gained 0.500 over the best before, 2.0000 (epoch 2)." in page_data(page)["lead"]


def test_pictures_say_which_epoch_they_are_of_and_markup_is_text(tmp_path: Path) -> None:
    folder = tmp_path / "a <i>run"
    folder.mkdir()
    history = [row_of(1, miou=0.9), row_of(2, miou=0.5)]
    page = write_run_page(folder, history, CLASSES, worst(), config="</pre><img src=x>").read_text("utf-8")
    assert page.count("</script>") == 2  # those of the template
    for markup in ("<i>run", "<b>car", "<img src=x", 'x" onerror'):
        assert markup not in page
    (figures,) = parts_of(page, "figures")
    assert figures["text"].startswith("As the network of epoch 2 sees them, the last; the best is 1.")
    names = [name for name, _ in figures["key"]]
    assert names == ["0", "1", "2", "wrong", "no edge, zero gradient"]  # what occurs
    for key in zip(*(row["figures"][4:] for row in figures["rows"]), strict=True):
        assert len({(one["bar"]["low"], one["bar"]["high"]) for one in key}) == 1
    assert [row["name"] for row in figures["rows"]] == [HOSTILE, "plain"]
    for row in figures["rows"]:
        assert row["about"].startswith("edge loss ")
        captions = [figure["caption"] for figure in row["figures"]]
        labels, losses = ["no image given", "ground truth", "prediction", "wrong pixels"], ["cross-entropy", "edge map"]
        assert captions == [*labels, *losses, "|gradient|", "|region gradient|"]
        encoded = row["figures"][3]["source"].removeprefix("data:image/png;base64,")
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGBA")).astype(int)
        assert shown.shape == (16, 24, 4)
        assert (shown[..., 0] > shown[..., 2] + 60).any()  # wrong pixels in red


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_it_is_accessible(browse: Browse, axe: str, sized: Sized, width: int, dark: bool, tmp_path: Path) -> None:
    sized(width, 844, dark)
    history = [row_of(epoch) for epoch in (1, 2, 3)]
    page = browse(write_run_page(tmp_path, history, CLASSES, worst(), config="epochs: 3"))
    assert violations(page, axe) == []
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_it_renders_with_no_network(browse: Browse, tmp_path: Path) -> None:
    history = [row_of(1), row_of(2, miou=0.75), row_of(3, miou=0.75), {**row_of(4), "skipped": 2}]
    options = {"config": f"epochs: 4\noutput: {HOSTILE}", "weights": {"region_weight": 1000.0}}
    shown = worst()
    page = browse(write_run_page(tmp_path, history, CLASSES, shown, **options))

    def texts(selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        contents: list[str] = page.execute_script(script, selector)
        return contents

    assert page.title == f"{tmp_path.name} · edgeloss run"
    assert texts(".subtitle") == [
        "4 epochs · 2 min 40 s of training · 12.5 images per second · 2 steps skipped, not finite"
    ]
    assert texts("header h2") == ["Scores after epoch 4, the last"]
    assert texts("header dd:not(.what)") == [
        "40.0\xa0% best: 75.0\xa0% after epoch 2",
        "20.0\xa0% best: 37.5\xa0% after epoch 2",
    ]
    assert page.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    assert texts(".curves h3") == ["IoU", "Loss", *TERMS, "Learning rate"]
    assert texts(".curves svg .best + text") == ["best mean IoU"]
    assert len(texts(".curves [role=img] path[style]")) == len(texts(".curves li")) == 2 + 2 + 3 * 2 + 1
    assert texts(".curves li")[3] == "training 0.250"
    dashes = "return findAll('path[style]', findAll('.curves [role=img]')[1]).map((one) => one.style.strokeDasharray)"
    assert page.execute_script(dashes) == ["none", "8, 5"]  # validation is solid, training dashed
    script = """
        const boxes = (one) => findAll("path[style]", one).map((path) => path.getBBox());
        const ends = (all) => [Math.min(...all.map(({ y }) => y)), Math.max(...all.map(({ y, height }) => y + height))];
        return findAll(".curves [role=img]").map((one) => ends(boxes(one)));
    """
    for top, bottom in page.execute_script(script):  # of 202, with 42 for the names of axes: curves use all heights
        assert bottom - top > 0.8 * 160
    ticks = "return findAll('text[text-anchor=end]', find('.curves [role=img]')).map((one) => one.textContent)"
    assert page.execute_script(ticks)[:5] == ["0\xa0%", "20\xa0%", "40\xa0%", "60\xa0%", "epoch"]
    assert texts(".section + .hint")[0].startswith("Values are those of epoch 4, the last.")
    now = ".curves [role=img] text:last-child"
    assert texts(now) == [""] * 6
    page.find_elements("css selector", ".curves [role=img]")[1].send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert texts(".curves li")[3] == "training 0.500"
    assert texts(now)[:2] == ["", "epoch 2"]
    assert texts(".tables h3") == ["epoch 4, the last", "epoch 2, the best"]
    assert texts(".tables thead th") == 2 * ["class", "IoU", "boundary IoU", "boundary F1 (1 px)"]
    rows = np.array(texts(".tables tbody tr > *, .tables tfoot tr > *")).reshape(2, len(CLASSES) + 1, 4)
    assert rows[0, :, 0].tolist() == [*CLASSES, "mean"]
    assert rows[1, 1].tolist() == [CLASSES[1], "76.0\xa0%", "–", "75.0\xa0%"]
    assert rows[0, 3].tolist() == ["mean", "40.0\xa0%", "20.0\xa0%", "–"]
    bars = "return findAll('.tables tbody tr')[1].cells[arguments[0]].style.getPropertyValue('--part')"
    assert [page.execute_script(bars, column) for column in (1, 2)] == ["41%", ""]  # no bar without a value

    assert texts(".figures figcaption")[2] == "prediction"
    figures = shown_figures(shown[0][1].figures)
    line = " · ".join(f"{name} {figures[name]}" for name in ("edge loss", "cross-entropy", "mean IoU"))
    assert texts(".of-image h3")[0] == f"{HOSTILE} {line}"
    folds = "return findAll('.of-image').map((one) => one.open)"
    assert page.execute_script(folds) == [True, False]
    page.execute_script("find('.figures .enlarge').click(); stepLarge(1)")
    assert texts("#large h2")[0].startswith("plain ")  # the folded one
    page.execute_script("large.close(); dispatchEvent(new Event('beforeprint'))")
    assert page.execute_script(folds) == [True, True]
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert page.execute_script(folds) == [True, False]
    assert "epochs: 4" in texts("pre")[0]
    widths = page.execute_script("return findAll('.figures img').map((one) => one.naturalWidth)")
    assert set(widths) == {24}
    page = browse(write_run_page(tmp_path, history[:1], CLASSES, []))
    titles = ["Scores after epoch 1, the best and the last, by mean IoU", "Scores of the validation images"]
    titles += [
        "Classes in validation",
        "epoch 1, the best and the last",
        "The loss and its terms",
        "What drives the training",
    ]
    assert texts("h2, .tables h3") == titles
