"""The layout of the panel for images of every shape."""

from __future__ import annotations

import re

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from scenes import MAPS, scene

from edgeloss.viz import panel


def boxes(figure: Figure) -> list[Bbox]:
    """Return the boxes that must not overlap: pictures, captions, bars and their numbers, title and key."""
    figure.draw_without_rendering()
    texts = [*figure.texts]
    for axes in figure.axes:
        low, high = sorted(axes.get_xlim())
        texts += [child for child in axes.get_children() if isinstance(child, Text) and child.get_text()]
        texts += [text for x, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low <= x <= high]
    extents = [text.get_window_extent() for text in texts]
    return (
        [axes.get_window_extent() for axes in figure.axes]
        + extents
        + [one.get_window_extent() for one in figure.legends]
    )


# What is drawn depends on the ratio of the sides alone, and takes longer for more pixels.
SHAPES = [
    (1, 1, 1),
    (1, 8, 8),
    (1, 18, 24),
    (1, 16, 64),
    (1, 64, 16),
    (1, 1, 1000),
    (1, 1000, 1),
    (3, 16, 16),
    (2, 8, 64),
    (2, 64, 8),
]


LOOKS = [(False, 2, None), (True, 20, None), (True, 3, 1.7), (False, 300, 6.9)]  # with an image, classes, inches
# Half of the shapes and all looks at every change, few images with many classes, and all of their pairs in CI: a figure
# takes a second or more.
PAIRS = [
    pytest.param(shape, look, marks=[] if s % 2 == 0 and (s // 2 + 1) % len(LOOKS) == k else pytest.mark.slow)
    for s, shape in enumerate(SHAPES)
    for k, look in enumerate(LOOKS)
]


@pytest.mark.parametrize(("shape", "look"), PAIRS)
def test_nothing_overlaps_or_leaves_the_figure_and_pixels_are_square(
    shape: tuple[int, int, int], look: tuple[bool, int, float | None]
) -> None:
    (batch, height, width), (with_image, classes, inches) = shape, look
    logits, target = scene(height, width, classes, batch)
    logits.view(-1)[0] = float("nan")  # the longest captions
    figure = panel(
        logits * 1e-4,
        target,
        image=torch.rand(batch, 3, height, width) if with_image else None,
        class_names=[f"a class {c}" for c in range(classes)],
        title="a title of some length, for a narrow figure",
        width=inches,
        terms=bool(inches),
    )
    assert inches is None or figure.get_figwidth() == pytest.approx(inches)
    extents = boxes(figure)
    page = figure.bbox
    for box in extents:
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1
    for i, box in enumerate(extents):
        for other in extents[:i]:
            shared = Bbox.intersection(box, other)
            assert shared is None or min(shared.width, shared.height) < 1, (box, other)
    if (classes, inches) == (2, None):
        assert_pixels_are_square(figure, height / width)


def assert_pixels_are_square(figure: Figure, ratio: float) -> None:
    """Check the shape of the pictures of a drawn figure, and that each map has its bar below."""
    for axes in figure.axes:
        if not axes.get_title(loc="left"):
            continue
        box = axes.get_window_extent()
        if 1 / 8 <= ratio <= 4:
            assert box.height / box.width == pytest.approx(ratio)
        if axes.get_title(loc="left") in MAPS:
            bar = axes.images[0].colorbar
            if bar is None:  # no value to read off its logarithms
                assert "gradient" in axes.get_title(loc="left")
                assert re.search("max 0|nothing to measure", axes.texts[0].get_text())
                continue
            assert box.x0 <= bar.ax.bbox.x0 < bar.ax.bbox.x1 <= box.x1
            assert bar.ax.bbox.y1 < box.y0


@pytest.mark.parametrize(("width", "classes", "is_below"), [(6.9, 3, False), (3.3, 3, False), (3.3, 20, True)])
def test_the_key_is_in_free_places_if_it_fits_there(width: float, classes: int, is_below: bool) -> None:
    logits, target = scene(16, 16, classes)
    logits.view(-1)[0] = 99  # the longest name of the key: of the highest values
    figure = panel(logits, target, width=width)
    figure.draw_without_rendering()
    axes = {one.get_title(loc="left"): one.get_window_extent() for one in figure.axes}
    keys = [one.get_window_extent() for one in figure.legends]
    if is_below:
        assert max(one.y1 for one in keys) < axes["|region gradient|"].y0
        return
    wrong = axes["wrong pixels"]
    assert min(one.x0 for one in keys) > wrong.x1
    assert all(wrong.y0 <= one.y0 < one.y1 <= wrong.y1 + 1 for one in keys)


def test_maps_begin_a_row_and_rows_have_as_few_free_places_as_possible() -> None:
    for with_image, terms, expected in (
        (False, False, [3, 4]),
        (True, False, [4, 4]),
        (False, True, [3, 3, 3]),
        (True, True, [4, 4, 2]),
    ):
        logits, target = scene(16, 20)
        figure = panel(logits, target, image=torch.rand(3, 16, 20) if with_image else None, terms=terms)
        tops = [round(axes.get_window_extent().y0) for axes in figure.axes if axes.get_title(loc="left")]
        assert [tops.count(top) for top in sorted(set(tops), reverse=True)] == expected
        titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
        assert tops[titles.index("cross-entropy")] < tops[titles.index("wrong pixels")]
