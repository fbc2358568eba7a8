"""The baselines: values by hand, and where they are 0, finite or ignore pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baselines import regions
from baselines.active_boundary import active_boundary, predicted_border
from baselines.affinity import affinity
from baselines.boundary import boundary, signed_distance
from baselines.common import cross_entropy
from baselines.control import edge_weights
from baselines.cpg import cpg, sobel
from baselines.recipes import RECIPES, Progress, completed, make
from baselines.relational import relational
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss

VOID = 255
LN = math.log


def logits_of(p: Tensor) -> Tensor:
    """Return logits whose softmax is p, for one image [C, H, W]."""
    return p.log()[None].requires_grad_()


def binary(one: list[list[float]]) -> Tensor:
    """Return logits of one image [1, 2, H, W] with these probabilities of class 1."""
    p = torch.tensor(one)
    return logits_of(torch.stack([1 - p, p]))


def kl(q: float, p: float) -> float:
    return q * LN(q / p) + (1 - q) * LN((1 - q) / (1 - p))


def both(q: float, p: float) -> float:
    """Return the mean of KL in both directions."""
    return (kl(q, p) + kl(p, q)) / 2


SURE = torch.tensor([[[[100.0, -100.0]], [[-100.0, 100.0]]]])  # of class 0, then of class 1
PAIR = logits_of(torch.tensor([[0.7, 0.1], [0.2, 0.5], [0.1, 0.4]])[:, None])
RAMP = binary([[0.1, 0.3, 0.6, 0.8]] * 2)
BY_HAND = [
    # -ln 0.25 and -ln 0.5 over the two valid pixels
    (cross_entropy, binary([[0.25, 0.5, 0.9]]), [1, 0, VOID], LN(8) / 2),
    # Of class 0: p = .5, .25; t = 1, 0: 1 - 2 · .5 / (.75 + 1) = 3/7. Of class 1: p = .5, .75; t = 0, 1:
    # 1 - 2 · .75 / (1.25 + 1) = 1/3. The void pixel is in neither.
    (regions.dice, binary([[0.5, 0.75, 0.9]]), [0, 1, VOID], (3 / 7 + 1 / 3) / 2),
    # p > .5 of class 1 is the last pixel, its label the last two. The field is the distance to the other side: of the
    # prediction 3 2 1 1, of the labels 2 1 1 2, and squared together 13, 5, 2, 5. (p - t)² = .0625, .0625, .36, .01.
    # Both classes have the same fields and the same errors.
    (regions.hausdorff, binary([[0.25, 0.25, 0.4, 0.9]]), [0, 0, 1, 1], (18 * 0.0625 + 2 * 0.36 + 5 * 0.01) / 4),
    # φ of class 0 is 0, 1, 2 and of class 1 1, 0, -1, where void is outside of both: it is 2 from class 0, but has no
    # part. The mean over 2 × 2 entries: (p_0 φ_0 + p_1 φ_1) = .5 · 0 + .5 · 1 and .25 · 1 + .75 · 0.
    (boundary, binary([[0.5, 0.75, 0.9]]), [0, 1, VOID], (0.5 + 0.25) / 4),
    (boundary, SURE, [0, 1], 0),  # φ of the right class is 0 here, of the other one 1
    (boundary, -SURE, [0, 1], 1 / 2),
    # Three pixels in a row: the first pair has one label, the second has two, the third pixel's other neighbor is
    # void. Both classes of two have the same KL, and each pair counts in both directions.
    (affinity, binary([[0.2, 0.3, 0.6, 0.9]]), [0, 0, 1, VOID], 3 - both(0.3, 0.6) + both(0.2, 0.3)),
    # Labels 0 and 1: the pair is an edge in the classes 0 and 1, but in class 2 both have "no".
    (affinity, PAIR, [0, 1], 3 - (both(0.7, 0.1) + both(0.2, 0.5)) / 2 + both(0.1, 0.4)),
    # Beyond doubt: q = 1, p = 1e-4 gives ln 1e4 and 1e-4 ln(1e-4) for the rest, more than the margin of 3.
    (affinity, SURE, [0, 1], 0),
    (affinity, SURE, [0, 0], LN(1e4) + 1e-4 * LN(1e-4)),
    # Two rows, labels 0 0 1 1: responses of ±2 at the middle columns, to the right only. Those of p = .1 .3 .6 .8 are
    # 2 (.6 - .1) = 1 and 2 (.8 - .3) = 1, so each of the entries has (2 - 1)². With void in the last column the third
    # column's windows have some, and with it in the first column too, none is left.
    (cpg, RAMP, [[0, 0, 1, 1]] * 2, 1),
    (cpg, binary([[0.1, 0.3, 0.8, 0.8]] * 2), [[0, 0, 1, VOID]] * 2, 0.36),  # (2 - 2 · .7)²
    (cpg, RAMP, [[VOID, 0, 1, VOID]] * 2, 0),
]


@pytest.mark.parametrize(("term", "logits", "labels", "value"), BY_HAND)
def test_by_hand(term: Callable[..., Tensor], logits: Tensor, labels: list[Any], value: float) -> None:
    target = torch.tensor(labels).view(1, -1, logits.shape[3])
    loss = term(logits, target, ignore_index=VOID)
    torch.testing.assert_close(loss.item(), float(value), rtol=1e-4, atol=1e-4)  # MONAI smooths by 1e-5


def test_lovasz() -> None:
    # Class 1: errors .5 at the false, .25 at the true pixel. Sorted, the Jaccard loss of {first} is 1 - 1/2 and of both
    # 1: .5 · .5 + .25 · .5 = .375. Class 0: errors .5 (true), .25 (false): of {first} 1, of both 1: .5. The mean is
    # .4375; the second image is void and has no part in it.
    target = torch.tensor([[[0, 1, VOID]], [[VOID] * 3]])
    loss = regions.lovasz(binary([[0.5, 0.75, 0.9]]).expand(2, -1, -1, -1), target, ignore_index=VOID)
    torch.testing.assert_close(loss.item(), 0.4375)


def test_edge_weighted_cross_entropy() -> None:
    # The two pixels in the middle are at the edge and weigh 1 + 4, the first one 1, and there is no edge next to void:
    # (1 · ln 2 + 5 · ln 4 + 5 · ln 2 + 1 · ln 4) / 12.
    logits, target = binary([[0.5, 0.75, 0.5, 0.25, 0.9]]), torch.tensor([[[0, 0, 1, 1, VOID]]])
    weight = edge_weights(target, ignore_index=VOID, k=4)
    assert weight.tolist() == [[[1, 5, 5, 1, 0]]]
    loss = cross_entropy(logits, target, VOID, pixel_weight=weight)
    torch.testing.assert_close(loss.item(), (6 * LN(2) + 6 * LN(4)) / 12)
    # With 4 · 0.5 more for class 0 and 4 · 1.5 for class 1: (1 · ln 2 + 3 · ln 4 + 7 · ln 2 + 1 · ln 4) / 12.
    weight = edge_weights(target, ignore_index=VOID, k=4, edge_class_weight=torch.tensor([0.5, 1.5]))
    loss = cross_entropy(logits, target, VOID, pixel_weight=weight)
    torch.testing.assert_close(loss.item(), (8 * LN(2) + 4 * LN(4)) / 12)
    # Class weights 1 and 2 everywhere on top: (1 · ln 2 + 3 · ln 4 + 14 · ln 2 + 2 · ln 4) / 20.
    loss = cross_entropy(logits, target, VOID, torch.tensor([1.0, 2.0]), weight)
    torch.testing.assert_close(loss.item(), (15 * LN(2) + 5 * LN(4)) / 20)


def test_signed_distance() -> None:
    mask = torch.tensor([[[[1, 0], [0, 0], [0, 0]], [[0, 0]] * 3, [[1, 1]] * 3]]).bool()
    expected = torch.zeros(3, 3, 2)  # also of a class that is nowhere, or everywhere
    expected[0] = torch.tensor([[0, 1], [1, 2], [4, 5]]).sqrt()
    torch.testing.assert_close(signed_distance(mask)[0], expected)


def test_relational() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.2, 0.6]])  # [pixel, class]
    logits, target = logits_of(p.T[:, None]), torch.tensor([[[0, 1, 1]]])
    q01, q12 = p[0] @ p[1], p[1] @ p[2]
    expected = -torch.log(1 - q01) - 0.1 * torch.log(q12)
    torch.testing.assert_close(relational(logits, target, ignore_index=VOID), expected)
    void = torch.tensor([[[VOID, 1, 1]]])
    torch.testing.assert_close(relational(logits, void, ignore_index=VOID), -0.1 * torch.log(q12))


def test_predicted_border() -> None:
    # One image of 20 × 20 with a sharp border between the columns 3 and 4 of the 4 last rows, and a faint one over all
    # of row 9: 1 % is 4 pixels, so the threshold rises until the sharp one is left, which 3 × 3 widen.
    p = torch.full((20, 20), 0.5)
    p[:10] = 0.51
    p[-4:, :4] = 0.9
    p[-4:, 4:] = 0.1
    p[-5] = 0.5
    border = predicted_border(binary(p.tolist()).detach(), torch.ones(1, 20, 20, dtype=torch.bool))
    seeds = torch.zeros(20, 20, dtype=torch.bool)
    # Row 15 differs from row 16 as well, but by less than both classes' swap.
    seeds[-4:, 3] = True
    widened = torch.nn.functional.max_pool2d(seeds[None].float(), 3, 1, 1)[0] > 0
    assert torch.equal(border[0], widened)


def test_active_boundary() -> None:
    # One row of 100 pixels: 1 % is one seed, between the pixels 10 and 11 (from p = .2 to .8), which is widened to 9,
    # 10 and 11. The labels' border is pixel 13, whose right neighbor is of another label: distances 4, 3 and 2, D = 3,
    # 2 and 1. Their own D is never the least; each has its right neighbor (the fourth step) for a target. Above and
    # below there is nothing.
    p = torch.full((100,), 0.2)
    p[11:] = 0.8
    target = (torch.arange(100) > 13).long()[None, None]
    loss = active_boundary(binary([p.tolist()]), target, ignore_index=VOID)

    def row(values: list[float]) -> float:
        """Return cross-entropy with the target smoothed by 0.2 over 8 values."""
        log_p = torch.tensor(values, dtype=torch.float64).log_softmax(0)
        return -(0.8 * log_p[3] + 0.2 * log_p.mean()).item()

    # The steps are down, up, left, right and the diagonals: right up, right down, left up, left down; what lies outside
    # is as the pixel inside in that column.
    leap = 0.8 * LN(4) + 0.2 * LN(1 / 4)  # KL of (.8, .2) ‖ (.2, .8), and the other way round
    rows = [(3, [0.0] * 8), (2, [0, 0, 0, leap, leap, leap, 0, 0]), (1, [0, 0, leap, 0, 0, 0, leap, leap])]
    expected = sum(d / 20 * row([float(v) for v in values]) for d, values in rows) / 3
    torch.testing.assert_close(loss.item(), expected)


def test_sobel_is_a_convolution() -> None:
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 2
    x = torch.randn(2, 3, 5, 7)
    padded = torch.nn.functional.pad(x, [1] * 4, mode="replicate").flatten(0, 1)[:, None]
    wanted = torch.nn.functional.conv2d(padded, torch.stack([kernel, kernel.T])[:, None]).view(2, 3, 2, 5, 7)
    torch.testing.assert_close(sobel(x), wanted)


def image_labels() -> Tensor:
    """Return the labels of two images with void; the second lacks one of the 3 classes."""
    target = torch.zeros(2, 24, 20, dtype=torch.int64)
    target[0, 6:14, 4:12] = 1
    target[0, 16:, 10:] = 2
    target[1, :, 8:] = 1
    target[:, :2] = VOID
    return target


def volume_labels() -> Tensor:
    """Return the labels of two volumes with void: those of the images, of which slices end earlier."""
    target = image_labels()[:, None, ::2, ::2].repeat(1, 6, 1, 1)
    target[:, 4:] = 0
    target[:, :, :1] = VOID
    return target


LABELS = {2: image_labels(), 3: volume_labels()}  # by number of axes
FLAT = ("affinity", "abl", "cpg", "relational", "rmi")  # for images only


@pytest.fixture
def scene() -> tuple[Tensor, Tensor]:
    return 2 * torch.randn(2, 3, 24, 20), image_labels()


def value_and_gradient(name: str, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    labels = {"targets": LABELS[logits.dim() - 2].split(1), "num_classes": logits.shape[1]}
    loss = make(name, {"lovasz": 1.0} if name == "abl" else {}, VOID, **labels)(leaf, target, Progress(3, 10, 1))
    loss.backward()
    assert loss.dim() == 0
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


@pytest.mark.parametrize(("name", "dims"), [(n, d) for n in RECIPES for d in (2, 3) if d == 2 or n not in FLAT])
def test_recipes_learn_and_ignore_void(name: str, dims: int) -> None:
    target = LABELS[dims]
    logits, void = 2 * torch.randn(2, 3, *target.shape[1:]), target == VOID
    loss, gradient = value_and_gradient(name, logits, target)
    assert not gradient.masked_select(void[:, None]).any()
    better, _ = value_and_gradient(name, logits - 0.5 * gradient / gradient.norm(), target)
    assert better < loss
    other = torch.where(void[:, None], torch.randn_like(logits), logits)
    # The detached neighbors of active boundary loss are read whatever their label.
    if name != "abl":
        torch.testing.assert_close(value_and_gradient(name, other, target), (loss, gradient))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("kind", ["all void", "one class", "sure of every label"])
def test_extremes_are_finite(name: str, kind: str, scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    if kind == "sure of every label":
        logits = 1000 * logits
    else:
        target = torch.full_like(target, VOID if kind == "all void" else 1)
    loss, gradient = value_and_gradient(name, logits, target)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    if kind == "all void":
        assert loss == 0
        assert not gradient.any()


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.k is not None])
def test_balance_of_every_loss(name: str, scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    labels: dict[str, Any] = {"targets": target.split(1), "num_classes": 3}

    def loss(**options: float) -> Tensor:
        return make(name, options, VOID, **labels)(logits, target, Progress(3, 10))

    with pytest.raises(ValueError, match=f"option k of {name}: expected a number > 0 for class_balance, but got 0"):
        loss(k=0, class_balance=1)
    values = [loss(k=3, class_balance=1), loss(k=3), loss(k=1e-9)]
    assert torch.stack(values).unique().numel() == 3  # the weights of edges and of classes have an effect
    if name == "weighted":
        u = balanced_edge_class_weight([target], 3, ignore_index=VOID)
        weight = edge_weights(target, ignore_index=VOID, k=3, edge_class_weight=u)
        torch.testing.assert_close(values[0], cross_entropy(logits, target, VOID, pixel_weight=weight))


def test_schedules(scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    ce = cross_entropy(logits, target, VOID)
    terms = {
        "boundary": (boundary, {0: 0.01, 5: 0.01, 9: 0.02}),  # 5 steps an epoch
        "affinity": (affinity, {0: 1.0, 5: 10**-0.5, 10: 0.1}),
    }
    for name, (term, weights) in terms.items():
        value, loss = term(logits, target, ignore_index=VOID), make(name, {}, VOID)
        added = torch.stack([loss(logits, target, Progress(step, 10, step // 6)) - ce for step in weights])
        torch.testing.assert_close(added, torch.tensor([*weights.values()]) * value, rtol=1e-4, atol=1e-6)


def test_balanced_classes(scene: tuple[Tensor, Tensor]) -> None:
    logits, target = scene
    classes = logits.shape[1]
    balanced = make("ours", {"class_balance": 0.5}, VOID, targets=target.split(1), num_classes=classes)
    weight = balanced_edge_class_weight([target], classes, exponent=0.5, ignore_index=VOID)
    assert weight.unique().numel() > 1
    alone: dict[str, Any] = {"ignore_index": VOID, "edge_focus": 0, "region_weight": 0}
    expected = edge_aware_loss(logits, target, edge_class_weight=weight, **alone)
    torch.testing.assert_close(balanced(logits, target, Progress()), expected)

    everywhere = make("balanced", {"class_balance": 0.5}, VOID, targets=target.split(1), num_classes=classes)
    expected = F.cross_entropy(logits, target, weight, ignore_index=VOID)
    torch.testing.assert_close(everywhere(logits, target, Progress()), expected)
    assert everywhere(logits, torch.full_like(target, VOID), Progress()) == 0


def test_options() -> None:
    assert completed("weighted", {"k": 2}) == {"k": 2.0, "class_balance": 0.0}
    assert completed("ce", {}) == {}  # as before there were these options: runs keep their names
    assert completed("dice", {"k": 2}) == {"weight": 1.0, "k": 2.0, "class_balance": 0.0}
    assert completed("ours", {"decay": None, "radius": 2})["radius"] == 2
    for name, options, kind, message in (
        ("focal", {}, ValueError, r"loss: expected one of \['ce', .*\], but got 'focal'"),
        ("weighted", {"weight": 1}, ValueError, r"expected some of \['k', 'class_balance'\], but got 'weight'"),
        ("weighted", {"k": "four"}, TypeError, "option k of weighted: expected a number, but got 'four'"),
    ):
        with pytest.raises(kind, match=message):
            completed(name, options)
