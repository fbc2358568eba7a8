"""The HTML report in a browser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from report_page import Opened
from scenes import MARKUP, large_image, patches

from edgeloss import EdgeAwareLoss
from edgeloss.viz import compute_arrays, distinct_colors
from edgeloss.viz.coloring import color_maps, map_to_rgb
from edgeloss.viz.palette import LOUD, VOID


def test_it_renders_with_no_network(opened: Opened) -> None:
    logits, target = patches()
    image = torch.rand(1, 3, *target.shape[1:])
    page = opened(logits, target, image=image, class_names=MARKUP, title=MARKUP[2])
    assert page.run("return document.title") == MARKUP[2]
    assert page.run("return document.querySelector('h1').textContent") == MARKUP[2]
    np.testing.assert_array_equal(page.picture(0), np.rint(image[0].permute(1, 2, 0).numpy() * 255))
    assert page.run("return performance.getEntriesByType('resource').filter((one) => /^https?:/.test(one.name))") == []
    titles = page.run("return [...document.querySelectorAll('#views .modebar-btn')].map((one) => one.dataset.title)")
    assert titles == ["Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]  # none that sends the images to a server
    assert page.run("return document.querySelectorAll('#histograms .bars .point').length") > 40
    cells = page.run(
        "return [...document.querySelectorAll('section table td:first-child')].map((one) => one.textContent)"
    )
    assert cells == MARKUP


def test_every_layer_shows_its_map(opened: Opened) -> None:
    """The colors of the panel, or the next one of the scale where a value was rounded."""
    logits, target = patches()
    logits[0, 0, 10, 10] = torch.nan
    criterion = EdgeAwareLoss(decay=2, false_edge_weight=0.5)
    page = opened(logits, target, criterion=criterion)
    computed = compute_arrays(logits, target, criterion)
    keys = ("cross_entropy", "edge", "gradient", "same_side", "other_side", "false_edge")
    expected = {key: map_to_rgb(drawn)[0] for key, drawn in zip(keys, color_maps(computed, terms=True), strict=True)}
    colors = 255 * np.vstack([distinct_colors(3), VOID])
    expected["truth"] = np.rint(colors[computed.target[0]])
    expected["prediction"] = np.rint(np.vstack([colors[:3], 255 * np.array(LOUD)])[computed.prediction[0]])
    for key, colored in expected.items():
        for side in (1, 0):
            page.choose(side, key)
            np.testing.assert_allclose(page.picture(side), colored.astype(int), atol=8, err_msg=key)
    page.choose(0, "distance")
    assert len(np.unique(page.picture(0).reshape(-1, 3), axis=0)) > 4
    page.choose(0, "cross_entropy")
    assert page.run("return views.data[1].x.length") == 1  # a mark on the pixel that is not finite


def test_hovering_shows_the_right_numbers(opened: Opened) -> None:
    logits, target = patches()
    criterion = EdgeAwareLoss(edge_weight=2.0, false_edge_weight=0.5, power=0.0, decay=2.0)
    page = opened(logits, target, criterion=criterion, class_names=["a", "b", "c"])
    computed = compute_arrays(logits, target, criterion)
    p = logits.softmax(1)[0]
    edge = np.argwhere(computed.maps["edge_mask"][0])
    off = np.argwhere(~computed.maps["edge_mask"][0] & (target[0].numpy() >= 0))
    for side, (row, column) in [(0, edge[0]), (1, edge[len(edge) // 2]), (0, off[0]), (1, off[-1])]:
        page.point(side, row, column)
        truth = int(target[0, row, column])
        order = p[:, row, column].argsort(descending=True).tolist()
        assert page.table("labels") == [["truth", "abc"[truth]], ["prediction", "abc"[order[0]]]]
        assert [name for name, _ in page.table("likely")] == ["abc"[k] for k in order]
        for (_, shown), k in zip(page.table("likely"), order, strict=True):
            assert float(shown) == pytest.approx(float(p[k, row, column]), rel=0.01, abs=2e-4)
        terms = dict(page.table("terms"))
        for name in ("cross-entropy", "false edge", "distance"):
            key = name.translate({ord("-"): "_", ord(" "): "_"})
            assert float(terms[name]) == pytest.approx(float(computed.maps[key][0, row, column]), rel=0.01, abs=2e-4)
        assert float(terms["|gradient|"]) == pytest.approx(computed.gradient[0, row, column], rel=0.01)
        for name, key in (("same side", "same_side"), ("other side", "other_side"), ("edge map", "edge")):
            if computed.maps["edge_mask"][0, row, column]:
                assert float(terms[name]) == pytest.approx(
                    float(computed.maps[key][0, row, column]), rel=0.01, abs=2e-4
                )
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


def test_views_zoom_together_and_a_pixel_is_pinned(opened: Opened) -> None:
    from selenium.webdriver.common.keys import Keys

    logits, target = patches()
    page = opened(logits, target)
    page.run("document.querySelectorAll('.largest')[1].click()")
    row, column = np.unravel_index(compute_arrays(logits, target).maps["edge"][0].argmax(), target.shape[1:])
    page._wait.until(lambda d: f"Row {row}, column {column} (pinned)" in page.pixel_text())
    for axis in "xy":
        first, second = page.run(
            "return ['', 2].map((which) => views._fullLayout[`${arguments[0]}axis${which}`].range)", axis
        )
        assert first == pytest.approx(second)
        middle = sum(first) / 2
        assert middle == pytest.approx({"x": column, "y": row}[axis])
    body = page.driver.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_UP if row else Keys.ARROW_DOWN)
    assert f"Row {row - 1 if row else 1}, column {column} (pinned)" in page.pixel_text()
    page.run("Plotly.relayout(views, {'xaxis.range': [-0.5, 35.5], 'yaxis.range': [23.5, -0.5]})")
    for row, column in ((7, 9), (15, 30)):  # a click elsewhere pins that one
        page.point(1, row, column, click=True)
    body.send_keys(Keys.ESCAPE)
    assert "Point at a pixel" in page.pixel_text()


def test_a_drag_zooms_and_pins_no_pixel(opened: Opened) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page = opened(*patches())
    page.run("Plotly.relayout(views, {dragmode: 'zoom'})")
    before = page.run("return views._fullLayout.xaxis.range")
    views = page.driver.find_element("css selector", ".nsewdrag")
    ActionChains(page.driver).move_to_element(views).click_and_hold().move_by_offset(80, 60).release().perform()
    page._wait.until(lambda d: page.run("return views._fullLayout.xaxis.range") != before)
    assert "(pinned)" not in page.pixel_text()


def test_a_batch_is_shown_image_by_image(opened: Opened) -> None:
    from selenium.webdriver.support.ui import Select

    logits, target = patches(batch=3)
    page = opened(logits, target, image=torch.rand(3, 1, *target.shape[1:]))
    page.choose(0, "truth")
    Select(page.driver.find_element("id", "image")).select_by_value("2")
    expected = np.rint(255 * np.vstack([distinct_colors(3), VOID])[compute_arrays(logits, target).target[2]])
    page._wait.until(lambda d: np.array_equal(page.picture(0), expected))


def test_logits_of_lower_resolution(opened: Opened) -> None:
    _, target = patches(24, 36)
    logits = torch.randn(1, 3, 6, 9)
    criterion = EdgeAwareLoss(upsample=True)
    page = opened(logits, target, criterion=criterion)
    page.choose(0, "gradient")
    assert page.picture(0).shape == (6, 9, 3)
    page.point(0, 13, 22)
    shown = float(dict(page.table("terms"))["|gradient|"])
    assert shown == pytest.approx(compute_arrays(logits, target, criterion).gradient[0, 13 // 4, 22 // 4], rel=0.01)


@pytest.mark.slow
def test_a_large_image_is_usable(opened: Opened) -> None:
    given = large_image("smooth")
    page = opened(**given)
    page.choose(1, "gradient")
    page.run("document.querySelectorAll('.largest')[1].click()")
    page._wait.until(lambda d: "(pinned)" in page.pixel_text())
    assert page.picture(1).shape == (1024, 2048, 3)
