"""The example trainer as a command: what a run writes, how it repeats, what its options change, how it stops."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from small_run import CLASSES, VOID, metrics_of, run_in, write_config

import compare
import train
from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss
from segkit import trainer
from segkit.checkpoint import load_checkpoint
from segkit.console import Row, epoch_line
from segkit.data import Augment, SegmentationFolder
from segkit.loader import load_batches
from segkit.model import UNet
from segkit.scores import BY_CLASS

ROOT = Path(__file__).resolve().parents[2]
LONG = ("epochs=8", "optim.lr=0.01", "optim.clip=1.0", "loss.weight=[1,2,2]")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    assert train.main(["--config", str(config)]) == 0
    return config.parent / "run"


@pytest.fixture(scope="module")
def long_run(config: Path) -> Path:
    """A run long enough to learn something."""
    assert run_in(config.parent / "long", config, *LONG) == 0
    return config.parent / "long"


def test_run_writes_its_files(run: Path) -> None:
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    (events,) = (name for name in files if name.startswith("tensorboard/events."))
    panels = {f"panels/epoch_{epoch:03d}_val{i}.png" for epoch in (1, 2) for i in (0, 2)}
    assert files - {events} == {".lock", "metrics.csv", "metrics.json", "report.html", "best.pt", "last.pt"} | panels


def test_metrics_csv_and_json_agree(run: Path) -> None:
    report = json.loads((run / "metrics.json").read_text())
    assert report["classes"] == CLASSES
    assert report["config"]["epochs"] == 2
    assert report["versions"]["torch"] == torch.__version__
    with (run / "metrics.csv").open() as file:
        rows = [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(file)]
    assert rows == report["epochs"]
    assert [row["epoch"] for row in rows] == [1, 2]
    terms = {"loss", "cross_entropy", "same_side", "other_side", "edge", "region", "edge_fraction"}
    measures = {"miou", "accuracy", "edge_accuracy", "interior_accuracy"}
    measures |= {"boundary_iou", "boundary_iou_narrow", "trimap_iou_3"} | {f"boundary_f1_{r}" for r in (1, 3, 5)}
    measures |= {f"{kind}/{name}" for kind in BY_CLASS for name in CLASSES}
    shares = {f"train/gradient_share/{name}" for name in ("cross_entropy", "same_side", "other_side", "region")}
    expected = shares | {f"train/{name}" for name in terms} | {f"val/{name}" for name in terms | measures}
    assert rows[0].keys() == expected | {
        "epoch",
        "lr",
        "edge_weight",
        "seconds",
        "images_per_second",
        "waiting",
        "skipped",
    }


def test_checkpoint_reproduces_the_logged_validation(run: Path) -> None:
    """Compare with the whole set as one batch: the logged figures are no means over batches of 2 and 1."""
    checkpoint = load_checkpoint(run / "last.pt")
    assert checkpoint["epoch"] == 2
    assert checkpoint["step"] == 6
    assert checkpoint["metrics"] == json.loads((run / "metrics.json").read_text())["epochs"][-1]
    model = UNet(len(checkpoint["classes"]), **checkpoint["config"]["model"])
    model.load_state_dict(checkpoint["model"])
    dataset = SegmentationFolder(checkpoint["config"]["data"]["val"], num_classes=3, ignore_index=VOID)
    images, labels = (torch.stack(parts) for parts in zip(*map(dataset.__getitem__, range(3)), strict=True))
    with torch.no_grad():
        logits = model.eval()(images)
    criterion = EdgeAwareLoss(ignore_index=VOID)
    criterion.load_state_dict(checkpoint["criterion"])
    assert criterion.counted_steps == 6
    options = criterion.options(training=False)
    loss, maps, terms = edge_aware_loss(logits, labels, **options, return_maps=True, return_terms=True)
    prediction, valid = logits.argmax(1), labels != VOID
    ious = []
    for c in range(3):
        truth, found = (labels == c) & valid, (prediction == c) & valid
        ious.append(((truth & found).sum() / (truth | found).sum()).item())
    right = (prediction == labels)[maps.edge_mask]
    expected = {"loss": loss, **terms, "miou": sum(ious) / 3, "edge_accuracy": right.double().mean()}
    for name, value in expected.items():
        assert checkpoint["metrics"][f"val/{name}"] == pytest.approx(float(value), rel=1e-4), name


def test_best_checkpoint_is_of_the_best_epoch(run: Path) -> None:
    mious = [row["val/miou"] for row in metrics_of(run)]
    assert load_checkpoint(run / "best.pt")["epoch"] == 1 + mious.index(max(mious))


def test_same_seed_same_metrics(run: Path, config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path / "again", config, "data.workers=1") == 0
    assert run_in(tmp_path / "other", config, "seed=1") == 0
    assert metrics_of(tmp_path / "again") == metrics_of(run)
    assert metrics_of(tmp_path / "other") != metrics_of(run)


def test_batches_depend_on_seed_and_epoch_alone(config: Path) -> None:
    dataset = SegmentationFolder(config.parent / "train", num_classes=3, ignore_index=VOID, augment=Augment())

    def read(seed: int, epoch: int) -> tuple[list[str], dict[str, torch.Tensor]]:
        loaded = [batch for (batch,) in load_batches(dataset, 2, 0, seed=seed, epoch=epoch)]
        names = [name for batch in loaded for name in batch.names]
        return names, dict(zip(names, torch.cat([batch.images for batch in loaded]), strict=True))

    first, second, again, other = read(0, 1), read(0, 2), read(0, 1), read(3, 1)
    assert sorted(first[0]) == dataset.names
    assert first[0] == again[0]
    assert first[0] not in (second[0], other[0])
    for name, image in first[1].items():
        assert torch.equal(image, again[1][name])
        assert not torch.equal(image, second[1][name])


def test_learning_lowers_the_loss(long_run: Path) -> None:
    first, *_, last = metrics_of(long_run)
    # The region term is a logarithm of what is left open, and falls by differences.
    assert last["val/loss"] < 0.8 * first["val/loss"]
    assert last["val/cross_entropy"] < 0.6 * first["val/cross_entropy"]
    assert last["val/edge"] < 0.7 * first["val/edge"]
    assert last["val/miou"] > first["val/miou"] + 0.1


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_mask_is_named_in_one_line(
    workers: int, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_text("0 ground\n1 box\n255 void\n")  # the masks hold a class 2
    assert run_in(tmp_path / "run", config, f"data.classes={classes}", f"data.workers={workers}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"train.py: {config.parent / 'train' / 'masks' / 'train'}")


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_several_sizes_need_a_size(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    for kind in ("images", "masks"):
        path = tmp_path / "train" / kind / "train1.png"
        with Image.open(path) as image:
            image.crop((0, 0, 24, 32)).save(path)
    options = "epochs=1", "data.augment=null", f"data.workers={workers}"
    assert run_in(tmp_path / "run", config, *options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "train.py: data.size: expected images of one size in a batch, but got height x width 32 x 24, 32 x 32; pass"
        " data.size to resize them, or batch_size=1"
    )
    assert run_in(tmp_path / "single", config, *options, "batch_size=1") == 0


def test_masks_without_an_edge_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    for path in (tmp_path / "train" / "masks").iterdir():
        with Image.open(path) as mask:
            mask.point(lambda label: VOID if label else 0).save(path)  # a mask of 0 and 255
    assert run_in(tmp_path / "run", config) == 0
    note = "the training masks have no edge between two classes"
    assert [line.startswith(note) for line in capsys.readouterr().out.splitlines()].count(True) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
@pytest.mark.parametrize(
    "name", ["config", "data.classes", "resume", "train/images/train0.png", "train/masks/train0.png"]
)
def test_a_pipe_is_not_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Opening a pipe without a writer would wait forever."""
    config = write_config(tmp_path / "data")
    path = config.parent / name if "/" in name else tmp_path / "pipe"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    overrides = [f"{name}={path}"] if name in ("data.classes", "resume") else ["epochs=1"]
    assert run_in(tmp_path / "run", path if name == "config" else config, *overrides) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pipe" in line or "expected only .png" in line
    assert str(path) in line


