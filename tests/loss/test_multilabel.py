"""``multilabel=True``: C binary losses in one call, with labels, edges and class weights of their own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import brute_force
import pytest
import torch
from pairwise import pairwise
from ranks import run_ranks
from stateless import stateless_loss
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from edgeloss import EdgeAwareLoss, LossMaps
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, loss_maps, normalizers
from edgeloss.viz import panel

IGNORE = 255
TERMS: dict[str, dict[str, Any]] = {
    "logarithms": {},
    "means": {"power": 1.0, "label_smoothing": 0.1},
    "powers, decay": {"power": -0.7, "decay": 1.5, "radius": 2},
    "own distance": {"decay": 0.8, "other_side_weight": 0.3, "same_side_weight": 2.0},
    "cross-entropy": {"edge_weight": 0.0, "label_smoothing": 0.2},
}


def scene(size: tuple[int, ...], classes: int, low: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """Return logits [2, C, *low or *size] and labels [2, C, *size] of regions that overlap; some pixels are ignored."""
    x = torch.randn(2, classes, *(low or size), dtype=torch.float64) * 3
    y = torch.randint(2, (2, classes, *size))
    y[:, :, : size[0] // 2] = 0  # another share of edges in each half
    y[torch.rand(y.shape) < 0.15] = IGNORE
    return x, y


def of_class(values: Any, c: int) -> Any:
    """Return class weights [C] or [C, 2] of one class, as [2], or a map [B, C, *S] or [B, *S] of it."""
    if not isinstance(values, Tensor):
        return values
    return values[c].expand(2) if values.dim() <= 2 else values[:, c]


def binary_losses(
    x: Tensor,
    y: Tensor,
    reduction: str,
    weights: dict[str, Any],
    options: dict[str, Any],
    distance: Tensor | None = None,
) -> Tensor:
    """Return the loss by a call of the reference for each class, with the denominators of all of them."""
    classes = range(x.shape[1])
    names = ("weight", "edge_class_weight")
    by_class = [
        {
            name: of_class(values, c) if name in names or values.dim() == y.dim() else values
            for name, values in weights.items()
        }
        for c in classes
    ]
    of_labels = [
        normalizers(y[:, c], ignore_index=IGNORE, radius=options.get("radius", 1), **by_class[c]) for c in classes
    ]
    w, e = (torch.stack(each).sum() for each in zip(*of_labels, strict=True))
    normalizer = None if reduction == "sum" else (w, e)
    losses = [
        edge_aware_loss(
            x[:, c : c + 1],
            y[:, c],
            ignore_index=IGNORE,
            reduction=cast("Any", reduction),
            normalizer=normalizer,
            backend="reference",
            distance=of_class(distance, c),
            **by_class[c],
            **options,
        )
        for c in classes
    ]
    return torch.stack(losses, 1) if reduction == "none" else torch.stack(losses).sum()


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    ("size", "classes", "terms", "reduction", "class_axes", "map_axes", "low", "dtype"),
    pairwise(
        [(7, 9), (3, 5, 6)],
        [1, 3],
        list(TERMS),
        ["mean", "sum", "none"],
        [0, 1, 2],
        [None, "pixels", "classes"],
        ["same", "lower", "channels last"],
        [torch.float64, torch.float32, torch.bfloat16],
    ),
)
def test_it_is_the_sum_of_binary_losses(
    size: tuple[int, ...],
    classes: int,
    terms: str,
    reduction: Any,
    class_axes: int,
    map_axes: str | None,
    low: str,
    dtype: torch.dtype,
) -> None:
    options = TERMS[terms] | {"upsample": low == "lower"}
    x, y = scene(size, classes, tuple((s + 1) // 2 for s in size) if low == "lower" else None)
    if low == "same":
        x[y == IGNORE] = torch.nan
    x = x.to(dtype)
    if low == "channels last":
        x = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    weights: dict[str, Any] = {}
    if class_axes:
        shape = (classes, 2)[:class_axes]
        weights = {name: torch.rand(shape, dtype=torch.float64) + 0.1 for name in ("weight", "edge_class_weight")}
    if map_axes:
        weights["pixel_weight"] = torch.rand((2, *size) if map_axes == "pixels" else y.shape, dtype=torch.float64)
    own = {"distance": torch.rand(y.shape, dtype=torch.float64) * 3} if terms == "own distance" else {}
    leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    given = {"reduction": reduction, "ignore_index": IGNORE, **weights, **options, **own}
    loss = cast("Tensor", edge_aware_loss(leaf, y, multilabel=True, **given))
    expected = binary_losses(exact, y, reduction, weights, options, **own)
    tolerance = {"rtol": 1e-11, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    (exact_gradient,) = torch.autograd.grad(expected.sum(), exact)
    assert gradient.isfinite().all()
    if low == "same":
        assert not gradient[y == IGNORE].any()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        gradient.double(), exact_gradient, rtol=2 * eps, atol=max(1e-12, 1e-5 * (dtype != torch.float64))
    )


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("options", [{}, {"power": 0.5, "decay": 1.0}, {"label_smoothing": 0.1}])
def test_maps_equal_loops_over_pixels(options: dict[str, Any]) -> None:
    x, y = scene((5, 6), 2)
    weight = torch.tensor([[1.0, 2.0], [0.5, 3.0]], dtype=torch.float64)
    maps = loss_maps(x, y, weight=weight, ignore_index=IGNORE, multilabel=True, **options)
    for b, c in ((0, 0), (0, 1), (1, 1)):
        pair = torch.stack([torch.zeros_like(x[b, c]), x[b, c]]).numpy()
        expected = brute_force.maps(
            pair, y[b, c].numpy(), ignore_index=IGNORE, radius=(1, 1), weight=weight[c].tolist(), **options
        )
        for name in ("cross_entropy", "same_side", "other_side", "edge_mask"):
            torch.testing.assert_close(
                getattr(maps, name)[b, c], torch.from_numpy(expected[name]), rtol=1e-11, atol=1e-12
            )


@pytest.mark.usefixtures("each_backend")
def test_gradient_by_differences() -> None:
    x, y = scene((4, 5), 2)
    weight = torch.tensor([[1.0, 2.0], [0.5, 3.0]], dtype=torch.float64)
    given = {"multilabel": True, "ignore_index": IGNORE, "weight": weight, "edge_class_weight": weight.sqrt()}
    assert torch.autograd.gradcheck(
        lambda x: edge_aware_loss(x, y, label_smoothing=0.1, **given), x.requires_grad_(), fast_mode=True
    )


@pytest.mark.usefixtures("each_backend")
def test_terms_are_those_of_all_classes() -> None:
    x, y = scene((7, 9), 3)
    given: dict[str, Any] = {"ignore_index": IGNORE, "return_maps": True, "return_terms": True}
    loss, maps, terms = cast(
        "tuple[Tensor, LossMaps, dict[str, Tensor]]", edge_aware_loss(x, y, multilabel=True, **given)
    )
    valid, mask = y != IGNORE, maps.edge_mask
    assert maps.edge.shape == y.shape
    torch.testing.assert_close(terms["cross_entropy"], maps.cross_entropy.sum() / valid.sum())
    torch.testing.assert_close(terms["edge"], maps.edge[mask].mean())
    torch.testing.assert_close(terms["edge_fraction"], mask.sum() / valid.sum().double())
    torch.testing.assert_close(loss, terms["cross_entropy"] + terms["edge"])


@pytest.mark.usefixtures("each_backend")
def test_no_images_and_nothing_valid() -> None:
    for x, y in (
        (torch.zeros(0, 3, 4, 5), torch.zeros(0, 3, 4, 5).long()),
        (torch.zeros(1, 3, 4, 5), torch.full((1, 3, 4, 5), IGNORE)),
    ):
        leaf = x.requires_grad_()
        loss, maps = cast(
            "tuple[Tensor, LossMaps]", edge_aware_loss(leaf, y, multilabel=True, ignore_index=IGNORE, return_maps=True)
        )
        assert loss == 0
        assert maps.edge.shape == y.shape
        assert not torch.autograd.grad(loss, leaf)[0].any()


# --------------------------------------------------------------------------------------------- what the module keeps


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("classes", [1, 3])
def test_running_weights_of_each_label_of_each_class(classes: int) -> None:
    criterion = stateless_loss(edge_class_weight="running", multilabel=True, ignore_index=IGNORE)
    seen = []
    for _ in range(3):
        x, y = scene((7, 9), classes)
        u = criterion.current_edge_class_weight
        assert torch.equal(
            criterion(x, y), edge_aware_loss(x, y, multilabel=True, edge_class_weight=u, ignore_index=IGNORE)
        )
        seen.append(y)
    counts = torch.zeros(classes, 2)
    for c in range(classes):
        binary = stateless_loss(edge_class_weight="running", ignore_index=IGNORE)
        for y in seen:
            binary(torch.zeros(2, 1, 7, 9), y[:, c])
        counts[c] = binary.edge_counts
    assert torch.equal(criterion.edge_counts, counts.long())
    u = criterion.current_edge_class_weight
    assert u is not None
    prior = counts.mean() / 3
    torch.testing.assert_close(u, counts.sum() / (counts + prior) / (counts / (counts + prior)).sum())
    balanced = balanced_edge_class_weight(seen, classes, multilabel=True, ignore_index=IGNORE)
    torch.testing.assert_close(balanced, counts.sum() / counts / counts.numel())


@pytest.mark.usefixtures("each_backend")
def test_parts_of_a_step_add_up() -> None:
    whole, parts = (EdgeAwareLoss(multilabel=True, ignore_index=IGNORE, reduction="mean") for _ in range(2))
    for _ in range(3):
        x, y = scene((7, 9), 3)
        v = torch.rand(2, 7, 9)
        total = parts.step_normalizer(y.split(1), v.split(1))
        losses = [parts(x[i : i + 1], y[i : i + 1], pixel_weight=v[i : i + 1], normalizer=total) for i in range(2)]
        torch.testing.assert_close(torch.stack(losses).sum(), whole(x, y, pixel_weight=v))
        assert torch.equal(parts.edge_counts, whole.edge_counts)
        torch.testing.assert_close(parts.edge_sums, whole.edge_sums)
        assert 0 < float(whole.current_edge_weight) <= 1


def train(network: nn.Module, mine: slice, *, sync_normalizer: bool) -> dict[str, Any]:
    """Train for four steps on a part of each batch; return the losses, the weights and what the loss has counted."""
    torch.manual_seed(1)
    weight = torch.rand(3, 2) + 0.5
    given: dict[str, Any] = {"multilabel": True, "ignore_index": IGNORE, "edge_focus": 1.0}
    criterion = EdgeAwareLoss(weight, sync_normalizer=sync_normalizer, **given)
    optimizer, losses = torch.optim.SGD(network.parameters(), lr=0.1), []
    for step in range(4):
        x, y = scene((7, 9), 3)
        if step == 1:
            y[1] = 1  # no edge in one of the images
        if step == 2:
            y[0] = IGNORE
        x = x / 3 + 3.0 * y.where(y != IGNORE, 0) - 1.5  # the first prediction is better than a uniform one
        v = torch.rand(2, 7, 9)
        loss = criterion(network(x[mine]), y[mine], pixel_weight=v[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {
        "losses": losses,
        "parameters": [p.detach() for p in network.parameters()],
        "kept": criterion.state_dict(),
        "edge_weight": criterion.current_edge_weight,
    }


def network_of_classes() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Conv2d(3, 3, 3, padding=1).double()
    nn.init.dirac_(network.weight)
    return network


def one_rank(rank: int, folder: Path) -> None:
    network = DistributedDataParallel(network_of_classes())
    torch.save(train(network, slice(rank, rank + 1), sync_normalizer=True), folder / f"{rank}.pt")


def test_two_ranks_train_as_one_process(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, one_rank, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    whole = train(network_of_classes(), slice(2), sync_normalizer=False)
    losses = [(first + second) / 2 for first, second in zip(*(rank.pop("losses") for rank in ranks), strict=True)]
    torch.testing.assert_close(losses, whole.pop("losses"))
    for rank in ranks:
        torch.testing.assert_close(rank, whole)
    assert 0.1 < whole["edge_weight"] < 0.9


def test_a_state_continues() -> None:
    criterion, other = (EdgeAwareLoss(multilabel=True, ignore_index=IGNORE) for _ in range(2))
    x, y = scene((7, 9), 3)
    criterion(x, y)
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other(x, y), criterion(x, y))
    with pytest.raises(RuntimeError, match="size mismatch for edge_counts"):
        EdgeAwareLoss().load_state_dict(criterion.state_dict())
    with pytest.raises(
        ValueError, match=r"logits: expected 3 classes, as edge_class_weight='running' has counted, but got 2"
    ):
        criterion(x[:, :2], y[:, :2])


def test_the_loss_of_one_class() -> None:
    x, y = scene((7, 9), 3)
    weight = torch.rand(3, 2)
    criterion = EdgeAwareLoss(weight, multilabel=True, ignore_index=IGNORE, reduction="sum")
    for _ in range(2):
        criterion(x, y)
    losses = [criterion.of_class(c)(x[:, c : c + 1], y[:, c]) for c in range(3)]
    torch.testing.assert_close(torch.stack(losses).sum(), criterion.eval()(x, y))
    criterion.of_class(0)(x[:, :1], y[:, 0])  # a call counts nothing
    assert criterion.counted_steps == 2
    with pytest.raises(ValueError, match=r"got multilabel=True; for class c pass .*criterion.of_class\(c\)"):
        panel(x, y, criterion=criterion)
    figure = panel(x[:, :1], y[:, 0], criterion=criterion.of_class(0), class_names=["other", "first"])
    assert figure.axes
    with pytest.raises(ValueError, match="multilabel: expected True for a loss of one class, but got False"):
        EdgeAwareLoss().of_class(0)


# ------------------------------------------------------------------------------------------------------ compile, export


@pytest.mark.parametrize("options", [{}, {"upsample": True}, {"backend": "reference"}])
@pytest.mark.parametrize("training", [False, True])
def test_compiled(options: dict[str, Any], training: bool) -> None:
    torch._dynamo.reset()
    criterion = EdgeAwareLoss(multilabel=True, ignore_index=IGNORE, **options).train(training)
    criterion(*scene((5, 5), 3))
    compiled = torch.compile(copy.deepcopy(criterion), fullgraph=True, backend="aot_eager", dynamic=True)
    for size in ((7, 9), (8, 6)):
        x, y = scene(size, 3, tuple((s + 1) // 2 for s in size) if options.get("upsample") else None)
        x.requires_grad_()
        loss, expected = compiled(x, y), criterion(x, y)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))
    assert torch.equal(compiled.edge_counts, criterion.edge_counts)


def test_exported() -> None:
    criterion = EdgeAwareLoss(multilabel=True, ignore_index=IGNORE).eval()
    x, y = scene((7, 9), 3)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(criterion, (x, y), dynamic_shapes={"logits": {0: batch}, "target": {0: batch}})
    x, y = (torch.cat([each, each.flip(0)[:1]]) for each in (x, y))
    torch.testing.assert_close(program.module()(x, y), criterion(x, y))


# ------------------------------------------------------------------------------------------------------- wrong calls


@pytest.mark.parametrize(
    ("target", "given", "message"),
    [
        (
            (2, 7, 9),
            {},
            r"target: expected \[2, 3, 7, 9\] .* got \[2, 7, 9\]; pass labels for each class, or multilabel=False",
        ),
        ((2, 4, 7, 9), {}, r"target: expected \[2, 3, 7, 9\] for logits .*, but got \[2, 4, 7, 9\]$"),
        (
            (2, 3, 9, 9),
            {},
            r"target: .*\[2, 3, 9, 9\]; for logits of lower resolution than the target pass upsample=True",
        ),
        (
            (2, 3, 6, 9),
            {"upsample": True},
            r"target: expected \[2, 3, \*size\] of at least the logits' resolution \[7, 9\]",
        ),
        (
            (2, 3, 7, 9),
            {"weight": torch.ones(2)},
            r"weight: expected \[3\], or \[3, 2\] for labels 0 and 1 .* got \[2\]",
        ),
        ((2, 3, 7, 9), {"weight": torch.ones(3, 3)}, r"weight: expected \[3\], or \[3, 2\] for labels .* got \[3, 3\]"),
        (
            (2, 3, 7, 9),
            {"weight": torch.ones(3, 2, 1)},
            r"weight: expected a floating tensor \[C\] or \[C, 2\] of class",
        ),
        ((2, 3, 7, 9), {"edge_class_weight": torch.ones(4, 2)}, r"edge_class_weight: expected \[3\], or \[3, 2\]"),
        (
            (2, 3, 7, 9),
            {"pixel_weight": torch.ones(2, 9, 9)},
            r"pixel_weight: expected \[2, 7, 9\], but got \[2, 9, 9\]",
        ),
        ((2, 3, 7, 9), {"pixel_weight": torch.ones(2, 1, 7, 9)}, r"pixel_weight: expected \[2, 3, 7, 9\], but got"),
        ((2, 3, 7, 9), {"distance": torch.ones(2, 7, 9), "decay": 1.0}, r"distance: expected \[2, 3, 7, 9\], but got"),
    ],
)
def test_wrong_shapes(target: tuple[int, ...], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edge_aware_loss(torch.zeros(2, 3, 7, 9), torch.zeros(target, dtype=torch.long), multilabel=True, **given)


@pytest.mark.usefixtures("each_backend")
def test_wrong_labels_are_found_where_they_are() -> None:
    y = torch.zeros(2, 3, 7, 9, dtype=torch.long)
    y[1, 2, 0, 4] = 2
    with pytest.raises(
        ValueError, match=r"expected labels 0 or 1 .*, or ignore_index=-100, but got 2 at .*\[1, 2, 0, 4\]"
    ):
        edge_aware_loss(torch.zeros(2, 3, 7, 9), y, multilabel=True, validate="sync")


def test_wrong_targets_of_normalizers() -> None:
    with pytest.raises(
        ValueError, match=r"target: expected \[B, C, H, W\] or \[B, C, D, H, W\], but got \[3, 7, 9\]; .*unsqueeze"
    ):
        normalizers(torch.zeros(3, 7, 9, dtype=torch.long), multilabel=True)
    with pytest.raises(ValueError, match=r"targets: expected \[B, 2, \*S\], but got \[1, 3, 7, 9\]"):
        balanced_edge_class_weight([torch.zeros(1, 3, 7, 9, dtype=torch.long)], 2, multilabel=True)


# --------------------------------------------------------------------------------------------------- no ignore_index


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("multilabel", [False, True])
def test_no_label_is_ignored(multilabel: bool) -> None:
    x, y = scene((7, 9), 3)
    y = y.clamp(max=1) if multilabel else y[:, 0].clamp(max=2)
    given: dict[str, Any] = {"multilabel": multilabel, "edge_class_weight": torch.tensor([1.0, 2.0, 0.5])}
    loss = edge_aware_loss(x, y, ignore_index=None, **given)
    assert torch.equal(loss, edge_aware_loss(x, y, **given))
    assert normalizers(y, ignore_index=None, **given) == normalizers(y, **given)
    u = balanced_edge_class_weight([y], 3, ignore_index=None, multilabel=multilabel)
    assert torch.equal(u, balanced_edge_class_weight([y], 3, multilabel=multilabel))
    criterion = stateless_loss(ignore_index=None, multilabel=multilabel)
    assert torch.equal(criterion(x, y), edge_aware_loss(x, y, multilabel=multilabel))
    y.view(-1)[5] = -100
    wanted = "0 or 1 .one logit per pixel is binary." if multilabel else "0 to 2"
    with pytest.raises(ValueError, match=f"target: expected labels {wanted}, but got -100 at "):
        edge_aware_loss(x, y, ignore_index=None, validate="sync", **given)
    with pytest.raises(ValueError, match=r"target: expected labels .*, but got -100 at 1 pixel"):
        normalizers(y, ignore_index=None, **given)
