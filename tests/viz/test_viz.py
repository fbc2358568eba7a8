"""The figure: what it shows, that it shows it truly, and that it is laid out right for images of every shape."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import matplotlib
import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from torch import Tensor

from edgeloss import EdgeAwareLoss, LossMaps
from edgeloss.viz import compute_arrays, distinct_colors, panel
from edgeloss.viz.drawing import find_borders

PICTURES = ["image", "ground truth", "prediction"]
MAPS = ["cross-entropy", "edge map", "log10 |gradient|"]
GREY, MAGENTA, BLACK = (158, 158, 158), (255, 0, 255), (0, 0, 0)


def scene(height: int = 12, width: int = 16, classes: int = 3, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Logits and a target of large patches, so that there are edges and pixels off them; the last row is ignored."""
    target = torch.randint(classes, (batch, -(-height // 4), -(-width // 4)))
    target = target.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, :height, :width].contiguous()
    if height > 1:
        target[:, -1] = -100
    return torch.randn(batch, classes, height, width), target


def pictures(figure: Figure) -> dict[str, Axes]:
    """The axes of a figure of one image, by caption."""
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def drawn(axes: Axes) -> np.ma.MaskedArray[Any, Any]:
    """The array that a map shows."""
    return np.ma.asarray(axes.images[0].get_array())


def caption(axes: Axes) -> str:
    return axes.texts[0].get_text()


def render(figure: Figure) -> npt.NDArray[np.uint8]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


def color_at(figure: Figure, axes: Axes, row: int, column: int) -> tuple[int, ...]:
    """The colour in the middle of a pixel, on paper."""
    paper = render(figure)
    x, y = axes.transData.transform((column, row))
    return tuple(int(value) for value in paper[paper.shape[0] - 1 - int(y), int(x)])


def boxes(figure: Figure) -> list[Bbox]:
    """All that must neither overlap nor leave the figure: pictures, captions, bars and their numbers, title and key."""
    figure.draw_without_rendering()
    texts = [*figure.texts]
    for axes in figure.axes:
        low, high = sorted(axes.get_ylim())
        texts += [child for child in axes.get_children() if isinstance(child, Text) and child.get_text()]
        texts += [text for y, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True) if low <= y <= high]
    found = [text.get_window_extent() for text in texts]
    return [axes.get_window_extent() for axes in figure.axes] + found + [figure.legends[0].get_window_extent()]


# ------------------------------------------------------------------------------------------------------ what is shown


@pytest.mark.parametrize("with_image", [False, True])
def test_captions_come_in_order_and_every_map_has_a_bar(with_image: bool) -> None:
    logits, target = scene()
    figure = panel(logits, target, image=torch.rand(1, 3, 12, 16) if with_image else None, title="epoch 3")
    expected = PICTURES[not with_image :] + [name for title in MAPS for name in (title, "")]
    assert [axes.get_title(loc="left") for axes in figure.axes] == expected
    assert [text.get_text() for text in figure.texts] == ["epoch 3"]


def test_maps_are_those_of_the_loss() -> None:
    logits, target = scene()
    criterion = EdgeAwareLoss(torch.tensor([1.0, 2.0, 0.5]), edge_weight=2.0, power=-1.0, label_smoothing=0.1)
    leaf = logits.clone().requires_grad_()
    loss, maps = criterion(leaf, target, return_maps=True)
    loss.backward()
    assert isinstance(maps, LossMaps)
    assert leaf.grad is not None

    axes = pictures(panel(logits, target, criterion=criterion))
    np.testing.assert_array_equal(drawn(axes["cross-entropy"]), maps.cross_entropy[0])
    np.testing.assert_array_equal(drawn(axes["edge map"]), maps.edge[0])
    valid = (target[0] >= 0).numpy()
    gradient = drawn(axes["log10 |gradient|"])
    np.testing.assert_allclose(10 ** gradient[valid], leaf.grad.norm(dim=1)[0][valid], rtol=1e-5)
    ce = maps.cross_entropy[0][valid]
    assert caption(axes["cross-entropy"]) == f"mean {ce.double().mean():.3g} · max {ce.max():.3g}"
    edge = maps.edge[maps.edge_mask]
    assert caption(axes["edge map"]) == f"mean {edge.double().mean():.3g} · max {edge.max():.3g}"


def test_false_edges_are_drawn_where_they_count() -> None:
    logits, target = scene()
    criterion = EdgeAwareLoss(false_edge_weight=0.5)
    _, maps = criterion(logits, target, return_maps=True)
    figure = panel(logits, target, criterion=criterion, terms=True)
    shown = pictures(figure)["false edge"]
    np.testing.assert_array_equal(drawn(shown), maps.false_edge[0])
    values = maps.false_edge[maps.false_edge > 0]
    assert caption(shown) == f"mean {values.double().mean():.3g} · max {values.max():.3g}"
    assert color_at(figure, shown, *maps.edge_mask[0].nonzero()[0].tolist()) == BLACK
    assert "false edge" not in pictures(panel(logits, target, criterion=criterion))
    assert "false edge" not in pictures(panel(logits, target, terms=True))
    assert not any("false_edge" in part for part in compute_arrays(logits, target)[3:5])


def test_labels_have_their_colors_and_names() -> None:
    logits, target = scene(classes=5)
    target[target == 3] = 0
    logits[:, 3] = -100  # so that class 3 occurs neither here nor there
    names = ["sky", "_road_", "tree", "car", "sign"]
    figure = panel(logits, target, class_names=names, palette=["r", "#00ff00", (0.0, 0.0, 1.0), "cyan", "w"])
    colors = np.array([to_rgb(color) for color in ["r", "#00ff00", "b", "cyan", "w", "0.62"]])
    axes = pictures(figure)
    labels = target[0].where(target[0] >= 0, torch.tensor(5))
    np.testing.assert_allclose(drawn(axes["ground truth"]), colors[labels], atol=0.01)
    np.testing.assert_array_equal(drawn(axes["prediction"]), colors[logits[0].argmax(0)])
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {"sky", "_road_", "tree", "sign", "ignored", "no edge, zero gradient"}

    valid = target[0] >= 0
    right = (logits[0].argmax(0) == target[0])[valid].float().mean()
    assert caption(axes["prediction"]) == f"{right:.1%} right"
    assert caption(axes["ground truth"]) == f"{1 / 12:.1%} ignored"


def test_integer_palettes_are_of_255() -> None:
    logits, target = scene(classes=2)
    figure = panel(logits, target, palette=np.array([[255, 0, 51], [0, 102, 0]], dtype=np.uint8))
    found = np.unique(drawn(pictures(figure)["prediction"]).reshape(-1, 3), axis=0)
    np.testing.assert_allclose(found, [[0, 0.4, 0], [1, 0, 0.2]])


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_images_are_shown_as_they_are(dtype: torch.dtype, grey: bool) -> None:
    logits, target = scene()
    image = torch.randint(256, (1 if grey else 3, 12, 16), dtype=torch.uint8)
    given = image if dtype == torch.uint8 else (image / 255).to(dtype)
    shown = drawn(pictures(panel(logits, target, image=given))["image"])
    np.testing.assert_allclose(shown, (image / 255).expand(3, -1, -1).permute(1, 2, 0), atol=1e-3)


def test_borders_run_between_valid_labels_only() -> None:
    labels = np.array([[0, 0, 1], [0, 0, 1], [-1, 2, 2]])
    lines = {tuple(map(tuple, line)) for line in find_borders(labels).tolist()}
    assert lines == {((1.5, -0.5), (1.5, 1.5)), ((0.5, 1.5), (2.5, 1.5))}


# ------------------------------------------------------------------------------------- not finite, zero, nothing, void


@pytest.mark.parametrize("size", [12, 700])  # 700: a pixel is smaller than one of the paper's, and is seen all the same
def test_what_is_not_finite_is_magenta_and_counted(size: int) -> None:
    logits, target = torch.randn(1, 2, size, size), torch.zeros(1, size, size, dtype=torch.int64)
    target[:, :, size // 2 :] = 1
    clean = panel(logits, target)
    assert not (render(clean) == MAGENTA).all(-1).any()
    assert "not finite" not in {text.get_text() for text in clean.legends[0].get_texts()}

    row, other, column = size // 4, size // 2, size // 6
    logits[0, 1, row, column] = float("nan")
    logits[0, :, other, column] = float("inf")
    figure = panel(logits, target)
    axes = pictures(figure)
    for name in ("cross-entropy", "log10 |gradient|"):
        assert caption(axes[name]).endswith("· 2 not finite")
        assert np.argwhere(drawn(axes[name]).mask).tolist() == [[row, column], [other, column]]
        rgba = axes[name].images[0].to_rgba(drawn(axes[name]), bytes=True)
        assert tuple(rgba[row, column, :3]) == MAGENTA
        assert color_at(figure, axes[name], row, column) == color_at(figure, axes[name], other, column) == MAGENTA
        assert color_at(figure, axes[name], row, 1) != MAGENTA
    assert color_at(figure, axes["prediction"], row, column) == MAGENTA  # nan is no class
    assert color_at(figure, axes["prediction"], other, column) != MAGENTA  # among equal logits the first is one
    assert "not finite" in caption(axes["cross-entropy"])
    assert "not finite" not in caption(axes["edge map"])
    assert "not finite" in {text.get_text() for text in figure.legends[0].get_texts()}


def test_means_leave_out_what_is_not_finite() -> None:
    logits, target = scene()
    expected = float(F.cross_entropy(logits, target, reduction="none")[0, 1:-1].mean())
    logits[0, :, 0] = float("nan")
    assert caption(pictures(panel(logits, target))["cross-entropy"]).startswith(f"mean {expected:.3g} ·")


def test_zero_gradient_is_told_from_a_small_one() -> None:
    target = torch.zeros(1, 8, 8, dtype=torch.int64)
    logits = torch.zeros(1, 2, 8, 8)
    logits[:, 0] = 80.0  # a gradient of about 1e-36, whose square float32 does not hold
    logits[:, 0, 2, 3] = 1e4  # exactly 0
    figure = panel(logits, target)
    axes = pictures(figure)["log10 |gradient|"]
    assert color_at(figure, axes, 2, 3) == BLACK
    assert color_at(figure, axes, 5, 5) != BLACK
    assert -38 < drawn(axes)[5, 5] < -35


def test_off_the_edges_is_black_and_void_is_grey() -> None:
    target = torch.zeros(12, 12, dtype=torch.int64)
    target[:, 6:] = 1
    target[9:] = -100
    figure = panel(torch.randn(2, 12, 12), target)
    axes = pictures(figure)
    assert color_at(figure, axes["edge map"], 3, 2) == BLACK
    assert color_at(figure, axes["edge map"], 3, 5) != BLACK
    for name in ["ground truth", *MAPS]:
        assert color_at(figure, axes[name], 10, 3) == GREY
        assert color_at(figure, axes[name], 3, 5) != GREY


def test_an_ignore_index_may_be_a_class() -> None:
    logits, target = scene()
    target = target.clamp(min=0)
    seen = compute_arrays(logits, target, EdgeAwareLoss(ignore_index=0))
    np.testing.assert_array_equal(seen.target, target.where(target > 0, torch.tensor(-1)))


def test_all_ignored_is_drawn_without_a_number() -> None:
    logits, target = scene()
    axes = pictures(panel(logits, target.fill_(-100)))
    assert [caption(axes[name]) for name in MAPS] == ["nothing to measure"] * 3
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


# ------------------------------------------------------------------------------------------------- what may be given


def test_one_image_needs_no_batch() -> None:
    logits, target = scene()
    # Booleans, labels and dicts of arrays: by their bytes.
    one, other = compute_arrays(logits[0], target[0]), compute_arrays(logits, target)
    assert pickle.dumps(one) == pickle.dumps(other)


def test_a_dollar_in_a_name_is_no_formula() -> None:
    render(panel(*scene(classes=2), class_names=["$", "a$x^$"], title="$x^$"))  # a formula of this kind can't be drawn


def test_a_batch_has_a_row_per_image_on_common_scales() -> None:
    logits, target = scene(batch=3)
    figure = panel(logits, target, image=torch.rand(3, 1, 12, 16))
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.images] == (PICTURES + MAPS) * 3
    rows = [axes for axes in figure.axes if axes.get_title(loc="left") == "cross-entropy"]
    np.testing.assert_allclose([drawn(axes) for axes in rows], compute_arrays(logits, target).maps["cross_entropy"])
    assert len({axes.images[0].norm for axes in rows}) == 1
    heights = [axes.get_position().y0 for axes in rows]
    assert heights == sorted(heights, reverse=True)
    assert len({axes.get_position().x0 for axes in rows}) == 1


def test_binary_is_the_two_class_case() -> None:
    logit, target = scene(classes=2)
    logit = logit[:, :1]
    one = compute_arrays(logit, target)
    two = compute_arrays(torch.cat([torch.zeros_like(logit), logit], dim=1), target)
    assert one.classes == 2
    np.testing.assert_array_equal(one.prediction, two.prediction)
    for name in ("cross_entropy", "edge"):
        np.testing.assert_allclose(one.maps[name], two.maps[name], rtol=1e-5)
    names = [text.get_text() for text in panel(logit, target, class_names=["ground", "box"]).legends[0].get_texts()]
    assert names[:2] == ["ground", "box"]


def test_logits_of_lower_resolution() -> None:
    _, target = scene(32, 48)
    logits = torch.randn(1, 3, 8, 12)
    criterion = EdgeAwareLoss(upsample=True)
    axes = pictures(panel(logits, target, criterion=criterion))
    full = F.interpolate(logits, (32, 48), mode="bilinear", align_corners=False)
    np.testing.assert_array_equal(compute_arrays(logits, target, criterion).prediction, full.argmax(1))
    gradient, edge = (axes[name].images[0] for name in ("log10 |gradient|", "edge map"))
    assert drawn(axes["log10 |gradient|"]).shape == (8, 12)
    assert gradient.get_extent() == edge.get_extent()
    assert list(edge.get_extent()) == [-0.5, 47.5, 31.5, -0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_differentiated_in_single(dtype: torch.dtype) -> None:
    logits, target = scene(64, 64)
    logits = (logits * 8).to(dtype)
    half, single = compute_arrays(logits, target), compute_arrays(logits.float(), target)
    np.testing.assert_array_equal(half.gradient, single.gradient)
    assert 0 < half.gradient[half.target >= 0].min() < 1e-8  # 0 in float16


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_reduction_has_a_gradient(reduction: Literal["mean", "sum", "none"]) -> None:
    logits, target = scene()
    criterion = EdgeAwareLoss(reduction=reduction)
    leaf = logits.clone().requires_grad_()
    criterion(leaf, target).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(compute_arrays(logits, target, criterion).gradient, leaf.grad.norm(dim=1), rtol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(mode: Callable[[], AbstractContextManager[None]]) -> None:
    logits, target = scene()
    expected = compute_arrays(logits, target)
    with mode():
        found = compute_arrays(logits * 1, target * 1)
    np.testing.assert_array_equal(found.gradient, expected.gradient)


def test_arguments_are_left_alone() -> None:
    criterion = EdgeAwareLoss(sync_normalizer=True)
    called_with = []
    criterion.register_forward_pre_hook(lambda module, _: called_with.append((module.sync_normalizer, module.validate)))
    logits, target = scene()
    leaf = logits.clone().requires_grad_()
    labels = target.clone()
    panel(leaf, target, criterion=criterion)
    assert called_with == [(False, "sync")]  # no collective, which the other ranks would not join
    assert (criterion.sync_normalizer, criterion.validate) == (True, "async")
    assert leaf.grad is None
    assert torch.equal(leaf, logits)
    assert torch.equal(target, labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": torch.zeros(1, 2, 3, 8, 8)}, "pass a slice"),
        ({"logits": torch.zeros(2, 2, 8, 8)}, r"got \[2, 2, 8, 8\] and \[1, 8, 8\]"),
        ({"logits": torch.zeros(8, 8)}, r"expected logits \[B, C, H, W\]"),
        ({"logits": torch.zeros(0, 2, 8, 8), "target": torch.zeros(0, 8, 8).long()}, "at least one pixel"),
        ({"logits": torch.zeros(1, 2, 0, 8), "target": torch.zeros(1, 0, 8).long()}, "at least one pixel"),
        ({"logits": torch.zeros(1, 2, 4, 4)}, "upsample"),
        ({"target": torch.full((1, 8, 8), 7)}, "7"),
        ({"image": torch.zeros(3, 8, 9)}, r"image: expected \[1, 3, 8, 8\] .*, but got \[3, 8, 9\]"),
        ({"image": torch.zeros(2, 8, 8)}, "one grey channel"),
        ({"image": torch.full((3, 8, 8), 2.0)}, "undo the normalisation"),
        ({"image": torch.full((3, 8, 8), float("nan"))}, "undo the normalisation"),
        ({"class_names": ["one"]}, "class_names: expected at least 2 names, but got 1"),
        ({"palette": ["red"]}, "palette: expected at least 2 colours, but got 1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    fitting = {"logits": torch.zeros(1, 2, 8, 8), "target": torch.zeros(1, 8, 8, dtype=torch.int64)}
    with pytest.raises(ValueError, match=message):
        panel(**(fitting | arguments))


EXTREMES = {
    "zeros": torch.zeros(2, 8, 8),
    "nan": torch.full((2, 8, 8), float("nan")),
    "inf": torch.full((2, 8, 8), float("inf")),
    "huge": torch.linspace(-1e30, 1e30, 128).reshape(2, 8, 8),
    "saturated": torch.stack([torch.full((8, 8), 87.0), torch.zeros(8, 8)]),
    "double": torch.linspace(-1e307, 1e307, 128, dtype=torch.float64).reshape(2, 8, 8),
}


@pytest.mark.parametrize("labels", ["one", "two", "void"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_are_drawn_without_a_warning(name: str, labels: str) -> None:
    target = torch.zeros(8, 8, dtype=torch.int64)
    if labels == "two":
        target[:, 4:] = 1
    if labels == "void":
        target = torch.full((8, 8), -100)
    assert render(panel(EXTREMES[name], target)).std() > 0


# --------------------------------------------------------------------------------------------------------- the layout


SHAPES = [
    (1, 1, 1),
    (1, 8, 8),
    (1, 90, 120),
    (1, 64, 256),
    (1, 256, 64),
    (1, 1, 1000),
    (1, 1000, 1),
    (3, 64, 64),
    (2, 16, 128),
    (2, 128, 16),
]


@pytest.mark.parametrize(("with_image", "classes"), [(False, 2), (False, 150), (True, 20)])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_overlaps_or_leaves_the_figure(shape: tuple[int, int, int], with_image: bool, classes: int) -> None:
    batch, height, width = shape
    logits, target = scene(height, width, classes, batch)
    logits.view(-1)[0] = float("nan")  # the longest captions
    figure = panel(
        logits * 1e-4,
        target,
        image=torch.rand(batch, 3, height, width) if with_image else None,
        class_names=[f"a class {c}" for c in range(classes)],
        title="title",
    )
    found = boxes(figure)
    page = figure.bbox
    for box in found:
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1
    for i, box in enumerate(found):
        for other in found[:i]:
            shared = Bbox.intersection(box, other)
            assert shared is None or min(shared.width, shared.height) < 1, (box, other)


@pytest.mark.parametrize("shape", SHAPES)
def test_bars_are_as_high_as_their_pictures_and_pixels_square(shape: tuple[int, int, int]) -> None:
    batch, height, width = shape
    logits, target = scene(height, width, 2, batch)
    figure = panel(logits, target)
    for axes in figure.axes:
        if not axes.get_title(loc="left"):
            continue
        box = axes.get_window_extent()
        if 1 / 8 <= height / width <= 4:
            assert box.height / box.width == pytest.approx(height / width)
        if axes.get_title(loc="left") in MAPS:
            bar = axes.images[0].colorbar
            assert bar is not None
            assert bar.ax.bbox.height == pytest.approx(box.height)
            assert bar.ax.bbox.y0 == pytest.approx(box.y0)


# -------------------------------------------------------------------------------------------------------- the palette


def test_colors_are_told_apart() -> None:
    colors = distinct_colors(150)
    reserved = np.array([(1, 0, 1), (0, 0, 0), (0.62, 0.62, 0.62)])
    assert (np.abs(colors[:, None] - reserved).max(-1) > 0.1).all()
    for count, least in ((10, 0.25), (20, 0.2), (150, 0.05)):
        some = colors[:count]
        gaps = np.linalg.norm(some[:, None] - some, axis=-1)[~np.eye(count, dtype=bool)]
        assert gaps.min() > least
    assert distinct_colors(3).tolist() == colors[:3].tolist()


# ---------------------------------------------------------------------------------------------------- good behaviour


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_the_package_does_not_import_matplotlib() -> None:
    result = run("import sys, edgeloss; print('matplotlib' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


def test_a_missing_extra_is_one_line() -> None:
    result = run("import sys; sys.modules['matplotlib'] = None; import edgeloss.viz")
    assert result.stderr.splitlines()[-1] == 'ImportError: edgeloss.viz needs matplotlib: pip install "edgeloss[viz]"'
    assert "During handling" not in result.stderr


def test_pyplot_is_not_touched() -> None:
    result = run(
        "import io, sys, torch; from edgeloss.viz import panel\n"
        "panel(torch.zeros(2, 4, 4), torch.zeros(4, 4, dtype=torch.int64)).savefig(io.BytesIO())\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert result.stdout.strip() == "False", result.stderr


def test_nothing_is_left_behind() -> None:
    settings = dict(matplotlib.rcParams)
    figure = panel(*scene())
    render(figure)
    alive = weakref.ref(figure)
    del figure
    gc.collect()
    assert alive() is None
    assert dict(matplotlib.rcParams) == settings


def test_what_the_loss_refuses_is_refused() -> None:
    with pytest.raises(TypeError, match="target: expected class indices"):
        panel(torch.zeros(2, 4, 4), torch.zeros(4, 4))
