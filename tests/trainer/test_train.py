"""The example trainer: what a run writes, how it repeats, how it fails and how it stops."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from PIL import Image
from small_run import CLASSES, VOID, metrics_of, run_in, write_config
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import compare
import train
from edgeloss import EdgeAwareLoss
from edgeloss.io import InputError
from segkit.checkpoint import CheckpointError, load_checkpoint, load_weights, save_checkpoint
from segkit.config import Config, load_config
from segkit.data import Augment, SegmentationFolder
from segkit.engine import MicroBatch, Placement, Training, batches, evaluate, lr_factor, train_step
from segkit.guard import NanGuard, NonFiniteLossError
from segkit.model import UNet
from segkit.scores import BY_CLASS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    assert train.main(["--config", str(config)]) == 0
    return config.parent / "run"


def test_run_writes_its_files(run: Path) -> None:
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    (events,) = (name for name in files if name.startswith("tensorboard/events."))
    panels = {f"panels/epoch_{epoch:03d}_val{i}.png" for epoch in (1, 2) for i in (0, 2)}
    assert files - {events} == {"metrics.csv", "metrics.json", "report.html", "best.pt", "last.pt"} | panels


def test_metrics_csv_and_json_agree(run: Path) -> None:
    report = json.loads((run / "metrics.json").read_text())
    assert report["classes"] == CLASSES
    assert report["config"]["epochs"] == 2
    assert report["versions"]["torch"] == torch.__version__
    with (run / "metrics.csv").open() as file:
        rows = [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(file)]
    assert rows == report["epochs"]
    assert [row["epoch"] for row in rows] == [1, 2]
    terms = {"loss", "cross_entropy", "same_side", "other_side", "edge", "edge_fraction"}
    measures = {"miou", "accuracy", "edge_accuracy", "interior_accuracy"}
    measures |= {"boundary_iou", "boundary_iou_narrow", "trimap_iou_3"} | {f"boundary_f1_{r}" for r in (1, 3, 5)}
    measures |= {f"{kind}/{name}" for kind in BY_CLASS for name in CLASSES}
    shares = {f"train/gradient_share/{name}" for name in ("cross_entropy", "same_side", "other_side")}
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
    """The whole set as one batch, measured by hand: so the logged figures are no means over batches of 2 and 1."""
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
    loss, maps, terms = EdgeAwareLoss(ignore_index=VOID)(logits, labels, return_maps=True, return_terms=True)
    del terms["false_edge"]  # without a weight it is no figure
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
        loaded = [batch for (batch,) in batches(dataset, 2, 0, seed=seed, epoch=epoch)]
        names = [name for batch in loaded for name in batch.names]
        return names, dict(zip(names, torch.cat([batch.images for batch in loaded]), strict=True))

    first, second, again, other = read(0, 1), read(0, 2), read(0, 1), read(3, 1)
    assert sorted(first[0]) == dataset.names
    assert first[0] == again[0]
    assert first[0] not in (second[0], other[0])
    for name, image in first[1].items():
        assert torch.equal(image, again[1][name])
        assert not torch.equal(image, second[1][name])


def test_learning_lowers_the_loss(config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, "epochs=8", "optim.lr=0.01", "optim.clip=1.0", "loss.weight=[1,2,2]") == 0
    first, *_, last = metrics_of(tmp_path)
    assert last["val/loss"] < 0.7 * first["val/loss"]
    assert last["val/miou"] > first["val/miou"] + 0.1


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("epoch=3", "epoch: no such key; the nearest is epochs"),
        ("data.trian=x", "data.trian: no such key; the nearest is data.train"),
        ("lr=1", "lr: no such key; the nearest is optim.lr"),
        ("epochs=many", "epochs: expected int but got 'many'"),
        ("epochs=1.5", "epochs: expected int but got 1.5"),
        ("optim.clip=true", "optim.clip: expected float | None but got True"),
        ("edge_schedule.kind=steep", "edge_schedule.kind must be one of constant, linear, cosine"),
        ("edge_schedule.warmup=2", "edge_schedule.warmup must be in [0, 1]"),
        ("precision=half", "precision must be one of float32, bfloat16, float16"),
        ("precision=float16", "precision: float16 needs a CUDA device; expected float32 or bfloat16 on cpu"),
        (
            "accumulate=3",
            "batch_size: expected at least accumulate × processes = 3 × 1 images but got 2",
        ),
        ("ema=1", "ema must be in [0, 1)"),
        ("checkpoint_every=-1", "checkpoint_every must be at least 0"),
        ("resume=nowhere.pt", "no checkpoint at nowhere.pt"),
        ("epochs=0", "epochs"),
        ("data=4", "data: expected a section of keys but got 4"),
        ("data.size=[a,b]", "data.size[0]: expected list[int] | None but got 'a'"),
        ("data.size=[32]", "data.size"),
        ("epochs", "key=value"),
        ("loss.egde_weight=1", "loss.egde_weight: no such key; the nearest is loss.edge_weight"),
        ("loss.edge_weight=-1", "edge_weight: expected a finite number ≥ 0, but got -1"),
        ("loss.edge_weight=much", "edge_weight: expected a finite number ≥ 0, but got 'much'"),
        ("loss.weight=[1,2]", "weight"),
        ("loss.reduction=sum", "loss.reduction: the trainer sets it"),
        ("data.train=nowhere", "nowhere"),
        ("data.classes=nowhere.txt", "nowhere.txt"),
        ("data.augment.flip=2", "flip"),
        ("device=toaster", "device"),
        ("output=/dev/null/run", "output"),
        ("optim.lr=1e37", "epoch 1: the loss is nan at step 2 on the images train"),
    ],
)
def test_user_errors_are_one_line(
    override: str, expected: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_in(tmp_path / "run", config, override) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [("output: [", "YAML"), ("epochs: 1", "output"), ("- 1", "expected keys"), (None, "No such file")],
)
def test_config_file_errors_are_one_line(
    text: str | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    assert train.main(["--config", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "config.yaml" in line
    assert expected in line


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_mask_is_named_in_one_line(
    workers: int, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_text("0 ground\n1 box\n255 void\n")  # the masks hold a class 2
    assert run_in(tmp_path / "run", config, f"data.classes={classes}", f"data.workers={workers}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(Path("train", "masks", "train")) in line


def test_a_run_is_replaced_only_if_asked(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert run_in(tmp_path, config) == 0
    assert run_in(tmp_path, config, "epochs=1") == 1
    assert "overwrite=true" in capsys.readouterr().err
    assert len(metrics_of(tmp_path)) == 2
    assert run_in(tmp_path, config, "epochs=1", "overwrite=true") == 0
    assert len(metrics_of(tmp_path)) == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["shapes", "camvid"])
def test_configs_set_every_key(name: str) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    keys = yaml.safe_load(path.read_text())
    schema = OmegaConf.to_container(OmegaConf.structured(Config))
    assert isinstance(schema, dict)
    assert keys.keys() == schema.keys()
    for section in ("data", "model", "optim", "edge_schedule"):
        assert keys[section].keys() == schema[section].keys()
    uncommented = {line.split(":")[0].strip() for line in path.read_text().splitlines() if line and "#" not in line}
    assert uncommented <= {"data", "model"}  # sections
    assert train.make_criterion(load_config(path).loss, 11, VOID).edge_weight > 0


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"model": {"w": torch.ones(3)}})
    before = path.read_bytes()

    def half(value: object, file: Any) -> None:
        file.write(before[: len(before) // 2])
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(InputError, match=r"last\.pt: can't be written \(No space left on device\)"):
            save_checkpoint(path, {"model": {"w": torch.zeros(3)}})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    save_checkpoint(path, {"model": {"w": torch.zeros(3)}})
    assert load_checkpoint(path)["model"]["w"].tolist() == [0, 0, 0]


def test_unreadable_checkpoints_are_told_apart(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none.pt")
    whole = (run / "last.pt").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text"):
        (tmp_path / "damaged.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(tmp_path / "damaged.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="no model"):
        load_checkpoint(tmp_path / "list.pt")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_a_loadable_checkpoint(number: signal.Signals, config: Path, tmp_path: Path) -> None:
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
        # A terminal sends Ctrl-C to the workers too; a scheduler ends the process it has started.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert str(tmp_path / "last.pt") in output
    assert "Traceback" not in output
    checkpoint = load_checkpoint(tmp_path / "last.pt")
    assert checkpoint["epoch"] >= 2
    assert checkpoint["step"] >= 6


def small_training(
    *, scaler: torch.amp.GradScaler | None = None, ema: float | None = None
) -> tuple[Training, EdgeAwareLoss, list[MicroBatch]]:
    """A network with a step to take: gradient descent at rate 1."""
    network = UNet(3, width=8, levels=2)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    averaged = None if ema is None else AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(ema))
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    training = Training(network, optimizer, LambdaLR(optimizer, lambda step: 1.0), scaler, averaged)
    labels = torch.zeros(2, 8, 8, dtype=torch.int64)
    labels[:, 2:5, 3:] = 1
    return training, EdgeAwareLoss(), [MicroBatch(["a", "b"], torch.randn(2, 3, 8, 8), labels)]


CPU = Placement(torch.device("cpu"))


def step(
    training: Training,
    criterion: EdgeAwareLoss,
    batch: list[MicroBatch],
    folder: Path,
    *,
    place: Placement = CPU,
    clip: float | None = None,
) -> dict[str, float]:
    """Take a step that nothing guards against but the end; the files of that go into the folder."""
    guard = NanGuard(folder, criterion, action="stop")
    figures = train_step(training, training.network, criterion, batch, number=1, place=place, guard=guard, clip=clip)
    assert figures is not None
    return figures


def gradient(training: Training) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in training.network.parameters()]


def weights(network: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def test_false_edges_count_in_training_and_validation(tmp_path: Path) -> None:
    """As in one batch of all images, though the first has no edge but false ones."""
    training, _, [(names, images, labels)] = small_training()
    labels[0] = 0
    criterion = EdgeAwareLoss(edge_weight=0.5, false_edge_weight=0.25)
    with torch.no_grad():
        loss, terms = criterion(training.network.eval()(images), labels, return_terms=True)
    expected = {name: pytest.approx(float(value)) for name, value in {"loss": loss, **terms}.items()}
    parts = [MicroBatch(names[i : i + 1], images[i : i + 1], labels[i : i + 1]) for i in range(2)]
    measured = evaluate(training.network, criterion, [[part] for part in parts], classes=CLASSES, place=CPU)
    assert {name: measured[name] for name in expected} == expected
    assert expected["false_edge"] != 0
    assert step(training, criterion, parts, tmp_path) == expected


def test_a_scaled_loss_gives_the_same_step(tmp_path: Path) -> None:
    plain, criterion, batch = small_training()
    scaled, _, _ = small_training(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    load_weights(scaled.network, plain.network.state_dict())
    for training in (plain, scaled):
        step(training, criterion, batch, tmp_path, clip=0.1)
    torch.testing.assert_close(gradient(scaled), gradient(plain))  # clipped after it is scaled back
    torch.testing.assert_close(weights(scaled.network), weights(plain.network))


def test_a_step_of_an_overflown_gradient_is_left_out(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    training, _, batch = small_training(scaler=scaler, ema=0.5)
    criterion = EdgeAwareLoss(ce_weight=1e3)  # times the scale beyond float32
    before = weights(training.network)
    figures = step(training, criterion, batch, tmp_path)
    assert math.isfinite(figures["loss"])
    assert training.step == 0
    assert scaler.get_scale() == 2.0**126
    torch.testing.assert_close(weights(training.network), before, rtol=0, atol=0)
    assert training.ema.n_averaged == 0
    while training.step == 0:  # each halves the scale, until one fits
        step(training, criterion, batch, tmp_path)
    assert training.ema.n_averaged == 1
    assert all(weight.isfinite().all() for weight in weights(training.network))


def test_a_gradient_that_is_not_finite_is_told_before_it_reaches_a_weight(tmp_path: Path) -> None:
    training, criterion, batch = small_training()
    training.network.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = weights(training.network)
    with pytest.raises(NonFiniteLossError, match=r"the gradient is (inf|nan) at step 1 on the images a, b"):
        step(training, criterion, batch, tmp_path)
    torch.testing.assert_close(weights(training.network), before, rtol=0, atol=0)


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    training, criterion, batch = small_training()
    before = weights(training.network)
    step(training, criterion, batch, tmp_path, clip=1e-2)
    steps = [new - old for new, old in zip(weights(training.network), before, strict=True)]
    assert torch.nn.utils.get_total_norm(steps).item() == pytest.approx(1e-2, rel=1e-3)


def test_weights_are_averaged(tmp_path: Path) -> None:
    training, criterion, batch = small_training(ema=0.9)
    expected = None
    for _ in range(3):
        step(training, criterion, batch, tmp_path)
        new = weights(training.network)
        expected = new if expected is None else [0.9 * a + 0.1 * b for a, b in zip(expected, new, strict=True)]
    torch.testing.assert_close(weights(training.averaged), expected)


def test_averaged_weights_are_those_that_are_measured(config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path / "off", config) == 0
    assert run_in(tmp_path / "same", config, "ema=0") == 0  # the average of the last weights alone
    assert run_in(tmp_path / "on", config, "ema=0.9") == 0
    off, same, on = (metrics_of(tmp_path / name) for name in ("off", "same", "on"))
    assert off == same
    for first, second in zip(off, on, strict=True):
        assert first["train/loss"] == second["train/loss"]
        assert first["val/loss"] != second["val/loss"]


def test_the_edge_weight_rises_as_configured(config: Path, tmp_path: Path) -> None:
    schedule = ("edge_schedule.kind=linear", "edge_schedule.warmup=1.0", "loss.edge_weight=0.6")
    assert run_in(tmp_path, config, *schedule, "optim.lr=0") == 0
    first, second = metrics_of(tmp_path)  # 6 steps: 0, 0.1, 0.2; 0.3, 0.4, 0.5, of 2, 2 and 1 images
    assert first["edge_weight"] == pytest.approx((0 * 2 + 0.1 * 2 + 0.2) / 5)
    assert second["edge_weight"] == pytest.approx((0.3 * 2 + 0.4 * 2 + 0.5) / 5)
    assert first["val/loss"] == second["val/loss"]  # by the full weight, so that epochs can be compared


def test_bfloat16_trains(config: Path, tmp_path: Path) -> None:
    options = ("epochs=8", "optim.lr=0.01")
    assert run_in(tmp_path / "half", config, *options, "precision=bfloat16") == 0
    assert run_in(tmp_path / "full", config, *options) == 0
    half, full = (metrics_of(tmp_path / name) for name in ("half", "full"))
    assert half[0]["train/loss"] != full[0]["train/loss"]
    assert half[0]["train/loss"] == pytest.approx(full[0]["train/loss"], rel=2e-2)
    assert half[-1]["val/loss"] < 0.7 * half[0]["val/loss"]
    assert {weight.dtype for weight in load_checkpoint(tmp_path / "half" / "last.pt")["model"].values()} == {
        torch.float32
    }


def test_the_loss_reads_half_precision_as_it_is(tmp_path: Path) -> None:
    training, criterion, batch = small_training()
    seen = []
    criterion.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].dtype))
    place = Placement(torch.device("cpu"), torch.bfloat16)
    step(training, criterion, batch, tmp_path, place=place)
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("option", ["channels_last=false", "accumulate=2"])
def test_what_should_change_nothing_changes_nothing(option: str, config: Path, tmp_path: Path, run: Path) -> None:
    assert run_in(tmp_path, config, option) == 0
    for got, expected in zip(metrics_of(tmp_path), metrics_of(run), strict=True):
        alike = {name: value for name, value in expected.items() if "share" not in name}  # of the last part alone
        # But the rounding that AdamW divides by.
        assert {name: got[name] for name in alike} == pytest.approx(alike, rel=1e-2, abs=1e-2)


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


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (33, 47)])
def test_unet_takes_any_size(size: tuple[int, int]) -> None:
    assert UNet(7, width=8)(torch.randn(2, 3, *size)).shape == (2, 7, *size)


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_network_with_an_output_stride(stride: int) -> None:
    network = UNet(7, width=8, levels=3, output_stride=stride)
    for height, width in ((32, 64), (33, 3)):
        size = -(-height // stride), -(-width // stride)
        assert network(torch.randn(2, 3, height, width)).shape == (2, 7, *size)
    with pytest.raises(ValueError, match=r"expected output_stride to be one of \[1, 2, 4\] but got 8"):
        UNet(7, levels=3, output_stride=8)


def test_logits_of_lower_resolution_are_trained_measured_and_drawn(config: Path, tmp_path: Path) -> None:
    options = ("epochs=8", "optim.lr=0.01", "model.output_stride=2", f"output={tmp_path}")
    assert train.main(["--config", str(config), *options]) == 0
    first, *_, last = metrics_of(tmp_path)
    assert last["val/loss"] < 0.8 * first["val/loss"]
    assert last["val/miou"] > 0.5
    assert list((tmp_path / "panels").glob("*.png"))


def test_lr_rises_then_falls_to_zero() -> None:
    factors = [lr_factor(step, total=100, warmup=10, power=0.9) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors.index(max(factors)) == 9
    assert factors[100] == lr_factor(101, total=100, warmup=10, power=0.9) == 0
    assert factors[50] == pytest.approx(0.5**0.9)
    assert math.isclose(lr_factor(0, total=5, warmup=0, power=1.0), 1.0)


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
