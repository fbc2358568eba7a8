"""A network of the kind and size of SegFormer-B0 (Xie et al. 2021), without pretrained weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS, HEADS, REDUCTIONS, DEPTH, DECODER = (32, 64, 160, 256), (1, 2, 5, 8), (8, 4, 2, 1), 2, 256


def _tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)  # [B, C, H, W] → [B, H·W, C]


def _image(tokens: Tensor, like: Tensor) -> Tensor:
    return tokens.transpose(1, 2).reshape(like.shape)


class Block(nn.Module):
    """Self-attention with fewer keys than queries, and a perceptron with a 3×3 convolution inside."""

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        """Build the layers."""
        super().__init__()
        self.heads = heads
        self.first, self.second, self.of_keys = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.reduce = nn.Conv2d(width, width, reduction, reduction)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mix = nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, C, H, W] from the same."""

        def split(tokens: Tensor) -> Tensor:
            return tokens.unflatten(2, (self.heads, -1)).transpose(1, 2)

        normal = self.first(_tokens(x))
        image = _image(normal, x)
        # Padded, so that an image smaller than the step has a key.
        step = self.reduce.stride[0]
        image = F.pad(image, (0, -image.shape[3] % step, 0, -image.shape[2] % step))
        key, value = self.key_value(self.of_keys(_tokens(self.reduce(image)))).chunk(2, 2)
        seen = F.scaled_dot_product_attention(split(self.query(normal)), split(key), split(value))
        x = x + _image(self.out(seen.transpose(1, 2).flatten(2)), x)
        hidden = self.wide(self.second(_tokens(x)))
        hidden = self.mix(hidden.transpose(1, 2).unflatten(2, x.shape[2:]))
        return x + _image(self.narrow(F.gelu(_tokens(hidden))), x)


class SegFormer(nn.Module):
    """Four stages of 1/4 to 1/32 of the resolution, and a decoder of linear layers; logits [B, C, H, W] of images."""

    def __init__(self, num_classes: int) -> None:
        """Build the layers."""
        super().__init__()
        self.embed = nn.ModuleList(
            nn.Conv2d(before, width, 3 if before > 3 else 7, 2 if before > 3 else 4, 1 if before > 3 else 3)
            for before, width in zip((3, *WIDTHS), WIDTHS, strict=False)
        )
        stages = zip(WIDTHS, HEADS, REDUCTIONS, strict=True)
        self.stages = nn.ModuleList(nn.Sequential(*(Block(*stage) for _ in range(DEPTH))) for stage in stages)
        self.project = nn.ModuleList(nn.Conv2d(width, DECODER, 1) for width in WIDTHS)
        self.fuse = nn.Sequential(
            nn.Conv2d(4 * DECODER, DECODER, 1, bias=False), nn.GroupNorm(8, DECODER), nn.ReLU(inplace=True)
        )
        self.head = nn.Conv2d(DECODER, num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Compute the logits, upsampled to the image's resolution."""
        x, levels = image, []
        for embed, stage, project in zip(self.embed, self.stages, self.project, strict=True):
            x = stage(embed(x))
            levels.append(project(x))
        size = levels[0].shape[2:]
        levels = [F.interpolate(level, size, mode="bilinear", align_corners=False) for level in levels]
        logits = self.head(self.fuse(torch.cat(levels, 1)))
        return F.interpolate(logits, image.shape[2:], mode="bilinear", align_corners=False)
