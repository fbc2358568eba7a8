"""The panel: its colors, what it shows, and what it rejects."""

from __future__ import annotations

import gc
import io
import re
import weakref
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgb
from PIL import Image
from scenes import BLACK, GRAY, MAGENTA, MAPS, PICTURES, caption, color_at, drawn, key_of, pictures, render, scene

from edgeloss import EdgeAwareLoss, LossMaps
from edgeloss.viz import compute_arrays, distinct_colors, panel, report
from edgeloss.viz.arrays import read_scene
from edgeloss.viz.coloring import color_bytes, shown_number
from edgeloss.viz.drawing import find_borders
from edgeloss.viz.palette import PALE, RIGHT, VOID, WRONG
from edgeloss.viz.panel import gradient_figure
from edgeloss.viz.scores import shown

# Linear sRGB as seen without the long or the middle cones (Viénot, Brettel & Mollon 1999).
PROTANOPE = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPE = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


def test_colors_are_distinct_for_every_reader() -> None:
    reserved = np.array([(1, 0, 1), (0, 0, 0), (0.62, 0.62, 0.62)])
    linear = ((np.vstack([reserved, distinct_colors(256)]) + 0.055) / 1.055) ** 2.4
    for seen, few, more in ((np.eye(3), 0.2, 0.12), (PROTANOPE, 0.09, 0.09), (DEUTERANOPE, 0.09, 0.09)):
        colors = (linear @ seen.T).clip(0, 1) ** (1 / 2.4)
        for count, least in ((11, few), (20, more)):
            some = colors[: 3 + count]
            gaps = np.linalg.norm(some[:, None] - some, axis=-1)[~np.eye(3 + count, dtype=bool)]
            assert gaps.min() > least, (seen, count)
    assert len(np.unique(distinct_colors(256), axis=0)) == 256
    assert distinct_colors(300)[256:].tolist() == distinct_colors(44).tolist()


def test_no_global_state_remains() -> None:
    settings = dict(matplotlib.rcParams)
    figure = panel(*scene())
    render(figure)
    alive = weakref.ref(figure)
    del figure
    gc.collect()
    assert alive() is None
    assert dict(matplotlib.rcParams) == settings


def test_maps_are_those_of_the_loss() -> None:
    logits, target = scene()
    criterion = EdgeAwareLoss(torch.tensor([1.0, 2.0, 0.5]), edge_weight=2.0, power=-1.0, label_smoothing=0.1).eval()
    leaf = logits.clone().requires_grad_()
    loss, maps = criterion(leaf, target, return_maps=True)
    loss.backward()
    assert isinstance(maps, LossMaps)
    assert leaf.grad is not None

    axes = pictures(panel(logits, target, criterion=criterion))
    # The kernels round otherwise than plain PyTorch, which panels are computed by.
    np.testing.assert_allclose(drawn(axes["cross-entropy"]), maps.cross_entropy[0], rtol=1e-5)
    np.testing.assert_allclose(drawn(axes["edge map"]), maps.edge[0], rtol=1e-5)
    valid = (target[0] >= 0).numpy()
    gradient = drawn(axes["|gradient|"])
    np.testing.assert_allclose(10 ** gradient[valid], leaf.grad.norm(dim=1)[0][valid], rtol=1e-5)
    ce = maps.cross_entropy[0][valid]
    assert caption(axes["cross-entropy"]) == f"mean {shown_number(ce.double().mean())} · max {shown_number(ce.max())}"
    edge = maps.edge[maps.edge_mask]
    assert caption(axes["edge map"]) == f"mean {shown_number(edge.double().mean())} · max {shown_number(edge.max())}"


