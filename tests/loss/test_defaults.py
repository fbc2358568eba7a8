"""``EdgeAwareLoss()`` without arguments, in the places where what it keeps between calls may matter."""

from __future__ import annotations

import copy

import pytest
import torch
from batches import IGNORE, C, run, steps
from stateless import stateless_loss
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss.debug import diagnose
from edgeloss.functional import edge_aware_loss, normalizers
from edgeloss.numerics import check_gradients
from edgeloss.viz import panel

State = dict[str, Tensor]
REGION = 3.0  # the default weight of the region term


def after(count: int = 1) -> EdgeAwareLoss:
    """Return a default loss after some steps."""
    criterion = EdgeAwareLoss(ignore_index=IGNORE)
    for batch in steps(count):
        criterion(*batch)
    return criterion


def same(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_balances_and_focuses() -> None:
    criterion, (x, y) = after(), steps(1)[0]
    assert list(criterion.state_dict()) == ["edge_counts", "counted_steps", "edge_sums"]
    u, weight = criterion.current_edge_class_weight, criterion.current_edge_weight.item()
    assert u[0] < 1 < u[1:].max()  # class 0 is frequent
    assert weight < 1
    options = {"edge_class_weight": u, "edge_weight": weight, "region_weight": REGION}
    expected = edge_aware_loss(x, y, ignore_index=IGNORE, **options)
    torch.testing.assert_close(criterion(x, y), expected, rtol=1e-14, atol=0)


def test_the_first_step_is_the_function() -> None:
    x, y = steps(1)[0]
    for criterion in (EdgeAwareLoss(ignore_index=IGNORE), EdgeAwareLoss(ignore_index=IGNORE).eval()):
        assert criterion(x, y) == edge_aware_loss(x, y, region_weight=REGION, ignore_index=IGNORE)


def test_without_the_three_it_is_the_function() -> None:
    criterion = EdgeAwareLoss(edge_class_weight=None, edge_focus=0, region_weight=0, ignore_index=IGNORE)
    for x, y in steps(3):
        assert criterion(x, y) == edge_aware_loss(x, y, ignore_index=IGNORE)
        assert criterion(x, y, normalizer=normalizers(y, ignore_index=IGNORE)) == criterion(x, y)
    assert not criterion.state_dict()


def test_other_denominators_raise_and_say_what_to_do() -> None:
    criterion, (x, y) = EdgeAwareLoss(ignore_index=IGNORE), steps(1)[0]
    total = normalizers(y, ignore_index=IGNORE)
    message = r"expected that of criterion\.step_normalizer\(targets\).*edge_class_weight=None and edge_focus=0"
    with pytest.raises(ValueError, match=message):
        criterion(x, y, normalizer=total)
    expected = edge_aware_loss(x, y, region_weight=REGION, ignore_index=IGNORE)
    assert criterion.eval()(x, y, normalizer=total) == expected


def test_what_only_looks_changes_nothing() -> None:
    criterion, (x, y) = after(2), steps(1)[0]
    before = copy.deepcopy(criterion.state_dict())
    assert diagnose(criterion, x.detach(), y).ok
    panel(x.detach(), y, criterion=criterion)
    criterion.options()
    with torch.no_grad():
        criterion(x, y)
    assert criterion.training
    assert same(criterion.state_dict(), before)


def test_gradients_can_be_checked() -> None:
    criterion, (x, y) = after(), steps(1, (3, 4))[0]
    before = copy.deepcopy(criterion.state_dict())
    assert check_gradients(criterion, x, y)
    assert same(criterion.state_dict(), before)
    assert torch.autograd.gradcheck(copy.deepcopy(criterion).eval(), (x, y))
    assert not torch.autograd.gradcheck(criterion, (x, y), raise_exception=False)  # each call is a step


def test_transforms_of_torch_func_do_not_count() -> None:
    x, y = (tensor.detach() for tensor in steps(1)[0])
    for criterion in (EdgeAwareLoss(ignore_index=IGNORE), after()):
        before = copy.deepcopy(criterion.state_dict())
        found = torch.func.grad(criterion)(x, y)
        assert same(criterion.state_dict(), before)
        torch.testing.assert_close(found, run(criterion, x.requires_grad_(), y)[1], rtol=1e-9, atol=1e-12)
        x = x.detach()


def test_a_state_of_a_loss_without_them_needs_strict_false() -> None:
    model, old = (nn.ModuleDict({"loss": loss}) for loss in (after(), stateless_loss()))
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: .*loss\.edge_counts"):
        model.load_state_dict(old.state_dict())
    model.load_state_dict(old.state_dict(), strict=False)


def test_logits_of_one_channel_and_of_two_share_counts() -> None:
    criterion = after()
    assert len(criterion.edge_counts) == C
    binary = EdgeAwareLoss(ignore_index=IGNORE)
    for classes in (1, 2):
        binary(*steps(1, classes=classes)[0])
    assert binary.counted_steps == 2
