"""Values of the loss, its maps and its reductions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import brute_force
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss, LossMaps
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, loss_maps, normalizers

pytestmark = pytest.mark.usefixtures("each_backend")


def scene(*size: int, classes: int = 4, batch: int = 2, ignore: float = 0.2) -> tuple[Tensor, Tensor]:
    x = torch.randn(batch, classes, *size, dtype=torch.float64) * 3
    y = torch.randint(classes, (batch, *size))
    y[..., size[-1] // 2 :] = 1  # where the prediction alone has edges
    y[torch.rand(batch, *size) < ignore] = 255
    return x, y


# A row and a column of pixels, a radius wider than the image, anisotropic ones, 3-D with and without depth; every
# branch of power, with and without distance weights.
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((6, 7), {"radius": (1, 1)}),
    ((6, 7), {"radius": (1, 1), "power": 1.0}),
    ((1, 1), {"radius": (1, 1)}),
    ((1, 9), {"radius": (3, 3), "power": 0.5, "decay": 1.0}),
    ((8, 1), {"radius": (0, 1)}),
    ((5, 6), {"radius": (2, 1), "power": -1.0, "decay": 1.5, "spacing": (0.7, 1.3)}),
    ((6, 6), {"radius": (2, 2), "power": 0.0, "decay": 0.05}),
    ((6, 5), {"radius": (1, 1), "power": 3.0}),
    ((3, 4, 5), {"radius": (1, 1, 1), "power": 0.0, "decay": 2.0}),
    ((3, 4, 5), {"radius": (0, 1, 1), "power": -2.5}),
    ((2, 3, 4), {"radius": (1, 1, 2), "power": 1.0, "decay": 1.0, "spacing": (3.0, 0.5, 0.5)}),
]


@pytest.mark.parametrize(("size", "options"), CASES)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "weighted"])
def test_maps_equal_the_brute_force_loss(size: tuple[int, ...], options: dict[str, Any], plain: bool) -> None:
    x, y = scene(*size)
    weight = None if plain else torch.tensor([1.0, 0.0, 2.0, 0.3], dtype=torch.float64)
    smoothing = 0.0 if plain else 0.1
    maps = loss_maps(x, y, weight=weight, label_smoothing=smoothing, ignore_index=255, **options)
    for b in range(len(x)):
        expected = brute_force.maps(
            x[b].numpy(),
            y[b].numpy(),
            ignore_index=255,
            weight=None if weight is None else weight.tolist(),
            label_smoothing=smoothing,
            **options,
        )
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(maps, name)[b].numpy(), value, rtol=1e-12, atol=1e-12, err_msg=name)
    torch.testing.assert_close(maps.edge, maps.other_side + maps.same_side)


def test_own_distance_field() -> None:
    x, y = scene(6, 6)
    field = torch.rand(2, 6, 6, dtype=torch.float64) * 5
    maps = loss_maps(x, y, ignore_index=255, decay=0.7, distance=field)
    for b in range(2):
        expected = brute_force.maps(
            x[b].numpy(), y[b].numpy(), ignore_index=255, radius=(1, 1), decay=0.7, distance=field[b].numpy()
        )
        np.testing.assert_allclose(maps.same_side[b], expected["same_side"], rtol=1e-12)
        np.testing.assert_allclose(maps.other_side[b], expected["other_side"], rtol=1e-12)
    assert maps.distance is not None
    assert torch.equal(maps.distance, field)


def test_own_distance_field_is_read_beside_edges_only() -> None:
    x, y = torch.randn(1, 3, 4, 12), torch.zeros(1, 4, 12, dtype=torch.long)
    y[..., 0] = 1  # edge pixels in columns 0 and 1, their neighbors up to column 2
    field = torch.ones(1, 4, 12)
    expected = edge_aware_loss(x, y, decay=2.0, distance=field)
    field[..., 3:] = torch.inf
    assert edge_aware_loss(x, y, decay=2.0, distance=field) == expected


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("pixel_weighted", [False, True])
@pytest.mark.parametrize("class_weighted", [False, True])
def test_reductions(reduction: str, pixel_weighted: bool, class_weighted: bool) -> None:
    x, y = scene(6, 7)
    v = torch.rand(2, 6, 7, dtype=torch.float64) * 2
    weight = torch.tensor([1.0, 0.5, 2.0, 0.3], dtype=torch.float64)
    options: dict[str, Any] = {"ignore_index": 255, "weight": weight, "other_side_weight": 0.7, "same_side_weight": 1.3}
    of_classes = torch.tensor([0.2, 3.0, 1.0, 0.0], dtype=torch.float64)
    maps = loss_maps(x, y, **options)
    loss, returned, terms = edge_aware_loss(
        x,
        y,
        **options,
        reduction=reduction,
        ce_weight=0.9,
        edge_weight=0.4,
        pixel_weight=v if pixel_weighted else None,
        edge_class_weight=of_classes if class_weighted else None,
        return_maps=True,
        return_terms=True,
    )
    v = v if pixel_weighted else torch.ones_like(v)
    valid = y != 255
    label = y.where(valid, torch.tensor(0))
    w = (v * weight[label])[valid].sum()
    u = v * of_classes[label] if class_weighted else v
    e = u[maps.edge_mask].sum()
    torch.testing.assert_close(maps.edge, 0.7 * maps.other_side + 1.3 * maps.same_side)
    if reduction == "none":
        torch.testing.assert_close(loss, 0.9 * v * maps.cross_entropy + 0.4 * u * maps.edge)
    if reduction == "sum":
        w = e = torch.ones(())
    ce, edge = (v * maps.cross_entropy).sum() / w, (u * maps.edge).sum() / e
    if reduction != "none":
        torch.testing.assert_close(loss, 0.9 * ce + 0.4 * edge)
    torch.testing.assert_close(terms["cross_entropy"], ce)
    torch.testing.assert_close(terms["edge"], edge)
    torch.testing.assert_close(terms["same_side"], (u * maps.same_side).sum() / e)
    torch.testing.assert_close(terms["other_side"], (u * maps.other_side).sum() / e)
    torch.testing.assert_close(terms["edge_fraction"], maps.edge_mask.sum().double() / valid.sum())
    assert isinstance(returned, LossMaps)
    assert torch.equal(returned.edge, maps.edge)  # maps know no pixel, ce or edge weight


def test_own_normalizer_makes_crops_add_up() -> None:
    x, y = scene(6, 8, batch=5)
    weight = torch.tensor([1.0, 0.5, 2.0, 0.3], dtype=torch.float64)
    v = torch.rand(5, 6, 8, dtype=torch.float64)
    v[y == 255] = torch.nan  # not read
    weights = {"weight": weight, "edge_class_weight": weight.flip(0)}
    criterion = stateless_loss(**weights, ignore_index=255)
    x.requires_grad_()
    whole = criterion(x, y, pixel_weight=v)
    (expected,) = torch.autograd.grad(whole, x)
    counts = [normalizers(y[i : i + 1], **weights, ignore_index=255, pixel_weight=v[i : i + 1]) for i in range(5)]
    total = (sum(w for w, _ in counts), sum(e for _, e in counts))
    parts = [criterion(x[i : i + 1], y[i : i + 1], pixel_weight=v[i : i + 1], normalizer=total) for i in range(5)]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), x)[0], expected)
    plain = criterion(x, y, pixel_weight=v, normalizer=(float(total[0]), float(total[1])))
    torch.testing.assert_close(plain, whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_logits_are_read_as_they_are(dtype: torch.dtype) -> None:
    x, y = scene(9, 8)
    low = x.to(dtype).requires_grad_()
    exact = low.detach().double().requires_grad_()
    options: dict[str, Any] = {"ignore_index": 255, "decay": 1.5, "radius": 2}
    loss, maps = edge_aware_loss(low, y, return_maps=True, **options)
    expected, expected_maps = edge_aware_loss(exact, y, return_maps=True, **options)
    assert loss.dtype == maps.edge.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(maps.edge.double(), expected_maps.edge, rtol=1e-5, atol=1e-5)
    loss.backward()
    expected.backward()
    assert low.grad is not None
    assert low.grad.dtype == dtype
    torch.testing.assert_close(low.grad.double(), exact.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_label_dtypes(dtype: torch.dtype) -> None:
    x, y = scene(6, 6)
    assert edge_aware_loss(x, y.to(dtype), ignore_index=255) == edge_aware_loss(x, y, ignore_index=255)


def test_bool_labels() -> None:
    x, y = torch.randn(1, 1, 6, 6), torch.rand(1, 6, 6) < 0.5
    assert edge_aware_loss(x, y) == edge_aware_loss(x, y.long())


@pytest.mark.parametrize("size", [(6, 7), (2, 3, 4)])
def test_strides_do_not_matter(size: tuple[int, ...]) -> None:
    x, y = scene(*size)
    last = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    every_other = torch.stack([x, x], -1).flatten(-2)[..., ::2]
    expected = edge_aware_loss(x, y, ignore_index=255)
    for strided in (last, every_other):
        assert torch.equal(strided, x)
        assert strided.stride() != x.stride()
        torch.testing.assert_close(edge_aware_loss(strided, y, ignore_index=255), expected)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_strides_of_labels_do_not_matter(reduction: Any, multilabel: bool) -> None:
    x = torch.randn(2, 3, 6, 5)
    y = torch.randint(2, (2, 3, 12, 10) if multilabel else (2, 12, 10))
    options: dict[str, Any] = {"upsample": True, "multilabel": multilabel, "reduction": reduction, "region_weight": 1.0}
    expected = edge_aware_loss(x, y, **options)
    axes = [*reversed(range(y.dim()))]
    for strided in (y.mT.contiguous().mT, y.permute(axes).contiguous().permute(axes)):
        for logits in (x, x.clone().requires_grad_()):
            assert torch.equal(edge_aware_loss(logits, strided, **options), expected)


@pytest.mark.parametrize("size", [(7, 6), (3, 4, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_logit_equals_two_classes(size: tuple[int, ...], weighted: bool) -> None:
    x, y = scene(*size, classes=2)
    one = x[:, 1:].clone().requires_grad_()
    two = torch.cat([torch.zeros_like(x[:, 1:]), x[:, 1:]], 1).requires_grad_()
    weight = torch.tensor([0.4, 1.7]) if weighted else None
    options: dict[str, Any] = {"ignore_index": 255, "weight": weight, "label_smoothing": 0.1}
    loss, expected = edge_aware_loss(one, y, **options), edge_aware_loss(two, y, **options)
    loss.backward()
    expected.backward()
    assert loss == expected
    assert one.grad is not None
    assert two.grad is not None
    assert torch.equal(one.grad, two.grad[:, 1:])


def test_one_logit_without_edge_weight_is_binary_cross_entropy() -> None:
    x, y = torch.randn(2, 1, 6, 7) * 4, torch.randint(2, (2, 6, 7))
    expected = F.binary_cross_entropy_with_logits(x[:, 0], y.float())
    torch.testing.assert_close(edge_aware_loss(x, y, edge_weight=0.0), expected)


@pytest.mark.parametrize(
    ("low", "high"), [((4, 5), (16, 20)), ((4, 5), (7, 11)), ((4, 5), (4, 5)), ((1, 1), (3, 2)), ((2, 3, 3), (5, 6, 4))]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_upsample(low: tuple[int, ...], high: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, *low).to(dtype).requires_grad_()
    _, y = scene(*high, classes=3)
    mode = "bilinear" if len(low) == 2 else "trilinear"
    wide = x if dtype == torch.float64 else x.float()
    expected = edge_aware_loss(F.interpolate(wide, high, mode=mode, align_corners=False), y, ignore_index=255)
    (expected_grad,) = torch.autograd.grad(expected, x)
    loss, maps = edge_aware_loss(x, y, ignore_index=255, upsample=True, return_maps=True)
    (grad,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(grad, expected_grad)
    assert maps.edge.shape == y.shape
    torch.testing.assert_close(loss_maps(x, y, ignore_index=255, upsample=True), maps)


def test_only_logits_get_a_gradient() -> None:
    x, y = scene(6, 6)
    others = {
        "weight": torch.rand(4, requires_grad=True),
        "pixel_weight": torch.rand(2, 6, 6, requires_grad=True),
        "distance": torch.rand(2, 6, 6, requires_grad=True),
    }
    count = torch.tensor(3.0, requires_grad=True)
    loss = edge_aware_loss(x.requires_grad_(), y, ignore_index=255, decay=1.0, normalizer=(count, count), **others)
    loss.backward()
    assert x.grad is not None
    assert all(value.grad is None for value in [*others.values(), count])


def test_terms_are_there_without_edge_weight() -> None:
    x, y = scene(6, 6)
    _, terms = edge_aware_loss(x, y, ignore_index=255, edge_weight=0.0, return_terms=True)
    _, expected = edge_aware_loss(x, y, ignore_index=255, return_terms=True)
    assert terms == expected


def test_ignored_class() -> None:
    x = torch.randn(2, 4, 6, 6)
    y = torch.randint(4, (2, 6, 6))
    assert edge_aware_loss(x, y, ignore_index=2) == edge_aware_loss(x, torch.where(y == 2, -100, y))
    torch.testing.assert_close(
        edge_aware_loss(x, y, ignore_index=2, edge_weight=0.0), F.cross_entropy(x, y, ignore_index=2)
    )


def test_a_radius_beyond_the_image_is_all_of_it() -> None:
    x, y = scene(4, 5)
    assert edge_aware_loss(x, y, ignore_index=255, radius=1000) == edge_aware_loss(x, y, ignore_index=255, radius=5)


def test_many_classes_are_distinguished() -> None:
    y = torch.tensor([[[256, 257, 2**24, 2**24 + 1]]])
    assert normalizers(y)[1] == 4


def test_the_map_of_the_distance_is_a_copy() -> None:
    x, y = scene(6, 6)
    y[:, :, 3:] = 1  # the outermost column is nobody's neighbor across an edge, and may be anything
    field = torch.rand(2, 6, 6, dtype=torch.float64)
    field[..., 5] = torch.inf
    for own in (field, None):
        logits = x.clone().requires_grad_()
        loss, maps = edge_aware_loss(logits, y, ignore_index=255, decay=1.0, distance=own, return_maps=True)
        (expected,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert own is None or torch.equal(maps.distance, own)
        maps.distance.zero_()
        assert torch.equal(torch.autograd.grad(loss, logits)[0], expected)
    assert field[..., 5].isinf().all()


def test_distance_map_reaches_twice_the_radius() -> None:
    y = torch.zeros(1, 1, 9, dtype=torch.long)
    y[..., 0] = 1
    maps = loss_maps(torch.zeros(1, 2, 1, 9), y, radius=(0, 2), decay=1.0, spacing=(1.0, 0.5))
    inf = torch.inf
    assert maps.distance is not None
    assert maps.distance[0, 0].tolist() == [0.5, 0.5, 1.0, 1.5, 2.0, inf, inf, inf, inf]
    assert loss_maps(torch.zeros(1, 2, 1, 9), y).distance is None


def test_maps_are_detached_and_inputs_untouched() -> None:
    x, y = scene(6, 6)
    x.requires_grad_()
    before = x.detach().clone(), y.clone()
    loss, maps, terms = EdgeAwareLoss(ignore_index=255, decay=1.0)(x, y, return_maps=True, return_terms=True)
    (loss * 3).backward()
    assert not any(value.requires_grad for value in [*maps, *terms.values()])
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_on_real_scenes(camvid: Path) -> None:
    from segkit.data import SegmentationFolder

    data = SegmentationFolder(camvid / "val", num_classes=11, ignore_index=255)
    y = torch.stack([data[i][1] for i in (0, 50)])
    x = torch.randn(2, 11, *y.shape[1:], requires_grad=True)
    loss, terms = edge_aware_loss(x, y, ignore_index=255, return_terms=True)
    loss.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (x.grad.movedim(1, -1)[y == 255] == 0).all()
    assert 0.03 < terms["edge_fraction"] < 0.15


def test_balanced_edge_class_weight() -> None:
    y = torch.zeros(2, 12, 12, dtype=torch.uint8)
    y[0, :, 6:] = 1  # 12 edge pixels of class 0 and of class 1
    y[1, 5, 5] = 2  # one of class 2, and 8 of class 0
    y[1, 0] = 255
    counts = torch.tensor([12.0 + 8, 12, 1])
    options: dict[str, Any] = {"ignore_index": 255}
    for exponent in (0.0, 0.5, 1.0):
        weight = balanced_edge_class_weight(y.split(1), 4, exponent=exponent, **options)
        torch.testing.assert_close(weight[:3] * counts**exponent, weight[2].expand(3))  # in proportion to n^-exponent
        torch.testing.assert_close((weight[:3] * counts).sum(), counts.sum())
        assert weight[3] == 1
    with pytest.raises(ValueError, match="expected labels 0 to 1, or ignore_index=255, but got 2 at 1 pixel"):
        balanced_edge_class_weight([y], 2, **options)
    with pytest.raises(ValueError, match="num_classes: expected an int, at least 2, but got 1"):
        balanced_edge_class_weight([y], 1)
    with pytest.raises(TypeError, match="target: expected class indices of dtype"):
        balanced_edge_class_weight([y.float()], 3)
    torch.testing.assert_close(balanced_edge_class_weight([], 3), torch.ones(3))
