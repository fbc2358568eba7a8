"""Every invalid input raises an error that says what is expected, what it got, and how to fix it."""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edgeloss import EdgeAwareLoss, backends
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, loss_maps, normalizers
from edgeloss.numerics import check_gradients

X = torch.zeros(2, 3, 4, 5)
Y = torch.zeros(2, 4, 5, dtype=torch.long)
EACH = torch.zeros(2, 3, 4, 5, dtype=torch.long)  # labels of each class


def with_label(value: int, *positions: tuple[int, ...]) -> torch.Tensor:
    y = Y.clone()
    for position in positions:
        y[position] = value
    return y


@pytest.mark.parametrize(
    ("logits", "target", "options", "error", "message"),
    [
        # logits
        (X.numpy(), Y, {}, TypeError, "logits: expected a tensor, but got numpy.ndarray; pass torch.as_tensor(logits)"),
        (X.long(), Y, {}, TypeError, "logits: expected float16, bfloat16, float32 or float64, but got int64 [2, 3, 4, 5]; pass the logits first, then the target"),
        (X.movedim(1, -1), Y, {}, ValueError, "but got [2, 4, 5]; for logits with the classes last pass logits.movedim(-1, 1)"),
        (X[0], Y[0], {}, ValueError, "logits: expected [B, C, H, W] or [B, C, D, H, W], but got float32 [3, 4, 5]; for a single image pass logits.unsqueeze(0)"),
        (X[:, :0], Y, {}, ValueError, "but got float32 [2, 0, 4, 5]"),
        # target
        (X, Y.numpy(), {}, TypeError, "target: expected a tensor of class indices, but got numpy.ndarray; pass torch.as_tensor(target)"),
        (X, Y.tolist(), {}, TypeError, "target: expected a tensor of class indices, but got list; pass torch.as_tensor(target)"),
        (X, list(Y), {}, TypeError, "target: expected a tensor of class indices, but got list; pass torch.stack(target)"),
        (X, Image.fromarray(Y[0].byte().numpy()), {}, TypeError, "but got PIL.Image.Image; pass torch.as_tensor(numpy.asarray(target))"),
        (X, None, {}, TypeError, "target: expected a tensor of class indices, but got NoneType"),
        (X, Y[..., None], {}, ValueError, "but got [2, 4, 5, 1]; pass target.squeeze(-1)"),
        (X, Y[..., None].expand(2, 4, 5, 3), {}, ValueError, "pass edgeloss.adapters.as_labels(target.movedim(-1, 1), logits) if it is one-hot with the classes last"),
        (X, Y[..., None].expand(2, 4, 5, 3), {"multilabel": True}, ValueError, "but got [2, 4, 5, 3]; pass target.movedim(-1, 1)"),
        (X, Y.float(), {}, TypeError, "target: expected class indices of dtype int64, int32, int16, uint8, bool, but got float32 [2, 4, 5]; pass target.long()"),
        (X, X.softmax(1), {}, TypeError, "but got float32 [2, 3, 4, 5]; pass target.long() for labels stored as floats, with multilabel=True where each class has its own, or edgeloss.adapters.as_labels(target, logits) for one-hot ones; for soft labels see the recipe in docs/training.md"),
        (X[:, :1], Y[:, None].float(), {}, TypeError, "but got float32 [2, 1, 4, 5]; pass target.squeeze(1).long()"),
        (X[:1], Y[0], {}, ValueError, "target: expected [1, 4, 5] for logits [1, 3, 4, 5], but got [4, 5]; pass target.unsqueeze(0)"),
        (X, Y[:, None], {"upsample": True}, ValueError, "target: expected [2, *size] of at least the logits' resolution [4, 5] for logits [2, 3, 4, 5], but got [2, 1, 4, 5]; pass target.squeeze(1)"),
        (X[..., :0], Y, {"upsample": True}, ValueError, "of at least the logits' resolution [4, 0] for"),
        (X, Y.to(torch.int8), {}, TypeError, "but got int8 [2, 4, 5]; pass target.long()"),
        (X, Y.float().requires_grad_(), {}, ValueError, "target: expected class indices, which have no gradient, but got float32 [2, 4, 5] that requires grad; pass target.detach()"),
        (X, Y[:, None], {}, ValueError, "target: expected [2, 4, 5] for logits [2, 3, 4, 5], but got [2, 1, 4, 5]; pass target.squeeze(1)"),
        (X, Y[:, None].expand(2, 3, 4, 5), {}, ValueError, "but got [2, 3, 4, 5]; pass edgeloss.adapters.as_labels(target, logits) if it is one-hot, or multilabel=True if classes may overlap"),
        (X, Y[:1], {}, ValueError, "target: expected [2, 4, 5] for logits [2, 3, 4, 5], but got [1, 4, 5]"),
        (X, Y[:, :3], {}, ValueError, "but got [2, 3, 5]; for logits of lower resolution than the target pass upsample=True"),
        (X, Y[:, :3], {"upsample": True}, ValueError, "target: expected [2, *size] of at least the logits' resolution [4, 5] for logits [2, 3, 4, 5], but got [2, 3, 5]"),
        (X, Y[:1], {"upsample": True}, ValueError, "target: expected [2, *size]"),
        ({"logits": X, "aux": X}, Y, {}, TypeError, 'logits: expected a tensor, but got dict; pass output["logits"]'),
        (OrderedDict(out=X), Y, {}, TypeError, 'logits: expected a tensor, but got collections.OrderedDict; pass output["out"]'),
        (SimpleNamespace(logits=X), Y, {}, TypeError, "logits: expected a tensor, but got types.SimpleNamespace; pass output.logits"),
        ((X, X), Y, {}, TypeError, "logits: expected a tensor, but got tuple; pass one of its tensors"),
        (X.to_sparse(), Y, {}, TypeError, "logits: expected a dense tensor, but got a sparse_coo one; pass logits.to_dense()"),
        (X.to_mkldnn(), Y, {}, TypeError, "logits: expected a dense tensor, but got a mkldnn one; pass logits.to_dense()"),
        (torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged), Y, {}, TypeError, "logits: expected a dense tensor, but got a nested one; pad the images"),
        (X.to("meta"), Y.to("meta"), {}, TypeError, "logits: expected a tensor with values, but got one on the meta device"),
        (X, Y.to_sparse(), {}, TypeError, "target: expected a dense tensor, but got a sparse_coo one; pass target.to_dense()"),
        (X, Y, {"pixel_weight": torch.ones(2, 4, 5).to_sparse()}, TypeError, "pixel_weight: expected a dense tensor"),
        (X, Y, {"edge_wieght": 1.0}, TypeError, "edge_aware_loss() got an unexpected keyword argument 'edge_wieght'; did you mean 'edge_weight'?"),
        (X, Y, {"xyz": 1.0}, TypeError, "edge_aware_loss() got an unexpected keyword argument 'xyz'"),
        (X, Y.to("meta"), {}, ValueError, "target: expected device cpu, as the logits, but got meta"),
        # labels
        (X, with_label(7, (0, 1, 2), (1, 0, 0)), {}, ValueError, "target: expected labels 0 to 2, or ignore_index=-100, but got 7 at 2 pixels, first at [0, 1, 2]"),
        (X, with_label(-1, (1, 3, 4)), {"ignore_index": 255}, ValueError, "or ignore_index=255, but got -1 at 1 pixel, first at [1, 3, 4]"),
        (X, with_label(255, (0, 0, 1)), {}, ValueError, "but got 255 at 1 pixel, first at [0, 0, 1]"),
        (X, with_label(7, (0, 0, 1)) - with_label(2, (1, 1, 1)), {}, ValueError, "but got 7 at 1 pixel, first at [0, 0, 1], and other labels out of range at 1 pixel more"),
        (X[:, :1], with_label(2, (0, 0, 0)), {}, ValueError, "target: expected labels 0 or 1 (one logit per pixel is binary), or ignore_index=-100, but got 2"),
        # other tensors
        (X, Y, {"weight": torch.ones(4)}, ValueError, "weight: expected 3 class weights, but got 4"),
        (X[:, :1], Y, {"weight": torch.ones(1)}, ValueError, "weight: expected 2 class weights (labels 0 and 1 of one logit), but got 1"),
        (X, Y, {"weight": torch.ones(3, 1)}, ValueError, "weight: expected a floating tensor [C] of class weights, but got float32 [3, 1]"),
        (X, Y, {"weight": torch.ones(3).long()}, ValueError, "weight: expected a floating tensor [C] of class weights, but got int64 [3]; pass weight.float()"),
        (X, Y, {"weight": [1.0, 1.0, 1.0]}, TypeError, "weight: expected a tensor [C] of class weights, but got list; pass torch.as_tensor(weight)"),
        (X, Y, {"weight": torch.tensor([1.0, -1.0, 1.0])}, ValueError, "weight: expected finite values ≥ 0, but got -1.0 at [1]"),
        (X, Y, {"weight": torch.tensor([1.0, 1.0, torch.nan])}, ValueError, "weight: expected finite values ≥ 0, but got nan at [2]"),
        (X, Y, {"edge_class_weight": torch.ones(4)}, ValueError, "edge_class_weight: expected 3 class weights, but got 4"),
        (X, Y, {"pixel_weight": torch.ones(2, 4, 4)}, ValueError, "pixel_weight: expected [2, 4, 5], but got [2, 4, 4]"),
        (X, Y, {"pixel_weight": Y}, TypeError, "pixel_weight: expected a floating tensor, but got int64 [2, 4, 5]; pass pixel_weight.float()"),
        (X, Y, {"pixel_weight": torch.ones(2, 1, 4, 5)}, ValueError, "pixel_weight: expected [2, 4, 5], but got [2, 1, 4, 5]; pass pixel_weight.squeeze(1)"),
        (X, Y, {"pixel_weight": 2.0}, TypeError, "pixel_weight: expected a floating tensor, but got float"),
        (X, Y, {"pixel_weight": torch.ones(2, 4, 5, device="meta")}, ValueError, "pixel_weight: expected device cpu, as the logits, but got meta"),
        (X, Y, {"pixel_weight": -torch.ones(2, 4, 5)}, ValueError, "pixel_weight: expected finite values ≥ 0, but got -1.0 at [0, 0, 0] (40 such values)"),
        (X, Y, {"distance": torch.ones(2, 4, 5)}, ValueError, "distance: expected decay with it"),
        (X, Y, {"distance": torch.ones(2, 4), "decay": 1.0}, ValueError, "distance: expected [2, 4, 5], but got [2, 4]"),
        (X, with_label(1, (0, 0, 0)), {"distance": -torch.ones(2, 4, 5), "decay": 1.0}, ValueError, "distance: expected finite values ≥ 0, but got -1.0 at [0, 0, 0]"),
        (X, with_label(1, (0, 0, 0)), {"distance": torch.full((2, 4, 5), torch.inf), "decay": 1.0}, ValueError, "distance: expected finite values ≥ 0, but got inf at [0, 0, 0]"),
        (X, Y, {"normalizer": 3.0}, TypeError, "normalizer: expected two numbers or 0-d tensors (W, E), but got 3.0"),
        (X, Y, {"normalizer": (torch.ones(2), 1.0)}, ValueError, "normalizer: expected real 0-d tensors, but got float32 [2]"),
        (X, Y, {"normalizer": (torch.tensor(1j), 1.0)}, ValueError, "normalizer: expected real 0-d tensors, but got complex64 []"),
        (X, Y, {"normalizer": (torch.ones((), device="meta"), 1.0)}, TypeError, "normalizer: expected a tensor with values, but got one on the meta device"),
        (X, Y, {"weight": torch.ones(3, device="meta")}, TypeError, "weight: expected a tensor with values, but got one on the meta device"),
        (X, Y, {"normalizer": (-1.0, 1.0)}, ValueError, "normalizer: expected finite numbers ≥ 0, but got (-1.0, 1.0)"),
        (X, Y, {"normalizer": (None, 1.0)}, TypeError, "normalizer: expected two numbers or 0-d tensors (W, E), but got (None, 1.0)"),
        (X, Y, {"normalizer": (-1.0, "x"), "reduction": "sum"}, TypeError, "normalizer: expected two numbers or 0-d tensors"),
        (X, Y, {"pixel_weight": torch.full((2, 4, 5), 1e300, dtype=torch.float64)}, ValueError, "pixel_weight: expected values ≤ 1e+12, but got 1e+300 at [0, 0, 0] (40 such values)"),
        (X, Y, {"pixel_weight": torch.full((2, 4, 5), torch.inf)}, ValueError, "pixel_weight: expected finite values ≥ 0, but got inf"),
        (X, Y, {"weight": torch.tensor([1e39, 1.0, 1.0], dtype=torch.float64)}, ValueError, "weight: expected values ≤ 1e+12, but got 1e+39 at [0] (1 such values)"),
        (X, Y, {"edge_class_weight": torch.full((3,), 1e30)}, ValueError, "edge_class_weight: expected values ≤ 1e+12, but got 1.0000000150474662e+30 at [0]"),
        (X, Y, {"normalizer": (1e-310, 1.0)}, ValueError, "normalizer: expected 0, or numbers in [1e-20, 1e30], but got (1e-310, 1.0); scale all weights"),
        (X, Y, {"normalizer": (torch.tensor(1e-310, dtype=torch.float64), 1.0)}, ValueError, "normalizer: expected 0, or numbers in [1e-20, 1e30]"),
        (X, Y, {"normalizer": (10**400, 1.0)}, ValueError, "normalizer: expected 0, or numbers in [1e-20, 1e30]"),
        # labels per class
        (X, Y, {"multilabel": True}, ValueError, "target: expected [2, 3, 4, 5] for logits [2, 3, 4, 5], but got [2, 4, 5]; pass labels for each class, or multilabel=False"),
        (X, Y[:, None].expand(2, 4, 4, 5), {"multilabel": True}, ValueError, "target: expected [2, 3, 4, 5] for logits [2, 3, 4, 5], but got [2, 4, 4, 5]"),
        (X[..., :3], EACH, {"multilabel": True}, ValueError, "but got [2, 3, 4, 5]; for logits of lower resolution than the target pass upsample=True"),
        (X, EACH[..., :3], {"multilabel": True, "upsample": True}, ValueError, "target: expected [2, 3, *size] of at least the logits' resolution [4, 5]"),
        (X, EACH, {"multilabel": True, "weight": torch.ones(2)}, ValueError, "weight: expected [3], or [3, 2] for labels 0 and 1 of each class, but got [2]"),
        (X, EACH, {"multilabel": True, "weight": torch.ones(3, 3)}, ValueError, "weight: expected [3], or [3, 2] for labels 0 and 1 of each class, but got [3, 3]"),
        (X, EACH, {"multilabel": True, "weight": torch.ones(3, 2, 1)}, ValueError, "weight: expected a floating tensor [C] or [C, 2] of class"),
        (X, EACH, {"multilabel": True, "edge_class_weight": torch.ones(4, 2)}, ValueError, "edge_class_weight: expected [3], or [3, 2]"),
        (X, EACH, {"multilabel": True, "pixel_weight": torch.ones(2, 5, 5)}, ValueError, "pixel_weight: expected [2, 4, 5], but got [2, 5, 5]"),
        (X, EACH, {"multilabel": True, "pixel_weight": torch.ones(2, 1, 4, 5)}, ValueError, "pixel_weight: expected [2, 3, 4, 5], but got"),
        (X, EACH, {"multilabel": True, "distance": torch.ones(2, 4, 5), "decay": 1.0}, ValueError, "distance: expected [2, 3, 4, 5], but got"),
        (X, torch.stack([Y, Y, with_label(2, (1, 0, 4))], 1), {"multilabel": True}, ValueError, "expected labels 0 or 1 (one logit per pixel is binary), or ignore_index=-100, but got 2 at 1 pixel, first at [1, 2, 0, 4]"),
        # radius and spacing for another number of axes
        (X, Y, {"radius": (1, 1, 1)}, ValueError, "radius: expected an int, or 2 ints, one per spatial axis, but got (1, 1, 1)"),
        (X, Y, {"radius": np.array([1, 2])}, TypeError, "radius: expected an int, or one int per axis, but got array([1, 2]); pass a list, as by .tolist()"),
        (X, Y, {"decay": 1.0, "spacing": torch.ones(2)}, ValueError, "but got tensor([1., 1.]); pass a list, as by .tolist()"),
        (X, Y, {"decay": 1.0, "spacing": (1.0, 1.0, 1.0)}, ValueError, "spacing: expected a number > 0, or 2 of them, one per spatial axis, but got (1.0, 1.0, 1.0)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("each_backend", ["reference", "fused"], indirect=True)
@pytest.mark.usefixtures("each_backend")
def test_call(logits: Any, target: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        edge_aware_loss(logits, target, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reduction": "avg"}, ValueError, "reduction: expected one of ('mean', 'sum', 'none'), but got 'avg'"),
        ({"validate": "later"}, ValueError, "validate: expected one of ('async', 'sync', 'never'), but got 'later'"),
        ({"backend": "gpu"}, ValueError, "backend: expected one of ('auto', 'fused', 'reference'), but got 'gpu'"),
        ({"ignore_index": 255.0}, TypeError, "ignore_index: expected an int or None, but got 255.0"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing: expected a number in [0, 1], but got 1.5"),
        ({"ce_weight": -1.0}, ValueError, "ce_weight: expected a finite number ≥ 0, but got -1.0"),
        ({"edge_weight": -0.5}, ValueError, "edge_weight: expected a finite number ≥ 0, but got -0.5"),
        (
            {"other_side_weight": float("nan")},
            ValueError,
            "other_side_weight: expected a finite number ≥ 0, but got nan",
        ),
        ({"same_side_weight": float("inf")}, ValueError, "same_side_weight: expected a finite number ≥ 0, but got inf"),
        ({"radius": 0}, ValueError, "radius: expected ≥ 0 along every axis and ≥ 1 along at least one, but got 0"),
        ({"radius": (0, 0)}, ValueError, "radius: expected ≥ 0 along every axis and ≥ 1 along at least one"),
        ({"radius": (1, -1)}, ValueError, "≥ 1 along at least one, but got (1, -1)"),
        ({"radius": ()}, ValueError, "radius: expected ≥ 0 along every axis and ≥ 1 along at least one"),
        ({"radius": 1.5}, TypeError, "radius: expected an int, or one int per axis, but got 1.5"),
        (
            {"radius": 2**63},
            ValueError,
            "radius: expected 64-bit ints, but got 9223372036854775808; it needs not exceed",
        ),
        (
            {"radius": (1, 1, 1, 1)},
            ValueError,
            "radius: expected one number, or 2 or 3, one per spatial axis, but got (1, 1, 1, 1)",
        ),
        (
            {"spacing": (1.0,)},
            ValueError,
            "spacing: expected one number, or 2 or 3, one per spatial axis, but got (1.0,)",
        ),
        (
            {"spacing": 1e-200},
            ValueError,
            "spacing: expected numbers in [1e-100, 1e100], but got 1e-200; use another unit",
        ),
        ({"decay": 1e200}, ValueError, "decay: expected a number in [1e-100, 1e100], but got 1e+200; use another unit"),
        (
            {"ce_weight": 1e39},
            ValueError,
            "ce_weight: expected a number ≤ 1e+12, but got 1e+39; scale all weights down",
        ),
        (
            {"edge_weight": 1e8, "same_side_weight": 1e8},
            ValueError,
            "edge_weight · same_side_weight: expected at most 1e+12, but got 100000000.0 · 100000000.0",
        ),
        ({"power": float("inf")}, ValueError, "power: expected a number in [-1e6, 1e6], but got inf"),
        ({"power": -1e9}, ValueError, "power: expected a number in [-1e6, 1e6], but got -1000000000.0"),
        (
            {"ignore_index": 2**70},
            ValueError,
            "ignore_index: expected a 64-bit int, but got 1180591620717411303424",
        ),
        ({"weight": [1.0, 2.0, 3.0]}, TypeError, "weight: expected a tensor [C] of class weights, but got list"),
        (
            {"edge_class_weight": 2.0},
            TypeError,
            "edge_class_weight: expected a tensor [C] of class weights, but got float",
        ),
        (
            {"edge_class_weight": torch.tensor([1.0, float("nan")])},
            ValueError,
            "edge_class_weight: expected finite values ≥ 0, but got nan at [1]",
        ),
        ({"decay": 0.0}, ValueError, "decay: expected a finite number > 0, or None, but got 0.0"),
        ({"spacing": 0.0}, ValueError, "spacing: expected a number > 0"),
        ({"spacing": (1.0, -1.0)}, ValueError, "spacing: expected a number > 0"),
        ({"upsample": 2}, TypeError, "upsample: expected a bool, but got 2"),
        ({"sync_normalizer": None}, TypeError, "sync_normalizer: expected a bool, but got None"),
        ({"weight": -torch.ones(3)}, ValueError, "weight: expected finite values ≥ 0, but got -1.0 at [0]"),
    ],
)
def test_options_in_module_and_function(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        EdgeAwareLoss(**options)
    with pytest.raises(error, match=re.escape(message)):
        edge_aware_loss(X, Y, **options)


def test_weight_on_another_device() -> None:
    with pytest.raises(
        ValueError, match=r"weight: expected device meta, as the logits, but got cpu; move the loss with"
    ):
        edge_aware_loss(X.to("meta"), Y.to("meta"), weight=torch.ones(3))


def test_numpy_bool_masks_are_no_labels() -> None:
    # Labels from a bool array must be 0 and 1; reading its bytes once gave other values.
    mask = np.zeros((1, 4, 4), dtype=bool)
    mask[0, 1:3, 1:3] = True
    x = torch.randn(1, 1, 4, 4)
    assert edge_aware_loss(x, torch.from_numpy(mask)) == edge_aware_loss(x, torch.from_numpy(mask.astype(np.int64)))


@pytest.mark.parametrize("label", [9, -1])
def test_labels_out_of_range_count_as_ignored_when_not_validated(label: int) -> None:
    x, y = torch.randn(2, 3, 4, 5, requires_grad=True), torch.randint(3, (2, 4, 5))
    wrong = torch.where(torch.rand(2, 4, 5) < 0.3, label, y)
    loss = edge_aware_loss(x, wrong, validate="never")
    assert loss == edge_aware_loss(x, torch.where(wrong == label, -100, wrong))
    (gradient,) = torch.autograd.grad(loss, x)
    assert not gradient.movedim(1, -1)[wrong == label].any()


def test_nothing_is_checked_when_not_validated() -> None:
    weight = -torch.ones(2, 4, 5)
    assert edge_aware_loss(X, Y, pixel_weight=weight, validate="never", reduction="sum") < 0


@pytest.mark.parametrize(
    ("targets", "options", "error", "message"),
    [
        (Y, {}, TypeError, "targets: expected several tensors, but got one, int64 [2, 4, 5]; pass [targets]"),
        ("labels", {}, TypeError, "targets: expected an iterable of tensors [B, *S], but got str"),
        (None, {}, TypeError, "targets: expected an iterable of tensors [B, *S], but got NoneType"),
        ([Y[0]], {}, ValueError, "target: expected [B, H, W] or [B, D, H, W], but got [4, 5]; for a single image pass"),
        (["x"], {}, TypeError, "target: expected a tensor of class indices, but got str"),
        ([Y], {"exponent": float("nan")}, ValueError, "exponent: expected a number in [0, 1], but got nan"),
        ([Y], {"exponent": 1e4}, ValueError, "exponent: expected a number in [0, 1], but got 10000.0"),
        ([Y], {"ignore_index": "a"}, TypeError, "ignore_index: expected an int or None, but got 'a'"),
        ([], {"radius": -1}, ValueError, "radius: expected ≥ 0 along every axis"),
        ([Y], {"num_classes": 2.0}, ValueError, "num_classes: expected an int, at least 2, but got 2.0"),
        ([Y], {"exponnt": 1.0}, TypeError, "unexpected keyword argument 'exponnt'; did you mean 'exponent'?"),
    ],
)
def test_balanced_edge_class_weight(
    targets: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        balanced_edge_class_weight(targets, **({"num_classes": 3} | options))


def test_batches_of_a_loader_are_not_labels() -> None:
    message = (
        "targets: expected tensors of labels, but got a tuple; for batches of a loader pass (labels for _, labels in"
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        balanced_edge_class_weight([(X, Y)], 3)  # type: ignore[list-item]


def test_step_normalizer_takes_several_maps() -> None:
    with pytest.raises(TypeError, match=re.escape("targets: expected several tensors, but got one")):
        EdgeAwareLoss().step_normalizer(Y)


@pytest.mark.parametrize("count", [1, 3])
def test_step_normalizer_takes_a_pixel_weight_per_target(count: int) -> None:
    message = f"pixel_weights: expected 2, one per target, but got {count}; pass None for a target without one"
    with pytest.raises(ValueError, match=message):
        EdgeAwareLoss().step_normalizer([Y, Y], [None] * count)


@pytest.mark.parametrize("weight", [None, torch.ones(2)])
def test_of_class_takes_the_number_of_a_class(weight: torch.Tensor | None) -> None:
    criterion = EdgeAwareLoss(weight, multilabel=True)
    with pytest.raises(TypeError, match="index: expected an int, but got 'a'"):
        criterion.of_class("a")  # type: ignore[arg-type]
    for index in (-1, 2) if weight is not None else (-1,):
        with pytest.raises(ValueError, match=f"index: expected the number of a class, from 0, but got {index}"):
            criterion.of_class(index)


@pytest.mark.parametrize("function", [EdgeAwareLoss, partial(edge_aware_loss, X, Y), partial(loss_maps, X, Y)])
def test_a_removed_keyword_warns_or_raises(function: Any) -> None:
    with pytest.warns(FutureWarning, match="false_edge_weight: removed in version 0.3.*; leave it out") as warned:
        function(false_edge_weight=0)
    assert warned[0].filename == __file__
    for value in (0.5, None):
        message = f"false_edge_weight: expected no such argument since version 0.3, but got {value}; leave it out: the"
        with pytest.raises(TypeError, match=message):
            function(false_edge_weight=value)


def test_a_mistyped_keyword_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'lable_smoothing'; did you mean 'label_smooth"):
        EdgeAwareLoss(lable_smoothing=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'pixel_weights'; did you mean 'pixel_weight'\?"):
        EdgeAwareLoss()(X, Y, pixel_weights=None)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'num_classes'$"):
        EdgeAwareLoss(num_classes=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'epsilon'; did you mean 'eps'\?"):
        check_gradients(torch.tanh, X, epsilon=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, torch.func.grad], ids=["value", "gradient"])
def test_vmap(wrap: Any) -> None:
    loss = wrap(lambda x, y: edge_aware_loss(x[None], y[None]))
    with pytest.raises(RuntimeError, match=r"logits: expected a call without vmap; pass a batch \[B, ...\] directly"):
        torch.func.vmap(loss)(X, Y)
    with pytest.raises(RuntimeError, match="normalizer: expected a call without vmap"):
        torch.func.vmap(lambda total: edge_aware_loss(X, Y, normalizer=(total, 1.0)))(torch.ones(2))


def test_numpy_scalars_are_numbers() -> None:
    x, y = torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5))
    plain = edge_aware_loss(x, y, radius=2, edge_weight=0.25, decay=2.0, spacing=0.5, ignore_index=1)
    as_numpy = edge_aware_loss(
        x,
        y,
        radius=np.int64(2),
        edge_weight=np.float32(0.25),
        decay=np.float64(2),
        spacing=(np.float32(0.5), 0.5),
        ignore_index=np.int64(1),
    )
    assert plain == as_numpy


def test_distance_is_checked_wherever_it_is_read() -> None:
    y = Y.clone()
    y[..., 0] = 1  # edge pixels in columns 0 and 1; column 2 holds neighbors of theirs, column 3 none
    for column, is_read in ((2, True), (3, False)):
        field = torch.ones(2, 4, 5)
        field[..., column] = torch.nan
        if is_read:
            with pytest.raises(ValueError, match=r"distance: expected finite values ≥ 0, but got nan at \[0, 0, 2\]"):
                edge_aware_loss(X, y, distance=field, decay=1.0)
        else:
            assert edge_aware_loss(X, y, distance=field, decay=1.0).isfinite()


@pytest.mark.parametrize("validate", ["async", "sync"])
def test_labels_out_of_range_raise_in_the_call(validate: Any) -> None:
    with pytest.raises(ValueError, match="but got 9 at 1 pixel"):
        edge_aware_loss(X, with_label(9, (0, 0, 0)), validate=validate)


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        (Y.float(), {}, TypeError, "target: expected class indices of dtype"),
        (Y[0], {}, ValueError, "target: expected [B, H, W] or [B, D, H, W], but got [4, 5]"),
        (Y, {"radius": 0}, ValueError, "radius: expected"),
        (Y + 3, {"weight": torch.ones(3)}, ValueError, "but got 3 at 40 pixels"),
        (Y + 3, {"edge_class_weight": torch.ones(3)}, ValueError, "but got 3 at 40 pixels"),
        (
            Y,
            {"weight": torch.ones(3), "edge_class_weight": torch.ones(4)},
            ValueError,
            "edge_class_weight: expected 3 class weights, but got 4",
        ),
        (Y - 1, {}, ValueError, "but got -1 at 40 pixels"),
        (Y, {"pixel_weight": -torch.ones(2, 4, 5)}, ValueError, "pixel_weight: expected finite values ≥ 0"),
    ],
)
def test_normalizers(target: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        normalizers(target, **options)


def test_backends_give_a_reason() -> None:
    live = backends()
    assert set(live) == {"reference", "cpu", "cuda", "cuda, power != 0"}
    assert live["reference"] == "available"
    assert all(state == "available" or state.startswith("unavailable: ") for state in live.values())


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
