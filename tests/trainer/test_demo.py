"""The demo: two runs from the same seed, and what is shown of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from processes import wait_for_end
from small_run import run_in, write_config

import demo
from segkit.comparison import Labeled, draw_labels, label_validation, quartiles, read_history

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own
LONGER = ("--trainer.max_epochs=8", "--model.lr=0.01", "--model.output_stride=2")


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Labeled]:
    """The validation images of a small run of one epoch, and of a longer one at half the resolution."""
    pytest.importorskip("lightning", reason="Lightning is not installed")
    config = write_config(tmp_path_factory.mktemp("demo"))
    folders = {name: config.parent / name for name in ("short", "longer")}
    assert run_in(folders["short"], config, "--trainer.max_epochs=1") == 0
    assert run_in(folders["longer"], config, *LONGER) == 0
    scores = {name: label_validation(folder) for name, folder in folders.items()}
    for name, folder in folders.items():
        miou = read_history(folder)[-1]["val/miou"]
        mean = sum(image.miou for image in scores[name].images) / 3
        assert mean == pytest.approx(miou, abs=0.1)  # of each image, not over all pixels
    return scores


def test_images_at_the_quartiles_of_the_gain(labeled: dict[str, Labeled]) -> None:
    indices = quartiles(list(labeled.values()))
    gains = [b.miou - a.miou for a, b in zip(*(run.images for run in labeled.values()), strict=True)]
    assert [gains[i] for i in indices][1] == sorted(gains)[1]
    assert sum(gains) > 0


def test_the_figure_shows_the_same_images_of_each_run(labeled: dict[str, Labeled], tmp_path: Path) -> None:
    figure = draw_labels(labeled, [0, 2])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["val0", "ground truth"]
    assert [title.split(":")[0] for title in titles[2:4]] == list(labeled)
    assert titles[4] == "val2"
    demo.write_report(tmp_path / "report.html", labeled, 1)
    assert "val1: short, then longer" in (tmp_path / "report.html").read_text("utf-8")
    assert labeled["short"].images[1].logits.shape == labeled["longer"].images[1].logits.shape == (3, 32, 32)
    assert torch.equal(labeled["short"].images[1].image, labeled["longer"].images[1].image)


def test_the_table_has_a_row_per_run_and_the_gain() -> None:
    table = demo.score_table({"a": dict.fromkeys(demo.SCORES, 0.5), "b": dict.fromkeys(demo.SCORES, 0.625)})
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["a", "b", "gain"]
    assert cells[1:] == [["50.0%", "62.5%", "+12.5"]] * len(demo.SCORES)


@pytest.mark.slow
def test_the_demo_compares_two_networks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--epochs", "1", "-o", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    for name in demo.RUNS:
        assert f"{name:>13}  epoch 1/1  train loss" in out
        assert read_history(tmp_path / name)[0]["epoch"] == 1
    assert "gain" in out
    for line in out.split("Open these first:\n")[1].splitlines():
        path = Path(line.split()[0])
        assert path.stat().st_size > 10_000
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.size[0] > 500


PARENT = """
import subprocess, sys
from pathlib import Path
import demo

demo.ROOT = Path(sys.argv[1])
demo.subprocess.run = lambda *_, **__: None  # draws no data
demo.main(["-o", sys.argv[1]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_trainings_end_with_the_demo(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    training = "import os, time; print('epoch', os.getpid(), flush=True); time.sleep(600)"
    (tmp_path / "examples" / "train.py").write_text(training)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        trainings = []
        while len(trainings) < 2:
            line = parent.stdout.readline()
            assert line
            trainings += [int(pid) for pid in re.findall(r"  epoch (\d+)", line)]
        parent.send_signal(number)
        parent.wait(timeout=30)
    for training_process in trainings:
        wait_for_end(training_process)


def test_a_failed_run_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(demo, "train", lambda name, *_: {"cross-entropy": 0, "EdgeAwareLoss": 1}[name])
    assert demo.main(["-o", str(tmp_path)]) == 1


def test_ctrl_c_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.subprocess, "run", interrupted)
    assert demo.main(["-o", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "demo.py: interrupted; the same command starts over\n"
