"""The choice of crops of the benchmark of quality."""

from __future__ import annotations

import pytest
import torch

from quality.crops import Split, at_percentile, choose, summary, windows


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
    assert [window[:3] for window in scored] == [(image, top, 0) for image in range(3) for top in (0, 8, 16)]
    assert scored[0].scores == [0, 0, 1]
    # Of the 19 border pixels those of the 8 right rows are near a true one, and 2 where the others begin; of the
    # 16 true ones those of the right rows, and 2 more.
    assert scored[1].scores[0] == pytest.approx(2 * 10 / (19 + 16))
    assert scored[-1].difference == -1
    ahead, middle, behind = choose(scored, 1).values()
    assert [window[:3] for window in (*ahead, *behind)] == [(0, 0, 0), (2, 16, 0)]
    assert middle[0].difference == 0
    assert all([window.image for window in rows] == [0, 1, 2] for rows in choose(scored, 3).values())
    # Differences of 1, 3/7, five times 0, -17/35 and -1.
    expected = "ahead in 22 % of 9 windows and behind in 22 %; median difference +0.0 points, mean -0.6"
    assert summary(scored) == expected


def test_a_border_of_a_wrong_class_is_no_border(split: Split) -> None:
    split.predictions["ours"][1][split.target[1] == 1] = 2
    assert windows(split, 16)[3].scores == [1, 0, 0.5]  # of two classes' borders the left one's


def test_void_has_no_border(split: Split) -> None:
    split.target[:2, :, 6] = split.void
    split.target[:2, :, 7] = split.void
    assert {window.image for window in windows(split, 16)} == {2}


def test_crop_at_a_percentile(split: Split) -> None:
    scored = windows(split, 16)
    assert [at_percentile(scored, percentile).difference for percentile in (0, 50, 100)] == [-1, 0, 1]
    with pytest.raises(ValueError, match="--percentile: expected 0 to 100, but got 101"):
        at_percentile(scored, 101)
    with pytest.raises(ValueError, match="--window: expected windows with enough border, but got none"):
        at_percentile([], 50)
