"""The report of a diagnosis: as text, as JSON and as a figure."""

from __future__ import annotations

import json
import math

import numpy as np
import torch
import torch.nn.functional as F
from debug_losses import leaky_edges, scene
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.debug import Report, diagnose


def test_the_report_as_text() -> None:
    x, y = scene()
    text = str(diagnose(leaky_edges, x, y))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["diagnose(leaky_edges)", "NOT", "OK"]
    assert lines[1] == ["├──", "inputs"]
    assert lines[2][:8] == ["│", "├──", "logits", "float32", "[2,", "3,", "8,", "8]"]
    assert lines[3][-6:] == ["zeros", "110", "·", "values", "0,", "1"]
    assert [line[:4] for line in lines[5:7]] == [["│", "├──", "float32", "float32"], ["│", "└──", "float64", "float64"]]
    assert "nan" in lines[8]
    assert text == repr(diagnose(leaky_edges, x, y))
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 110


def test_to_dict_is_strict_json() -> None:
    x, y = scene()
    x[0, 0, 0, 0] = math.inf
    plain = json.loads(json.dumps(diagnose(EdgeAwareLoss(), x, y).to_dict(), allow_nan=False))
    assert list(plain) == ["ok", "name", "findings", "origin", "inputs", "loss", "gradient", "terms"]
    assert plain["ok"] is False
    assert plain["inputs"]["logits"]["posinf"] == 1
    assert plain["inputs"]["logits"]["first_bad"] == [0, 0, 0, 0]
    assert plain["inputs"]["target"]["values"] == [0, 1]
    assert list(plain["loss"]) == ["float32", "float64"]
    assert plain["loss"]["float32"]["mean"] is None
    assert {"level", "message", "advice"} == set(plain["findings"][0])
    origin = json.loads(json.dumps(diagnose(leaky_edges, *scene()).to_dict(), allow_nan=False))["origin"]
    assert origin["cause"]["operation"] == "div"


def captions(report: Report) -> dict[str, str]:
    axes = [axes for axes in report.figure().axes if axes.get_title(loc="left")]
    return {one.get_title(loc="left"): one.texts[0].get_text() for one in axes}


def test_figure_counts_what_is_not_finite() -> None:
    x, y = scene()
    y[0, -1] = -100
    report = diagnose(leaky_edges, x, y.clamp(min=0))
    assert report.gradient is not None
    bad = (~report.gradient.isfinite().all(1)).sum((1, 2)).tolist()
    assert list(captions(report)) == ["image 0", "image 1"]
    assert [text.split(" · ")[-1] for text in captions(report).values()] == [f"{count} not finite" for count in bad]
    figure = report.figure()
    assert figure.texts[0].get_text() == "|gradient| of leaky_edges"
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not finite"]


def test_figure_shows_the_norm_in_decades() -> None:
    x, y = scene()
    y[0, -1] = -100
    report = diagnose(F.cross_entropy, x, y)
    assert report.gradient is not None
    figure = report.figure()
    values = np.ma.asarray(figure.axes[0].images[0].get_array())
    norm = report.gradient[0].double().norm(dim=0).numpy()
    np.testing.assert_allclose(values[:-1], np.log10(norm[:-1]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ignored"]


def test_ignored_pixels_of_a_higher_resolution_are_in_the_figure() -> None:
    x, y = torch.randn(1, 2, 8, 8), torch.randint(2, (1, 32, 32))
    y[:, 12:28, 12:28] = -100
    figure = diagnose(EdgeAwareLoss(upsample=True), x, y).figure()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ignored"]


def test_figure_of_a_volume_shows_the_worst_slice() -> None:
    x, y = scene(size=(5, 8, 8))

    def bad_slice(logits: Tensor, target: Tensor) -> Tensor:
        loss = logits.square()
        loss[1, :, 3, :2] /= 0.0
        return loss.mean()

    assert list(captions(diagnose(bad_slice, x, y))) == ["image 0, slice 2 of 5", "image 1, slice 3 of 5"]
