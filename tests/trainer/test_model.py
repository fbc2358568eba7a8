"""The U-Net: sizes of its input and output."""

import pytest
import torch

from segkit.model import UNet


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (33, 47)])
def test_unet_takes_any_size(size: tuple[int, int]) -> None:
    assert UNet(7, width=8)(torch.randn(2, 3, *size)).shape == (2, 7, *size)


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_network_with_an_output_stride(stride: int) -> None:
    network = UNet(7, width=8, levels=3, output_stride=stride)
    for height, width in ((32, 64), (33, 3)):
        size = -(-height // stride), -(-width // stride)
        assert network(torch.randn(2, 3, height, width)).shape == (2, 7, *size)
    with pytest.raises(ValueError, match=r"output_stride: expected one of \[1, 2, 4\], but got 8"):
        UNet(7, levels=3, output_stride=8)
