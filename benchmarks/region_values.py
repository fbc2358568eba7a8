"""Print the region term of typical predictions at several sizes of image, and the least value that a search finds.

python benchmarks/region_values.py
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss.functional import edge_aware_loss

SIZES = 64, 128, 256
CELL = 8  # labels are squares of so many pixels
STEPS = 200


def region_term(logits: Tensor, target: Tensor) -> Tensor:
    """Return R of a batch."""
    return edge_aware_loss(logits, target, ce_weight=0.0, edge_weight=0.0, region_weight=1.0)


def predictions(target: Tensor, classes: int) -> dict[str, Tensor]:
    """Return logits [B, C, H, W] by name for labels [B, H, W]."""
    right = F.one_hot(target, classes).movedim(-1, 1).double()
    noise = torch.randn(right.shape, dtype=torch.float64)
    thick = F.max_pool2d(right[:, 1:2], 5, 1, 2)  # class 1 grows by two pixels
    return {
        "the labels": 60 * right,
        "logits of 0 and 10 for the label": 10 * right,
        "good: 3 for the label, and noise": 3 * right + noise,
        "noise": noise,
        "constant": 0 * noise,
        "inverted: 0, and -10 for the label": -10 * right,
        "classes 0 and 1 exchanged": 10 * torch.cat([right[:, [1, 0]], right[:, 2:]], 1),
        "class 1 thickened by two pixels": 10 * torch.cat([right[:, :1], right[:, 1:2] + 2 * thick, right[:, 2:]], 1),
    }


def table(classes: int) -> list[str]:
    """Return rows of a table in Markdown: a column per size."""
    columns = []
    for size in SIZES:
        target = torch.randint(classes, (4, size // CELL, size // CELL))
        target = target.repeat_interleave(CELL, 1).repeat_interleave(CELL, 2)
        columns.append({name: region_term(x, target).item() for name, x in predictions(target, classes).items()})
    return [f"| {name} | {' | '.join(f'{column[name]:.3f}' for column in columns)} |" for name in columns[0]]


def scenes() -> dict[str, Tensor]:
    """Return labels [H, W] by name: small things of class 1, at every place below the averages."""
    found = {}
    for row, column in itertools.product(range(21, 24), range(18, 21)):
        for name, place in {
            "pixel": (row, column),
            "line": (row, slice(5, 35)),
            "pixel next to a large area": (row, column),
            "blob": (slice(row, row + 3), slice(column, column + 3)),
        }.items():
            target = torch.zeros(48, 42, dtype=torch.int64)
            target[place] = 1
            if "area" in name:
                target[:10] = 1
            found[f"{name} at {row}, {column}"] = target
    return found


def lowest(target: Tensor) -> float:
    """Return the least term that gradient descent from the labels finds."""
    logits = (8.0 * target.double() - 4).view(1, 1, *target.shape).requires_grad_()
    optimizer, least = torch.optim.Adam([logits], lr=0.2), 1.0
    for _ in range(STEPS):
        value = region_term(logits, target[None])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        least = min(least, value.item())
    return least


def main() -> None:
    """Print the tables."""
    for classes in (2, 4, 19):
        torch.manual_seed(0)
        print(f"| {classes} classes | {' | '.join(f'{size}²' for size in SIZES)} |\n|---|{'--:|' * len(SIZES)}")
        print("\n".join(table(classes)), end="\n\n")
    print("The least value, by descent on the term alone:")
    for name, target in scenes().items():
        print(f"    {name}: {lowest(target):.4f}", flush=True)


if __name__ == "__main__":
    main()
