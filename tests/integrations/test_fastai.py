"""The loss in a Learner of fastai: predictions, losses of single images, export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from packages import require
from torch import Tensor, nn

require("fastai")

from fastai.data.core import Datasets  # noqa: E402
from fastai.learner import Learner, load_learner  # noqa: E402

from edgeloss.integrations.fastai import EdgeAwareLoss  # noqa: E402
from squares import squares  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


IMAGES, LABELS = squares(12).tensors


def image_of(index: int) -> Tensor:
    return IMAGES[index]


def label_of(index: int) -> Tensor:
    return LABELS[index]


def learner(classes: int, folder: Path) -> Learner:
    data = Datasets(list(range(12)), [[image_of], [label_of]], splits=[list(range(8)), list(range(8, 12))])
    loaders = data.dataloaders(bs=4, num_workers=0)
    found = Learner(loaders, nn.Conv2d(3, classes, 3, padding=1), loss_func=EdgeAwareLoss(), path=folder)
    found.fit(1)
    return found


@pytest.mark.parametrize("classes", [1, 2])
def test_predictions_are_probabilities(classes: int, tmp_path: Path) -> None:
    found = learner(classes, tmp_path)
    probabilities, labels, prediction, losses = found.get_preds(with_decoded=True, with_loss=True)
    logits = torch.cat([found.model(images) for images, _ in found.dls.valid])
    expected = logits.sigmoid() if classes == 1 else logits.softmax(1)
    torch.testing.assert_close(torch.as_tensor(probabilities), expected.detach())
    assert prediction.equal((logits[:, 0] > 0).long() if classes == 1 else logits.argmax(1))
    assert labels.shape == (4, 32, 32)
    assert losses.shape == (4,)


def test_export_stores_the_loss(tmp_path: Path) -> None:
    found = learner(2, tmp_path)
    found.export()
    assert str(load_learner(tmp_path / "export.pkl").loss_func) == str(found.loss_func)
