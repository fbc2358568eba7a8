"""The prototypes of benchmarks/gpu, in Triton's interpreter: they agree with the kernels that they would replace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks/gpu"))

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("make test runs it in a process with TRITON_INTERPRET=1", allow_module_level=True)

import interpreted  # noqa: E402, F401
from prototypes import replacements  # noqa: E402

from edgeloss._kernels import library  # noqa: E402
from edgeloss.functional import edge_aware_loss  # noqa: E402

SIDES, LOGITS = {"find_sides", "weigh_pixels"}, {"forward", "backward"}
LABELS = SIDES | {"read_labels"}
REGIONS = {"averages", "products", "solve", "slopes"}
# The shape of the logits, options, and what prototypes replace.
CALLS: list[tuple[tuple[int, ...], dict[str, Any], set[str]]] = [
    ((2, 3, 10, 13), {"scale": 20.0, "decay": 2.0}, SIDES | LOGITS | REGIONS),
    ((1, 1, 9, 33), {"pixel_weight": True}, LABELS | LOGITS | REGIONS),
    (
        (1, 5, 11, 12),
        {"channels_last": True, "label_smoothing": 0.1, "weight": True, "radius": 2},
        LABELS | LOGITS | REGIONS,
    ),
    ((1, 3, 9, 210), {"dtype": torch.bfloat16}, LABELS | LOGITS | REGIONS),
    ((1, 2, 8, 9, 10), {"label_smoothing": 0.2}, LABELS | LOGITS | REGIONS),
    ((1, 2, 13, 14, 13), {"scale": 20.0}, LABELS | LOGITS | REGIONS),
    ((1, 40, 10, 12), {"region_weight": 1.0, "reduction": "sum"}, LABELS | {"backward"} | REGIONS - {"averages"}),
    ((1, 37, 9, 14), {"label_smoothing": 0.1, "region_weight": 0.0, "scale": 20.0}, LABELS | {"backward"}),
    ((1, 3, 7, 9), {"region_weight": 0.0, "radius": 4}, LABELS | LOGITS),
    ((1, 4, 9, 40), {"region_weight": 0.0, "radius": (2, 11), "pixel_weight": True}, LABELS | LOGITS),
    ((1, 4, 9, 31), {"region_weight": 0.0, "radius": (1, 8), "decay": 1.5}, SIDES | LOGITS),
    ((1, 2, 5, 9, 8), {"region_weight": 0.0, "decay": 3.0}, SIDES | LOGITS),
    ((1, 3, 3, 4), {"upsample": True}, LABELS | REGIONS - {"averages"}),
    ((1, 2, 32, 80), {"region_weight": 0.0, "radius": 3, "dot": (19, 33)}, LABELS | LOGITS),
]


def inputs(shape: tuple[int, ...], options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits, and labels in blobs, of which some are ignored."""
    torch.manual_seed(0)
    x = options.pop("scale", 2.0) * torch.randn(shape, dtype=options.pop("dtype", torch.float32))
    if options.pop("channels_last", False):
        x = x.to(memory_format=torch.channels_last)
    classes, size = max(2, shape[1]), [4 * n if options.get("upsample") else n for n in shape[2:]]
    blobs = torch.randint(classes, (shape[0], 1, *(-(-n // 6) for n in size))).float()
    y = torch.nn.functional.interpolate(blobs, size=size, mode="nearest")[:, 0].long()
    y[torch.rand(y.shape) < 0.03] = 255
    if dot := options.pop("dot", None):
        y.zero_()[(slice(None), *dot)] = 1  # alone, in the middle of a tile
    for name, weights in {"weight": classes, "pixel_weight": y.shape}.items():
        if options.pop(name, False):
            options[name] = torch.rand(weights) + 0.5
    return x.requires_grad_(), y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "options", "replaced"),
    [pytest.param(*call, id=str(call[0])) for call in CALLS],
)
def test_prototypes_agree(
    shape: tuple[int, ...], options: dict[str, Any], replaced: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "interprets", True)
    options = dict(options)
    x, y = inputs(shape, options)
    call = {"ignore_index": 255, "backend": "fused", **options}
    launches = replacements.launches_of(lambda: edge_aware_loss(x, y, **call).backward())
    prototypes = [*replacements.prototypes_of(launches)]
    assert {name for prototype in prototypes for name in prototype.replaces} == replaced
    for prototype in prototypes:
        assert prototype.error() == float("inf")  # before they write
        prototype.run()
        assert prototype.error() < (1e-2 if x.dtype == torch.bfloat16 else 2e-6), prototype.replaces
