"""The command ``compare``: the same images under two networks."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accessibility import Sized, violations
from command_line import C, H, Run, W, gallery_items, mask_array, wrote
from page_data import page_data, parts_of
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from edgeloss.cli import pages
from edgeloss.viz import distinct_colors
from edgeloss.viz.comparison import choose_examples, choose_windows
from edgeloss.viz.palette import BETTER, RIM, TRUE_BORDER, VOID


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
    about = page_data(page)
    assert (about["title"], about["kind"]) == ("better compared with preds", "edgeloss comparison")
    assert about["subtitle"] == "3 images"
    gains, median, losses = parts_of(page, "figures")
    assert (gains["title"], losses["title"]) == tuple(
        f"Where better {x} most boundary F1 (1 px)" for x in ("gains", "loses")
    )
    assert median["title"] == "The median image by gain in boundary F1 (1 px)"
    items = gallery_items(output)
    assert [[items[row["item"]]["name"] for row in part["rows"]] for part in (gains, median, losses)] == [
        ["c"],
        ["a"],
        ["b"],
    ]
    assert "Chosen by a rule among all 3 images" in parts_of(page, "heading")[0]["about"]
    tables, terms = parts_of(page, "tables")  # without a config.yaml no settings
    iou, f1, stray = tables["tables"]
    (configuration,) = parts_of(page, "folded")
    assert configuration["text"].startswith(
        f"preds: {folders / 'preds'}\nbetter: {folders / 'better'}\nloss: EdgeAwareLoss("
    )
    assert [table["head"] for table in (*tables["tables"], *terms["tables"])] == [
        [first, "preds", "better", change]
        for first, change in (*[("class", "change, points")] * 2, ("class", "change"), ("", "change"))
    ]
    (of_terms,) = terms["tables"]
    assert terms["folded"]
    assert [row[0] for row in of_terms["rows"]][:2] == ["edge loss", "loss"]
    assert [name for name, _ in of_terms["notes"]] == [row[0] for row in of_terms["rows"]]
    for table in (iou, f1):
        assert [row[0][0] for row in table["rows"]] == ["0", "1", "2"]
        for _, first, second, change in [*table["rows"], table["foot"]]:
            difference = float(second.rstrip("%")) - float(first.rstrip("%"))
            assert float(change["text"].replace("−", "-")) == pytest.approx(difference)  # of the values as shown
            assert change["tone"] == ("better" if difference > 0.1 else "worse" if difference < -0.1 else "")
    before, after, change = stray["foot"][1:]
    assert (before, change) == (after, {"text": "+0.0\xa0%", "tone": ""})  # wrong pixels of both are as many
    (tiles,) = parts_of(page, "tiles")
    shown = {name: (value, tiles["changes"][name]) for name, value, _ in tiles["values"]}
    assert [*shown] == ["boundary F1 (1 px)", "mean IoU", "pixel accuracy", "stray pixels"]  # no loss
    assert shown["stray pixels"] == (after, {"text": f"{change['text']} from {before}", "tone": ""})
    assert "but" not in shown["stray pixels"][1]
    value, change = shown["boundary F1 (1 px)"]
    assert value == f1["foot"][2]
    assert change["text"] == f"{f1['foot'][3]['text']} points from {f1['foot'][1]}"
    assert " higher in 1 and lower in 1 of 3 images. " in about["lead"]
    (bars,) = parts_of(page, "bars")
    assert [np.sign(value) for value in bars["values"]] == [1, 0, -1]
    assert bars["strong"] == [0, 1, 2]
    assert [name for name, _ in bars["ends"]] == ["highest: c", "median: a", "lowest: b"]
    assert json.loads(ran.out)["verdict"] == about["lead"]
    figures = json.loads(ran.out)["images"]
    assert set(figures) == {"a", "b", "c"}
    gains = [100 * (after["boundary_f1_1px"] - before["boundary_f1_1px"]) for before, after in figures.values()]
    np.testing.assert_allclose(bars["values"], sorted(gains, reverse=True), atol=1e-3)  # in points
    before, after = figures["c"]
    assert before["boundary_f1_1px"] < after["boundary_f1_1px"] == 1.0
    assert [item["name"] for item in gallery_items(output)] == ["a", "b", "c"]
    ran = run(*two, "-o", output, "--names", "one", "<two>")
    assert "<title>&lt;two&gt; compared with one · edgeloss comparison</title>" in output.read_text("utf-8")


def decoded(figure: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the colors of a picture, [H, W, 4]."""
    kind, _, content = figure["source"].partition(";base64,")
    assert kind == "data:image/png"  # a JPEG would blur the borders between labels
    return np.array(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGBA"))


def test_pictures_are_the_labels_to_the_pixel(run: Run, folders: Path, two: list[object]) -> None:
    output = folders / "compare.html"
    assert run(*two, "--image", folders / "images", "-o", output).code == 0
    (item,) = (one for one in gallery_items(output) if one["name"] == "c")
    captions = ["image", "ground truth", "preds", "better", "difference"]
    captions += ["A: preds", "A: better", "change of the edge loss"]
    assert [one["caption"] for one in item["figures"]] == captions
    assert [one["about"] for one in item["figures"][5:7]] == [f"{n} of 552 pixels wrong" for n in (552, 0)]
    image, truth, first, second, difference, _, enlarged, change = item["figures"]
    assert image["frames"] == difference["frames"]
    assert [frame["name"] for frame in image["frames"]] == ["A"]  # nothing is lost anywhere
    assert (image["source"], image["base"], image["size"]) == ("", "photo", [W, H])
    assert item["photo"].startswith("data:image/jpeg;base64,")
    mask, gray = mask_array(), np.rint(255 * np.array(VOID))
    colors = np.rint(255 * np.vstack([distinct_colors(C), VOID]))
    np.testing.assert_array_equal(decoded(truth)[..., :3], colors[np.where(mask == 255, C, mask)])
    np.testing.assert_array_equal(decoded(second), decoded(truth))  # it is right everywhere
    assert (decoded(first)[mask != 255] != decoded(truth)[mask != 255]).any(-1).all()
    blue = (*np.rint(255 * np.array(BETTER)), 255)
    assert (decoded(difference)[mask != 255] == blue).all()  # wrong in the first one only
    shown = decoded(change)[mask != 255]
    assert (shown[shown[:, 3] > 0, 2] > shown[shown[:, 3] > 0, 0]).all()  # less edge loss is blue
    assert shown[:, 3].any()
    seen = {tuple(color) for color in decoded(enlarged)[..., :3].reshape(-1, 3).tolist()}
    assert seen == {tuple(color) for color in [*colors.tolist(), *(255 * np.array([TRUE_BORDER, RIM])).tolist()]}
    for one in (decoded(change), decoded(difference)):
        assert (one[mask == 255] == (*gray, 255)).all()


def test_windows_are_where_most_pixels_are_gained_and_lost_and_do_not_overlap() -> None:
    truth, first, second = (np.full((96, 96), 1) for _ in range(3))
    first[10:20, 60:70] = second[70:80, 5:10] = second[11:15, 70:80] = 0
    truth[40:, 40:], second[40:, 40:] = -1, 0  # ignored
    windows = choose_windows(truth, first, second)
    assert {letter: (one.pixels, one.wrong) for letter, one in windows.items()} == {
        "A": (1024, (100, 0)),
        "B": (1024, (0, 50)),
    }
    first[:] = second[:] = truth
    first[10:20, 40:50] = second[10:20, 20:25] = 0  # one square next to the other
    windows = choose_windows(truth, first, second)
    assert {letter: one.wrong for letter, one in windows.items()} == {"A": (100, 0), "B": (0, 50)}
    assert windows["A"].place[1].start >= windows["B"].place[1].stop
    assert choose_windows(truth, first, first) == {}


def test_examples_are_the_ends_and_the_middle_of_all_changes() -> None:
    changes = {str(at): float(at) for at in (4, -1, 0, 9, 7, -5, 3)} | {"none": np.nan}
    assert choose_examples(changes) == {"gains most": ["9", "7", "4"], "median": ["3"], "loses most": ["-5", "-1"]}
    assert choose_examples({"a": -1.0, "b": -2.0}) == {"loses least": [], "median": [], "loses most": ["b", "a"]}


@pytest.mark.parametrize("gain", [1, -1])
def test_what_gets_worse_is_the_classes_with_the_largest_losses_first(run: Run, folders: Path, gain: int) -> None:
    """Class 0 loses most pixels to class 1."""
    truth = np.zeros((40, 40), np.uint8)
    truth[20:], truth[30:, 20:] = 1, 2
    worse = truth.copy()
    worse[:10], worse[30:, 38:] = 1, 1
    for name, labels in {"masks": truth, "x": truth, "y": worse}.items():
        Image.fromarray(labels).save(folders / f"{name}.png")
    output, pair = folders / "compare.html", [folders / "x.png", folders / "y.png"][::gain]
    assert run("compare", *pair, "--mask", folders / "masks.png", "--classes", 3, "-o", output).code == 0
    lead = page_data(output.read_text("utf-8"))["lead"]
    if gain < 0:
        assert "No class gets worse in IoU, boundary F1 (1 px), stray pixels." in lead
    else:
        classes = r"0 \(100.0.% → 50.0.%\), 1 \(.*\), 2 \(.*\)"
        assert re.search(rf" Worse: IoU, mean \(100.0.% → .*\), of {classes}; boundary F1 \(1 px\) of ", lead)
        assert lead.endswith("; stray pixels, total (0 → 414), predicted as 1 (0 → 414).")
        (tiles,) = parts_of(output.read_text("utf-8"), "tiles")
        assert tiles["changes"]["stray pixels"] == {"text": "worse: +414 from 0", "tone": "worse"}


def test_a_better_total_names_the_classes_that_get_worse(run: Run, folders: Path) -> None:
    truth = np.zeros((40, 40), np.uint8)
    truth[20:] = 1
    first, second = truth.copy(), truth.copy()
    first[:9], second[33:] = 1, 0  # fewer stray pixels, but of the other class
    for name, labels in {"masks": truth, "x": first, "y": second}.items():
        Image.fromarray(labels).save(folders / f"{name}.png")
    output, pair = folders / "compare.html", [folders / "x.png", folders / "y.png"]
    assert run("compare", *pair, "--mask", folders / "masks.png", "--classes", 2, "-o", output).code == 0
    (tiles,) = parts_of(output.read_text("utf-8"), "tiles")
    change = {"text": "better: −22.2\xa0% from 360", "tone": "better", "but": "worse: 0"}
    assert tiles["changes"]["stray pixels"] == change
    assert "stray pixels predicted as 0 (0 → 280)." in page_data(output.read_text("utf-8"))["lead"]


def test_many_images_have_smaller_pictures(run: Run, folders: Path, two: list[object], monkeypatch: Any) -> None:
    monkeypatch.setattr(pages, "side_for", lambda count: W // 2)
    assert run(*two, "-o", folders / "compare.html").code == 0
    for item in gallery_items(folders / "compare.html"):
        shapes = {decoded(one).shape[:2] for one in (*item["figures"][:5], item["figures"][-1]) if one["source"]}
        assert shapes == {(H // 2, W // 2)}
        assert (item["photo"], item["figures"][0]["caption"]) == ("", "no image given")


def test_the_settings_of_two_runs_that_differ_are_shown(run: Run, folders: Path, two: list[object]) -> None:
    """A configuration is read as text: a class that it names is not imported."""
    for name, weight in (("one", 0.0), ("other", 1.0)):
        (folders / name).mkdir()
        (folders / ("preds" if name == "one" else "better")).rename(folders / name / "labels")
        config = (
            f"seed_everything: 3\ntrainer:\n  default_root_dir: /{name}\nmodel:\n  loss:\n    class_path: os.abort\n"
        )
        config += f"    init_args:\n      edge_weight: {weight}\n      radius:\n      - 1\n      - 2\n"
        config += "page:\n  links:\n    Comparison: ../compare.html\n    All images: ../other/pages/index.html\n"
        (folders / name / "report.html").touch()
        (folders / name / "config.yaml").write_text(config)
        (folders / name / "metrics.json").write_text(json.dumps({"epochs": [{"epoch": 1}, {"epoch": 2}]}))
    compared = ["compare", folders / "one" / "labels", folders / "other" / "labels", "--mask", folders / "masks"]
    output = folders / "compare.html"
    assert run(*compared, "-o", output).code == 0
    (table,) = parts_of(output.read_text("utf-8"), "tables")[-1]["tables"]
    assert table["head"] == ["setting", "one", "other"]
    rows = [["seed_everything", "3", "3"], ["epochs", "2", "2"], ["model.loss.edge_weight", "0.0", "1.0"]]
    assert table["rows"] == rows
    links = [["Training of one", "./one/report.html"], ["All images", "./other/pages/index.html"]]
    links.append(["Training of other", "./other/report.html"])
    assert page_data(output.read_text("utf-8"))["links"] == links  # not to itself
    assert {item["link"] for item in gallery_items(output)} == {""}
    index = folders / "other" / "pages" / "index.html"
    words = ["view", "--pred", folders / "other" / "labels", "--mask", folders / "masks", "--format", "html"]
    assert run(*words, "-o", index.parent).code == 0
    links = [["Training of other", "./../report.html"], ["Comparison", "./../../compare.html"]]
    assert page_data(index.read_text("utf-8"))["links"] == links
    (index.parent / "a.html").unlink()
    assert run(*compared, "-o", output).code == 0
    pages = {item["name"]: item["link"] for item in gallery_items(output)}
    assert pages == {"a": "", "b": "./other/pages/b.html", "c": "./other/pages/c.html"}  # those that exist
    (folders / "one" / "metrics.json").write_text("[]")  # no run
    assert run(*compared, "-o", output).code == 0
    assert parts_of(output.read_text("utf-8"), "tables")[0]["title"] == "Scores of each class"


def test_names_in_one_alone_can_be_skipped(run: Run, folders: Path, two: list[object]) -> None:
    (folders / "better" / "b.pt").unlink()
    ran = run(*two, "-o", folders / "compare.html", "--skip-missing", "--json")
    assert set(json.loads(ran.out)["images"]) == {"a", "c"}


def test_images_may_have_other_classes(run: Run, folders: Path) -> None:
    """Without --classes, labels have as many as occur in a case."""
    for folder, names in (("x", "ab"), ("y", "ab")):
        (folders / folder).mkdir()
        for name in names:
            labels = mask_array().clip(max=1 if name == "a" else 2)
            Image.fromarray(labels).save(folders / folder / f"{name}.png")
    masks = folders / "small"
    masks.mkdir()
    for name in "ab":
        Image.open(folders / "x" / f"{name}.png").save(masks / f"{name}.png")
    output = folders / "compare.html"
    ran = run("compare", folders / "x", folders / "y", "--mask", masks, "-o", output)
    assert ran.code == 0, ran.err
    tables, _ = parts_of(output.read_text("utf-8"), "tables")
    assert [row[0][0] for row in tables["tables"][0]["rows"]] == ["0", "1", "2"]


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


@pytest.mark.parametrize("width", [390, 800, 1440])
def test_pictures_are_side_by_side_and_lead_through_the_images(
    run: Run, folders: Path, two: list[object], browse: Callable[[Path], Any], sized: Sized, axe: str, width: int
) -> None:
    sized(width, 844, False)
    assert run(*two, "--image", folders / "images", "-o", folders / "compare.html").code == 0
    page = browse(folders / "compare.html")
    script = "return findAll('.figures').map((row) => [...row.children].slice(0, 5).map((one) => one.offsetTop))"
    for image, truth, first, second, difference in page.execute_script(script):
        assert first == second
        assert width <= 700 or image == truth == first == difference  # narrow screens show two next to each other
    script = (
        "return findAll(arguments[0]).map((row) => findAll('figure', row).filter((one) => one.offsetParent).length)"
    )
    assert set(page.execute_script(script, ".figures")) == ({5} if width <= 700 else {6, 8})
    assert set(page.execute_script(script, ".gallery .shown")) == {2 if width <= 700 else 4}
    page.execute_script("findAll('.unfold').forEach((one) => one.click())")
    assert page.execute_script("return findAll('.figures figure').every((one) => one.offsetParent)")
    fits = "return findAll('.tables .scroll').every((one) => one.scrollWidth <= one.clientWidth)"
    assert page.execute_script(fits)  # all columns are seen, without a bar to scroll by a few pixels
    ticks = page.execute_script("return findAll('.bars :is(.unit, .tick)').map((one) => one.textContent)")
    assert ticks[0] == "points"
    assert "0" in ticks
    assert all(re.fullmatch(r"0|[+−][\d.]+", one) for one in ticks[1:])
    shown = "return [find('#large h2').firstChild.textContent, find('.tabs [aria-pressed=true]').textContent]"
    page.execute_script("findAll('.figures .enlarge')[3].click()")
    assert page.execute_script(shown) == ["c", "better"]
    keys = webdriver.ActionChains(page)
    keys.send_keys(Keys.ARROW_LEFT).perform()
    assert page.execute_script(shown) == ["c", "preds"]
    keys.send_keys("n").perform()
    assert page.execute_script(shown) == ["a", "preds"]
    swipe = """
        const given = { pointerType: "touch", clientY: 300, bubbles: true };
        const at = (type, clientX) => new PointerEvent(type, { ...given, clientX });
        find(".stage").dispatchEvent(at("pointerdown", 300));
        find(".stage").dispatchEvent(at("pointerup", arguments[0]));
    """
    page.execute_script(swipe, 200)
    assert page.execute_script(shown) == ["a", "better"]
    page.execute_script(swipe, 290)  # a press
    assert page.execute_script(shown) == ["a", "better"]
    box = "const { width, height } = find('.stage .picture').getBoundingClientRect(); return [width, height]"
    across, down = page.execute_script(box)
    assert across / down == pytest.approx(W / H, rel=0.01)
    assert across > 0.55 * width
    assert page.execute_script("return find('#large').scrollHeight <= innerHeight")
    assert violations(page, axe) == []
    keys.send_keys(Keys.ESCAPE).perform()
    assert not page.execute_script("return find('#large').open")
