"""The table of trainings of tiny networks, and the sentence about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import doc_figures
import lesions
import tiny_networks
from tiny_networks import LOSSES

DICE = {"cross-entropy": (0.1, 0.2, 0.8), "CE + Dice": (0.7, 0.8, 0.9), "EdgeAwareLoss()": (0.29, 0.31, 0.33)}


def rows_of(case: str, dice: dict[str, tuple[float, ...]] = DICE) -> list[dict[str, object]]:
    return [
        {"case": case, "loss": loss, "seed": seed, "dice": value}
        for loss, values in dice.items()
        for seed, value in enumerate(values)
    ]


def test_table() -> None:
    assert tiny_networks.table(rows_of("disks"), ["disks", "rings"], [*DICE]) == [
        "| failed; median Dice of the others | cross-entropy | CE + Dice | EdgeAwareLoss() |",
        "|---|--:|--:|--:|",
        "| disks | 2 of 3; 0.80 | 0 of 3; 0.80 | 1 of 3; 0.32 |",
        "| rings | – | – | – |",
    ]


def test_sentences_count_what_all_losses_were_trained_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doc_figures, "RESULTS", tmp_path)
    last = {"class-weighted CE": (0.2, 0.2, 0.2), "class-weighted CE + Dice": (0.4, 0.4, 0.4)}
    last |= {"EdgeAwareLoss(region_weight=0)": (0.5, 0.6)}  # without the last seed
    rows = [*rows_of("disks", DICE | last), *rows_of("rings")]
    (tmp_path / "lesions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert doc_figures.lesions_sentences(1.0) == [
        "failed (Dice below 0.3) in 2 of 2 trainings",
        "class-weighted CE in 2, CE + Dice in 0, class-weighted CE + Dice in 0, edgeloss in 1, edgeloss without its"
        " region term in 0",
        "with a limit of 1 it is, in this order, 2, 2, 2, 2, 2, 2",
    ]
    assert doc_figures.LESIONS.keys() <= LOSSES.keys()


@pytest.mark.parametrize("case", lesions.CASES, ids=lambda case: case.name)
def test_disks_have_the_sizes_of_the_name(case: tiny_networks.Case) -> None:
    images, labels = case.draw(400, torch.Generator().manual_seed(0))
    assert images.shape == (400, 1, 64, 64)
    least, _, most, *_ = case.name.split()
    sizes = labels.flatten(1).sum(1)
    assert sizes[sizes > 0].min() == int(least)
    assert int(most) < sizes.max() <= 2 * int(most)  # there are two disks at most
