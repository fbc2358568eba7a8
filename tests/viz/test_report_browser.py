"""The HTML report in a browser."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from accessibility import Sized, violations
from report_page import Opened, number_of
from scenes import MARKUP, large_image, patches
from selenium.webdriver.common.keys import Keys

from edgeloss import EdgeAwareLoss
from edgeloss.viz import compute_arrays, distinct_colors
from edgeloss.viz.coloring import color_maps, map_to_rgb
from edgeloss.viz.palette import LOUD, RIGHT, VOID, WRONG
from edgeloss.viz.scores import compute_scores, shown_figures


def test_it_renders_with_no_network(opened: Opened) -> None:
    logits, target = patches()
    image = torch.rand(1, 3, *target.shape[1:])
    page = opened(logits, target, image=image, class_names=MARKUP, title=MARKUP[2])
    assert page.run("return document.title") == f"{MARKUP[2]} · edgeloss report"
    assert page.run("return document.querySelector('h1').textContent") == MARKUP[2]
    page.choose(0, "picture")
    np.testing.assert_array_equal(
        page.run("return [image.picture.naturalHeight, image.picture.naturalWidth]"), target.shape[1:]
    )
    assert page.run("return performance.getEntriesByType('resource').filter((one) => /^https?:/.test(one.name))") == []
    assert page.run("return document.querySelectorAll('#histograms figure').length") == 7
    assert page.run("return findAll('tbody th', find('.sortable')).map((one) => one.textContent)") == MARKUP
    assert page.run("return findAll('#legend button').map((one) => one.childNodes[1].textContent)") == MARKUP


@pytest.mark.parametrize("width", [390, 800, 1440])
def test_it_does_not_jump_while_it_unpacks(opened: Opened, sized: Sized, width: int) -> None:
    sized(width, 900, False)
    logits, target = patches()
    page = opened(logits, target, image=torch.rand(1, 3, *target.shape[1:]))
    script = """
        const done = arguments[arguments.length - 1];
        let sum = 0;
        const add = (list) => list.getEntries().forEach(({ value }) => (sum += value));
        new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
        setTimeout(() => done(sum), 200);
    """
    assert page.driver.execute_async_script(script) < 0.01  # 0.1 is called good


def test_keys_lead_to_the_next_image_and_page(opened: Opened) -> None:
    logits, target = patches()
    batch = logits.expand(2, *logits.shape[1:]), target.expand(2, *target.shape[1:])
    page = opened(*batch, links={"← a": "a.html", "b →": "b.html"})
    page.run("for (const link of findAll('nav a')) link.addEventListener('click', (event) => {"
             " event.preventDefault(); document.body.dataset.went = link.textContent; })")  # fmt: skip
    body = page.driver.find_element("css selector", "body")
    at = "return images.findIndex(({ tiles }) => tiles === image.tiles)"
    for key, index, went in (("n", 1, None), ("n", 1, "b →"), ("p", 0, "b →"), ("p", 0, "← a")):
        body.send_keys(key)
        page.wait_for(at, index)
        assert page.run("return document.body.dataset.went ?? null") == went
        assert page.run("return find('#image').value") == str(index)


def test_on_paper_views_keep_their_shape(opened: Opened, driver: Any) -> None:
    logits, target = patches()
    page = opened(logits, target)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    sizes = page.run(
        "return canvases.map(({ offsetWidth: w, offsetHeight: h, width, height }) => [w / h, width / height])"
    )
    buttons = page.run("return findAll('button').filter((one) => one.offsetParent && one.closest('.toolbar')).length")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    for shown, drawn in sizes:
        assert shown == pytest.approx(drawn, rel=0.02)
    assert buttons == 0


def test_every_layer_shows_its_map(opened: Opened) -> None:
    """The colors of the panel, or the next one of the scale where a value was rounded."""
    logits, target = patches()
    logits[0, 0, 10, 10] = torch.nan
    criterion = EdgeAwareLoss(decay=2)
    page = opened(logits, target, criterion=criterion)
    computed = compute_arrays(logits, target, criterion)
    keys = ("cross_entropy", "edge", "gradient", "region", "same_side", "other_side")
    expected = {key: map_to_rgb(drawn, 0) for key, drawn in zip(keys, color_maps(computed, keys), strict=True)}
    colors = 255 * np.vstack([distinct_colors(3), VOID])
    truth, prediction = computed.target[0], computed.prediction[0]
    expected["truth"] = np.rint(colors[truth])
    expected["prediction"] = np.rint(np.vstack([colors[:3], 255 * np.array(LOUD)])[prediction])
    errors = np.where((truth == prediction)[..., None], RIGHT, WRONG)
    expected["errors"] = np.where(truth[..., None] < 0, VOID, errors) * 255
    for key, colored in expected.items():
        shown = page.layer(key)
        np.testing.assert_allclose(shown[..., :3], colored.astype(int), atol=8, err_msg=key)
        assert (shown[..., 3] == 255).all(), key
    assert len(np.unique(page.layer("distance").reshape(-1, 4), axis=0)) > 4
    for side in (0, 1):
        page.choose(side, "cross_entropy")
        assert page.run("return findAll('.color-bar')[arguments[0]].lastChild.textContent", side).endswith("\xa0nats")
        dots = page.dots(side).reshape(-1, 3)
        assert (dots == np.rint(255 * np.array(LOUD))).all(1).any()  # a mark on the pixel that is not finite
        assert len(np.unique(dots, axis=0)) > 20


def test_where_a_map_has_nothing_the_image_is_seen_darkened(opened: Opened) -> None:
    logits, target = patches()
    page = opened(logits, target, image=torch.ones(1, 3, *target.shape[1:]))
    edges = compute_arrays(logits, target).maps["edge_mask"][0]
    assert ((page.layer("edge")[..., 3] > 0) == edges | (target[0] < 0).numpy()).all()
    assert "no edge: the image, darkened" in page.run("return findAll('.others')[1].textContent")
    assert abs(page.dots(1).astype(int) - round(0.32 * 255)).max(-1).min() <= 1  # white below a veil of 68 %


def test_thin_edges_survive_a_lower_resolution(opened: Opened) -> None:
    target = torch.zeros(1, 100, 150, dtype=torch.int64)
    target[:, :, 75:] = 1
    logits = torch.randn(1, 2, 100, 150) * 0.01
    page = opened(logits, target)
    edges = (compute_arrays(logits, target).maps["edge_mask"][0]).any(0)
    for level in (1, 2, 5):
        drawn = page.layer("edge", level)[..., :3].any(-1)
        assert drawn.any(0).sum() == len(np.unique(np.flatnonzero(edges) >> level))
        assert drawn.any(0).sum() == drawn.all(0).sum()  # without a gap
    small = page.layer("truth", 2)[12, 10]
    np.testing.assert_allclose(small[:3], 255 * distinct_colors(2)[0], atol=2)


def test_hovering_shows_the_right_numbers(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeloss.viz.packing._BAND", 100)  # nine bands
    logits, target = patches()
    criterion = EdgeAwareLoss(edge_weight=2.0, power=0.0, decay=2.0)
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
            assert number_of(shown) == pytest.approx(float(p[k, row, column]), rel=0.01, abs=2e-4)
        terms = dict(page.table("terms"))
        for name in ("cross-entropy", "distance"):
            key = name.replace("-", "_")
            assert number_of(terms[name]) == pytest.approx(
                float(computed.maps[key][0, row, column]), rel=0.01, abs=2e-4
            )
        assert number_of(terms["|gradient|"]) == pytest.approx(computed.gradient[0, row, column], rel=0.01)
        for name, key in (("same side", "same_side"), ("other side", "other_side"), ("edge map", "edge")):
            if computed.maps["edge_mask"][0, row, column]:
                assert number_of(terms[name]) == pytest.approx(
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
        assert number_of(given) == pytest.approx(
            float(p[target[0, row, column], row + down, column + right]), rel=0.01, abs=2e-4
        )
    page.point(0, 1, 2)
    assert page.table("labels")[0] == ["truth", "ignored"]


def test_views_zoom_together_and_a_pixel_is_pinned(opened: Opened) -> None:
    logits, target = patches()
    page = opened(logits, target)
    page.run("document.querySelectorAll('.largest')[1].click()")
    row, column = np.unravel_index(compute_arrays(logits, target).maps["edge"][0].argmax(), target.shape[1:])
    page._wait.until(lambda d: f"Row {row}, column {column} (pinned)" in page.pixel_text())
    page.run("zoomTo(12, 18, 8)")
    first, second = page.run("return canvases.map(frameOf)")
    assert first == second
    assert page.view()["zoom"] > page.run("return wholeZoom()")
    page.run("showWhole(); pin(5, 5)")
    body = page.driver.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_UP)
    assert "Row 4, column 5 (pinned)" in page.pixel_text()
    for row, column in ((7, 9), (15, 30)):  # a click elsewhere pins that one
        page.point(1, row, column, click=True)
    body.send_keys(Keys.ESCAPE)
    assert page.pixel_text().startswith("This image")


def test_the_wheel_zooms_about_the_pointer_a_double_click_resets_and_a_drag_moves(opened: Opened) -> None:
    from selenium.webdriver.common.action_chains import ActionChains, ScrollOrigin

    page = opened(*patches())
    canvas = page.driver.find_element("css selector", ".pane canvas")
    whole = page.view()
    page.point(0, 3, 30)
    before = page.run("return frameOf(canvases[0])")
    ActionChains(page.driver).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -200).perform()
    page._wait.until(lambda d: page.view()["zoom"] > 1.3 * whole["zoom"])
    after = page.run("return frameOf(canvases[0])")
    for start, size in (("left", "width"), ("top", "height")):  # the middle of the canvas stays
        half = page.run(f"return canvases[0].{size}") / 2
        assert before[start] + half / before["dots"] == pytest.approx(after[start] + half / after["dots"], abs=0.05)
    ActionChains(page.driver).double_click(canvas).perform()
    page._wait.until(lambda d: page.view() == whole)
    page.run("zoomTo(12, 18, 10)")
    before = page.view()
    ActionChains(page.driver).move_to_element(canvas).click_and_hold().move_by_offset(80, 60).release().perform()
    page._wait.until(lambda d: page.view()["x"] < before["x"] and page.view()["y"] < before["y"])
    assert "(pinned)" not in page.pixel_text()


def test_the_whole_image_stays_whole_in_a_window_of_another_size(opened: Opened, sized: Sized) -> None:
    sized(1280, 800, False)
    page = opened(*patches())
    for width in (1920, 1280):
        sized(width, 1000, False)
        page.wait_for("return innerWidth", width)
        page.wait_for("return Math.abs(view.zoom - wholeZoom()) < 1e-6")
    page.run("zoomTo(12, 18, 8)")
    zoom = page.view()["zoom"]
    sized(1920, 1000, False)
    page.wait_for("return innerWidth", 1920)
    assert page.view()["zoom"] == zoom


def test_no_tile_is_alone_and_no_class_is_cut(opened: Opened, sized: Sized) -> None:
    page = opened(*patches(classes=40), class_names=[f"a long name of class {k}" for k in range(40)])
    script = """
        const { top, bottom } = find("#legend").getBoundingClientRect();
        return findAll("#legend li").map((one) => one.getBoundingClientRect())
          .filter((one) => one.top < bottom - 1 && one.bottom > bottom + 1).length;
    """
    counts = """
        const tops = findAll(".tiles > div").map((one) => one.offsetTop);
        return [...new Set(tops)].sort((a, b) => a - b).map((top) => tops.filter((one) => one === top).length);
    """
    for width, rows in {1280: [4], 1100: [4], 390: [2, 2]}.items():
        sized(width, 844, False)
        page.wait_for("return innerWidth", width)
        page.wait_for(counts, rows)  # the page lays itself out again after the window has
        page.wait_for("return new Set(findAll('.tiles dt').map((one) => one.clientHeight)).size", 1)  # none wraps
        page.wait_for(script, 0)


def test_the_keyboard_does_what_the_mouse_does(opened: Opened) -> None:
    page = opened(*patches())
    page.run("view.x = 18; view.y = 12")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert "Row 13, column 19 (pinned)" in page.pixel_text()
    page.press(Keys.ENTER)
    assert "(pinned)" not in page.pixel_text()
    page.press(Keys.ENTER)
    assert "(pinned)" in page.pixel_text()
    whole = page.view()["zoom"]
    page.press("+")
    assert page.view()["zoom"] > whole
    page.press("0")
    assert page.view()["zoom"] == whole
    assert page.run("return drawn") == ["prediction", "edge"]
    page.press("]")
    page.wait_for("return drawn[0]", "errors")
    page.press("]", "l")
    assert "(pinned)" in page.pixel_text()
    page.press(Keys.ARROW_LEFT)
    page._wait.until(lambda d: page.run("return find('#spoken').textContent").startswith("Row "))


def test_classes_and_values_limit_what_is_shown(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeloss.viz.packing._BAND", 100)  # nine bands, which are unpacked where they are needed
    logits, target = patches()
    page = opened(logits, target, class_names=["a", "b", "c"])
    assert page.run("return 'cross_entropy' in image.arrays") is False
    computed = compute_arrays(logits, target)
    truth, prediction = computed.target[0], computed.prediction[0]

    def shown(key: str) -> npt.NDArray[np.bool_]:
        return np.asarray(page.layer(key)[..., 3] > 0)

    page.run("findAll('#legend button')[1].click()")  # the class alone
    for key in ("truth", "errors", "cross_entropy"):
        np.testing.assert_array_equal(shown(key), (truth == 1) | (prediction == 1))
    assert page.run("return findAll('#legend input').map((one) => one.checked)") == [False, True, False]
    page.run("findAll('#legend button')[1].click()")
    assert shown("truth").all()
    page.run("findAll('#legend input')[0].click()")
    np.testing.assert_array_equal(shown("prediction"), (truth > 0) | (prediction > 0))
    page.run("find('#clear').click()")

    page.run("const low = findAll('#histograms input')[0]; low.value = 20; low.dispatchEvent(new Event('input'))")
    page.wait_for("return Boolean(image.keep)")
    values = computed.maps["cross_entropy"][0].astype(float)
    border = values[truth >= 0].max() * 20 / 60
    certain = np.abs(values - border) > 0.01 * border
    np.testing.assert_array_equal(shown("edge")[certain], ((values > border) & (truth >= 0))[certain])
    assert "pixels are shown (cross-entropy" in page.run("return find('#filter').textContent")

    page.run("findAll('.pair')[0].click()")
    pairs, counts = np.unique(
        np.stack([truth, prediction])[:, (truth != prediction) & (truth >= 0)], axis=1, return_counts=True
    )
    most = pairs[:, counts.argmax()]
    np.testing.assert_array_equal(shown("truth"), (truth == most[0]) & (prediction == most[1]))


def test_a_worst_place_is_a_jump_away(opened: Opened) -> None:
    logits, target = patches(48, 72)
    logits[0, :, 30:36, 40:48] *= 20
    page = opened(logits, target)
    places = page.run("return findAll('#worst button').map((one) => one.title)")
    assert 2 <= len(places) <= 4
    lines = """
        const { data: bytes } = find("#worst canvas").getContext("2d").getImageData(0, 0, WORST_DOTS, WORST_DOTS);
        const colors = new Set(new Uint32Array(bytes.buffer));
        return Object.values(CONTOURS).map((hex) => colors.has(rgba(hex)));
    """
    assert page.run(lines) == [True, True]  # the true and the predicted border
    page.run("findAll('#worst button')[0].click()")
    assert f"{places[0]} (pinned)" in page.pixel_text()
    row, column = (int(number) for number in re.findall(r"\d+", places[0]))
    assert 24 <= row < 42
    assert 34 <= column < 54


@pytest.mark.parametrize("width", [390, 800])
def test_values_of_a_pinned_pixel_lie_next_to_it_on_narrow_screens(opened: Opened, sized: Sized, width: int) -> None:
    sized(width, 844, False)
    page = opened(*patches(96, 96))
    in_sight = """
        const { top, bottom } = panel.getBoundingClientRect();
        const down = (canvas) => (shown[0] + 0.5 - frameOf(canvas).top) * view.zoom;
        const rows = canvases.map((one) => one.getBoundingClientRect().top + down(one));
        return rows.some((row) => row > 0 && row < top) && Math.abs(bottom - innerHeight) < 2;
    """
    for row in (5, 90):
        page.run("unpin()")  # the values lie over what is below
        page.point(0, row, 40, click=True)
        assert page.run(in_sight)
    page.run("find('#worst button').scrollIntoView(); find('#worst button').click()")
    assert page.run(in_sight)
    assert page.run("return panel.scrollWidth <= panel.clientWidth")
    page.run("find('button', panel).click()")
    assert page.pixel_text().startswith("This image")
    assert page.run("return getComputedStyle(panel).position") == "static"


def test_the_table_sorts(opened: Opened) -> None:
    logits, target = patches(96, 120, classes=12)  # of about a thousand pixels each: some have a comma
    page = opened(logits, target)
    number = "Number(row.cells[1].textContent.replaceAll(',', ''))"
    column = f"return findAll('tbody tr', find('.sortable')).map((row) => {number})"
    for order in (True, False):
        page.run("findAll('.sortable thead button')[1].click()")
        assert page.run(column) == sorted(page.run(column), reverse=order)
    assert page.run("return findAll('.sortable [aria-sort]').length") == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.slow
def test_it_is_accessible(opened: Opened, axe: str, sized: Sized, dark: bool, width: int) -> None:
    sized(width, 844, dark)
    image = torch.rand(1, 3, 24, 36)
    page = opened(*patches(), image=image, class_names=["a" * 60, "b b", "c"], links={"All images": "index.html"})
    page.run(
        "findAll('details').forEach((one) => (one.open = true)); findAll('#legend button')[1].click(); pin(10, 10)"
    )
    assert violations(page.driver, axe) == []
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.run("unpin()")
    assert violations(page.driver, axe) == []


def test_every_column_of_the_table_is_printed(opened: Opened, sized: Sized) -> None:
    sized(700, 1000, False)  # A4 without its margins
    page = opened(*patches(), class_names=["a", "pedestrian", "c"])
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert page.run("const { scrollWidth, clientWidth } = find('.scroll'); return scrollWidth <= clientWidth")
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_batch_is_shown_image_by_image_and_controls_work_meanwhile(opened: Opened) -> None:
    logits, target = patches(batch=3)
    page = opened(logits, target, image=torch.rand(3, 1, *target.shape[1:]))
    page.choose(1, "gradient")
    page.run("""
        const choose = (menu, value) => Object.assign(menu, { value }).dispatchEvent(new Event("change"));
        for (const index of [1, 2]) {
            choose(find("#image"), index);
            findAll("#viewer button, #legend input").forEach((one) => one.hidden || one.click());
            for (const value of ["edge", "cross_entropy"]) choose(menus[0], value);
            canvases[0].dispatchEvent(new PointerEvent("pointermove", { clientX: 100, clientY: 300 }));
            drawView(0);
        }
    """)
    page.wait_for("return find('#wait').style.visibility === 'hidden' && image.picture.naturalWidth === 36")
    assert page.run("return filter.hidden.size") == 0
    assert page.run("return images.findIndex(({ worst }) => worst === image.worst)") == 2
    assert page.run("return [menus[0].value, menus[1].value]") == ["cross_entropy", "gradient"]
    scores = compute_scores(target[2:].clamp(min=-1).numpy(), logits[2:].argmax(1).numpy(), 3)
    assert page.run("return findAll('#scores tbody td').map((one) => one.textContent)")[0] == str(scores.pixels[0])
    assert shown_figures(scores.means)["mean IoU"] in page.run(
        "return findAll('#tiles dd').map((one) => one.textContent)"
    )
    assert page.run("return find('#slide').value") == "2"
    expected = np.rint(255 * np.vstack([distinct_colors(3), VOID])[compute_arrays(logits, target).target[2]])
    page._wait.until(lambda d: np.array_equal(page.layer("truth")[..., :3], expected))


@pytest.mark.parametrize("band", [2**19, 60], ids=["one band", "more bands than rows"])
def test_logits_of_lower_resolution(opened: Opened, monkeypatch: pytest.MonkeyPatch, band: int) -> None:
    monkeypatch.setattr("edgeloss.viz.packing._BAND", band)
    _, target = patches(24, 36)
    logits = torch.randn(1, 3, 6, 9)
    criterion = EdgeAwareLoss(upsample=True)
    page = opened(logits, target, criterion=criterion)
    page.choose(0, "gradient")
    assert page.layer("gradient").shape == (24, 36, 4)
    page.point(0, 13, 22)
    shown = number_of(dict(page.table("terms"))["|gradient|"])
    assert shown == pytest.approx(compute_arrays(logits, target, criterion).gradient[0, 13 // 4, 22 // 4], rel=0.01)


@pytest.mark.slow
def test_a_large_image_is_usable(opened: Opened) -> None:
    given = large_image("smooth")
    page = opened(**given)
    page.choose(1, "gradient")
    page.run("document.querySelectorAll('.largest')[1].click()")
    page._wait.until(lambda d: "(pinned)" in page.pixel_text())
    assert len(np.unique(page.dots(1).reshape(-1, 3), axis=0)) > 20
    assert page.run("return performance.now()") < 60_000
