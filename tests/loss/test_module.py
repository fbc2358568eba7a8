"""The module with compile, autocast, pickle, subclasses and distributed training."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batches import IGNORE, C, steps
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss, normalizers
from edgeloss.viz import panel

OPTIONS: dict[str, Any] = {
    "ignore_index": 1,
    "reduction": "sum",
    "label_smoothing": 0.1,
    "ce_weight": 0.3,
    "edge_weight": 0.7,
    "other_side_weight": 0.2,
    "same_side_weight": 1.5,
    "edge_focus": 3.0,
    "region_weight": 0.4,
    "radius": (1, 2),
    "power": -1.0,
    "decay": 2.0,
    "spacing": (1.0, 0.5),
    "upsample": True,
    "sync_normalizer": True,
    "validate": "never",
    "backend": "reference",
}


def test_holds_arguments_and_calls_the_function() -> None:
    x, y = torch.randn(2, 3, 6, 6), torch.randint(3, (2, 6, 6))
    weights = {"weight": torch.tensor([1.0, 2.0, 0.5]), "edge_class_weight": torch.tensor([0.5, 1.0, 3.0])}
    criterion = EdgeAwareLoss(**weights, **OPTIONS)
    expected = edge_aware_loss(x, y, **weights, **OPTIONS)
    for twin in (criterion, pickle.loads(pickle.dumps(criterion)), copy.deepcopy(criterion)):
        assert repr(twin).startswith("EdgeAwareLoss(weight=[3], edge_class_weight=[3], ")
        assert all(f"{name}={value!r}" in repr(twin) for name, value in OPTIONS.items())
        assert twin(x, y) == expected
    assert repr(EdgeAwareLoss()) == (
        "EdgeAwareLoss(edge_class_weight='balanced', ignore_index=-100, ce_weight=1.0, edge_weight=1.0,"
        " other_side_weight=1.0, same_side_weight=1.0, edge_focus=3.0, region_weight=3.0, radius=1, power=0.0)"
    )
    assert "edge_class_weight=None" in repr(EdgeAwareLoss(edge_class_weight=None))


def test_arguments_can_be_scheduled() -> None:
    x, y, criterion = torch.randn(1, 3, 6, 6), torch.randint(3, (1, 6, 6)), EdgeAwareLoss()
    criterion.edge_weight = 0.0
    assert criterion(x, y) == edge_aware_loss(x, y, edge_weight=0.0)
    criterion.edge_weight = -1.0
    with pytest.raises(ValueError, match=r"edge_weight: expected a finite number ≥ 0, but got -1\.0"):
        criterion(x, y)


def test_can_be_subclassed() -> None:
    class Ours(EdgeAwareLoss):
        def __init__(self, classes: int) -> None:
            super().__init__(torch.ones(classes), power=1.0)

    assert repr(Ours(3)).startswith("Ours(weight=[3], edge_class_weight='balanced', ignore_index=-100")


def test_weight_is_a_buffer() -> None:
    criterion, other = (EdgeAwareLoss(torch.full((3,), value)) for value in (1.0, 0.0))
    criterion(torch.randn(1, 3, 8, 8), torch.randint(3, (1, 8, 8)))  # which stores nothing
    assert list(criterion.state_dict()) == ["weight"]
    assert not list(criterion.parameters())
    assert not EdgeAwareLoss().state_dict()
    assert list(EdgeAwareLoss(edge_class_weight=torch.ones(3)).state_dict()) == ["edge_class_weight"]
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other.weight, torch.ones(3))
    assert criterion.double().to("meta").weight.is_meta
    assert criterion.weight.dtype == torch.float64


def test_class_weights_can_be_scheduled() -> None:
    x, y, criterion = torch.randn(1, 3, 8, 8), torch.randint(3, (1, 8, 8)), EdgeAwareLoss()
    u = torch.tensor([0.5, 1.0, 3.0])
    for value, stored in ((u, ["weight", "edge_class_weight"]), ("balanced", ["weight"]), (None, ["weight"])):
        criterion.weight, criterion.edge_class_weight = u, value
        assert criterion(x, y) == edge_aware_loss(x, y, weight=u, edge_class_weight=value)
        assert list(criterion.state_dict()) == stored
        assert list(copy.deepcopy(criterion).state_dict()) == stored
    criterion.edge_class_weight = u
    assert criterion.double().edge_class_weight.dtype == torch.float64
    with pytest.raises(ValueError, match="expected a tensor, 'balanced' or None, but got 'median'"):
        criterion.edge_class_weight = "median"
    criterion.edge_class_weight = "balanced"
    with pytest.raises(TypeError, match=r"edge_class_weight: expected a tensor \[C\] of class weights, but got list"):
        criterion.edge_class_weight = [1.0, 2.0, 3.0]
    assert criterion.edge_class_weight == "balanced"
    criterion.edge_class_weight = torch.nn.Parameter(u)
    assert not list(criterion.parameters())


def test_the_loss_of_one_class() -> None:
    ((x, y),) = steps(1, (6, 9), multilabel=True)  # without a region term, which has the weights of all classes
    x = x.detach()
    criterion = EdgeAwareLoss(torch.rand(C, 2), multilabel=True, reduction="sum", ignore_index=IGNORE)
    losses = [criterion.of_class(c, y)(x[:, c : c + 1], y[:, c]) for c in range(C)]
    torch.testing.assert_close(torch.stack(losses).sum(), criterion(x, y))  # with the balance of all classes
    assert criterion.of_class(2).edge_class_weight == "balanced"
    with pytest.raises(ValueError, match=r"got multilabel=True; for class c pass .*criterion.of_class\(c\)"):
        panel(x, y, criterion=criterion)
    figure = panel(x[:, :1], y[:, 0], criterion=criterion.of_class(0), class_names=["other", "first"])
    assert figure.axes


# ----------------------------------------------------------------------------------------------- torch.distributed


def train(model: nn.Module, mine: slice, *, sync: bool, accumulates: bool) -> dict[str, Any]:
    """Return what comes of three steps on crops with very different counts: noise, few edges, no edge, all ignored."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 8, 11, generator=random, dtype=torch.float64)
    y = torch.randint(4, (4, 8, 11), generator=random)
    y[1], y[2], y[3] = 2, 1, 255
    y[1, 0, 0] = 3
    v, weight = torch.rand(4, 8, 11, generator=random, dtype=torch.float64), torch.tensor([1.0, 2.0, 0.5, 0.3])
    criteria = [EdgeAwareLoss(weight, ignore_index=255, sync_normalizer=sync, edge_focus=2.0)]
    criteria += [EdgeAwareLoss(edge_class_weight=weight, edge_focus=0, ignore_index=255, sync_normalizer=sync)]
    found: dict[str, Any] = {"losses": [], "terms": []}
    for step, criterion in itertools.product(range(3), criteria):
        labels = ((y[mine] + step) % 4).where(y[mine] != 255, 255)
        options = {"weight": criterion.weight, "ignore_index": 255, "pixel_weight": v[mine]}
        total = normalizers(labels, 4, **options) if accumulates else None
        right = F.one_hot(labels.where(labels != 255, 0), 4).movedim(-1, 1)  # better than a uniform prediction
        given: dict[str, Any] = {"pixel_weight": v[mine], "normalizer": total, "return_terms": True}
        loss, terms = criterion(model(x[mine]) + 2 * right, labels, **given)
        loss.backward()
        found["losses"].append(loss.detach())
        found["terms"].append({name: term for name, term in terms.items() if name != "edge_fraction"})
    return found | {"gradients": [p.grad for p in model.parameters()]}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 1)).double()


def one_rank(rank: int, world: int, folder: Path) -> None:
    mine = slice(rank * 4 // world, (rank + 1) * 4 // world)
    ways = [train(DistributedDataParallel(network()), mine, sync=True, accumulates=way) for way in (False, True)]
    torch.save(ways, folder / f"{rank}.pt")


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.slow
def test_ddp_gives_the_gradient_of_the_whole_batch(tmp_path: Path, world: int) -> None:
    run_ranks(world, tmp_path, one_rank, world, tmp_path)
    expected = train(network(), slice(4), sync=False, accumulates=False)
    for ranks in zip(*(torch.load(tmp_path / f"{rank}.pt") for rank in range(world)), strict=True):
        for rank in ranks:
            torch.testing.assert_close(rank["gradients"], expected["gradients"], rtol=1e-10, atol=1e-12)
        for name in ("losses", "terms"):  # are averaged by DDP, or would be
            mean = torch.utils._pytree.tree_map(lambda *each: sum(each) / world, *(rank[name] for rank in ranks))
            torch.testing.assert_close(mean, expected[name], rtol=1e-10, atol=1e-12)
    assert expected["terms"][-1]["region"] > 0.01
