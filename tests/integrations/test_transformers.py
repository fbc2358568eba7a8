"""The Trainer of transformers with the loss: accumulated gradients, evaluation, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from packages import require
from torch import Tensor
from torch.utils.data import Dataset

from edgeloss import EdgeAwareLoss

require("transformers", "accelerate")

import transformers  # noqa: E402

from edgeloss.integrations.transformers import EdgeAwareTrainer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


class Samples(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        labels = torch.zeros(32, 32, dtype=torch.int64)
        labels[8 + index : 24, 8:24] = 1  # edges of another length in each image
        labels[:index] = 255
        return {"pixel_values": torch.rand(3, 32, 32, generator=generator), "labels": labels}


def train(folder: Path, *, batch: int, accumulated: int) -> EdgeAwareTrainer:
    torch.manual_seed(0)
    config = transformers.SegformerConfig(
        num_labels=3,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=8,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    )
    model = transformers.SegformerForSemanticSegmentation(config)
    # Batches have statistics of their own in training: another size would be another network.
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum, module.training = 0.0, False
            module.train = lambda mode=True: None  # type: ignore[method-assign, assignment]
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": accumulated,
        "max_steps": 2,
        "save_strategy": "no",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_drop_last": True,
    }
    criterion = EdgeAwareLoss(upsample=True, ignore_index=255)
    samples = Samples()
    trainer = EdgeAwareTrainer(
        model,
        transformers.TrainingArguments(str(folder), learning_rate=0.1, **arguments),
        criterion=criterion,
        train_dataset=samples,
        eval_dataset=samples,
    )
    trainer.train()
    return trainer


def weights(trainer: EdgeAwareTrainer) -> Tensor:
    return torch.cat([values.flatten() for values in trainer.model.parameters()])


def test_accumulated_batches_train_as_one(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", batch=4, accumulated=1)
    parts = train(tmp_path / "parts", batch=1, accumulated=4)
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-4, atol=1e-6)
    assert "eval_loss" in whole.evaluate()
