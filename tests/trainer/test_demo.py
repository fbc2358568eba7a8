"""The demo: two runs from the same seed, and what is shown of them."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from processes import wait_for_end

import demo
from compare import read_history

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own


def test_speckles_are_counted_and_named(tmp_path: Path) -> None:
    truth, found = np.zeros((20, 20), np.uint8), np.zeros((20, 20), np.uint8)
    truth[:, 2], truth[0, 12] = 2, 255
    found[:, 4], found[0, 12], found[10, 12:14] = 2, 2, 2  # two columns off, ignored, and two speckles
    for name, labels in (("masks", truth), ("labels", found)):
        (tmp_path / name).mkdir()
        Image.fromarray(labels).save(tmp_path / name / "000.png")
    assert demo.count_speckles(tmp_path / "labels", tmp_path / "masks", 2) == 2
    assert "2 with a, 5 with b. The loss finds more wires" in demo.about_speckles({"a": 2, "b": 5})
    assert demo.about_speckles({"a": 5, "b": 2}).endswith("5 with a, 2 with b.")


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


def run_demo(root: Path, output: int) -> None:
    """Run the demo of another repository, without drawing data."""
    os.dup2(output, 1)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    demo.ROOT = root
    demo.subprocess.run = lambda *_, **__: None  # type: ignore[assignment]
    demo.main(["-o", str(root)])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
def test_the_trainings_end_with_the_demo(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    training = "import os, time; print('epoch', os.getpid(), flush=True); time.sleep(600)"
    (tmp_path / "examples" / "train.py").write_text(training)
    read, write = os.pipe()
    parent = multiprocessing.get_context("fork").Process(target=run_demo, args=(tmp_path, write))
    parent.start()
    os.close(write)
    with open(read) as lines:
        trainings: list[int] = []
        while len(trainings) < 2:
            line = lines.readline()
            assert line
            trainings += [int(pid) for pid in re.findall(r"  epoch (\d+)", line)]
        parent.kill()
        parent.join(timeout=30)
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
