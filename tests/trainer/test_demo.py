"""The demo: two runs from the same seed, and what is shown of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from processes import wait_for_end
from small_data import metrics_of

import demo

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own


def test_speckles_are_counted(tmp_path: Path) -> None:
    truth, labeled = np.zeros((20, 20), np.uint8), np.zeros((20, 20), np.uint8)
    truth[:, 2], truth[0, 12] = 2, 255
    labeled[:, 4], labeled[0, 12], labeled[10, 12:14] = 2, 2, 2  # two columns off, ignored, and two speckles
    for name, labels in (("masks", truth), ("labels", labeled)):
        (tmp_path / name).mkdir()
        Image.fromarray(labels).save(tmp_path / name / "000.png")
    assert demo.count_speckles(tmp_path / "labels", tmp_path / "masks", 2) == 2


def test_the_table_has_what_is_lost_too() -> None:
    first: dict[str, Any] = dict.fromkeys(demo.SCORES, 0.5)
    second = first | {"val/miou": 0.4, "val/iou/wire": 0.6}
    table = demo.score_table({"cross-entropy": first, "EdgeAwareLoss": second}, (7, 9))
    assert [column.header for column in table.columns] == ["", "cross-entropy", "EdgeAwareLoss", "change"]
    cells = [[*column.cells] for column in table.columns]
    assert cells[3] == ["-10.0", "+10.0", "+0.0", "+0.0", "+0.0", "+2"]
    assert cells[0][-1] == demo.SPECKLES


@pytest.mark.slow
def test_the_demo_compares_two_networks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--epochs", "1", "-o", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    for name in demo.RUNS:
        assert f"{name:>13}  epoch   1/1  mIoU" in out
        assert metrics_of(tmp_path / name)[0]["epoch"] == 1
    rows = re.findall(r"^ *(\D.*?) +([\d.]+)% +([\d.]+)% +([+-][\d.]+)", out, re.MULTILINE)
    assert [name for name, *_ in rows] == [*demo.SCORES.values()]
    before, after, gain = np.array([figures for _, *figures in rows], float).T
    np.testing.assert_allclose(gain, after - before, atol=0.11)
    *_, picture, following = out.strip().splitlines()
    with Image.open(tmp_path / "demo.png") as image:
        assert image.size[0] > 1000
    assert Path(picture.partition(" shows ")[0]).resolve() == (tmp_path / "demo.png").resolve()
    assert following.startswith("Try next: open ")
    page = Path(following.removeprefix("Try next: open ").partition(", ")[0])
    assert page.resolve() == (tmp_path / "comparison.html").resolve()
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_trainings_end_with_a_killed_demo(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    training = "import os, time\nwhile True: print('epoch', os.getpid(), flush=True); time.sleep(0.1)"
    (tmp_path / "examples" / "train.py").write_text(training)
    changed = (
        f"import demo, pathlib; demo.ROOT = pathlib.Path({str(tmp_path)!r}); demo.subprocess.run = lambda *_, **__: 0; "
    )
    command = [sys.executable, "-c", changed + "demo.main(['-o', '.'])"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as running:
        assert running.stdout is not None
        trainings: set[str] = set()
        while len(trainings) < 2:
            line = running.stdout.readline()
            assert line
            trainings |= {*re.findall(r"  epoch +(\d+)", line)}
        running.kill()
    for training_process in trainings:
        wait_for_end(int(training_process))


@pytest.mark.parametrize(("ended", "code"), [(KeyboardInterrupt, 130), (1, 1)])
def test_an_ended_training_ends_the_demo(
    ended: Any, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(name: str, *_: object) -> int:
        if ended is KeyboardInterrupt:
            raise KeyboardInterrupt
        return 0 if name == "cross-entropy" else ended

    monkeypatch.setattr(demo.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(demo, "train", train)
    assert demo.main(["-o", str(tmp_path)]) == code
    assert ("demo.py: interrupted; the same command starts over\n" in capsys.readouterr().err) == (code == 130)
