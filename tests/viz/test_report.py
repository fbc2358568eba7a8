"""The HTML report: what it computes, what it carries, and what a browser makes of it."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.viz import compute_arrays, report
from edgeloss.viz.arrays import compute_likely, compute_neighbors
from edgeloss.viz.coloring import color_maps, map_to_rgb
from edgeloss.viz.palette import LOUD, VOID, distinct_colors

NAMES = ["road", "<b>car</b>", "</script><script>document.title='caught'</script>"]


def scene(height: int = 24, width: int = 36, classes: int = 3, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Logits and a target of large patches; a corner is ignored."""
    target = torch.randint(classes, (batch, -(-height // 6), -(-width // 6)))
    target = target.repeat_interleave(6, 1).repeat_interleave(6, 2)[:, :height, :width].contiguous()
    target[:, :3, :5] = -100
    return 2 * torch.randn(batch, classes, height, width), target


def carried(page: str) -> dict[str, Any]:
    """The numbers within a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def decoded(array: dict[str, Any]) -> npt.NDArray[Any]:
    """An array of a page, as its script reads it."""
    packed = zlib.decompress(base64.b64decode(array["data"]))
    if array["kind"] != "float":
        return np.frombuffer(packed, array["kind"]).reshape(array["shape"])
    high, low = np.frombuffer(packed, np.uint8).reshape(2, -1).astype(np.uint32)
    return ((high << 8 | low) << 15).view(np.float32).reshape(array["shape"])


# --------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("radius", [1, 2])
@pytest.mark.parametrize("decay", [None, 1.5])
def test_neighbors_by_hand(power: float, radius: int, decay: float | None) -> None:
    """Each neighbour's part, and that they make up the two terms and their gradient."""
    logits, target = scene(9, 11)
    logits, target = logits.double(), target[:, :, :].clone()
    criterion = EdgeAwareLoss(power=power, radius=radius, decay=decay)
    found = compute_neighbors(logits, target, criterion, count=(2 * radius + 1) ** 2 - 1)
    seen = compute_arrays(logits, target, criterion)
    p = logits.softmax(1)[0].numpy()
    labels = target[0].numpy()
    for place, (y, x) in enumerate(np.argwhere(seen.maps["edge_mask"][0])):
        told = {}
        for down, right, given, nll, share in zip(
            *found.step[:, :, place],
            *(part[:, place] for part in (found.probability, found.nll, found.share)),
            strict=True,
        ):
            if (down, right) != (0, 0):
                told[int(down), int(right)] = given, nll, share
        expected = {
            (down, right)
            for down in range(-radius, radius + 1)
            for right in range(-radius, radius + 1)
            if (down or right) and 0 <= y + down < 9 and 0 <= x + right < 11 and labels[y + down, x + right] >= 0
        }
        assert set(told) == expected
        for same, name in ((True, "same_side"), (False, "other_side")):
            side = {
                step: part for step, part in told.items() if (labels[y + step[0], x + step[1]] == labels[y, x]) == same
            }
            if not side:
                continue
            for (down, right), (given, nll, _) in side.items():
                at_n = p[labels[y, x], y + down, x + right]
                assert given == pytest.approx(at_n)
                assert nll == pytest.approx(-math.log(at_n if same else 1 - at_n))
            assert sum(share for *_, share in side.values()) == pytest.approx(1)
            if power == 0:  # the shares are the weights of the mean, then
                mean = sum(nll * share for _, nll, share in side.values())
                assert mean == pytest.approx(seen.maps[name][0, y, x])
            if decay is None and power:
                weights = {step: (given if same else 1 - given) ** power for step, (given, *_) in side.items()}
                for step, (*_, share) in side.items():
                    assert share == pytest.approx(weights[step] / sum(weights.values()))


def test_neighbors_that_weigh_most_come_first() -> None:
    logits, target = scene()
    every, some = compute_neighbors(logits, target), compute_neighbors(logits, target, count=3)
    np.testing.assert_array_equal(some.nll, every.nll[:3])
    falls = np.diff(np.nan_to_num(every.nll, nan=-1), axis=0) <= 0
    assert falls.all()


def test_likely_classes() -> None:
    logits, target = scene(classes=5, batch=2)
    logits[0, :, 8, 8] = torch.nan
    found = compute_likely(logits, target)
    p = logits.softmax(1)
    best = p.nan_to_num(-1).topk(3, dim=1)
    np.testing.assert_allclose(found.probabilities[:, 0, 8, 8], math.nan)
    assert (found.classes[:, 0, 8, 8] == -1).all()
    ok = ~p.isnan().any(1).numpy()
    np.testing.assert_array_equal(found.classes[:, ok], best.indices.movedim(1, 0).numpy()[:, ok])
    np.testing.assert_allclose(found.probabilities[:, ok], best.values.movedim(1, 0).numpy()[:, ok], rtol=1e-6)
    assert compute_likely(logits[:, :1], (target > 0).long()).classes.shape[0] == 2  # one logit: two classes


def test_the_page_carries_the_maps() -> None:
    logits, target = scene(batch=2)
    logits *= 10  # losses from next to nothing to dozens
    seen = compute_arrays(logits, target)
    images = carried(report(logits, target))["images"]
    for index, image in enumerate(images):
        for name in ("cross_entropy", "same_side", "other_side", "edge"):
            told = decoded(image["arrays"][name])
            np.testing.assert_allclose(told, seen.maps[name][index], rtol=2**-9, atol=2**-14, err_msg=name)
        np.testing.assert_allclose(decoded(image["arrays"]["gradient"]), seen.gradient[index], rtol=2**-9)


def test_false_edges_are_carried_where_they_count() -> None:
    logits, target = scene()
    criterion = EdgeAwareLoss(false_edge_weight=0.5)
    expected = compute_arrays(logits, target, criterion).maps["false_edge"][0]
    assert (expected > 0).sum() > 100
    page = report(logits, target, criterion=criterion)
    data = carried(page)
    np.testing.assert_allclose(decoded(data["images"][0]["arrays"]["false_edge"]), expected, rtol=2**-9, atol=2**-14)
    counts = data["figures"]["histograms"]["data"][-1]["y"]
    assert sum(counts) == (expected > 0).sum()
    here = (target[0] == 1).numpy() & (expected > 0)
    assert page.split("<tr>")[3].endswith(f"<td>{expected[here].astype(float).mean():.3f}</td></tr>")
    assert "false edge" not in report(logits, target).replace("false_edge_weight", "")


def test_what_is_not_finite_arrives() -> None:
    logits, target = scene()
    logits[0, 1, 10, 10], logits[0, 0, 20, 30] = torch.nan, torch.inf
    arrays = carried(report(logits, target))["images"][0]["arrays"]
    assert np.isnan(decoded(arrays["cross_entropy"])[10, 10])
    assert not np.isfinite(decoded(arrays["gradient"])[20, 30])
    assert decoded(arrays["prediction"])[10, 10] == 255
    told = decoded(arrays["distance"])
    assert np.isfinite(told[target[0] >= 0]).all()


def test_an_image_without_an_edge() -> None:
    page = report(torch.randn(3, 8, 8), torch.zeros(8, 8, dtype=torch.int64))
    arrays = carried(page)["images"][0]["arrays"]
    assert not decoded(arrays["edge_mask"]).any()
    assert np.isinf(decoded(arrays["distance"])).all()
    report(torch.randn(3, 8, 8), torch.full((8, 8), -100))  # all ignored


def test_markup_in_names_is_text() -> None:
    logits, target = scene()
    page = report(logits, target, class_names=NAMES, title='<img src=x onerror="alert(1)">')
    assert "<img" not in page.replace("<image", "")
    assert "<b>car" not in page
    assert page.count("</script>") == 3  # those of the template
    assert carried(page)["names"] == NAMES


def test_it_can_be_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'edgeloss.viz.report needs plotly: pip install "edgeloss\[viz\]"'):
        report(*scene())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "smooth"])
