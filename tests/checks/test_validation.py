"""Every invalid input raises an error that says what is expected, what it got, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edgeloss import EdgeAwareLoss, backends
from edgeloss._checks.options import HELP, Options
from edgeloss.functional import (
    balanced_edge_class_weight,
    edge_aware_loss,
    edge_weights,
    loss_maps,
    neighbor_nll,
    normalizers,
)
from edgeloss.numerics import check_gradients

X = torch.zeros(2, 3, 4, 5)
Y = torch.zeros(2, 4, 5, dtype=torch.long)
EACH = torch.zeros(2, 3, 4, 5, dtype=torch.long)  # labels of each class
NEAR = torch.ones(2, 8, 4, 5)  # weights of neighbors


def with_label(value: int, *positions: tuple[int, ...]) -> torch.Tensor:
    y = Y.clone()
    for position in positions:
        y[position] = value
    return y


# fmt: off
CALLS: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    # logits
    (X.numpy(), Y, {}, TypeError, "logits: expected a tensor, but got numpy.ndarray; pass torch.as_tensor(logits)"),
    (X.long(), Y, {}, TypeError, "logits: expected float16, bfloat16, float32 or float64, but got int64 [2, 3, 4, 5]; pass the logits first, then the target"),
    (X.movedim(1, -1), Y, {}, ValueError, "but got [2, 4, 5]; for logits with the classes last pass logits.movedim(-1, 1)"),
    (X[0], Y[0], {}, ValueError, "logits: expected [B, C, H, W] or [B, C, D, H, W], but got float32 [3, 4, 5]; for a single image pass logits.unsqueeze(0)"),
    (X[:, :0], Y, {}, ValueError, "but got float32 [2, 0, 4, 5]"),
    ({"out": X, "aux": X}, Y, {}, TypeError, 'logits: expected a tensor, but got dict; pass output["out"]'),
    (SimpleNamespace(logits=X), Y, {}, TypeError, "logits: expected a tensor, but got types.SimpleNamespace; pass output.logits"),
    ((X, X), Y, {}, TypeError, "logits: expected a tensor, but got tuple; pass one of its tensors"),
    (X.to_sparse(), Y, {}, TypeError, "logits: expected a dense tensor, but got a sparse_coo one; pass logits.to_dense()"),
    (torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged), Y, {}, TypeError, "logits: expected a dense tensor, but got a nested one; pad the images"),
    (X.to("meta"), Y.to("meta"), {}, TypeError, "logits: expected a tensor with values, but got one on the meta device"),
    (X.to("meta"), Y.to("meta"), {"weight": torch.ones(3)}, ValueError, "weight: expected device meta, as the logits, but got cpu; move the loss with"),
    # target
    (X, Y.numpy(), {}, TypeError, "target: expected a tensor of class indices, but got numpy.ndarray; pass torch.as_tensor(target)"),
    (X, list(Y), {}, TypeError, "target: expected a tensor of class indices, but got list; pass torch.stack(target)"),
    (X, Image.fromarray(Y[0].byte().numpy()), {}, TypeError, "but got PIL.Image.Image; pass torch.as_tensor(numpy.asarray(target))"),
    (X, Y.to_sparse(), {}, TypeError, "target: expected a dense tensor, but got a sparse_coo one; pass target.to_dense()"),
    (X, Y.to("meta"), {}, ValueError, "target: expected device cpu, as the logits, but got meta"),
    (X, Y.float(), {}, TypeError, "target: expected class indices of dtype int64, int32, int16, uint8, bool, but got float32 [2, 4, 5]; pass target.long()"),
    (X, X.softmax(1), {}, TypeError, "but got float32 [2, 3, 4, 5]; pass target.long() for labels stored as floats, with multilabel=True where each class has its own, or edgeloss.adapters.as_labels(target, logits) for one-hot ones; for soft labels see the recipe in docs/training.md"),
    (X[:, :1], Y[:, None].float(), {}, TypeError, "but got float32 [2, 1, 4, 5]; pass target.squeeze(1).long()"),
    (X, Y.float().requires_grad_(), {}, ValueError, "target: expected class indices, which have no gradient, but got float32 [2, 4, 5] that requires grad; pass target.detach()"),
    (X[:1], Y[0], {}, ValueError, "target: expected [1, 4, 5] for logits [1, 3, 4, 5], but got [4, 5]; pass target.unsqueeze(0)"),
    (X, Y[..., None], {}, ValueError, "but got [2, 4, 5, 1]; pass target.squeeze(-1)"),
    (X, Y[:, None], {}, ValueError, "target: expected [2, 4, 5] for logits [2, 3, 4, 5], but got [2, 1, 4, 5]; pass target.squeeze(1)"),
    (X, EACH, {}, ValueError, "but got [2, 3, 4, 5]; pass edgeloss.adapters.as_labels(target, logits) if it is one-hot, or multilabel=True if classes may overlap"),
    (X, EACH.movedim(1, -1), {}, ValueError, "pass edgeloss.adapters.as_labels(target.movedim(-1, 1), logits) if it is one-hot with the classes last"),
    (X, Y[:1], {}, ValueError, "target: expected [2, 4, 5] for logits [2, 3, 4, 5], but got [1, 4, 5]"),
    (X, Y[:, :3], {}, ValueError, "but got [2, 3, 5]; for logits of lower resolution than the target pass upsample=True"),
    (X, Y[:, :3], {"upsample": True}, ValueError, "target: expected [2, *size] of at least the logits' resolution [4, 5] for logits [2, 3, 4, 5], but got [2, 3, 5]"),
    (X[..., :0], Y, {"upsample": True}, ValueError, "of at least the logits' resolution [4, 0] for"),
    (X, Y, {"multilabel": True}, ValueError, "target: expected [2, 3, 4, 5] for logits [2, 3, 4, 5], but got [2, 4, 5]; pass labels for each class, or multilabel=False"),
    (X, EACH.movedim(1, -1), {"multilabel": True}, ValueError, "but got [2, 4, 5, 3]; pass target.movedim(-1, 1)"),
    (X[..., :3], EACH, {"multilabel": True}, ValueError, "but got [2, 3, 4, 5]; for logits of lower resolution than the target pass upsample=True"),
    # labels
    (X, with_label(7, (0, 1, 2), (1, 0, 0)), {}, ValueError, "target: expected labels 0 to 2, or ignore_index=-100, but got 7 at 2 pixels, first at [0, 1, 2]"),
    (X, with_label(-1, (1, 3, 4)), {"ignore_index": 255, "validate": "sync"}, ValueError, "or ignore_index=255, but got -1 at 1 pixel, first at [1, 3, 4]"),
    (X, with_label(7, (0, 0, 1)) - with_label(2, (1, 1, 1)), {}, ValueError, "but got 7 at 1 pixel, first at [0, 0, 1], and other labels out of range at 1 pixel more"),
    (X, with_label(-100, (0, 0, 1)), {"ignore_index": None}, ValueError, "target: expected labels 0 to 2, but got -100 at 1 pixel"),
    (X[:, :1], with_label(2, (0, 0, 0)), {}, ValueError, "target: expected labels 0 or 1 (one logit per pixel is binary), or ignore_index=-100, but got 2"),
    (X, torch.stack([Y, Y, with_label(2, (1, 0, 4))], 1), {"multilabel": True}, ValueError, "expected labels 0 or 1 (one logit per pixel is binary), or ignore_index=-100, but got 2 at 1 pixel, first at [1, 2, 0, 4]"),
    # other tensors of another number of classes, or of each class
    (X[:, :1], Y, {"weight": torch.ones(1)}, ValueError, "weight: expected 2 class weights (labels 0 and 1 of one logit), but got 1"),
    (X, EACH, {"multilabel": True, "weight": torch.ones(2)}, ValueError, "weight: expected [3], or [3, 2] for labels 0 and 1 of each class, but got [2]"),
    (X, EACH, {"multilabel": True, "weight": torch.ones(3, 2, 1)}, ValueError, "weight: expected a floating tensor [C] or [C, 2] of class"),
    (X, EACH, {"multilabel": True, "pixel_weight": torch.ones(2, 5, 5)}, ValueError, "pixel_weight: expected [2, 4, 5], but got [2, 5, 5]"),
    (X, EACH, {"multilabel": True, "distance": torch.ones(2, 4, 5), "decay": 1.0}, ValueError, "distance: expected [2, 3, 4, 5], but got"),
    (X, with_label(1, (0, 0, 0)), {"distance": -torch.ones(2, 4, 5), "decay": 1.0}, ValueError, "distance: expected finite values ≥ 0, but got -1.0 at [0, 0, 0]"),
    (X, Y, {"pixel_weight": Y}, TypeError, "pixel_weight: expected a floating tensor, but got int64 [2, 4, 5]; pass pixel_weight.float()"),
    (X, Y, {"pixel_weight": 2.0}, TypeError, "pixel_weight: expected a floating tensor, but got float"),
    (X, Y, {"pixel_weight": torch.ones(2, 4, 5).to_sparse()}, TypeError, "pixel_weight: expected a dense tensor"),
    (X, Y, {"pixel_weight": torch.ones(2, 1, 4, 5)}, ValueError, "pixel_weight: expected [2, 4, 5], but got [2, 1, 4, 5]; pass pixel_weight.squeeze(1)"),
    (X, Y, {"pixel_weight": torch.ones(2, 4, 5, device="meta")}, ValueError, "pixel_weight: expected device cpu, as the logits, but got meta"),
    (X, Y, {"pixel_weight": -torch.ones(2, 4, 5)}, ValueError, "pixel_weight: expected finite values ≥ 0, but got -1.0 at [0, 0, 0] (40 such values)"),
    (X, Y, {"pixel_weight": torch.full((2, 4, 5), 1e300, dtype=torch.float64)}, ValueError, "pixel_weight: expected values ≤ 1e+12, but got 1e+300 at [0, 0, 0] (40 such values)"),
    (X, Y, {"distance": torch.ones(2, 4, 5)}, ValueError, "distance: expected decay with it"),
    (X, Y, {"distance": torch.ones(2, 4), "decay": 1.0}, ValueError, "distance: expected [2, 4, 5], but got [2, 4]"),
    (X, Y, {"normalizer": 3.0}, TypeError, "normalizer: expected (W, n), as functional.normalizers returns it, but got 3.0"),
    (X, Y, {"normalizer": (torch.ones(2), 1.0)}, ValueError, "normalizer: expected W as a number or a 0-d tensor, but got float64 [2]"),
    (X, Y, {"normalizer": (torch.tensor(1j), 1.0)}, ValueError, "normalizer: expected real tensors, but got complex64 []"),
    (X, Y, {"normalizer": (torch.ones((), device="meta"), 1.0)}, TypeError, "normalizer: expected a tensor with values, but got one on the meta device"),
    (X, Y, {"normalizer": (-1.0, 1.0)}, ValueError, "normalizer: expected finite numbers ≥ 0, but got (-1.0, 1.0)"),
    (X, Y, {"normalizer": (torch.tensor(1e-310, dtype=torch.float64), 1.0)}, ValueError, "normalizer: expected 0, or numbers in [1e-20, 1e30]"),
    (X, Y, {"normalizer": (10**400, 1.0)}, ValueError, "normalizer: expected 0, or numbers in [1e-20, 1e30]"),
    (X, Y, {"weight": torch.ones(4)}, ValueError, "weight: expected 3 class weights, but got 4"),
    (X, Y, {"edge_class_weight": "banana"}, ValueError, "edge_class_weight: expected a tensor, 'balanced' or None, but got 'banana'"),
    (X, Y, {"radius": (1, 1, 1)}, ValueError, "radius: expected an int, or 2 ints, one per spatial axis, but got (1, 1, 1)"),
    (X, Y, {"decay": 1.0, "spacing": (1.0, 1.0, 1.0)}, ValueError, "spacing: expected a number > 0, or 2 of them, one per spatial axis, but got (1.0, 1.0, 1.0)"),
    (X, Y, {"edge_wieght": 1.0}, TypeError, "edge_aware_loss() got an unexpected keyword argument 'edge_wieght'; did you mean 'edge_weight'?"),
    (X, Y, {"softmax": True}, TypeError, "unexpected keyword argument 'softmax'; leave it out: the loss takes logits"),
    (X, Y, {"class_weights": 1}, TypeError, "unexpected keyword argument 'class_weights'; pass weight for the cross-entropy"),
    (X, Y, {"edge_wait": 1}, TypeError, "unexpected keyword argument 'edge_wait'; did you mean 'edge_weight'?"),
    (X[:, 0], Y, {}, ValueError, "logits: expected [B, C, H, W] or [B, C, D, H, W], but got float32 [2, 4, 5]; for one logit per pixel pass logits.unsqueeze(1)"),
    (X[:, :2], with_label(255, (0, 0, 1)), {}, ValueError, "first at [0, 0, 1]; if 255 is the foreground pass (target == 255).long(): ignore_index=255 would ignore all of it"),
]

OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [  # of the module and the function
    ({"reduction": "avg"}, ValueError, "reduction: expected one of ('mean', 'sum', 'none'), but got 'avg'"),
    ({"ignore_index": 255.0}, TypeError, "ignore_index: expected an int or None, but got 255.0"),
    ({"ignore_index": 2**70}, ValueError, "ignore_index: expected a 64-bit int, but got 1180591620717411303424"),
    ({"label_smoothing": 1.5}, ValueError, "label_smoothing: expected a number in [0, 1], but got 1.5"),
    ({"ce_weight": -1.0}, ValueError, "ce_weight: expected a finite number ≥ 0, but got -1.0"),
    ({"other_side_weight": float("nan")}, ValueError, "other_side_weight: expected a finite number ≥ 0, but got nan"),
    ({"region_weight": 1e39}, ValueError, "region_weight: expected a number ≤ 1e+12, but got 1e+39; scale all weights down"),
    ({"edge_weight": 1e8, "same_side_weight": 1e8}, ValueError, "edge_weight · same_side_weight: expected at most 1e+12, but got 100000000.0 · 100000000.0"),
    ({"radius": 0}, ValueError, "radius: expected ≥ 0 along every axis and ≥ 1 along at least one, but got 0"),
    ({"radius": (1, -1)}, ValueError, "≥ 1 along at least one, but got (1, -1)"),
    ({"radius": 1.5}, TypeError, "radius: expected an int, or one int per axis, but got 1.5"),
    ({"radius": np.array([1.5, 2])}, TypeError, "radius: expected an int, or one int per axis, but got [1.5, 2.0]"),
    ({"radius": 2**63}, ValueError, "radius: expected 64-bit ints, but got 9223372036854775808; it needs not exceed"),
    ({"radius": (1, 1, 1, 1)}, ValueError, "radius: expected one number, or 2 or 3, one per spatial axis, but got (1, 1, 1, 1)"),
    ({"power": float("inf")}, ValueError, "power: expected a number in [-1e6, 1e6], but got inf"),
    ({"decay": 0.0}, ValueError, "decay: expected a finite number > 0, or None, but got 0.0"),
    ({"decay": 1e200}, ValueError, "decay: expected a number in [1e-100, 1e100], but got 1e+200; use another unit"),
    ({"spacing": (1.0,), "decay": 1.0}, ValueError, "spacing: expected one number, or 2 or 3, one per spatial axis, but got (1.0,)"),
    ({"spacing": (1.0, 2.0)}, ValueError, "spacing: expected decay with it, but got decay=None, spacing=(1.0, 2.0); pass the decay length"),
    ({"edge_focus": -1.0}, ValueError, "edge_focus: expected a number in [0, 1000], but got -1.0"),
    ({"edge_focus": float("nan")}, ValueError, "edge_focus: expected a number in [0, 1000], but got nan"),
    ({"ignore_index": [0, 255]}, TypeError, "ignore_index: expected an int or None, but got [0, 255]; pass ignore_index=255 and the target torch.where(torch.isin("),
    ({"spacing": (1.0, -1.0)}, ValueError, "spacing: expected a number > 0"),
    ({"spacing": 1e-200}, ValueError, "spacing: expected numbers in [1e-100, 1e100], but got 1e-200; use another unit"),
    ({"spacing": -torch.ones(2), "decay": 1.0}, ValueError, "spacing: expected a number > 0, or 2 of them, one per spatial axis, but got [-1.0, -1.0]"),
    ({"upsample": 2}, TypeError, "upsample: expected a bool, but got 2"),
    ({"weight": [1.0, 2.0, 3.0]}, TypeError, "weight: expected a tensor [C] of class weights, but got list; pass torch.tensor(weight, dtype=torch.float32)"),
    ({"weight": torch.ones(3, 1)}, ValueError, "weight: expected a floating tensor [C] of class weights, but got float32 [3, 1]"),
    ({"weight": torch.ones(3).long()}, ValueError, "weight: expected a floating tensor [C] of class weights, but got int64 [3]; pass weight.float()"),
    ({"weight": torch.tensor([1.0, -1.0, 1.0])}, ValueError, "weight: expected finite values ≥ 0, but got -1.0 at [1]"),
    ({"weight": torch.ones(3, device="meta")}, TypeError, "weight: expected a tensor with values, but got one on the meta device"),
    ({"edge_class_weight": torch.tensor([1.0, 1.0, float("nan")])}, ValueError, "edge_class_weight: expected finite values ≥ 0, but got nan at [2]"),
    ({"edge_class_weight": torch.full((3,), 1e30)}, ValueError, "edge_class_weight: expected values ≤ 1e+12, but got 1.0000000150474662e+30 at [0]"),
    ({"lable_smoothing": 0.1}, TypeError, "unexpected keyword argument 'lable_smoothing'; did you mean 'label_smoothing'?"),
]

balanced = partial(balanced_edge_class_weight, num_classes=3)
each_class = EdgeAwareLoss(torch.ones(2), multilabel=True)
FUNCTIONS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: EdgeAwareLoss(edge_class_weight="banana"), ValueError, "edge_class_weight: expected a tensor, 'balanced' or None, but got 'banana'"),
    (lambda: EdgeAwareLoss([1, 2, 3]), TypeError, "weight: expected a tensor [C] of class weights, but got list; pass torch.tensor(weight, dtype=torch.float32)"),
    (lambda: EdgeAwareLoss(num_classes=3), TypeError, "unexpected keyword argument 'num_classes'"),
    (lambda: EdgeAwareLoss()(X, Y, pixel_weights=None), TypeError, "unexpected keyword argument 'pixel_weights'; did you mean 'pixel_weight'?"),
    (lambda: check_gradients(torch.tanh, X, epsilon=1e-6), TypeError, "unexpected keyword argument 'epsilon'; did you mean 'eps'?"),
    (lambda: EdgeAwareLoss().of_class(0), ValueError, "multilabel: expected True for a loss of one class, but got False"),
    (lambda: each_class.of_class("a"), TypeError, "index: expected an int, but got 'a'"),
    *((lambda n=n: each_class.of_class(n), ValueError, f"index: expected the number of a class, from 0, but got {n}") for n in (-1, 2)),
    (lambda: normalizers(Y.float()), TypeError, "target: expected class indices of dtype"),
    (lambda: normalizers(Y[0]), ValueError, "target: expected [B, H, W] or [B, D, H, W], but got [4, 5]; for a single image pass"),
    (lambda: normalizers(Y, multilabel=True), ValueError, "target: expected [B, C, H, W] or [B, C, D, H, W], but got [2, 4, 5]; for a single image pass target.unsqueeze(0)"),
    (lambda: normalizers(Y + 3, weight=torch.ones(3)), ValueError, "but got 3 at 40 pixels"),
    (lambda: normalizers(Y - 1), ValueError, "target: expected labels ≥ 0, or ignore_index=-100, but got -1 at 40 pixels"),
    (lambda: normalizers(Y, weight=torch.ones(3), edge_class_weight=torch.ones(4)), ValueError, "edge_class_weight: expected 3 class weights, but got 4"),
    (lambda: balanced(Y), TypeError, "targets: expected several tensors, but got one, int64 [2, 4, 5]; pass [targets]"),
    (lambda: balanced("labels"), TypeError, "targets: expected an iterable of tensors [B, *S], but got str"),
    (lambda: balanced([(X, Y)]), TypeError, "targets: expected tensors of labels, but got a tuple; for batches of a loader pass (labels for _, labels in"),
    (lambda: balanced([Y + 3]), ValueError, "target: expected labels 0 to 2, or ignore_index=-100, but got 3 at 40 pixels"),
    (lambda: balanced([EACH[:, :2]], multilabel=True), ValueError, "target: expected [B, 3, H, W] or [B, 3, D, H, W], but got [2, 2, 4, 5]"),
    (lambda: balanced([Y], exponent=float("nan")), ValueError, "exponent: expected a number in [0, 1], but got nan"),
    (lambda: balanced([], radius=-1), ValueError, "radius: expected ≥ 0 along every axis"),
    (lambda: balanced_edge_class_weight([Y], 2.0), TypeError, "num_classes: expected an int, but got 2.0"),
    (lambda: edge_weights(Y, 1), ValueError, "num_classes: expected an int ≥ 2, but got 1"),
    (lambda: edge_weights(Y + 3, 3), ValueError, "target: expected labels 0 to 2, or ignore_index=-100, but got 3 at 40 pixels"),
    (lambda: edge_weights(with_label(1, (0, 0, 0)), 3, distance=-torch.ones(2, 4, 5), decay=1.0), ValueError, "distance: expected finite values ≥ 0"),
    (lambda: edge_weights(Y, 5, edge_class_weight=torch.ones(4)), ValueError, "edge_class_weight: expected 5 class weights, but got 4"),
    (lambda: neighbor_nll(X[0], Y, NEAR), ValueError, "logits: expected [B, C, H, W]"),
    (lambda: neighbor_nll(X[:, :1], Y, NEAR), ValueError, "logits: expected at least 2 classes"),
    (lambda: neighbor_nll(X, [0], NEAR), TypeError, "index: expected a tensor of class indices, but got list"),
    (lambda: neighbor_nll(X, Y.float(), NEAR), TypeError, "index: expected class indices of dtype"),
    (lambda: neighbor_nll(X, Y + 3, NEAR), ValueError, "index: expected labels 0 to 2, but got 3 at 40 pixels"),
    (lambda: neighbor_nll(X, Y.to("meta"), NEAR), ValueError, "index: expected device cpu, as the logits, but got meta"),
    (lambda: neighbor_nll(X, EACH + 2, NEAR), ValueError, "index: expected an indicator [B, C, *S] of 0 and 1"),
    (lambda: neighbor_nll(X, EACH, NEAR), ValueError, "index: expected at least one class"),
    (lambda: neighbor_nll(X, Y, NEAR[:, :7]), ValueError, "weight: expected [2, 8, 4, 5], but got [2, 7, 4, 5]"),
    (lambda: neighbor_nll(X, Y, NEAR.long()), TypeError, "weight: expected a floating tensor, but got int64"),
    (lambda: neighbor_nll(X, Y, -NEAR), ValueError, "weight: expected finite values ≥ 0, but got -1.0 at [0, 0, 0, 0]"),
    (lambda: neighbor_nll(X, Y, NEAR, [True]), TypeError, "mask: expected a bool tensor, but got list"),
    (lambda: neighbor_nll(X, Y, NEAR, NEAR[:, 0]), TypeError, "mask: expected a bool tensor, but got float32 [2, 4, 5]; pass mask.bool()"),
    (lambda: neighbor_nll(X, Y, NEAR, NEAR[:, 0].bool().to_sparse()), TypeError, "mask: expected a dense tensor, but got a sparse_coo one"),
    (lambda: neighbor_nll(X, Y, NEAR, backend="fast"), ValueError, "backend: expected one of ('auto', 'fused', 'reference'), but got 'fast'"),
]
# fmt: on


@pytest.mark.parametrize(("logits", "target", "options", "error", "message"), CALLS)
@pytest.mark.usefixtures("each_backend")
def test_call(logits: Any, target: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        edge_aware_loss(logits, target, **options)


@pytest.mark.parametrize("function", [EdgeAwareLoss, partial(edge_aware_loss, X, Y)])
@pytest.mark.parametrize(("options", "error", "message"), OPTIONS)
def test_options(options: dict[str, Any], error: type[Exception], message: str, function: Any) -> None:
    with pytest.raises(error, match=re.escape(message)):
        function(**options)


@pytest.mark.parametrize(("call", "error", "message"), FUNCTIONS)
def test_functions(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize("name", HELP)
def test_every_option_is_checked(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name}: expected .*, but got"):
        Options(**{name: "x"})


def test_nothing_is_checked_when_not_validated() -> None:
    weight = -torch.ones(2, 4, 5)
    assert edge_aware_loss(X, Y, pixel_weight=weight, validate="never", reduction="sum") < 0


@pytest.mark.usefixtures("each_backend")
def test_distance_is_checked_wherever_it_is_read() -> None:
    x, y = torch.randn(2, 3, 4, 5), Y.clone()
    y[..., 0] = 1  # edge pixels in columns 0 and 1; column 2 holds neighbors of theirs, column 3 none
    field = torch.ones(2, 4, 5)
    expected = edge_aware_loss(x, y, distance=field, decay=1.0)
    field[..., 3] = torch.nan
    assert edge_aware_loss(x, y, distance=field, decay=1.0) == expected
    field[..., 2] = torch.nan
    with pytest.raises(ValueError, match=r"distance: expected finite values ≥ 0, but got nan at \[0, 0, 2\]"):
        edge_aware_loss(x, y, distance=field, decay=1.0)


@pytest.mark.parametrize("function", [EdgeAwareLoss, partial(edge_aware_loss, X, Y), partial(loss_maps, X, Y)])
def test_a_removed_keyword_warns_or_raises(function: Any) -> None:
    with pytest.warns(FutureWarning, match="false_edge_weight: removed in version 0.3.*; leave it out") as warned:
        function(false_edge_weight=0)
    assert warned[0].filename == __file__
    for value in (0.5, None):
        message = f"false_edge_weight: expected no such argument since version 0.3, but got {value}; leave it out: the"
        with pytest.raises(TypeError, match=message):
            function(false_edge_weight=value)


@pytest.mark.parametrize("wrap", [lambda f: f, torch.func.grad], ids=["value", "gradient"])
def test_vmap(wrap: Any) -> None:
    loss = wrap(lambda x, y: edge_aware_loss(x[None], y[None]))
    with pytest.raises(RuntimeError, match=r"logits: expected a call without vmap; pass a batch \[B, ...\] directly"):
        torch.func.vmap(loss)(X, Y)
    with pytest.raises(RuntimeError, match="normalizer: expected a call without vmap"):
        torch.func.vmap(lambda total: edge_aware_loss(X, Y, normalizer=(total, 1.0)))(torch.ones(2))


def test_numpy_scalars_are_numbers() -> None:
    x, y = torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5))
    plain = {"radius": 2, "edge_weight": 0.25, "decay": 2.0, "spacing": (0.5, 0.5), "ignore_index": 1}
    of_numpy = {"radius": np.int64(2), "edge_weight": np.float32(0.25), "decay": np.float64(2)}
    of_numpy |= {"spacing": (np.float32(0.5), 0.5), "ignore_index": np.int64(1)}
    assert edge_aware_loss(x, y, **plain) == edge_aware_loss(x, y, **of_numpy)


@pytest.mark.parametrize(
    ("logits", "options", "reason"),
    [
        (X, {"decay": 1e-7}, "the kernels are for spacing / decay in [1e-25, 1e6]"),
        (torch.zeros(2, 1, 1, 1).expand(2, 2**15, 4, 5), {}, "the kernels are for less than 2^15 classes"),
    ],
)
def test_fused_backend_gives_the_reason(logits: torch.Tensor, options: dict[str, Any], reason: str) -> None:
    if backends()["cpu"] != "available":
        reason = backends()["cpu"].removeprefix("unavailable: ")
    with pytest.raises(RuntimeError, match=re.escape(f"backend: 'fused' does not support this call: {reason}")):
        edge_aware_loss(logits, Y, backend="fused", **options)
    assert edge_aware_loss(logits, Y, **options) == edge_aware_loss(logits, Y, backend="reference", **options)