def test_labels_have_their_colors_and_names() -> None:
    logits, target = scene(classes=5)
    target[target == 3] = 0
    logits[:, 3] = -100  # so that class 3 occurs neither here nor there
    names = ["sky", "_road_", "tree", "car", "sign"]
    figure = panel(logits, target, class_names=names, palette=["r", "#00ff00", (0.0, 0.0, 1.0), "cyan", "w"])
    colors = np.array([to_rgb(color) for color in ["r", "#00ff00", "b", "cyan", "w", "0.62"]])
    axes = pictures(figure)
    labels = target[0].where(target[0] >= 0, torch.tensor(5))
    np.testing.assert_array_equal(drawn(axes["ground truth"]), color_bytes(colors)[labels])
    predicted = logits[0].argmax(0).where(target[0] >= 0, torch.tensor(5))  # gray where no label counts
    np.testing.assert_array_equal(drawn(axes["prediction"]), color_bytes(colors)[predicted])
    special = ["right", "wrong", "ignored", "no edge, zero gradient", "true borders"]
    assert key_of(figure) == ["sky", "_road_", "tree", "sign", *special]

    valid = target[0] >= 0
    right = (logits[0].argmax(0) == target[0])[valid].float().mean()
    assert caption(axes["prediction"]) == f"{shown(right, '.1%')} right"
    present = len(target.unique()) - 1
    assert caption(axes["ground truth"]) == f"{present} classes · {shown(1 / 12, '.1%')} ignored"


def test_integer_palettes_are_of_255() -> None:
    logits, target = scene(classes=2)
    figure = panel(logits, target, palette=np.array([[255, 0, 51], [0, 102, 0]], dtype=np.uint8))
    shown = np.unique(drawn(pictures(figure)["prediction"]).reshape(-1, 3), axis=0)
    np.testing.assert_array_equal(shown, [[0, 102, 0], color_bytes(VOID), [255, 0, 51]])


@pytest.mark.parametrize(
    ("dtype", "gray"), [(torch.uint8, False), (torch.uint8, True), (torch.float32, False), (torch.float16, True)]
)
def test_images_are_shown_as_they_are(dtype: torch.dtype, gray: bool) -> None:
    logits, target = scene()
    image = torch.randint(256, (1 if gray else 3, 12, 16), dtype=torch.uint8)
    given = image if dtype == torch.uint8 else (image / 255).to(dtype)
    shown = drawn(pictures(panel(logits, target, image=given))["image"])
    np.testing.assert_array_equal(shown, image.expand(3, -1, -1).permute(1, 2, 0))


def test_borders_run_between_valid_labels_only() -> None:
    labels = np.array([[0, 0, 1], [0, 0, 1], [-1, 2, 2]])
    lines = {tuple(map(tuple, line)) for line in find_borders(labels).tolist()}
    assert lines == {((1.5, -0.5), (1.5, 1.5)), ((0.5, 1.5), (2.5, 1.5))}