def test_a_large_image_stays_small(kind: str, tmp_path: Path) -> None:
    """The worst that can be, where little packs, and logits that vary slowly as those of networks do."""
    page = report(**large(kind))
    assert len(page.encode()) < 15_000_000
    rounded = float(re.search(r"rounded to ([0-9.]+)%", page)[1])  # type: ignore[index]
    assert rounded <= (13 if kind == "noise" else 2)


def large(kind: str) -> dict[str, Any]:
    """An image of 1024 × 2048 pixels and 19 classes."""
    generator = torch.Generator().manual_seed(0)
    coarse = (32, 64) if kind == "noise" else (8, 16)  # 23 % of edge pixels, or 5 %
    few = torch.randn(1, 19, *coarse, generator=generator)
    logits = 4 * torch.nn.functional.interpolate(few, (1024, 2048), mode="bicubic")
    target = logits.argmax(1).roll(5, 2)
    if kind == "noise":
        logits = torch.randn(logits.shape, generator=generator)
    image = torch.rand(1, 3, 1024, 2048, generator=generator)
    return {"logits": logits, "target": target, "image": image}


# --------------------------------------------------------------------------------------------------------- the browser


class Page:
    """A report in a browser."""

    def __init__(self, driver: Any) -> None:
        """Take the page that is open."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver = driver
        self._wait = WebDriverWait(driver, 60)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def choose(self, side: int, layer: str) -> None:
        """Pick a layer from the menu of a view, as a reader would."""
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_elements("css selector", ".layer")[side]).select_by_value(layer)
        self._wait.until(lambda d: self.run("return views.dataset[arguments[0]]", ["left", "right"][side]) == layer)

    def picture(self, side: int) -> npt.NDArray[Any]:
        """What a view shows, [h, w, 3]."""
        source = self.run("return views.data[2 * arguments[0]].source", side)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).convert("RGB"))

    def point(self, side: int, row: int, column: int, *, click: bool = False) -> None:
        """Move the pointer to a pixel of a view."""
        from selenium.webdriver.common.action_chains import ActionChains

        script = """
            const [side, row, column] = arguments;
            const [x, y] = ["x", "y"].map((axis) => views._fullLayout[`${axis}axis${side ? 2 : ""}`]);
            const box = views.getBoundingClientRect();
            return [box.left + x._offset + x.d2p(column), box.top + y._offset + y.d2p(row)];
        """
        left, top = self.run(script, side, int(row), int(column))
        chain = ActionChains(self.driver, duration=20)
        chain.w3c_actions.pointer_action.move_to_location(round(left) - 2, round(top))
        chain.w3c_actions.pointer_action.move_to_location(round(left), round(top))
        if click:
            chain.w3c_actions.pointer_action.click()
        chain.perform()
        held = " (held)" if click else ""
        self._wait.until(lambda d: f"Row {row}, column {column}{held}" in self.told())

    def told(self) -> str:
        text: str = self.driver.find_element("id", "pixel").text
        return text

    def table(self, name: str) -> list[list[str]]:
        """The rows of a table of the pixel's facts."""
        rows: list[list[str]] = self.run(
            "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))",
            name,
        )
        return rows


