"""A compact U-Net."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CONVOLUTIONS: dict[int, type[nn.Conv2d | nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_MAX_POOLS = {2: F.max_pool2d, 3: F.max_pool3d}


class _GroupNorm(nn.GroupNorm):
    """A group normalization that accepts groups of one value, as of a single pixel, in training too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; ``nn.GroupNorm`` would raise an error."""
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def _convs(dims: int, *channels: int) -> nn.Sequential:
    """Return 3×3 convolutions with group normalization and ReLU."""
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        convolution = _CONVOLUTIONS[dims](before, after, 3, padding=1, bias=False)
        layers += [convolution, _GroupNorm(8, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with group normalization, for images or volumes of any size.

    The way down has two convolutions per level, the way up one. Level k has ``width * 2**k`` channels.

    Args:
        num_classes: number of output channels.
        width: channels at full resolution, a multiple of 8.
        levels: number of resolutions, each half of the one before.
        in_channels: channels of the image.
        dims: 2 for images, 3 for volumes.

    Raises:
        ValueError: if ``dims`` is another number.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        width: int = 16,
        levels: int = 5,
        in_channels: int = 3,
        dims: int = 2,
    ) -> None:
        """Build the layers."""
        super().__init__()
        if dims not in _CONVOLUTIONS:
            raise ValueError(f"dims: expected 2 or 3, but got {dims}")
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(
            _convs(dims, before, after, after) for before, after in pairwise([in_channels, *widths])
        )
        self.up = nn.ModuleList(_convs(dims, low + skip, skip) for low, skip in pairwise(widths[::-1]))
        self.head = _CONVOLUTIONS[dims](width, num_classes, 1)

    def forward(
        self,
        image: Tensor,  # [B, in_channels, *S], S = (H, W) or (D, H, W)
    ) -> Tensor:  # [B, num_classes, *S]
        """Compute the logits."""
        x, max_pool = image, _MAX_POOLS[image.dim() - 2]
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            # Rounding up keeps at least one pixel of the smallest image.
            x = block(max_pool(x, 2, ceil_mode=True) if level else x)
            skips.append(x)
        skips.pop()
        for block in self.up:
            skip = skips.pop()
            # "nearest" has a reproducible gradient on every device; the next convolution smooths.
            x = block(torch.cat([F.interpolate(x, size=skip.shape[2:], mode="nearest"), skip], dim=1))
        logits: Tensor = self.head(x)
        return logits
