"""The torchmetrics classes: batches, copies, collections and ranks."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from slow_metrics import CLASSES, FUNCTIONS, VOID, blobs
from torchmetrics import Metric, MetricCollection

from edgeloss.metrics import (
    AverageSurfaceDistance,
    BoundaryF1,
    BoundaryIoU,
    BoundaryScores,
    TrimapIoU,
    average_surface_distance,
)


def metric_of(name: str, classes: int = 4, **more: Any) -> Metric:
    function, options = FUNCTIONS[name]
    return CLASSES[function](classes, ignore_index=VOID, **options, **more)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of several lengths and image sizes."""
    sizes = [(2, 20, 24), (1, 15, 30), (3, 20, 24), (1, 9, 9)]
    return [blobs(*size, 4, seed=seed) for seed, size in enumerate(sizes)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("average", ["macro", "none"])
def test_batch_by_batch_is_the_whole(name: str, average: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(7, 20, 24, 4)
    metric = metric_of(name, average=average)

    def score(part: slice) -> torch.Tensor:
        return function(pred[part], target[part], 4, ignore_index=VOID, average=average, **options)

    steps = [metric(pred[i : i + 3], target[i : i + 3]) for i in range(0, 7, 3)]
    assert torch.equal(metric.compute(), score(slice(7)))
    assert torch.equal(steps[1], score(slice(3, 6)))
    metric.reset()
    metric.update(pred[:1], target[:1])
    assert torch.equal(metric.compute(), score(slice(1)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_copies_keep_the_counts(name: str) -> None:
    first, second = batches()[:2]
    whole, metric, loaded = metric_of(name), metric_of(name), metric_of(name)
    for batch in (first, second):
        whole.update(*batch)
    metric.update(*first)
    for each in (metric, loaded):
        each.persistent(True)
    loaded.load_state_dict(metric.state_dict())
    for copied in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.to("cpu"), loaded):
        copied.update(*second)
        assert torch.equal(copied.compute(), whole.compute())


@pytest.mark.parametrize("way", ["update", "forward", "merge_state", "compute_on_cpu"])
def test_counts_of_images_are_held_in_few_tensors(way: str) -> None:
    # A small tensor of each image would keep the memory between them from the system.
    pred, target = blobs(50, 9, 11, 3)
    options: dict[str, Any] = {"ignore_index": VOID, "average": "none", "reduction": "none"}
    metric = AverageSurfaceDistance(3, compute_on_cpu=way == "compute_on_cpu", **options)
    for i in range(50):
        one = pred[i : i + 1], target[i : i + 1]
        if way == "merge_state":
            # The state that is merged comes first.
            before = metric.metric_state
            metric = AverageSurfaceDistance(3, **options)
            metric.update(*one)
            metric.merge_state(before)
        else:
            (metric if way == "forward" else metric.update)(*one)
    (parts,) = (state for state in metric.metric_state.values() if isinstance(state, list))
    assert [len(part) for part in parts] == [32, 16, 2]
    assert sum(part.untyped_storage().nbytes() for part in parts) == 50 * 4 * 3 * 8
    expected = average_surface_distance(pred, target, 3, **options)
    assert torch.equal(metric.compute().nan_to_num(-1), expected.nan_to_num(-1))


def test_a_collection_shares_counts_only_where_they_are_the_same() -> None:
    scores = {score: BoundaryF1(4, ignore_index=VOID, score=score) for score in ("f1", "precision", "recall")}
    radii = {f"f1_{r}": BoundaryF1(4, ignore_index=VOID, radius=r) for r in (3, 5)}
    trimaps = {f"trimap_{r}": TrimapIoU(4, ignore_index=VOID, radius=r) for r in (1, 3)}
    collection = MetricCollection({**scores, **radii, **trimaps, "iou": BoundaryIoU(4, ignore_index=VOID)})
    # The first batch has equal counts for all of them.
    flat = torch.zeros(1, 12, 12, dtype=torch.long)
    collection.update(flat, flat)
    assert sorted(map(len, collection.compute_groups.values())) == [1, 1, 1, 1, 1, 3]
    for batch in batches():
        collection.update(*batch)
    for name, value in collection.compute().items():
        alone = collection[name].clone()
        alone.reset()
        alone.update(flat, flat)
        for batch in batches():
            alone.update(*batch)
        assert torch.equal(alone.compute(), value), name


def one_rank(rank: int, world: int, folder: Path) -> None:
    collection = MetricCollection({name.replace(" ", "_"): metric_of(name) for name in FUNCTIONS})
    scores = BoundaryScores(4, ignore_index=VOID, reduction="images")
    for batch in batches()[rank::world]:
        collection.update(*batch)
        if rank == 0:  # the others have no image
            scores.update(*batch)
    torch.save((collection.compute(), scores.compute()), folder / f"{rank}.pt")


@pytest.mark.slow  # torchmetrics sums the counts of ranks; test_batch_by_batch_is_the_whole has those of batches
def test_ranks_compute_the_metrics_of_all_images(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, one_rank, 2, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name in FUNCTIONS:
        metric = metric_of(name)
        for batch in batches():
            metric.update(*batch)
        for values, _ in ranks:
            assert torch.equal(values[name.replace(" ", "_")], metric.compute()), name
    scores = BoundaryScores(4, ignore_index=VOID, reduction="images")
    for batch in batches()[::2]:
        scores.update(*batch)
    for name, value in scores.compute().items():
        for _, values in ranks:
            assert torch.equal(values[name], value), name