Opened = Callable[..., Page]


@pytest.fixture
def opened(browse: Callable[[Path], Any], tmp_path: Path) -> Opened:
    """Writes a report and opens it."""

    def open_page(*arguments: Any, **options: Any) -> Page:
        path = tmp_path / "a report #1?.html"
        path.write_text(report(*arguments, **options), encoding="utf-8")
        return Page(browse(path))

    return open_page


def test_it_renders_with_no_network(opened: Opened) -> None:
    logits, target = scene()
    image = torch.rand(1, 3, *target.shape[1:])
    page = opened(logits, target, image=image, class_names=NAMES, title=NAMES[2])
    assert page.run("return document.title") == NAMES[2]
    assert page.run("return document.querySelector('h1').textContent") == NAMES[2]
    np.testing.assert_array_equal(page.picture(0), np.rint(image[0].permute(1, 2, 0).numpy() * 255))
    assert page.run("return performance.getEntriesByType('resource').filter((one) => /^https?:/.test(one.name))") == []
    titles = page.run("return [...document.querySelectorAll('#views .modebar-btn')].map((one) => one.dataset.title)")
    assert titles == ["Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]  # none that sends the images anywhere
    assert page.run("return document.querySelectorAll('#histograms .bars .point').length") > 40
    cells = page.run(
        "return [...document.querySelectorAll('section table td:first-child')].map((one) => one.textContent)"
    )
    assert cells == NAMES


def test_every_layer_shows_its_map(opened: Opened) -> None:
    """The very colours of the panel, but for the next colour of the scale, where the rounding of a value falls so."""
    logits, target = scene()
    logits[0, 0, 10, 10] = torch.nan
    criterion = EdgeAwareLoss(decay=2, false_edge_weight=0.5)
    page = opened(logits, target, criterion=criterion)
    seen = compute_arrays(logits, target, criterion)
    keys = ("cross_entropy", "edge", "gradient", "same_side", "other_side", "false_edge")
    expected = {key: map_to_rgb(drawn)[0] for key, drawn in zip(keys, color_maps(seen, terms=True), strict=True)}
    colors = 255 * np.vstack([distinct_colors(3), VOID])
    expected["truth"] = np.rint(colors[seen.target[0]])
    expected["prediction"] = np.rint(np.vstack([colors[:3], 255 * np.array(LOUD)])[seen.prediction[0]])
    for key, colored in expected.items():
        for side in (1, 0):
            page.choose(side, key)
            np.testing.assert_allclose(page.picture(side), colored.astype(int), atol=8, err_msg=key)
    page.choose(0, "distance")
    assert len(np.unique(page.picture(0).reshape(-1, 3), axis=0)) > 4
    page.choose(0, "cross_entropy")
    assert page.run("return views.data[1].x.length") == 1  # a mark on the pixel that is not finite


def test_hovering_tells_the_right_numbers(opened: Opened) -> None:
    logits, target = scene()
    criterion = EdgeAwareLoss(edge_weight=2.0, false_edge_weight=0.5, power=0.0, decay=2.0)
    page = opened(logits, target, criterion=criterion, class_names=["a", "b", "c"])
    seen = compute_arrays(logits, target, criterion)
    p = logits.softmax(1)[0]
    edge = np.argwhere(seen.maps["edge_mask"][0])
    off = np.argwhere(~seen.maps["edge_mask"][0] & (target[0].numpy() >= 0))
    for side, (row, column) in [(0, edge[0]), (1, edge[len(edge) // 2]), (0, off[0]), (1, off[-1])]:
        page.point(side, row, column)
        truth = int(target[0, row, column])
        order = p[:, row, column].argsort(descending=True).tolist()
        assert page.table("labels") == [["truth", "abc"[truth]], ["prediction", "abc"[order[0]]]]
        assert [name for name, _ in page.table("likely")] == ["abc"[k] for k in order]
        for (_, told), k in zip(page.table("likely"), order, strict=True):
            assert float(told) == pytest.approx(float(p[k, row, column]), rel=0.01, abs=2e-4)
        terms = dict(page.table("terms"))
        for name in ("cross-entropy", "false edge", "distance"):
            key = name.translate({ord("-"): "_", ord(" "): "_"})
            assert float(terms[name]) == pytest.approx(float(seen.maps[key][0, row, column]), rel=0.01, abs=2e-4)
        assert float(terms["|gradient|"]) == pytest.approx(seen.gradient[0, row, column], rel=0.01)
        for name, key in (("same side", "same_side"), ("other side", "other_side"), ("edge map", "edge")):
            if seen.maps["edge_mask"][0, row, column]:
                assert float(terms[name]) == pytest.approx(float(seen.maps[key][0, row, column]), rel=0.01, abs=2e-4)
            else:
                assert terms[name] == "no edge"
    row, column = edge[0]
    page.point(0, row, column)
    for place, side, name, given, *_ in page.table("neighbors"):
        down, right = map(int, place.split(","))
        label = int(target[0, row + down, column + right])
        assert name == "abc"[label]
        assert side == ("same" if label == target[0, row, column] else "other")
        assert float(given) == pytest.approx(
            float(p[target[0, row, column], row + down, column + right]), rel=0.01, abs=2e-4
        )
    page.point(0, 1, 2)
    assert page.table("labels")[0] == ["truth", "ignored"]


def test_views_zoom_together_and_a_pixel_is_held(opened: Opened) -> None:
    from selenium.webdriver.common.keys import Keys

    logits, target = scene()
    page = opened(logits, target)
    page.run("document.querySelectorAll('.largest')[1].click()")
    row, column = np.unravel_index(compute_arrays(logits, target).maps["edge"][0].argmax(), target.shape[1:])
    page._wait.until(lambda d: f"Row {row}, column {column} (held)" in page.told())
    for axis in "xy":
        first, second = page.run(
            "return ['', 2].map((which) => views._fullLayout[`${arguments[0]}axis${which}`].range)", axis
        )
        assert first == pytest.approx(second)
        middle = sum(first) / 2
        assert middle == pytest.approx({"x": column, "y": row}[axis])
    body = page.driver.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_UP if row else Keys.ARROW_DOWN)
    assert f"Row {row - 1 if row else 1}, column {column} (held)" in page.told()
    page.run("Plotly.relayout(views, {'xaxis.range': [-0.5, 35.5], 'yaxis.range': [23.5, -0.5]})")
    for row, column in ((7, 9), (15, 30)):  # a click elsewhere holds that one
        page.point(1, row, column, click=True)
    body.send_keys(Keys.ESCAPE)
    assert "Point at a pixel" in page.told()


def test_a_drag_zooms_and_holds_no_pixel(opened: Opened) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page = opened(*scene())
    page.run("Plotly.relayout(views, {dragmode: 'zoom'})")
    before = page.run("return views._fullLayout.xaxis.range")
    views = page.driver.find_element("css selector", ".nsewdrag")
    ActionChains(page.driver).move_to_element(views).click_and_hold().move_by_offset(80, 60).release().perform()
    page._wait.until(lambda d: page.run("return views._fullLayout.xaxis.range") != before)
    assert "(held)" not in page.told()


def test_a_batch_is_seen_image_by_image(opened: Opened) -> None:
    from selenium.webdriver.support.ui import Select

    logits, target = scene(batch=3)
    page = opened(logits, target, image=torch.rand(3, 1, *target.shape[1:]))
    page.choose(0, "truth")
    Select(page.driver.find_element("id", "image")).select_by_value("2")
    expected = np.rint(255 * np.vstack([distinct_colors(3), VOID])[compute_arrays(logits, target).target[2]])
    page._wait.until(lambda d: np.array_equal(page.picture(0), expected))


def test_logits_of_lower_resolution(opened: Opened) -> None:
    _, target = scene(24, 36)
    logits = torch.randn(1, 3, 6, 9)
    criterion = EdgeAwareLoss(upsample=True)
    page = opened(logits, target, criterion=criterion)
    page.choose(0, "gradient")
    assert page.picture(0).shape == (6, 9, 3)
    page.point(0, 13, 22)
    told = float(dict(page.table("terms"))["|gradient|"])
    assert told == pytest.approx(compute_arrays(logits, target, criterion).gradient[0, 13 // 4, 22 // 4], rel=0.01)


@pytest.mark.slow
def test_a_large_image_is_usable(opened: Opened) -> None:
    given = large("smooth")
    page = opened(**given)
    page.choose(1, "gradient")
    page.run("document.querySelectorAll('.largest')[1].click()")
    page._wait.until(lambda d: "(held)" in page.told())
    assert page.picture(1).shape == (1024, 2048, 3)
