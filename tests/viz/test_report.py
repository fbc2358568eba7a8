"""The HTML report: the numbers that it holds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from report_page import carried, decoded
from scenes import MARKUP, large_image, patches

from edgeloss import EdgeAwareLoss
from edgeloss.viz import compute_arrays, report


def test_the_page_holds_the_maps() -> None:
    logits, target = patches(batch=2)
    logits *= 10  # losses from nearly 0 to dozens
    computed = compute_arrays(logits, target)
    images = carried(report(logits, target))["images"]
    for index, image in enumerate(images):
        for name in ("cross_entropy", "same_side", "other_side", "edge"):
            stored = decoded(image["arrays"][name])
            np.testing.assert_allclose(stored, computed.maps[name][index], rtol=2**-9, atol=2**-14, err_msg=name)
        np.testing.assert_allclose(decoded(image["arrays"]["gradient"]), computed.gradient[index], rtol=2**-9)


def test_false_edges_are_stored_if_they_have_a_weight() -> None:
    logits, target = patches()
    criterion = EdgeAwareLoss(false_edge_weight=0.5)
    expected = compute_arrays(logits, target, criterion).maps["false_edge"][0]
    assert (expected > 0).sum() > 100
    page = report(logits, target, criterion=criterion)
    data = carried(page)
    np.testing.assert_allclose(decoded(data["images"][0]["arrays"]["false_edge"]), expected, rtol=2**-9, atol=2**-14)
    counts = data["figures"]["histograms"]["data"][-1]["y"]
    assert sum(counts) == (expected > 0).sum()
    here = (target[0] == 1).numpy() & (expected > 0)
    assert page.split("<tr>")[3].endswith(f"<td>{expected[here].astype(float).mean():.3f}</td></tr>")
    assert "false edge" not in report(logits, target).replace("false_edge_weight", "")


def test_non_finite_values_are_stored() -> None:
    logits, target = patches()
    logits[0, 1, 10, 10], logits[0, 0, 20, 30] = torch.nan, torch.inf
    arrays = carried(report(logits, target))["images"][0]["arrays"]
    assert np.isnan(decoded(arrays["cross_entropy"])[10, 10])
    assert not np.isfinite(decoded(arrays["gradient"])[20, 30])
    assert decoded(arrays["prediction"])[10, 10] == 255
    stored = decoded(arrays["distance"])
    assert np.isfinite(stored[target[0] >= 0]).all()


def test_an_image_without_an_edge() -> None:
    page = report(torch.randn(3, 8, 8), torch.zeros(8, 8, dtype=torch.int64))
    arrays = carried(page)["images"][0]["arrays"]
    assert not decoded(arrays["edge_mask"]).any()
    assert np.isinf(decoded(arrays["distance"])).all()
    report(torch.randn(3, 8, 8), torch.full((8, 8), -100))  # all ignored


def test_markup_in_names_is_text() -> None:
    logits, target = patches()
    page = report(logits, target, class_names=MARKUP, title='<img src=x onerror="alert(1)">')
    assert "<img" not in page.replace("<image", "")
    assert "<b>car" not in page
    assert page.count("</script>") == 3  # those of the template
    assert carried(page)["names"] == MARKUP


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'edgeloss.viz.report needs plotly: pip install "edgeloss\[viz\]"'):
        report(*patches())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "smooth"])
def test_a_large_image_stays_small(kind: str, tmp_path: Path) -> None:
    """Noise, which hardly compresses, and logits that vary slowly, as those of networks do."""
    page = report(**large_image(kind))
    assert len(page.encode()) < 15_000_000
    rounded = float(re.search(r"rounded to ([0-9.]+)%", page)[1])  # type: ignore[index]
    assert rounded <= (13 if kind == "noise" else 2)