@pytest.mark.parametrize("size", [12, 700])  # 700: pixels smaller than a dot
def test_non_finite_values_are_magenta_and_counted(size: int) -> None:
    logits, target = torch.randn(1, 2, size, size), torch.zeros(1, size, size, dtype=torch.int64)
    target[:, :, size // 2 :] = 1
    row, other, column = size // 4, size // 2, size // 6
    logits[0, 1, row, column] = float("nan")
    logits[0, :, other, column] = float("inf")
    # The gradient of the region term by a class depends on all logits of the class.
    figure = panel(logits, target, criterion=EdgeAwareLoss(region_weight=0.0))
    paper = render(figure)
    axes = pictures(figure)
    for name in ("cross-entropy", "|gradient|"):
        assert caption(axes[name]).endswith("· 2 not finite")
        assert np.argwhere(drawn(axes[name]).mask).tolist() == [[row, column], [other, column]]
        rgba = axes[name].images[0].to_rgba(drawn(axes[name]), bytes=True)
        assert tuple(rgba[row, column, :3]) == MAGENTA
        assert color_at(paper, axes[name], row, column) == color_at(paper, axes[name], other, column) == MAGENTA
        assert color_at(paper, axes[name], row, 1) != MAGENTA
    assert color_at(paper, axes["prediction"], row, column) == MAGENTA  # nan is not a class
    assert color_at(paper, axes["prediction"], other, column) != MAGENTA  # the first of equal logits is the class
    assert "not finite" in caption(axes["cross-entropy"])
    assert "not finite" not in caption(axes["edge map"])
    assert "not finite" in key_of(figure)


def test_finite_values_are_not_magenta() -> None:
    figure = panel(*scene())
    assert not (render(figure) == MAGENTA).all(-1).any()
    assert "not finite" not in key_of(figure)
    with Image.open(io.BytesIO(figure._repr_png_())) as picture:  # as a notebook displays it, without pyplot
        assert picture.size == tuple(round(side) for side in figure.get_size_inches() * figure.dpi)


def test_means_leave_out_non_finite_values() -> None:
    logits, target = scene()
    expected = float(F.cross_entropy(logits, target, reduction="none")[0, 1:-1].mean())
    logits[0, :, 0] = float("nan")
    assert caption(pictures(panel(logits, target))["cross-entropy"]).startswith(f"mean {shown_number(expected)} ·")


def test_zero_gradient_differs_from_a_small_one() -> None:
    target = torch.zeros(1, 8, 8, dtype=torch.int64)
    logits = torch.zeros(1, 2, 8, 8)
    logits[:, 0] = 80.0  # a gradient of about 1e-36, whose square float32 does not hold
    logits[:, 0, 2, 3] = 1e4  # exactly 0
    figure = panel(logits, target)
    paper = render(figure)
    axes = pictures(figure)["|gradient|"]
    assert color_at(paper, axes, 2, 3) == BLACK
    assert color_at(paper, axes, 5, 5) != BLACK
    assert -38 < drawn(axes)[5, 5] < -35


def test_captions_errors_and_contours_with_and_without_an_image() -> None:
    """Captions come in order, every map has a bar, and errors are red over the image."""
    logits, target = scene()
    wrong = ((logits.argmax(1) != target) & (target >= 0))[0].numpy()
    gray = torch.full((1, 12, 16), 0.5)
    figures = [panel(logits, target, image=gray, title="epoch 3"), panel(logits, target, contours=False)]
    for figure, first, title in zip(figures, (0, 1), (["epoch 3"], []), strict=True):
        expected = PICTURES[first:] + [name for title in MAPS for name in (title, "")]
        assert [axes.get_title(loc="left") for axes in figure.axes] == expected
        assert [text.get_text() for text in figure.texts] == title
    lines = [axes.get_title(loc="left") for axes in figures[0].axes if axes.get_title(loc="left") and axes.collections]
    assert lines == ["image", "prediction"]  # maps show where the borders are
    assert not any(axes.collections for axes in pictures(figures[1]).values())
    with_image, without = (pictures(figure)["wrong pixels"] for figure in figures)
    share = shown(wrong.sum() / (target >= 0).sum().item(), ".1%")
    assert caption(without) == caption(with_image) == f"{wrong.sum()} of {(target >= 0).sum()}, {share}"
    rest = ~wrong & (target[0] >= 0).numpy()
    for axes, right in ((with_image, [fmean(PALE)] * 3), (without, RIGHT)):
        for pixels, color in ((wrong, WRONG), (rest, right), (target[0] < 0, VOID)):
            np.testing.assert_allclose(drawn(axes)[pixels] - color_bytes(color).astype(int), 0, atol=1)


def test_bars_have_units() -> None:
    criterion = EdgeAwareLoss(region_weight=0.0)  # whose gradient spans so many decades that each has a number
    axes = pictures(panel(*scene(), terms=True, criterion=criterion))
    bars = {name: one.images[0].colorbar for name, one in axes.items() if one.images[0].colorbar is not None}
    units = {name: bar.ax.texts[0].get_text() for name, bar in bars.items()}
    assert units == dict.fromkeys(("cross-entropy", "edge map", "same side", "other side"), "nats") | {
        "|gradient|": "L2 norm"
    }
    numbers = [text.get_text() for text in bars["|gradient|"].ax.get_xticklabels()]
    assert all(re.fullmatch("10⁻[⁰¹²³⁴⁵⁶⁷⁸⁹]+", number) for number in numbers)


def test_thin_edges_survive_downscaling() -> None:
    """An edge two pixels wide stays without a gap, and its color does not fade, on any number of dots."""
    target = torch.zeros(1, 600, 450, dtype=torch.int64)
    target[:, :, 222:] = 1
    logits = torch.zeros(1, 2, 600, 450)
    logits[:, 0, :, 222] = 5  # one column is wrong
    figure = panel(logits, target)
    for dpi in (30, 47, 110):
        file = io.BytesIO()
        figure.savefig(file, dpi=dpi)
        paper = np.asarray(Image.open(file))[..., :3]
        box = pictures(figure)["edge map"].get_position()
        rows = slice(*(round((1 - y) * paper.shape[0]) + d for y, d in ((box.y1, 2), (box.y0, -2))))
        columns = slice(*(round(x * paper.shape[1]) + d for x, d in ((box.x0, 2), (box.x1, -2))))
        shown = paper[rows, columns]
        assert shown.any(-1).any(1).all()
        assert (shown.max((1, 2)) > 200).all()  # the bright end of the colors
        assert not shown[:, :3].any()


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
@pytest.mark.slow
def test_text_in_a_file_of_vectors_is_text(suffix: str) -> None:
    file = io.BytesIO()
    panel(*scene(classes=2), class_names=["road", "tree"], title="épreuve").savefig(file, format=suffix)
    if suffix == "svg":
        text = "".join(re.findall(r"<text[^>]*>([^<]*)</text>", file.getvalue().decode()))
        assert all(word in text for word in ("épreuve", "road", "cross-entropy", "10⁻"))
    else:
        assert b"/Type3" not in file.getvalue()
        assert b"/CIDFontType2" in file.getvalue()


def test_the_key_says_where_colors_are_clipped() -> None:
    gradient = torch.ones(1, 2, 32, 32)
    assert key_of(gradient_figure(gradient)) == []
    gradient[0, 0, 0, :2] = 100  # of 1024 pixels
    assert key_of(gradient_figure(gradient)) == ["highest 0.5 % of a map"]


def test_the_key_of_very_many_classes_names_the_largest() -> None:
    target = torch.arange(100).repeat(100, 1)
    target[:, 50] = 99
    target[:, 60] = -100  # class 60 is predicted, and smaller than the others
    logits = torch.nn.functional.one_hot(torch.arange(300).remainder(100).expand(100, -1)[:, :100], 300)
    names = key_of(panel(logits.permute(2, 0, 1) * 1.0, target))
    assert names[:39] == [str(k) for k in range(39)]
    assert names[39:41] == ["99", "and 60 more"]


def test_ignored_cells_of_a_lower_resolution_are_gray() -> None:
    target = torch.randint(2, (1, 32, 48))
    target[:, 14:27, 11:33] = -100
    figure = panel(torch.randn(1, 2, 8, 12), target, criterion=EdgeAwareLoss(upsample=True))
    paper = render(figure)
    axes = pictures(figure)["|gradient|"]
    assert color_at(paper, axes, 20, 21) == GRAY
    assert color_at(paper, axes, 3, 3) not in (GRAY, BLACK)


def test_off_the_edges_is_black_and_void_is_grey() -> None:
    target = torch.zeros(12, 12, dtype=torch.int64)
    target[:, 6:] = 1
    target[9:] = -100
    figure = panel(torch.randn(2, 12, 12), target)
    paper = render(figure)
    axes = pictures(figure)
    assert color_at(paper, axes["edge map"], 3, 2) == BLACK
    assert color_at(paper, axes["edge map"], 3, 5) != BLACK
    for name in ["ground truth", *MAPS]:
        assert color_at(paper, axes[name], 10, 3) == GRAY
        assert color_at(paper, axes[name], 3, 5) != GRAY


def test_all_ignored_is_drawn_without_a_number() -> None:
    logits, target = scene()
    axes = pictures(panel(logits, target.fill_(-100)))
    assert [caption(axes[name]) for name in MAPS] == ["nothing to measure"] * 4
    assert caption(axes["prediction"]) == "all ignored"


def test_outliers_do_not_spoil_the_colors() -> None:
    logits, target = torch.randn(1, 2, 40, 40), torch.zeros(1, 40, 40, dtype=torch.int64)
    logits[0, 1, 7, 7] = 1e6
    figure = panel(logits, target)
    image = pictures(figure)["cross-entropy"].images[0]
    low, high = image.get_clim()
    assert low == 0
    assert high is not None
    assert 1 < high < 10
    assert image.colorbar is not None
    assert image.colorbar.extend == "max"
    edge = pictures(figure)["edge map"].images[0]
    assert edge.colorbar is not None
    assert edge.colorbar.extend == "neither"


def test_a_dollar_in_a_name_is_text() -> None:
    panel(*scene(classes=2), class_names=["$", "a$x^$"], title="$x^$").draw_without_rendering()  # no formula


def test_a_batch_has_a_row_per_image_on_common_scales() -> None:
    logits, target = scene(batch=3)
    figure = panel(logits, target, image=torch.rand(3, 1, 12, 16))
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.images] == (PICTURES + MAPS) * 3
    rows = [axes for axes in figure.axes if axes.get_title(loc="left") == "cross-entropy"]
    np.testing.assert_allclose([drawn(axes) for axes in rows], compute_arrays(logits, target).maps["cross_entropy"])
    assert len({axes.images[0].get_clim() for axes in rows}) == 1
    heights = [axes.get_position().y0 for axes in rows]
    assert heights == sorted(heights, reverse=True)
    assert len({axes.get_position().x0 for axes in rows}) == 1


