"""The U-Net and its checkpoints: sizes, names of weights, and files that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgeloss.io import InputError
from segkit.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from segkit.model import UNet


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (33, 47), (1, 1, 1), (9, 4, 17)])
def test_unet_takes_any_size(size: tuple[int, ...]) -> None:
    for batch in (1, 2):  # of one pixel, a group has one value
        assert UNet(7, width=8, dims=len(size))(torch.randn(batch, 3, *size)).shape == (batch, 7, *size)
    with pytest.raises(ValueError, match="dims: expected 2 or 3, but got 1"):
        UNet(7, dims=1)


def test_checkpoints_of_earlier_versions_fit() -> None:
    state = UNet(3, width=8, levels=2).state_dict()
    blocks = {"down.0": (0, 1, 3, 4), "down.1": (0, 1, 3, 4), "up.0": (0, 1)}
    names = [f"{block}.{layer}.weight" for block, layers in blocks.items() for layer in layers]
    biases = [name.replace("weight", "bias") for name in names if name[-8] in "14"]
    assert state.keys() == {*names, *biases, "head.weight", "head.bias"}


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="Unix limits the size of files")
    path, (soft, hard) = tmp_path / "last.pt", resource.getrlimit(resource.RLIMIT_FSIZE)
    save_checkpoint(path, {"model": {"w": torch.ones(3)}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(InputError, match=r"last.pt: can't be written \(File too large\)$"):
            save_checkpoint(path, {"model": {"w": torch.zeros(50000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_checkpoint(path)["model"]["w"].tolist() == [1, 1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_and_another_one_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "last.pt", {"model": UNet(3, width=8, levels=2).state_dict()})
    whole = (tmp_path / "last.pt").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text"):
        (tmp_path / "damaged.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(tmp_path / "damaged.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="a file without a model"):
        load_checkpoint(tmp_path / "list.pt")
