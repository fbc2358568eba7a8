"""The module with compile, autocast, pickle, subclasses and distributed training."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from stateless import stateless_loss
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import edgeloss
from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss


def test_holds_arguments_and_calls_the_function() -> None:
    x, y, weight = torch.randn(2, 3, 6, 6), torch.randint(3, (2, 6, 6)), torch.tensor([1.0, 2.0, 0.5])
    options: dict[str, Any] = {
        "ignore_index": 1,
        "reduction": "sum",
        "label_smoothing": 0.1,
        "ce_weight": 0.3,
        "edge_weight": 0.7,
        "other_side_weight": 0.2,
        "same_side_weight": 1.5,
        "edge_focus": 0.0,
        "radius": (1, 2),
        "power": -1.0,
        "decay": 2.0,
        "spacing": (1.0, 0.5),
        "upsample": True,
        "sync_normalizer": True,
        "validate": "never",
        "backend": "reference",
    }
    options["edge_class_weight"] = torch.tensor([0.5, 1.0, 3.0])
    criterion = EdgeAwareLoss(weight, **options)
    assert repr(criterion).startswith("EdgeAwareLoss(weight=[3], edge_class_weight=[3], ")
    for name in options.keys() - {"edge_class_weight"}:
        assert f"{name}={options[name]!r}" in repr(criterion)
    del options["edge_focus"]
    assert criterion(x, y) == edge_aware_loss(x, y, weight=weight, **options)
    assert (
        repr(EdgeAwareLoss()) == "EdgeAwareLoss(edge_class_weight='running', ignore_index=-100, ce_weight=1.0,"
        " edge_weight=1.0, other_side_weight=1.0, same_side_weight=1.0, edge_focus=8.0, region_weight=3.0, radius=1,"
        " power=0.0)"
    )
    assert "edge_class_weight=None" in repr(EdgeAwareLoss(edge_class_weight=None))


def test_arguments_can_be_scheduled() -> None:
    x, y = torch.randn(1, 3, 6, 6), torch.randint(3, (1, 6, 6))
    criterion = stateless_loss()
    criterion.edge_weight = 0.0
    assert criterion(x, y) == edge_aware_loss(x, y, edge_weight=0.0)
    criterion.edge_weight = -1.0
    with pytest.raises(ValueError, match=r"edge_weight: expected a finite number ≥ 0, but got -1\.0"):
        criterion(x, y)


def test_can_be_subclassed() -> None:
    class Ours(EdgeAwareLoss):
        def __init__(self, classes: int) -> None:
            super().__init__(torch.ones(classes), power=1.0)

    x, y = torch.randn(1, 3, 6, 6), torch.randint(3, (1, 6, 6))
    assert Ours(3)(x, y) == edge_aware_loss(x, y, power=1.0)
    assert repr(Ours(3)).startswith("Ours(weight=[3], edge_class_weight='running', ignore_index=-100")


def test_a_wrong_weight_raises_in_the_constructor() -> None:
    with pytest.raises(TypeError, match=r"weight: expected a tensor \[C\] of class weights, but got list"):
        EdgeAwareLoss([1.0, 2.0])  # type: ignore[arg-type]


# After a graph break, torch reads the gradient of a tensor that is not a leaf, and warns about it.


def test_weight_is_a_buffer() -> None:
    criterion = stateless_loss(torch.ones(3))
    assert list(criterion.state_dict()) == ["weight"]
    assert not list(criterion.parameters())
    assert not stateless_loss().state_dict()
    other = stateless_loss(torch.zeros(3))
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other.weight, torch.ones(3))
    assert criterion.to("meta").weight.is_meta
    assert EdgeAwareLoss(torch.ones(3)).double().weight.dtype == torch.float64


def test_pickle_and_deepcopy() -> None:
    x, y = torch.randn(1, 3, 6, 6), torch.randint(3, (1, 6, 6))
    criterion = EdgeAwareLoss(torch.tensor([1.0, 2.0, 0.5]), radius=2, decay=1.0).eval()
    for twin in (pickle.loads(pickle.dumps(criterion)), copy.deepcopy(criterion)):
        assert repr(twin) == repr(criterion)
        assert twin(x, y) == criterion(x, y)
    maps = criterion(x, y, return_maps=True)[1]
    assert all(torch.equal(a, b) for a, b in zip(pickle.loads(pickle.dumps(maps)), maps, strict=True))


def test_mean_gradient_survives_half_precision() -> None:
    # A gradient stored before it is scaled would underflow: 1 / (8 · 1024²) is below the range of float16.
    net = nn.Conv2d(1, 2, 1).half()
    image = torch.rand(8, 1, 256, 256).half()
    y = torch.randint(2, (8, 256, 256))
    loss = EdgeAwareLoss()(net(image), y)
    (loss * 2**14).backward()  # as a gradient scaler does
    scaled = net.weight.grad.float() / 2**14
    exact = copy.deepcopy(net).double()
    exact.zero_grad()
    EdgeAwareLoss()(exact(image.double()), y).backward()
    torch.testing.assert_close(scaled.double(), exact.weight.grad, rtol=2e-2, atol=1e-4)


def test_import_is_light() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import edgeloss;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new & {'cv2', 'scipy', 'matplotlib', 'PIL', 'torchmetrics', 'omegaconf', 'rich'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    assert set(edgeloss.__all__) >= {"EdgeAwareLoss", "LossMaps", "backends"}
    assert all(hasattr(edgeloss, name) for name in edgeloss.__all__)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 1)).double()


def whole_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return four crops with very different counts: noise, few edges, no edge, all ignored."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 8, 11, generator=random, dtype=torch.float64)
    y = torch.randint(4, (4, 8, 11), generator=random)
    y[1] = 2
    y[1, 0, 0] = 3
    y[2] = 1
    y[3] = -100
    return x, y, torch.tensor([1.0, 2.0, 0.5, 0.3]), torch.rand(4, 8, 11, generator=random, dtype=torch.float64)


RUNNING: dict[str, Any] = {"edge_class_weight": "running", "edge_focus": 2.0, "ignore_index": 0}


def running_steps(criterion: EdgeAwareLoss, mine: slice, *, accumulates: bool) -> tuple[Any, ...]:
    """Return the losses of three steps on a part of the batch, and the weights of the edge terms after them."""
    x, y, _, _ = whole_batch()
    losses = []
    for step in range(3):
        part, labels = x[mine], (y[mine] + step).where(y[mine] != -100, -100) % 5
        total = criterion.step_normalizer([labels]) if accumulates else None
        right = F.one_hot(labels.clamp(min=0), 5).movedim(-1, 1)  # with it the prediction is better than a uniform one
        losses.append(criterion(torch.cat([part, -part[:, :2]], 1) / 3 + 2 * right, labels, normalizer=total))
    return losses, criterion.current_edge_class_weight, criterion.current_edge_weight


def one_rank(rank: int, world: int, folder: Path, given: bool) -> None:
    x, y, weight, v = whole_batch()
    mine = slice(rank * 4 // world, (rank + 1) * 4 // world)
    model = DistributedDataParallel(network())
    weights = {"weight": weight, "edge_class_weight": weight.flip(0)}
    criterion = stateless_loss(**weights, region_weight=1.0, sync_normalizer=True)
    counts = edgeloss.functional.normalizers(y[mine], **weights, pixel_weight=v[mine]) if given else None
    loss, terms = criterion(model(x[mine]), y[mine], pixel_weight=v[mine], normalizer=counts, return_terms=True)
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    running = EdgeAwareLoss(**RUNNING, sync_normalizer=True)
    counted = running_steps(running, mine, accumulates=given)
    torch.save((loss.detach(), gradients, terms, counted), folder / f"{rank}.pt")


@pytest.mark.parametrize(("world", "given"), [(2, False), (4, False), (2, True)])
def test_ddp_gives_the_gradient_of_the_whole_batch(tmp_path: Path, world: int, given: bool) -> None:
    run_ranks(world, tmp_path, one_rank, world, tmp_path, given)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    x, y, weight, v = whole_batch()
    model = network()
    criterion = stateless_loss(weight, edge_class_weight=weight.flip(0), region_weight=1.0)
    loss, terms = criterion(model(x), y, pixel_weight=v, return_terms=True)
    loss.backward()
    torch.testing.assert_close(sum(loss for loss, *_ in ranks) / world, loss.detach())
    losses, u, edge_weight = running_steps(EdgeAwareLoss(**RUNNING), slice(4), accumulates=False)
    torch.testing.assert_close(
        [sum(step) / world for step in zip(*(rank[3][0] for rank in ranks), strict=True)], losses
    )
    assert all(torch.equal(rank[3][1], u) for rank in ranks)
    torch.testing.assert_close([rank[3][2] for rank in ranks], [edge_weight] * world, rtol=1e-12, atol=0)
    assert abs(edge_weight - 1) > 0.1
    for _, gradients, _, _ in ranks:
        torch.testing.assert_close(gradients, [p.grad for p in model.parameters()])
    assert terms["region"] > 0.01
    for name in ("cross_entropy", "same_side", "other_side", "edge", "region"):
        torch.testing.assert_close(sum(terms[name] for _, _, terms, _ in ranks) / world, terms[name])


def test_sync_normalizer_without_a_process_group_changes_nothing() -> None:
    x, y = torch.randn(1, 3, 6, 6), torch.randint(3, (1, 6, 6))
    assert EdgeAwareLoss(sync_normalizer=True)(x, y) == EdgeAwareLoss()(x, y)