def test_logits_of_lower_resolution() -> None:
    _, target = scene(32, 48)
    logits = torch.randn(1, 3, 8, 12)
    criterion = EdgeAwareLoss(upsample=True)
    axes = pictures(panel(logits, target, criterion=criterion))
    full = F.interpolate(logits, (32, 48), mode="bilinear", align_corners=False)
    np.testing.assert_array_equal(compute_arrays(logits, target, criterion).prediction, full.argmax(1))
    gradient, edge = (axes[name].images[0] for name in ("|gradient|", "edge map"))
    assert drawn(axes["|gradient|"]).shape == (8, 12)
    assert gradient.get_extent() == edge.get_extent()
    assert list(edge.get_extent()) == [-0.5, 47.5, 31.5, -0.5]


def test_arguments_are_not_modified() -> None:
    criterion = EdgeAwareLoss(sync_normalizer=True)
    logits, target = scene()
    leaf = logits.clone().requires_grad_()
    labels = target.clone()
    panel(leaf, target, criterion=criterion)
    used = read_scene(logits, target, criterion).options
    assert (used.sync_normalizer, used.validate) == (False, "sync")  # no collective: the other ranks would not join
    assert (criterion.sync_normalizer, criterion.validate) == (True, "async")
    assert leaf.grad is None
    assert torch.equal(leaf, logits)
    assert torch.equal(target, labels)


