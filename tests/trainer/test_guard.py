"""The guard against nan: which steps it accepts, what it saves, and when it stops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from ranks import run_ranks
from torch import Tensor

from edgeloss import EdgeAwareLoss
from segkit.guard import NanGuard, NonFiniteLossError


def batch() -> tuple[list[str], Tensor, Tensor, Tensor]:
    """Names, images, logits and target of 2 images with an edge."""
    target = torch.zeros(2, 6, 8, dtype=torch.int64)
    target[:, 2:, 3:] = 1
    return ["a", "b"], torch.rand(2, 3, 6, 8), torch.randn(2, 3, 6, 8), target


def check(guard: NanGuard, step: int, *, logits: Tensor | None = None, norm: float = 1.0) -> bool:
    """Take a step as a trainer does, up to the optimizer."""
    names, images, drawn, target = batch()
    leaf = (drawn if logits is None else logits).requires_grad_()
    loss = guard.criterion(leaf, target)
    return guard.check(step, names, images, leaf, target, loss, norm)


def broken() -> Tensor:
    logits = batch()[2]
    logits[1, 2, 4, 5] = math.nan
    return logits


def test_a_good_step_passes_and_writes_nothing(tmp_path: Path) -> None:
    guard = NanGuard(tmp_path, EdgeAwareLoss(), action="stop")
    assert check(guard, 1)
    assert list(tmp_path.iterdir()) == []
    assert guard.skipped == 0


def test_stop_keeps_the_batch_and_the_diagnosis(tmp_path: Path) -> None:
    guard = NanGuard(tmp_path, EdgeAwareLoss(), action="stop")
    logits = broken()
    with pytest.raises(NonFiniteLossError) as caught:
        check(guard, 12, logits=logits)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("the loss is nan at step 12 on the images a, b; ")
    assert str(tmp_path / "nan" / "step_12.pt") in line
    assert {path.name for path in (tmp_path / "nan").iterdir()} == {
        f"step_12.{kind}" for kind in ("pt", "txt", "json", "png")
    }

    kept = torch.load(tmp_path / "nan" / "step_12.pt", weights_only=True)
    torch.testing.assert_close(kept["logits"], logits.detach(), equal_nan=True, rtol=0, atol=0)
    assert kept["images"].shape == (2, 3, 6, 8)
    assert kept["target"].dtype == torch.int64
    assert (kept["names"], kept["step"], kept["loss"]) == (["a", "b"], 12, "nan")
    assert EdgeAwareLoss()(kept["logits"], kept["target"]).isnan()  # it can be reproduced

    details = json.loads((tmp_path / "nan" / "step_12.json").read_text())
    assert details["diagnosis"]["ok"] is False
    assert details["from_the_network"] is False
    text = (tmp_path / "nan" / "step_12.txt").read_text()
    assert "logits: 1 of 288 values" in text
    assert "first at [1, 2, 4, 5]" in text
    with Image.open(tmp_path / "nan" / "step_12.png") as picture:
        assert picture.size[0] > 300


def test_gradients_of_network_and_loss_are_distinguished(tmp_path: Path) -> None:
    guard = NanGuard(tmp_path, EdgeAwareLoss(), action="stop")
    with pytest.raises(NonFiniteLossError, match="the gradient is inf at step 3 on the images a, b"):
        check(guard, 3, norm=math.inf)
    details = json.loads((tmp_path / "nan" / "step_3.json").read_text())
    assert details["diagnosis"]["ok"]
    assert details["from_the_network"]
    assert details["gradient_norm"] == "inf"
    assert "the network's own backward pass" in (tmp_path / "nan" / "step_3.txt").read_text()


def test_skip_counts_and_saves_a_few(tmp_path: Path) -> None:
    guard = NanGuard(tmp_path, EdgeAwareLoss(), action="skip", limit=2)
    used = [check(guard, step, logits=broken() if step in (2, 3, 5) else None) for step in range(1, 7)]
    assert used == [True, False, False, True, False, True]
    assert guard.skipped == 3
    assert guard.message == "the loss is nan at step 5 on the images a, b"
    assert {path.name for path in (tmp_path / "nan").glob("*.pt")} == {"step_2.pt", "step_3.pt"}


def test_too_many_in_a_row_stop_the_run(tmp_path: Path) -> None:
    guard = NanGuard(tmp_path, EdgeAwareLoss(), action="skip", limit=0, in_a_row=3)
    steps = [True, True, False, True, True]  # the row starts again after a good step
    for step, is_bad in enumerate(steps, start=1):
        assert check(guard, step, logits=broken() if is_bad else None) is not is_bad
    with pytest.raises(
        NonFiniteLossError, match="3 steps in a row, so the weights are the cause: the loss is nan at step 6"
    ):
        check(guard, 6, logits=broken())
    assert not (tmp_path / "nan").exists()


def test_only_the_batch_is_written_not_what_it_is_a_view_of(tmp_path: Path) -> None:
    names, images, _, target = batch()
    everything = torch.full((500, 3, 6, 8), math.nan)
    guard = NanGuard(tmp_path, EdgeAwareLoss(), action="skip")
    assert not guard.check(1, names, images, everything[:2], target, math.nan, 1.0)
    assert (tmp_path / "nan" / "step_1.pt").stat().st_size < 30_000  # all of it is 288 kB


@pytest.mark.parametrize("kind", ["half", "upsampled"])
def test_kinds_of_logits(kind: str, tmp_path: Path) -> None:
    names, images, logits, target = batch()
    logits = logits.half() if kind == "half" else logits[:, :, ::2, ::2]
    logits[0, 0, 2, 2] = math.inf
    guard = NanGuard(tmp_path, EdgeAwareLoss(upsample=kind == "upsampled"), action="skip")
    assert not guard.check(1, names, images, logits, target, math.nan, math.nan)
    kept = torch.load(tmp_path / "nan" / "step_1.pt", weights_only=True)["logits"]
    assert kept.dtype == logits.dtype
    assert kept.shape == logits.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "ignore"}, "action: expected stop or skip, but got 'ignore'"),
        ({"limit": -1}, "limit, in_a_row: expected limit >= 0 and in_a_row >= 1, but got -1 and 10"),
        ({"in_a_row": 0}, "limit, in_a_row: expected limit >= 0 and in_a_row >= 1, but got 4 and 0"),
    ],
)
def test_wrong_options_raise(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        NanGuard(tmp_path, EdgeAwareLoss(), **change)


def one_rank(rank: int, folder: Path) -> None:
    """The batch of rank 1 is bad; then a gradient is bad that comes from no batch."""
    guard = NanGuard(folder, EdgeAwareLoss(sync_normalizer=True), action="skip")
    used = [check(guard, 1), check(guard, 2, logits=broken() if rank else None)]
    message = guard.message
    used.append(check(guard, 3, norm=math.nan))
    (folder / f"guard_{rank}.json").write_text(json.dumps([used, guard.skipped, message]))


@pytest.mark.slow
def test_ranks_decide_the_same_and_those_with_a_bad_batch_save(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, one_rank, tmp_path)
    results = [json.loads((tmp_path / f"guard_{rank}.json").read_text()) for rank in range(2)]
    assert [one[:2] for one in results] == [[[True, False, False], 2]] * 2
    assert {path.stem for path in (tmp_path / "nan").glob("*.pt")} == {
        "step_2_rank_1",
        "step_3_rank_0",
        "step_3_rank_1",
    }
    assert "step_2_rank_1.pt" in results[1][2]
