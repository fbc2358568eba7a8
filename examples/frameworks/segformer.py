"""Train a SegFormer of Hugging Face transformers with EdgeAwareLoss.

python examples/frameworks/segformer.py --data data/shapes --output runs/segformer

The model is small and starts from random weights, so that the example needs no download; replace it with
``SegformerForSemanticSegmentation.from_pretrained(...)`` for real work. It needs: pip install transformers accelerate
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import SegformerConfig, SegformerForSemanticSegmentation, TrainingArguments

from edgeloss import EdgeAwareLoss
from edgeloss.integrations.transformers import EdgeAwareTrainer
from edgeloss.io import IMAGE_SUFFIXES, files_by_stem, read_classes, read_image, read_labels
from edgeloss.metrics import boundary_f1


class Folder(Dataset[dict[str, Tensor]]):
    """Images and masks with the same names, as the Trainer takes them."""

    def __init__(self, root: Path) -> None:
        """List the files."""
        images = files_by_stem(root / "images", IMAGE_SUFFIXES)
        masks = files_by_stem(root / "masks", IMAGE_SUFFIXES)
        self.files = [(images[name], masks[name]) for name in sorted(images)]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return pixel_values [3, H, W] in [0, 1] and labels [H, W]."""
        image, mask = self.files[index]
        return {"pixel_values": read_image(image).float() / 255, "labels": read_labels(mask).long()}


def scores(prediction: object) -> dict[str, float]:
    """Return the boundary F1 of predictions at the size of the labels."""
    logits, labels = torch.from_numpy(prediction.predictions), torch.from_numpy(prediction.label_ids)
    large = torch.nn.functional.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)
    return {"boundary_f1": float(boundary_f1(large.argmax(1), labels, logits.shape[1], ignore_index=255))}


def main() -> None:
    """Train and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/shapes"), help="folder with train/, val/, classes.txt")
    parser.add_argument("--output", default="runs/segformer")
    parser.add_argument("--epochs", type=float, default=3)
    arguments = parser.parse_args()
    classes = len(read_classes(arguments.data / "classes.txt").names)
    config = SegformerConfig(
        num_labels=classes, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], decoder_hidden_size=32
    )
    trainer = EdgeAwareTrainer(
        SegformerForSemanticSegmentation(config),
        TrainingArguments(
            arguments.output,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=5,
            eval_strategy="epoch",
            report_to="none",
        ),
        criterion=EdgeAwareLoss(upsample=True, ignore_index=255),
        train_dataset=Folder(arguments.data / "train"),
        eval_dataset=Folder(arguments.data / "val"),
        compute_metrics=scores,
    )
    trainer.train()


if __name__ == "__main__":
    main()
