"""What trainings do with a loss: averaged models, checkpoints, line searches, and evaluation by one rank."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from packages import require
from ranks import run_ranks
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss, normalizers


class Network(nn.Module):
    """A network with its loss as a part of it."""

    def __init__(self, classes: int = 3, **options: Any) -> None:
        """Draw the weights, the same each time."""
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 3, padding=1))
        self.criterion = EdgeAwareLoss(**options)

    def forward(self, images: Tensor, labels: Tensor, **others: Any) -> Tensor:
        """Return the loss."""
        loss: Tensor = self.criterion(self.layers(images), labels, **others)
        return loss


def batch(count: int = 4) -> tuple[Tensor, Tensor]:
    """Images with another number of edge pixels of each class in each, which depend on the labels."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.zeros(count, 16, 16, dtype=torch.int64)
    for image in range(count):
        labels[image, 4 : 7 + 2 * image, 3:12] = 1
        labels[image, 2:5, 10 : 12 + image] = 2
    labels[0, -3:] = -100
    images = torch.randn(count, 2, 16, 16, generator=generator) + torch.stack([labels == 1, labels == 2], 1)
    return images, labels


def gradient(network: nn.Module) -> Tensor:
    return torch.cat([values.grad.flatten() for values in network.parameters() if values.grad is not None])


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averaged_model(use_buffers: bool) -> None:
    images, labels = batch()
    network = Network(weight=torch.tensor([1.0, 2.0, 0.5]))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    average, first = AveragedModel(network, use_buffers=use_buffers), copy.deepcopy(network)
    average.update_parameters(network)
    optimizer.zero_grad()
    network(images, labels).backward()
    optimizer.step()
    average.update_parameters(network)
    mean = {name: (value + first.state_dict()[name]) / 2 for name, value in network.state_dict().items()}
    first.load_state_dict(mean)
    assert average(images, labels).equal(first(images, labels))


def test_a_moving_average_may_copy_every_entry() -> None:
    images, labels = batch()
    network, average = Network(), Network()
    network(images, labels).backward()
    for name, value in average.state_dict().items():
        value.copy_(network.state_dict()[name])
    assert list(average.criterion.state_dict()) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoint(tmp_path: Path) -> None:
    """One of another loss loads too, since the loss has only the weights that it was given."""
    images, labels = batch()
    network = Network(weight=torch.tensor([1.0, 2.0, 0.5]))
    expected = network(images, labels)
    expected.backward()
    checkpoint.save(network.state_dict(), checkpoint_id=tmp_path / "run", no_dist=True)
    other = Network(weight=torch.ones(3))
    nn.init.zeros_(next(other.parameters()))
    state = other.state_dict()
    checkpoint.load(state, checkpoint_id=tmp_path / "run", no_dist=True)
    other.load_state_dict(state)
    assert other(images, labels).equal(expected)
    plain = nn.ModuleDict({"layers": network.layers, "criterion": nn.CrossEntropyLoss()})
    Network().load_state_dict(plain.state_dict())


def test_lbfgs_with_a_line_search() -> None:
    """Which compares values of one function."""
    _, labels = batch(2)
    logits = torch.zeros(2, 3, 16, 16, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=40, line_search_fn="strong_wolfe")
    criterion = EdgeAwareLoss()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = criterion(logits, labels)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 3
    assert 0 <= closure().item() < 1e-4
    assert logits.isfinite().all()
    assert (logits.argmax(1) == labels)[labels >= 0].all()


def test_sharpness_aware_minimization() -> None:
    """It calls the loss twice per step: at the weights, and where they have moved along the gradient."""
    images, labels = batch()
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    values = []
    for _ in range(40):
        loss = network(images, labels)
        optimizer.zero_grad()
        loss.backward()
        norm = gradient(network).norm()
        steps = [0.02 * weight.grad / norm for weight in network.parameters() if weight.grad is not None]
        with torch.no_grad():
            assert network(images, labels).equal(loss.detach())  # the first call has changed nothing
            for weight, step in zip(network.parameters(), steps, strict=True):
                weight += step
        optimizer.zero_grad()
        network(images, labels).backward()
        with torch.no_grad():
            for weight, step in zip(network.parameters(), steps, strict=True):
                weight -= step
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.4 * values[0]


def train_and_evaluate(rank: int, folder: Path) -> None:
    images, labels = batch()
    network = Network(sync_normalizer=True)
    parallel = DistributedDataParallel(network)
    part = slice(rank, 4, 2)
    parallel(images[part], labels[part]).backward()
    if rank == 0:
        with torch.no_grad():
            value = network(images[:1], labels[:1])
        assert value.equal(edge_aware_loss(network.layers(images[:1]), labels[:1]).detach())
        torch.save(gradient(network), folder / "gradient.pt")
    dist.barrier()


@pytest.mark.slow
def test_one_rank_may_evaluate_alone(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, train_and_evaluate, tmp_path)
    whole = Network()
    whole(*batch()).backward()
    torch.testing.assert_close(torch.load(tmp_path / "gradient.pt"), gradient(whole), rtol=1e-4, atol=1e-6)


@pytest.mark.slow  # the import
def test_tensors_of_monai_are_taken_and_not_returned() -> None:
    require("monai")
    from monai.data import MetaTensor

    images, labels = batch()
    logits = Network().layers(images).detach()
    expected, terms = EdgeAwareLoss()(logits, labels, return_terms=True)
    leaf = MetaTensor(logits, meta={"filename_or_obj": "a.nii"}).requires_grad_()
    target = MetaTensor(labels, meta={"filename_or_obj": "b.nii"})
    criterion = EdgeAwareLoss(MetaTensor(torch.ones(3)))
    loss, found = criterion(leaf, target, return_terms=True)
    loss.backward()
    w, n = normalizers(target, 3)
    stored = list(criterion.state_dict().values())
    assert {type(value) for value in (loss, w, n, *found.values(), *stored)} == {Tensor}
    assert loss.equal(expected)
    assert found == terms
    assert leaf.grad is not None
    assert leaf.grad.norm() > 0
