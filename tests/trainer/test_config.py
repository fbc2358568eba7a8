"""Configurations: every key is explained, and every mistake is one line that names its key."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from small_run import VOID, run_in, write_config

import train
from segkit.build import make_criterion
from segkit.config import Config, load_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("config"))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("epoch=3", "epoch: no such key; did you mean epochs?"),
        ("data.trian=x", "data.trian: no such key; did you mean data.train?"),
        ("lr=1", "lr: no such key; did you mean optim.lr?"),
        ("epochs=many", "epochs: expected int, but got 'many'"),
        ("epochs=1.5", "epochs: expected int, but got 1.5"),
        ("optim.clip=true", "optim.clip: expected float | None, but got True"),
        ("edge_schedule.kind=steep", "edge_schedule.kind must be one of constant, linear, cosine"),
        ("edge_schedule.warmup=2", "edge_schedule.warmup must be in [0, 1]"),
        ("precision=half", "precision must be one of float32, bfloat16, float16"),
        ("precision=float16", "precision: expected float32 or bfloat16 on cpu, but got float16, which needs CUDA"),
        (
            "accumulate=3",
            "batch_size: expected at least accumulate × processes = 3 × 1 images, but got 2",
        ),
        ("ema=1", "ema must be in [0, 1)"),
        ("checkpoint_every=-1", "checkpoint_every must be at least 0"),
        ("resume=nowhere.pt", "nowhere.pt: expected a checkpoint, but there is no such file"),
        ("epochs=0", "epochs"),
        ("seed=4294967296", "seed must be in [0, 2^32)"),
        ("optim.lr=nan", "optim.lr, weight_decay, warmup and power must be finite and at least 0"),
        ("optim.power=-1", "optim.lr, weight_decay, warmup and power must be finite and at least 0"),
        ("optim.clip=0", "optim.clip must be greater than 0"),
        ("data.workers=-1", "data.workers must be at least 0"),
        ("panels=-1", "panels and panel_every must be at least 0"),
        ("loss.weight=much", "loss: weight: expected a list of numbers, but got 'much'"),
        ("loss.spacing=[1,1,1]", "loss: spacing: expected"),
        ("data=4", "data: expected a section of keys, but got 4"),
        ("data.size=[a,b]", "data.size[0]: expected list[int] | None, but got 'a'"),
        ("data.size=[32]", "data.size"),
        ("epochs", "key=value"),
        ("loss.egde_weight=1", "loss.egde_weight: no such key; did you mean loss.edge_weight?"),
        (
            "loss.false_edge_weight=0.5",
            "loss: false_edge_weight: expected no such argument since version 0.3, but got 0.5",
        ),
        ("loss.edge_weight=-1", "edge_weight: expected a finite number ≥ 0, but got -1"),
        ("loss.edge_weight=much", "edge_weight: expected a finite number ≥ 0, but got 'much'"),
        ("loss.weight=[1,2]", "weight"),
        ("loss.reduction=sum", "loss.reduction: set by the trainer; remove it"),
        ("data.train=nowhere", "nowhere"),
        ("data.classes=nowhere.txt", "data.classes: nowhere.txt"),
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


def test_a_single_class_is_one_line(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_text("0 ground\n255 void\n")
    assert run_in(tmp_path / "run", config, f"data.classes={classes}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("data.classes: expected two classes or more, but got ['ground']")


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
    assert make_criterion(load_config(path).loss, 11, VOID).edge_weight > 0
