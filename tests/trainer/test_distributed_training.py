"""Several processes train, measure, fail and stop as one does."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small_run import CLASSES, VOID, metrics_of, run_in, write_config
from torch.nn.parallel import DistributedDataParallel

from edgeloss import EdgeAwareLoss
from segkit import engine
from segkit.checkpoint import load_checkpoint
from segkit.data import SegmentationFolder
from segkit.distributed import rank
from segkit.engine import MicroBatch, Placement, Training, batches, evaluate, share, train_step
from segkit.guard import NanGuard
from segkit.model import UNet

ROOT = Path(__file__).resolve().parents[2]
PLACE = Placement(torch.device("cpu"))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("distributed"))


# ----------------------------------------------------------------------------------------------- one step, one measure


def batch(case: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Six crops, of which the ranks take every second or third: those of rank 1 may have no edge, or be all void."""
    random = torch.Generator().manual_seed(1)
    images, labels = torch.randn(6, 3, 16, 16, generator=random), torch.zeros(6, 16, 16, dtype=torch.int64)
    for i in range(6):  # of very different counts
        labels[i, : 2 * i + 2, 3:9] = 1
        labels[i, 12:, : i + 1] = 2
    labels[2, :7] = VOID
    others = {"no edge": 1, "all void": VOID}
    if case in others:
        labels[[1, 3, 4, 5]] = others[case]  # rank 1 of two, ranks 1 and 2 of three but for crop 2
    return images, labels


