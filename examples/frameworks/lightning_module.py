"""Train with EdgeAwareLoss in Lightning, and log its terms.

python examples/frameworks/lightning_module.py

The data are drawn at random, so that the example runs anywhere. It needs: pip install lightning
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from edgeloss import EdgeAwareLoss
from edgeloss.metrics import BoundaryF1
from squares import squares


class Segmenter(lightning.LightningModule):
    """A network of two convolutions, its loss and its score."""

    def __init__(self, classes: int) -> None:
        """Create the network, its loss and its score."""
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, classes, 3, padding=1))
        self.criterion = EdgeAwareLoss(ignore_index=255, sync_normalizer=True)
        self.score = BoundaryF1(classes, ignore_index=255)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss, and log it with its terms."""
        images, labels = batch
        loss, terms = self.criterion(self.network(images), labels, return_terms=True)
        self.log_dict({"loss": loss.detach()} | {f"terms/{name}": value for name, value in terms.items()})
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Log loss and boundary F1."""
        images, labels = batch
        logits = self.network(images)
        self.score(logits.argmax(1), labels)
        self.log_dict({"val_loss": self.criterion(logits, labels), "boundary_f1": self.score}, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.network.parameters(), lr=1e-2)


def main(epochs: int = 3) -> lightning.Trainer:
    """Train and validate."""
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="auto", precision="bf16-mixed", log_every_n_steps=1)
    trainer.fit(Segmenter(2), DataLoader(squares(64), 8, shuffle=True), DataLoader(squares(16), 8))
    return trainer


if __name__ == "__main__":
    main()
