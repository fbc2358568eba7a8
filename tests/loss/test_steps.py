"""What the module keeps from step to step: the counts of the running weights, and the sums of ``edge_focus``."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from batches import IGNORE, C, run, steps
from stateless import stateless_loss
from torch import nn

KEPT: list[dict[str, Any]] = [
    {"edge_class_weight": "running"},
    {"edge_focus": 0.7},
    {"edge_class_weight": "running", "edge_focus": 0.7},
]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    "options", [*KEPT, {}, {"edge_class_weight": torch.tensor([0.3, 1.0, 0.7, 2.0])}, {"region_weight": 0.7}]
)
def test_accumulated_steps_equal_those_of_whole_batches(options: dict[str, Any]) -> None:
    weight = torch.rand(C)
    whole, parts = (stateless_loss(weight, ignore_index=IGNORE, radius=2, **options) for _ in range(2))
    for x, y in steps(4):
        v = torch.rand(y.shape, dtype=torch.float64)
        expected = whole(x, y, pixel_weight=v)
        total = parts.step_normalizer((part for part in y.split(1)), v.split(1))
        crops = zip(x.split(1), y.split(1), v.split(1), strict=True)
        loss = sum(parts(a, b, pixel_weight=c, normalizer=total) for a, b, c in crops)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        gradients = torch.autograd.grad(loss, x), torch.autograd.grad(expected, x)
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-16)  # those of the region term nearly cancel
        torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("options", KEPT)
def test_a_resumed_run_goes_on_exactly(options: dict[str, Any]) -> None:
    batches, stored = steps(5), io.BytesIO()
    criterion, loaded, inner = (stateless_loss(ignore_index=IGNORE, **options) for _ in range(3))
    for batch in batches[:3]:
        criterion(*batch)
    torch.save(criterion.state_dict(), stored)
    stored.seek(0)
    loaded.load_state_dict(torch.load(stored))
    wrapper = nn.ModuleDict({"loss": inner})
    wrapper.load_state_dict({f"loss.{name}": value for name, value in criterion.state_dict().items()})
    copies = [copy.deepcopy(criterion) for _ in range(3)]
    twins = [loaded, inner, copies[0], copies[1].double(), copies[2].half(), pickle.loads(pickle.dumps(criterion))]
    for batch in batches[3:]:
        expected = run(criterion, *batch)
        for twin in twins:
            assert all(torch.equal(a, b) for a, b in zip(run(twin, *batch), expected, strict=True))
    for twin in twins:
        torch.testing.assert_close(twin.state_dict(), criterion.state_dict(), rtol=0, atol=0)
