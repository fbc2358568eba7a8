"""The choice of crops of the benchmark of quality."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from sample_results import PLAN

from quality.command import main
from quality.crops import Split, at_percentiles, summary, windows
from quality.runs import Place, Run
from segkit.checkpoint import load_checkpoint


@pytest.fixture
def split() -> Split:
    """Return four images of 32 × 32 with a border after column 7.

    The baseline and ours are 3 px off in one place each.
    """
    target = (torch.arange(32) >= 8).long().expand(4, 32, 32).clone()
    target[3, 4:] = 1  # a corner of 4 × 8 pixels: less border than a window of 16 is wide
    baseline, between, ours = target.clone(), target.clone(), target.clone()
    baseline[0, :16, 8:11] = 0
    between[:] = 0
    ours[2, 16:, 8:11] = 0
    predictions = {"baseline": baseline, "between": between, "ours": ours}
    return Split([*"abcd"], torch.rand(4, 3, 32, 32), target, predictions, ["left", "right", "other"], 255)


def test_crops_are_found_by_rule(split: Split) -> None:
    scored = windows(split, 16)
    # Rows 0, 8 and 16 of the images a, b and c; the windows from columns 8 and 16 show no border.
    assert sorted(window[:3] for window in scored) == [(n, top, 0) for n in range(3) for top in (0, 8, 16)]
    assert scored[-1][:3] == (0, 0, 0)
    assert scored[-1].scores == [0, 0, 1]
    # Of the 19 border pixels those of the 8 right rows are near a true one, and 2 where the others begin; of the
    # 16 true ones those of the right rows, and 2 more.
    assert scored[-2].scores[0] == pytest.approx(2 * 10 / (19 + 16))
    assert (scored[0][:3], scored[0].difference) == ((2, 16, 0), -1)
    found = at_percentiles(scored, (100, 50, 0))
    assert [window.difference for window in found.values()] == [1, 0, -1]
    # Differences of 1, 3/7, five times 0, -17/35 and -1.
    expected = "ahead in 22 % of 9 windows and behind in 22 %; median difference +0.0 points, mean -0.6"
    assert summary(scored) == expected


def test_a_border_of_a_wrong_class_is_no_border(split: Split) -> None:
    split.predictions["ours"][1][split.target[1] == 1] = 2
    top = next(window for window in windows(split, 16) if window[:3] == (1, 0, 0))
    assert top.scores == [1, 0, 0.5]  # of two classes' borders the left one's


def test_void_has_no_border(split: Split) -> None:
    split.target[:2, :, 6:8] = split.void
    assert {window.image for window in windows(split, 16)} == {2}
    split.target[2] = split.void
    with pytest.raises(ValueError, match="--window: expected windows with enough border, but got none"):
        windows(split, 16)


@pytest.mark.slow
def test_command(trained: tuple[Place, list[Run]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, runs = trained
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(PLAN))
    words = ["crops", str(plan), "--data-root", str(place.root), "--state", str(place.state), "--output", str(tmp_path)]
    words += ["--losses", "cross-entropy", "CE + edge terms", "--window", "8"]
    assert main(words) == 0
    about = "CE + edge terms (class_balance 1) against cross-entropy; shapes, val, seed 0: ahead in"
    assert about in capsys.readouterr().out
    assert main([*words, "--percentile", "95"]) == 0
    assert (tmp_path / "quality-crops.png").read_bytes().startswith(b"\x89PNG")
    for wrong, message in {
        ("--seed", "3"): "--seed: expected one of [0], the seeds of the plan, but got 3",
        ("--size", "5", "5"): "--size: expected that of runs of the plan, but got [5, 5]",
        ("--window", "25"): "--window: expected 2 to 24 for images of this size, but got 25",
        ("--percentile", "101"): "--percentile: expected 0 to 100, but got 101",
    }.items():
        assert main([*words, *wrong]) == 1
        assert message in capsys.readouterr().err
    assert main([*words, "--state", str(tmp_path)]) == 1
    assert ".pt: expected a checkpoint, but there is no such file" in capsys.readouterr().err
    for run in runs:
        torch.save(load_checkpoint(place.checkpoint(run)) | {"epoch": 0}, tmp_path / place.checkpoint(run).name)
    assert main([*words, "--state", str(tmp_path)]) == 1
    assert ".pt: expected 1 epochs, but got 0; finish the run with `plan`" in capsys.readouterr().err
