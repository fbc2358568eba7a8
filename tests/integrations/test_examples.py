"""The examples for frameworks train, on what they draw or on data/shapes."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from packages import require
from ranks import run_ranks
from torch import Tensor, nn

import fsdp
from edgeloss import EdgeAwareLoss

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
# What frameworks warn of is theirs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def example(name: str) -> Any:
    """Return the main function of an example."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]


def accelerated_losses(count: int, accumulated: int) -> list[float]:
    """Run the Accelerate loop in several processes, and return the losses that it prints."""
    # accelerate launch starts one process where there is no accelerator.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    command += [str(FOLDER / "accelerate_loop.py"), f"--accumulated={accumulated}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(rf"^{count} processes, .*: loss (\S+)", done.stdout, re.MULTILINE)]


def test_accelerate_loop() -> None:
    """Four batches accumulated in each of two processes train as one batch."""
    require("accelerate")
    whole, parts = (accelerated_losses(n, a) for n, a in ((1, 1), (2, 4)))
    assert len(whole) == 3
    assert whole[2] < 0.5 * whole[0]
    assert parts == pytest.approx(whole, rel=1e-3)


def labeled_batch() -> tuple[Tensor, Tensor]:
    """Four images, of which the first two have no edge and the others void pixels."""
    torch.manual_seed(1)
    labels = torch.zeros(4, 16, 16, dtype=torch.int64)
    labels[2:, 4:12, 4:12] = 1
    labels[2, :6] = -100
    return torch.randn(4, 3, 16, 16), labels


def gradients(network: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    EdgeAwareLoss(sync_normalizer=True)(network(images), labels).backward()
    return [parameter.grad for parameter in network.parameters()]


def sharded_gradients(rank: int, folder: Path) -> None:
    images, labels = labeled_batch()
    network = fsdp.network_of("cpu")
    fsdp.shard(network, "cpu")
    part = slice(2 * rank, 2 * rank + 2)
    found = [gradient.full_tensor() for gradient in gradients(network, images[part], labels[part])]
    if rank == 0:
        torch.save(found, folder / "gradients.pt")


def sharded_training(rank: int) -> None:
    assert fsdp.train("cpu") < 0.6  # it begins at about 4, and the region term does not reach 0


# PyTorch keeps the group of a sharded network after destroy_process_group(). A thread of gloo that releases a tensor
# while the interpreter shuts down aborts the process. Ranks exit without that shutdown; processes of torchrun do not.
def test_fsdp(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, sharded_training)


def test_fsdp_has_the_gradient_of_one_process(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, sharded_gradients, tmp_path)
    for found, expected in zip(
        torch.load(tmp_path / "gradients.pt"), gradients(fsdp.network_of("cpu"), *labeled_batch()), strict=True
    ):
        assert expected.norm() > 1e-3
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


# Packages and examples, what their main function is called with, and the score that it reaches.
@pytest.mark.parametrize(
    ("package", "name", "given", "least"),
    [
        ("fastai", "fastai_learner", (), 0.9),
        ("mmseg", "mmseg_unet", (), 0.8),
        ("monai", "monai_volumes", (), 0.5),
        ("transformers", "sam_masks", (), 0.8),
        ("torchvision", "torchvision_deeplab", (), 0.5),
        *(("segmentation_models_pytorch", "smp_unet", (mode,), 0.8) for mode in ("binary", "multiclass", "multilabel")),
    ],
)
def test_examples_learn(package: str, name: str, given: tuple[str, ...], least: float) -> None:
    require(package)
    assert example(name)(*given) > least


def test_lightning_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("lightning")
    monkeypatch.chdir(tmp_path)
    trainer = example("lightning_module")(epochs=2)
    assert trainer.callback_metrics["boundary_f1"] > 0.5


def test_segformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    require("transformers")
    data = FOLDER.parents[1] / "data" / "shapes"
    words = ["--data", str(data), "--output", str(tmp_path), "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["segformer.py", *words])
    example("segformer")()
    assert "eval_boundary_f1" in capfd.readouterr().out