def one_step(case: str, accumulate: int, count: int = 6) -> tuple[dict[str, float], list[torch.Tensor]]:
    """The figures and the gradient of a step over the first `count` crops, in the processes that there are."""
    torch.manual_seed(0)
    network = UNet(3, width=8, levels=3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    training = Training(network, optimizer, scheduler, torch.amp.GradScaler("cpu", enabled=False))
    model = DistributedDataParallel(network) if dist.is_initialized() else network
    images, labels = batch(case)
    micro_batches = []
    for part in share(list(range(count)), accumulate):
        names = [str(i) for i in part]
        micro_batches.append(MicroBatch(names, images[part or [0]], labels[part] if part else labels[[0]] * 0 + VOID))
    criterion = EdgeAwareLoss(torch.tensor([1.0, 2.0, 0.5]), ignore_index=VOID, sync_normalizer=True)
    guard = NanGuard(Path("not written"), criterion)
    figures = train_step(training, model, criterion, micro_batches, number=1, place=PLACE, guard=guard)
    assert figures is not None
    return figures, [parameter.grad for parameter in network.parameters()]


# Each with its whole batch in one and in two parts; of the last a part and even a rank may have nothing left.
STEPS = [
    *((case, accumulate) for case in ("plain", "no edge", "all void") for accumulate in (1, 2)),
    ("plain", 2, 5),
    ("plain", 1, 1),
]


def measure(data: Path) -> dict[str, float | None]:
    """The figures of a network on the training images."""
    torch.manual_seed(0)
    dataset = SegmentationFolder(data, num_classes=3, ignore_index=VOID)
    criterion = EdgeAwareLoss(ignore_index=VOID, sync_normalizer=True)
    return evaluate(UNet(3, width=8), criterion, batches(dataset, 2, 0), classes=CLASSES, place=PLACE)


def one_rank(index: int, world: int, folder: str, data: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=world)
    torch.save(([one_step(*step) for step in STEPS], measure(data)), f"{folder}/{rank()}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, config: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two or three processes got."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(one_rank, (request.param, str(folder), config.parent / "train"), nprocs=request.param)
    return [torch.load(folder / f"{index}.pt") for index in range(request.param)]


@pytest.mark.parametrize("index", range(len(STEPS)), ids=str)
def test_a_step_takes_the_gradient_of_the_whole_batch(index: int, ranks: list[Any]) -> None:
    case, _, *count = STEPS[index]
    figures, gradient = one_step(case, 1, *count)
    assert max(g.abs().max() for g in gradient) > 0.01
    for steps, _ in ranks:
        for got, expected in zip(steps[index][1], gradient, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
        assert steps[index][0] == pytest.approx(figures, rel=1e-5)


@pytest.mark.parametrize("accumulate", [2, 3, 4, 6])
def test_parts_of_a_batch_add_up_to_its_gradient(accumulate: int) -> None:
    figures, gradient = one_step("plain", 1)
    in_parts, of_parts = one_step("plain", accumulate)
    assert in_parts == pytest.approx(figures, rel=1e-5)
    torch.testing.assert_close(of_parts, gradient, rtol=0, atol=1e-6)


def test_a_whole_set_is_measured_once(ranks: list[Any], config: Path) -> None:
    """Five images: in the last batch all ranks but one have none."""
    expected = measure(config.parent / "train")
    for _, measured in ranks:
        assert measured == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 7])
def test_shares_make_up_the_batch(world: int, accumulate: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "world_size", lambda: world)
    shares = []
    for index in range(world):
        monkeypatch.setattr(engine, "rank", lambda index=index: index)
        shares.append(share(list(range(length)), accumulate))
    assert sorted(image for parts in shares for part in parts for image in part) == list(range(length))
    assert len({len(parts) for parts in shares}) == 1  # or one process would wait for ever
    sizes = [sum(map(len, parts)) for parts in shares]
    assert max(sizes) - min(sizes) <= 1
    assert len(shares[0]) == min(accumulate, math.ceil(length / world))


# --------------------------------------------------------------------------------------------------- the whole command


def start(processes: int, folder: Path, config: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += [str(ROOT / "examples" / "train.py"), "--config", str(config), f"output={folder}", "panels=0"]
    return subprocess.Popen(
        [*command, *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.fixture(scope="module")
def two(config: Path) -> Path:
    """A run of two processes."""
    folder = config.parent / "two"
    code, output = finish(start(2, folder, config, "ema=0.9", "accumulate=1"))
    assert code == 0, output
    assert output.count("epoch 1/2") == 1, output  # one of them tells
    return folder


def assert_close(folder: Path, expected: Path) -> None:
    """Figures of two runs, as close as AdamW leaves the rounding of a gradient: it divides by its size."""
    for got, wanted in zip(metrics_of(folder), metrics_of(expected), strict=True):
        assert got == pytest.approx(wanted, rel=1e-2, abs=1e-2)


def test_two_processes_train_as_one(two: Path, config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, "ema=0.9") == 0
    assert {path.name for path in two.iterdir()} == {path.name for path in tmp_path.iterdir()}
    assert_close(two, tmp_path)
    ours, theirs = (load_checkpoint(folder / "last.pt") for folder in (two, tmp_path))
    assert ours.keys() == theirs.keys()
    for part in ("model", "ema"):
        assert ours[part].keys() == theirs[part].keys()  # no trace of DistributedDataParallel
    assert ours["step"] == theirs["step"] == 6


@pytest.mark.slow
def test_a_run_goes_on_in_another_number_of_processes(two: Path, config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, "ema=0.9", "epochs=1") == 0
    code, output = finish(start(3, tmp_path, config, "ema=0.9", "resume=auto", "batch_size=3", "epochs=2"))
    assert code == 0, output
    assert f"going on from {tmp_path / 'last.pt'}, step 3" in output
    assert [row["epoch"] for row in metrics_of(tmp_path)] == [1, 2]
    assert run_in(tmp_path, config, "ema=0.9", "resume=auto", "epochs=3") == 0
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 3 + 2 + 3


def test_an_error_of_one_process_ends_the_run(config: Path, tmp_path: Path) -> None:
    """With the third and fourth image of the order the second batch breaks: the fourth is rank 1's."""
    data = write_config(tmp_path / "data").parent / "train"
    names = sorted(path.stem for path in (data / "masks").iterdir())
    broken = data / "masks" / f"{names[np.random.default_rng((0, 1)).permutation(len(names))[3]]}.png"
    broken.write_bytes(b"no image")
    code, output = finish(start(2, tmp_path / "run", config, f"data.train={data}", "checkpoint_every=1"))
    assert code == 1
    report = output[output.index("Root Cause") :]
    assert "rank      : 1 " in report, output
    assert f"DataError: {broken}: can't be read as an image" in report.replace("\\n", ""), output
    assert load_checkpoint(tmp_path / "run" / "last.pt")["step"] == 1


def lines_until(process: subprocess.Popen[str], start_of_line: str) -> list[str]:
    """Read a process's output up to a line."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(start_of_line):
            return lines
    return pytest.fail("".join(lines))


def children(parent: int) -> Iterator[int]:
    """The processes that a process has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == parent:
            yield int(path.parent.name)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_killed_process_ends_the_run(config: Path, tmp_path: Path) -> None:
    with start(2, tmp_path, config, "epochs=100000") as process:
        lines_until(process, "epoch 2/")
        os.kill(max(children(process.pid)), signal.SIGKILL)
        code, output = finish(process)
    assert code == 1
    assert "Signal 9 (SIGKILL)" in output
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] >= 2
    assert run_in(tmp_path, config, "resume=auto", f"epochs={load_checkpoint(tmp_path / 'last.pt')['epoch'] + 1}") == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_after_the_same_step(number: signal.Signals, config: Path, tmp_path: Path) -> None:
    with start(2, tmp_path, config, "epochs=100000") as process:
        lines_until(process, "epoch 2/")
        process.send_signal(number)
        _, output = finish(process)
    assert f"resume=auto goes on from {tmp_path / 'last.pt'}" in output
    checkpoint = load_checkpoint(tmp_path / "last.pt")
    assert checkpoint["step"] == 3 * checkpoint["epoch"] + checkpoint["batch"]
    assert checkpoint["epoch"] >= 2
