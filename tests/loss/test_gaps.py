"""Logits that are nearly sure: every element of the gradient keeps its digits, on both sides of an edge."""

from __future__ import annotations

import brute_force
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from columns import Column, each_column
from torch import Tensor

IGNORED = 255
GAPS = [12.0, 20.0, 60.0, 200.0, 1e30]
ROUNDINGS = 16  # that may add up in an element
# The columns of pixels next to the edge; the label of one ignored pixel is another one.
TARGET = torch.tensor([[[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, IGNORED, 1], [0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]])


def exact_gradient(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of logits [C, H, W], what adds up in it without signs, and the difference of p and 1 at y.

    That of A · -log p(y) is A · (p - onehot(y)), and that of B · -log(1 - p(k)) is B · p(k) at k and
    -B · p(k) · softmax(others) elsewhere. All are float64 and none is a difference.
    """
    ones = np.ones(y.shape)
    same_side, other_side = brute_force.edge_weights(y.numpy(), ones, ones, ignore_index=IGNORED, radius=(1, 1))
    # Each edge pixel has both sides here.
    a, b = torch.from_numpy(same_side / same_side.sum()), torch.zeros(*y.shape, 2, dtype=torch.float64)
    for (n, k), weight in other_side.items():
        b.view(-1, 2)[n, k] = weight / same_side.sum()
    valid = y != IGNORED
    a += valid.double() / valid.sum()
    x = x.double().movedim(0, -1)
    p, onehot = x.softmax(-1), F.one_hot(torch.where(valid, y, 0), x.shape[-1]).bool()
    rest = p.masked_fill(onehot, 0.0).sum(-1, keepdim=True)
    parts = [a[..., None] * torch.where(onehot, -rest, p)]
    for k in (0, 1):
        share = -x.index_fill(-1, torch.tensor(k), -torch.inf).softmax(-1)
        share[..., k] = 1.0
        parts.append(b[..., k : k + 1] * p[..., k : k + 1] * share)
    magnitude = torch.stack(parts).abs().sum(0)
    return sum(parts).movedim(-1, 0), magnitude.movedim(-1, 0), (a[..., None] * onehot).movedim(-1, 0)


def logits_of(kind: str, gap: float, classes: int) -> Tensor:
    """Return logits of which some lead by a gap: that of the label, or across the edge that of the other class."""
    y = torch.where(TARGET == IGNORED, 1, TARGET)
    x = torch.randn(1, max(2, classes), *y.shape[1:], dtype=torch.float64)
    sure = y.clone()
    if kind != "right":
        sure[..., 2:4] = 1 - sure[..., 2:4]
    x.scatter_(1, sure[:, None], gap)
    if kind == "wrong next to unsure":
        x[..., :2] = torch.randn(1, max(2, classes), 4, 2, dtype=torch.float64)
    return x[:, 1:] - x[:, :1] if classes == 1 else x


@each_column
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("classes", [1, 2, 3, 19, 150])
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("kind", ["right", "wrong", "wrong next to unsure"])
def test_each_element(kind: str, gap: float, classes: int, dtype: torch.dtype, column: Column) -> None:
    x = logits_of(kind, gap, classes).to(dtype).requires_grad_()
    loss = column.loss(x, TARGET, ignore_index=IGNORED)
    (found,) = torch.autograd.grad(loss, x)
    exact = x.detach().double()
    exact = torch.cat([torch.zeros_like(exact), exact], 1) if classes == 1 else exact
    expected, magnitude, of_one = (values[-classes:] for values in exact_gradient(exact[0], TARGET[0]))
    if column.backend == "reference":  # PyTorch's derivative of a softmax is p - 1
        magnitude = magnitude + of_one
    # The logits themselves differ from their maximum by a rounding of the gap.
    rounding = (ROUNDINGS + min(gap, 200)) * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    allowed = rounding * magnitude + torch.finfo(dtype).eps * expected.abs() + float(torch.finfo(dtype).tiny)
    off = (found[0].double() - expected).abs()
    assert (off <= allowed).all(), (off / allowed).max()


@each_column
@pytest.mark.parametrize("classes", [1, 2, 4, 19, "multilabel"])
@pytest.mark.parametrize("gap", GAPS)
def test_each_element_of_the_region_term(gap: float, classes: int | str, column: Column) -> None:
    multilabel = classes == "multilabel"
    count, shape = (2, (2, 3, 6, 6)) if multilabel else (max(2, int(classes)), (2, 6, 6))
    y = torch.randint(count, shape).repeat_interleave(8, -1).repeat_interleave(8, -2)
    label = (2 * y - 1) if multilabel else F.one_hot(y, count).movedim(-1, 1)
    x = gap * label + torch.randn(label.shape)
    x = x[:, 1:] - gap / 2 if classes == 1 else x
    x[..., 20:23, 20:24] *= -1  # wrong ones are among them
    options = {"ce_weight": 0.0, "edge_weight": 0.0, "region_weight": 1.0, "multilabel": multilabel}
    gradients = []
    for logits, each in ((x.double(), Column("reference")), (x, column)):
        logits.requires_grad_()
        gradients += torch.autograd.grad(each.loss(logits, y, **options), logits)
    expected, found = gradients[0], gradients[1].double()
    assert expected.any() or gap > 100
    # That of class c is p(c) times the difference of its slope from the mean slope of the pixel.
    unit = expected.abs()
    if classes not in (1, "multilabel"):
        p = x.detach().double().softmax(1)
        unit = p * torch.where(p > 0, unit / p, 0.0).amax(1, keepdim=True)
    off = (found - expected).abs()
    assert (off <= 1e-4 * expected.abs() + 1e-6 * unit + 1e-35).all()
