"""Train a model of mmsegmentation whose configuration names EdgeAwareLoss.

python examples/frameworks/mmseg_unet.py

The configuration is ``mmseg_config.py``; its model would train the same way with a data set and mmengine's Runner. It
needs: pip install mmsegmentation mmcv
"""

from __future__ import annotations

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor
from torch.utils.data import DataLoader

from edgeloss.metrics import boundary_f1
from squares import squares


def samples(images: Tensor, labels: Tensor) -> dict[str, list[Tensor] | list[SegDataSample]]:
    """Return a batch as mmsegmentation's data sets do."""
    data_samples = []
    for label in labels:
        sample = SegDataSample(metainfo={"img_shape": tuple(label.shape), "ori_shape": tuple(label.shape)})
        sample.gt_sem_seg = PixelData(data=label[None])
        data_samples.append(sample)
    return {"inputs": list(images), "data_samples": data_samples}


def main(epochs: int = 8) -> float:
    """Train, and return the boundary F1 of images that were not trained on."""
    torch.manual_seed(0)
    config = Config.fromfile(Path(__file__).with_name("mmseg_config.py"))
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model)
    optimizer = OptimWrapper(torch.optim.AdamW(model.parameters(), lr=5e-3))
    for epoch in range(epochs):
        for images, labels in DataLoader(squares(64), 8, shuffle=True):
            losses = model.train_step(samples(images, labels), optimizer)
        print(f"epoch {epoch + 1}: " + ", ".join(f"{name} {value.item():.3f}" for name, value in losses.items()))
    images, labels = squares(16).tensors
    model.eval()
    prediction = torch.cat([sample.pred_sem_seg.data for sample in model.test_step(samples(images, labels))])
    score = float(boundary_f1(prediction, labels, 2))
    print(f"boundary F1: {score:.3f}")
    return score


if __name__ == "__main__":
    main()