VALUES: list[tuple[dict[str, Any], str]] = [
    ({"logits": torch.zeros(1, 2, 3, 8, 8)}, r"logits and target: expected 2-D images .*; of a volume pass a slice"),
    ({"logits": torch.zeros(2, 2, 8, 8)}, r"for logits \[2, 2, 8, 8\], but got \[1, 8, 8\]"),
    ({"logits": torch.zeros(8, 8)}, r"logits and target: expected 2-D images .* \[B, C, H, W\]"),
    ({"logits": torch.zeros(0, 2, 8, 8), "target": torch.zeros(0, 8, 8).long()}, "at least one pixel"),
    ({"logits": torch.zeros(1, 2, 0, 8), "target": torch.zeros(1, 0, 8).long()}, "at least one pixel"),
    ({"logits": torch.zeros(1, 2, 4, 4)}, "upsample"),
    ({"target": torch.full((1, 8, 8), 7)}, "7"),
    ({"image": torch.zeros(3, 8, 9)}, r"image: expected \[1, 3, 8, 8\] .*, but got \[3, 8, 9\]"),
    ({"image": torch.zeros(2, 8, 8)}, "one gray channel"),
    ({"image": torch.zeros(8, 8, 3)}, r"got \[8, 8, 3\]; for channels at the end pass image.movedim\(-1, -3\)"),
    ({"image": torch.zeros(4, 8, 8)}, r"got \[4, 8, 8\]; leave out its alpha channel: image\[\.\.\., :3, :, :\]"),
    ({"image": torch.full((3, 8, 8), 2.0)}, "undo the normalization"),
    ({"image": torch.full((3, 8, 8), float("nan"))}, "undo the normalization"),
    ({"class_names": ["one"]}, "class_names: expected at least 2 names, but got 1"),
    ({"palette": ["red"]}, "palette: expected at least 2 colors, but got 1"),
]
TYPES: list[tuple[dict[str, Any], str]] = [
    ({"logits": np.zeros((1, 2, 8, 8))}, "logits: expected a tensor, but got numpy.ndarray; pass torch.as_tensor"),
    ({"logits": {"out": 1}}, r'logits: expected a tensor, but got dict; pass output\["out"\]'),
    ({"target": np.zeros((1, 8, 8), int)}, "target: expected a tensor of class .*; pass torch.as_tensor"),
    ({"target": torch.zeros(8, 8)}, "target: expected class indices"),
    ({"image": np.zeros((3, 8, 8))}, r"image: expected a tensor, but got numpy.ndarray; pass torch.as_tensor\("),
    ({"criterion": torch.nn.CrossEntropyLoss()}, "but got CrossEntropyLoss; for cross-entropy pass EdgeAwareLoss"),
]


