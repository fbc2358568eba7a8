"""The demo: two runs from the same seed, and what is shown of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import numpy as np
import pytest
from page_data import page_data
from PIL import Image
from processes import wait_for_end
from small_data import metrics_of

import demo

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own


def test_stray_pixels_are_counted(tmp_path: Path) -> None:
    truth, labeled = np.zeros((20, 20), np.uint8), np.zeros((20, 20), np.uint8)
    truth[:, 2], truth[0, 12] = 2, 255
    labeled[:, 4], labeled[0, 12], labeled[10, 12:14] = 2, 2, 2  # two columns off, ignored, and two speckles
    for name, labels in (("masks", truth), ("labels", labeled)):
        (tmp_path / name).mkdir()
        Image.fromarray(labels).save(tmp_path / name / "000.png")
    assert demo.count_stray(tmp_path / "labels", tmp_path / "masks", 3).tolist() == [0, 0, 2]


def test_the_table_has_what_is_lost_too() -> None:
    first: dict[str, Any] = dict.fromkeys(demo.SCORES, 0.5)
    second = first | {"val/miou": 0.4, "val/iou/wire": 0.6}
    scores = demo.compare_scores({"cross-entropy": first, "EdgeAwareLoss": second}, {"stray pixels": (8, 10)})
    table = demo.score_table(scores, seed=3)
    assert [column.header for column in table.columns] == ["", "cross-entropy", "EdgeAwareLoss", "change", ""]
    names, _, _, *changes = (list(column.cells) for column in table.columns)
    assert names == [*demo.SCORES.values(), "stray pixels"]
    rows = dict(zip(names, zip(*changes, strict=True), strict=True))
    assert rows["mean IoU"] == ("−10.0 points", "worse")
    assert rows["IoU of wires"] == ("+10.0 points", "better")
    assert rows["accuracy of all pixels"] == ("+0.0 points", "same")
    assert rows["stray pixels"] == ("+25.0\xa0%", "worse")
    assert "seed 3" in str(table.caption)


def test_stray_pixels_that_none_were_are_counted_not_divided() -> None:
    runs: dict[str, Any] = dict.fromkeys(demo.RUNS, dict.fromkeys(demo.SCORES, 0.5))
    table = demo.score_table(demo.compare_scores(runs, {"stray pixels": (0, 2)}), seed=0)
    assert [list(column.cells)[-1] for column in table.columns][1:] == ["0", "2", "+2", "worse"]


def test_an_epoch_has_a_line_when_both_networks_have_ended_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(demo.time, "monotonic", lambda: now)
    shown = demo.Epochs(3)
    assert [*demo.RUNS] * 2 == capsys.readouterr().out.splitlines()[1].split()[1:]
    now = 40
    shown.add("EdgeAwareLoss", "epoch 1/3  mIoU 39.5%  boundary F1 (1 px) 20.5%\n")
    shown.add("EdgeAwareLoss", "epoch 2/3  mIoU 41.0%  boundary F1 (1 px) 21.0%\n")
    shown.say_if_silent()
    assert capsys.readouterr().out.strip() == "40 s: epoch 1 of 3 is running"
    shown.say_if_silent()
    assert capsys.readouterr().out == ""
    shown.add("cross-entropy", "epoch 1/3  mIoU 30.0\N{NO-BREAK SPACE}%  boundary F1 (1 px) 10.0\N{NO-BREAK SPACE}%\n")
    assert " ".join(capsys.readouterr().out.split()) == "1/3 30.0 % 39.5 % 10.0 % 20.5 %"
    now = 55  # the first epoch, which has the start, says nothing about the others
    shown.add("cross-entropy", "epoch 2/3  mIoU 31.0%  boundary F1 (1 px) 11.0%\n")
    assert " ".join(capsys.readouterr().out.split()) == "2/3 31.0 % 41.0 % 11.0 % 21.0 % about 15 s left"


@pytest.mark.slow
def test_the_demo_compares_two_networks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--epochs", "1", "-o", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert re.search(r"^ +1/1( +[\d.]+\xa0%){4}$", out, re.MULTILINE)
    for name in demo.RUNS:
        assert metrics_of(tmp_path / name)[0]["epoch"] == 1
    rows = re.findall(r"^ *(\D.*?) +([\d.]+)\xa0% +([\d.]+)\xa0% +([+−][\d.]+)", out.replace(",", ""), re.MULTILINE)
    assert [name for name, *_ in rows] == [*demo.SCORES.values()]
    before, after, gain = np.array([[one.replace("−", "-") for one in figures] for _, *figures in rows], float).T
    np.testing.assert_allclose(gain, after - before, atol=1e-6)
    page = page_data((tmp_path / "comparison.html").read_text("utf-8"))
    assert page["lead"] in out.replace("\n", " ")  # text and page say the same
    assert [text for text, _ in page["links"]][-1] == "All images"
    with Image.open(tmp_path / "demo.png") as image:
        assert image.size[0] > 1000
    named = [Path(url2pathname(path)) for path in re.findall(r"file://(\S+)$", out, re.MULTILINE)]
    assert named == [tmp_path.resolve() / name for name in demo.WRITTEN]
    assert all(path.is_file() for path in named)
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_trainings_end_with_a_killed_demo(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    training = (
        "import os, time\nopen(f'{os.getpid()}.pid', 'w')\nwhile True: print('epoch', flush=True); time.sleep(0.1)"
    )
    (tmp_path / "examples" / "train.py").write_text(training)
    changed = (
        f"import demo, pathlib; demo.ROOT = pathlib.Path({str(tmp_path)!r}); demo.subprocess.run = lambda *_, **__: 0; "
    )
    command = [sys.executable, "-c", changed + "demo.main(['-o', '.'])"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as running:
        assert running.stdout is not None
        for line in running.stdout:  # which both of them have printed
            if line.lstrip().startswith("1/30"):
                break
        trainings = [path.stem for path in tmp_path.glob("*.pid")]
        assert len(trainings) == 2
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
