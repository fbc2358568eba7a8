"""Plan, preprocess and train with nnU-Net, its Dice loss and EdgeAwareLoss.

python examples/frameworks/nnunet_squares.py runs/nnunet

It writes a data set of a few images to the folder, and trains for a few steps. For real work see docs/frameworks.md. It
needs: pip install nnunetv2
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import torch

from squares import squares

if TYPE_CHECKING:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

NAME = "Dataset001_squares"
REGIONS = {"background": 0, "square": [1, 2], "upper": 2, "ignore": 3}


def write_data(folder: Path, count: int, *, regions: bool = False) -> None:
    """Write images and labels as nnU-Net reads them; as regions, the square and its upper half, and ignored rows."""
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for index, (image, label) in enumerate(squares(count, 64)):
        rows = label.nonzero()[:, 0]
        if regions:
            label[: int(rows.float().mean()) + 1] *= 2
            label[:4] = 3
        pixels = (image * 64 + 96).clamp(0, 255).byte().permute(1, 2, 0).numpy()
        cv2.imwrite(str(folder / "imagesTr" / f"case_{index:03d}_0000.png"), pixels)
        cv2.imwrite(str(folder / "labelsTr" / f"case_{index:03d}.png"), label.byte().numpy())
    about = {
        "channel_names": {"0": "R", "1": "G", "2": "B"},
        "labels": REGIONS if regions else {"background": 0, "square": 1},
        "numTraining": count,
        "file_ending": ".png",
    }
    (folder / "dataset.json").write_text(json.dumps(about | ({"regions_class_order": [1, 2]} if regions else {})))


def main(folder: Path, epochs: int = 2, *, regions: bool = False) -> nnUNetTrainer:
    """Train, and return the trainer."""
    torch.manual_seed(0)
    for part in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{part}"] = str(folder / part)
    write_data(folder / "raw" / NAME, 10, regions=regions)

    from nnunetv2.experiment_planning.plan_and_preprocess_api import extract_fingerprints, plan_experiments, preprocess
    from nnunetv2.run.run_training import get_trainer_from_args

    extract_fingerprints([1], num_processes=1, show_progress_bar=False)
    plan_experiments([1])
    preprocess([1], configurations=["2d"], num_processes=[1], show_progress_bar=False)
    # Where it looks for the trainer; and it augments in this process.
    os.environ.update({"nnUNet_extTrainer": str(Path(__file__).with_name("nnunet_trainers")), "nnUNet_n_proc_DA": "0"})
    trainer = get_trainer_from_args("1", "2d", 0, "nnUNetTrainerEdgeAware", device=torch.device("cpu"))
    trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = epochs, 10, 2
    trainer.run_training()
    print(f"Dice: {trainer.logger.get_value('mean_fg_dice', step=-1):.3f}")
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