@pytest.mark.parametrize("draw", [panel, report])
@pytest.mark.parametrize(
    ("error", "arguments", "message"), [(ValueError, *case) for case in VALUES] + [(TypeError, *case) for case in TYPES]
)
def test_arguments_that_do_not_fit_are_rejected(
    draw: Any, error: type[Exception], arguments: dict[str, Any], message: str
) -> None:
    fitting = {"logits": torch.zeros(1, 2, 8, 8), "target": torch.zeros(1, 8, 8, dtype=torch.int64)}
    with pytest.raises(error, match=message):
        draw(**(fitting | arguments))


@pytest.mark.parametrize("width", [1.5, float("nan")])
def test_a_figure_has_a_least_width(width: float) -> None:
    with pytest.raises(ValueError, match=f"width: expected at least 1.7 inches, but got {width}"):
        panel(*scene(), width=width)


EXTREMES = {
    "zeros": torch.zeros(2, 8, 8),
    "nan": torch.full((2, 8, 8), float("nan")),
    "inf": torch.full((2, 8, 8), float("inf")),
    "huge": torch.linspace(-1e30, 1e30, 128).reshape(2, 8, 8),
    "saturated": torch.stack([torch.full((8, 8), 87.0), torch.zeros(8, 8)]),
    "double": torch.linspace(-1e307, 1e307, 128, dtype=torch.float64).reshape(2, 8, 8),
}


@pytest.mark.parametrize(
    ("name", "labels"),
    [*((name, "two") for name in EXTREMES), ("zeros", "one"), ("nan", "one"), ("nan", "void")],
)
@pytest.mark.slow
def test_extremes_are_drawn_without_a_warning(name: str, labels: str) -> None:
    target = torch.zeros(8, 8, dtype=torch.int64)
    if labels == "two":
        target[:, 4:] = 1
    if labels == "void":
        target = torch.full((8, 8), -100)
    figure = panel(EXTREMES[name], target)
    figure.set_dpi(60)  # which is quicker
    assert render(figure).std() > 0
