"""The U-Net: sizes of its input and output, and its weights."""

import pytest
import torch

from segkit.model import UNet


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (33, 47), (1, 1, 1), (9, 4, 17)])
def test_unet_takes_any_size(size: tuple[int, ...]) -> None:
    for batch in (1, 2):  # of one pixel, a group has one value
        assert UNet(7, width=8, dims=len(size))(torch.randn(batch, 3, *size)).shape == (batch, 7, *size)


def test_checkpoints_of_earlier_versions_fit() -> None:
    state = UNet(3, width=8, levels=2).state_dict()
    blocks = {"down.0": (0, 1, 3, 4), "down.1": (0, 1, 3, 4), "up.0": (0, 1)}
    names = [f"{block}.{layer}.weight" for block, layers in blocks.items() for layer in layers]
    biases = [name.replace("weight", "bias") for name in names if name[-8] in "14"]
    assert state.keys() == {*names, *biases, "head.weight", "head.bias"}


def test_other_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="dims: expected 2 or 3, but got 1"):
        UNet(7, dims=1)