def test_a_run_is_replaced_only_if_asked(
    run: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    (tmp_path / "notes.txt").write_text("mine")
    assert run_in(tmp_path, config, "epochs=1") == 1
    assert "overwrite=true" in capsys.readouterr().err
    assert len(metrics_of(tmp_path)) == 2
    assert run_in(tmp_path, config, "epochs=1", "overwrite=true") == 0
    assert len(metrics_of(tmp_path)) == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"


def check_stopped_run(folder: Path, output: str) -> None:
    assert str(folder / "last.pt") in output
    assert "Traceback" not in output
    checkpoint = load_checkpoint(folder / "last.pt")
    assert checkpoint["epoch"] >= 2
    assert checkpoint["step"] >= 6


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_group_leaves_a_loadable_checkpoint(
    number: signal.Signals, code: int, config: Path, tmp_path: Path
) -> None:
    """A terminal sends Ctrl-C to the workers too, and a scheduler SIGTERM; `timeout` sends it twice."""
    command = [sys.executable, str(ROOT / "examples" / "train.py"), "--config", str(config)]
    command += [f"output={tmp_path}", "panels=0", "epochs=100000", "data.workers=1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch 2/"):
                break
        else:
            pytest.fail("".join(lines))
        os.killpg(process.pid, number)
        time.sleep(0.05)
        os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    check_stopped_run(tmp_path, output)


def test_sigterm_stops_the_run_in_its_own_process(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler ends the process that it has started, not its workers."""

    def line(row: Row, epochs: int) -> str:
        if row["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return epoch_line(row, epochs)

    monkeypatch.setattr(trainer, "epoch_line", line)
    assert run_in(tmp_path, config, "epochs=100000") == 143
    check_stopped_run(tmp_path, capsys.readouterr().out)


def test_averaged_weights_are_those_that_are_measured(run: Path, config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path / "same", config, "ema=0") == 0  # the average of the last weights alone
    assert run_in(tmp_path / "on", config, "ema=0.9") == 0
    off, same, on = (metrics_of(folder) for folder in (run, tmp_path / "same", tmp_path / "on"))
    assert off == same
    for first, second in zip(off, on, strict=True):
        assert first["train/loss"] == second["train/loss"]
        assert first["val/loss"] != second["val/loss"]


def test_the_edge_weight_rises_as_configured(config: Path, tmp_path: Path) -> None:
    schedule = ("edge_schedule.kind=linear", "edge_schedule.warmup=1.0", "loss.edge_weight=0.6")
    stateless = ("loss.edge_class_weight=null", "loss.edge_focus=0")
    assert run_in(tmp_path, config, *schedule, *stateless, "optim.lr=0") == 0
    first, second = metrics_of(tmp_path)  # 6 steps: 0, 0.1, 0.2; 0.3, 0.4, 0.5, of 2, 2 and 1 images
    assert first["edge_weight"] == pytest.approx((0 * 2 + 0.1 * 2 + 0.2) / 5)
    assert second["edge_weight"] == pytest.approx((0.3 * 2 + 0.4 * 2 + 0.5) / 5)
    assert first["val/loss"] == second["val/loss"]  # by the full weight, so that epochs can be compared


def test_charts_of_training_and_validation_have_the_same_weights(run: Path) -> None:
    weights = {"cross_entropy": 1.0, "edge": 1.0, "region": EdgeAwareLoss().region_weight}
    for row in metrics_of(run):
        for split in ("train", "val"):
            total = sum(weight * row[f"{split}/{name}"] for name, weight in weights.items())
            assert row[f"{split}/loss"] == pytest.approx(total)
    assert row["edge_weight"] < 1


def test_bfloat16_trains(long_run: Path, config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, *LONG, "precision=bfloat16") == 0
    half, full = metrics_of(tmp_path), metrics_of(long_run)
    assert half[0]["train/loss"] != full[0]["train/loss"]
    assert half[0]["train/loss"] == pytest.approx(full[0]["train/loss"], rel=2e-2)
    assert half[-1]["val/loss"] < 0.8 * half[0]["val/loss"]
    assert half[-1]["val/cross_entropy"] < 0.6 * half[0]["val/cross_entropy"]
    assert {weight.dtype for weight in load_checkpoint(tmp_path / "last.pt")["model"].values()} == {torch.float32}


@pytest.mark.parametrize("option", ["channels_last=false", "accumulate=2"])
def test_what_should_change_nothing_changes_nothing(option: str, config: Path, tmp_path: Path, run: Path) -> None:
    assert run_in(tmp_path, config, option) == 0
    for got, expected in zip(metrics_of(tmp_path), metrics_of(run), strict=True):
        shared = {
            name: value for name, value in expected.items() if "share" not in name
        }  # of the last micro-batch only
        # Up to the rounding of small gradients, which AdamW divides by their size.
        assert {name: got[name] for name in shared} == pytest.approx(shared, rel=1e-2, abs=1e-2)


def test_a_compiled_network_trains_as_a_plain_one(
    config: Path, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_by = []
    compile_module = torch.nn.Module.compile

    def compile_quickly(module: torch.nn.Module) -> None:  # without code of its own, whose compilation takes minutes
        compiled_by.append("aot_eager")
        compile_module(module, backend="aot_eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compile_quickly)
    assert run_in(tmp_path, config, "compile=true", "ema=0.5") == 0
    assert compiled_by == ["aot_eager"]
    for got, expected in zip(metrics_of(tmp_path), metrics_of(run), strict=True):
        assert got["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-2)
    compiled, plain = (load_checkpoint(folder / "last.pt")["model"] for folder in (tmp_path, run))
    assert compiled.keys() == plain.keys()


def test_logits_of_lower_resolution_are_trained_measured_and_drawn(config: Path, tmp_path: Path) -> None:
    options = ("epochs=8", "optim.lr=0.01", "model.output_stride=2", "panels=1", "worst=1", f"output={tmp_path}")
    assert train.main(["--config", str(config), *options]) == 0
    first, *_, last = metrics_of(tmp_path)
    assert last["val/loss"] < 0.8 * first["val/loss"]
    assert last["val/miou"] > 0.5
    assert list((tmp_path / "panels").glob("*.png"))


def test_compare_draws_and_tabulates(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "curves.png"
    assert compare.main([str(run), str(run), "-o", str(figure)]) == 0
    with Image.open(figure) as image:
        assert image.size[0] > 500
    first, last = metrics_of(run)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows[0].startswith(f"| {run} | 2 | {first['val/miou']:.1%} → {last['val/miou']:.1%} |")
    assert compare.main([str(tmp_path), "-o", str(figure)]) == 1
    assert "metrics.json" in capsys.readouterr().err
