"""The loss is a function of logits and labels, and its gradient is its derivative."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pairwise import pairwise
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from edgeloss import EdgeAwareLoss
from edgeloss._checks.options import Options
from edgeloss._reduction import balance, focus, uniform_edge_term
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, edge_weights, neighbor_nll, normalizers


def squares(classes: int = 3, images: int = 4, size: int = 20) -> tuple[Tensor, Tensor]:
    """Return logits near the labels, and labels of squares; of an image without a class, one of one class, and void."""
    y = torch.randint(classes, (images, size // 4, size // 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    y[1, :7], y[2] = -100, 0
    one_hot = F.one_hot(y.clamp(min=0), classes).movedim(-1, 1).double()
    return 2 * one_hot + torch.randn_like(one_hot), y


def of_labels(y: Tensor, gap: float, classes: int = 2) -> Tensor:
    """Return logits that draw labels with a gap."""
    return gap * F.one_hot(y, classes).movedim(-1, 1).double()


# ----------------------------------------------------------------------------------------------------- without memory


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_module_and_function_have_one_value(backend: Any) -> None:
    x, y = squares()
    criterion = EdgeAwareLoss(backend=backend)
    values = [edge_aware_loss(x, y, backend=backend), criterion(x, y), criterion(x, y), criterion.eval()(x, y)]
    with torch.no_grad():
        values += [criterion.train()(x, y)]
    assert len({value.item() for value in values}) == 1


@pytest.mark.parametrize("strict", [True, False])
def test_states_of_earlier_versions_load(strict: bool) -> None:
    model = nn.ModuleDict({"layer": nn.Conv2d(1, 1, 1), "loss": EdgeAwareLoss(torch.ones(3))})
    state = model.state_dict()
    for sums in (torch.zeros(3), torch.zeros(5)):  # of 0.2 and 0.3
        earlier = {"edge_counts": torch.zeros(3), "counted_steps": torch.tensor(4), "edge_sums": sums}
        found = model.load_state_dict(state | {f"loss.{name}": value for name, value in earlier.items()}, strict=strict)
        assert not found.unexpected_keys
        EdgeAwareLoss().load_state_dict(earlier, strict=strict)


@pytest.mark.parametrize("name", ["step_normalizer", "current_edge_weight", "current_edge_class_weight", "edge_counts"])
def test_what_has_left_says_what_replaces_it(name: str) -> None:
    with pytest.raises(AttributeError, match=f"EdgeAwareLoss has no '{name}' since version 0.4: .* "):
        getattr(EdgeAwareLoss(), name)
    with pytest.raises(TypeError, match="unexpected keyword argument 'training'; leave it out"):
        EdgeAwareLoss().options(training=True)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="'EdgeAwareLoss' object has no attribute 'other'"):
        EdgeAwareLoss().other  # noqa: B018


def test_the_balance_of_0_3_is_that_of_the_batch_with_a_warning() -> None:
    x, y = squares()
    for make in (
        lambda name: EdgeAwareLoss(edge_class_weight=name)(x, y),
        lambda name: edge_aware_loss(x, y, edge_class_weight=name),
        lambda name: edge_weights(y, 3, edge_class_weight=name).total,
        lambda name: normalizers(y, 3, edge_class_weight=name)[0],
    ):
        with pytest.warns(FutureWarning, match="edge_class_weight='running': renamed in version 0.4") as found:
            value = make("running")
        assert len(found) == 1
        assert found[0].filename == __file__
        assert value == make("balanced")


# ------------------------------------------------------------------------------------------------- batches and images


WEIGHTS: dict[str, dict[str, Any]] = {
    "balanced": {},
    "class weights": {"edge_class_weight": torch.tensor([0.5, 1.0, 3.0]), "weight": torch.tensor([1.0, 2.0, 0.3])},
    "no balance": {"edge_class_weight": None},
    "power": {"power": 1.0},
    "multilabel": {"multilabel": True},
}


@pytest.mark.parametrize(
    ("weights", "backend", "weighted", "parts"), pairwise([*WEIGHTS], ["fused", "reference"], [False, True], [1, 2])
)
def test_a_batch_is_the_sum_of_its_parts(weights: str, backend: Any, weighted: bool, parts: int) -> None:
    x, y = squares()
    options, more = WEIGHTS[weights], {"pixel_weight": torch.rand(y.shape, dtype=x.dtype)} if weighted else {}
    if weights == "multilabel":
        y = F.one_hot(y.clamp(min=0), 3).movedim(-1, 1).where(y[:, None] >= 0, -100)
        more = {name: value.unsqueeze(1).expand_as(y) for name, value in more.items()}
    of_labels = {name: value for name, value in options.items() if name in ("weight", "multilabel")}
    pieces = [slice(i, i + parts) for i in range(0, 4, parts)]
    each = [normalizers(y[piece], 3, **of_labels, **{k: v[piece] for k, v in more.items()}) for piece in pieces]
    total = sum(w for w, _ in each), sum(n for _, n in each)
    leaf, criterion = x.clone().requires_grad_(), EdgeAwareLoss(**options, backend=backend)
    whole = criterion(leaf, y, **more)
    (expected,) = torch.autograd.grad(whole, leaf)
    losses = []
    for piece in pieces:
        part = {name: value[piece] for name, value in more.items()}
        losses.append(criterion(leaf[piece], y[piece], normalizer=total, **part))
    torch.testing.assert_close(sum(losses), whole, rtol=1e-12, atol=0)
    found = torch.autograd.grad(sum(losses), leaf)[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)
    n = total[1].sum(0) if weights == "multilabel" else total[1]
    assert n.shape == ((2,) if weights == "multilabel" else (3,))


def test_denominators_of_0_3_are_taken_without_a_balance() -> None:
    x, y = squares()
    w, n = normalizers(y, 3)
    u = torch.tensor([0.5, 1.0, 3.0])
    for given, e in ((None, n.sum()), (u, (u * n).sum())):
        options: dict[str, Any] = {"edge_class_weight": given}
        expected = edge_aware_loss(x, y, **options)
        torch.testing.assert_close(edge_aware_loss(x, y, **options, normalizer=(w, e)), expected)
        torch.testing.assert_close(edge_aware_loss(x, y, **options, normalizer=(w.item(), n)), expected)
    with pytest.raises(
        ValueError, match=r"normalizer: expected \(W, n\) with the edge pixels n of each class .* pass norm"
    ):
        edge_aware_loss(x, y, normalizer=(w, e))
    wide = torch.cat([x, torch.full_like(x[:, :1], -9)], 1)  # of more classes, for which n is padded
    torch.testing.assert_close(edge_aware_loss(wide, y, normalizer=(w, n)), edge_aware_loss(wide, y))
    assert torch.equal(normalizers(y)[1], n)  # as many classes as the labels need
    assert torch.equal(normalizers(y, 5)[1][:3], n)


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_a_denominator_of_nothing_is_refused_where_there_is_something(backend: Any) -> None:
    x, y = squares()
    n, call = torch.ones(3), {"backend": backend}
    for given, name in (
        ((0.0, n), "W = 0 for a call with valid pixels"),
        ((9.0, 0 * n), "n = 0 for a call with edges of that class"),
        ((9.0, torch.tensor([1.0, 0.0, 1.0])), "n = 0 for a call with edges of that class"),
    ):
        with pytest.raises(ValueError, match=f"normalizer: expected that of all labels of the step, but got {name}"):
            edge_aware_loss(x, y, normalizer=given, **call)
    void = torch.full_like(y, -100)
    assert edge_aware_loss(x, void, normalizer=(0.0, 0 * n), **call) == 0
    assert edge_aware_loss(x, y, normalizer=(9.0, 0 * n), edge_weight=0.0, **call) > 0
    u = torch.tensor([1.0, 0.0, 1.0])
    assert edge_aware_loss(x, y, normalizer=(9.0, u), edge_class_weight=u, **call) > 0  # that class has no weight
    with pytest.raises(ValueError, match="E = 0 for a call with edges; pass the sums"):
        edge_aware_loss(x, y, normalizer=(9.0, 0.0), edge_class_weight=None, **call)
    for bad in (math.nan, -1.0, math.inf):
        with pytest.raises(ValueError, match="normalizer: expected finite numbers ≥ 0"):
            edge_aware_loss(x, y, normalizer=(1.0, torch.tensor([1.0, bad, 1.0])), **call)
    with pytest.raises(ValueError, match=r"normalizer: expected n of shape \[3\], but got \[4\]"):
        edge_aware_loss(x, y, normalizer=(1.0, torch.ones(4)), **call)


def test_weights_of_labels_have_the_balance_of_the_call() -> None:
    _, y = squares()
    n = normalizers(y, 3)[1]
    u = balance(n)
    torch.testing.assert_close(u, (1 / (n + 0.05 * n.mean())) * n.sum() / (n / (n + 0.05 * n.mean())).sum())
    weights, plain = edge_weights(y, 3), edge_weights(y, 3, edge_class_weight=None)
    torch.testing.assert_close(weights.total, n.sum())
    torch.testing.assert_close(weights.same_side, plain.same_side * u[y.clamp(min=0)])
    torch.testing.assert_close(weights.other_side, plain.other_side * u[plain.other_class])
    each = torch.stack([y == 0, y == 1], 1).long()
    of_each = edge_weights(each, 2, multilabel=True)
    n = normalizers(each, multilabel=True)[1]
    torch.testing.assert_close(of_each.total, n.sum())
    torch.testing.assert_close(of_each.other_side.sum(), n.sum())
    torch.testing.assert_close(balance(n.flatten()).dot(n.flatten()), n.sum())


# --------------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("gap", [-3.0, -0.1, 0.0, 0.05, 0.2, 1.0, 3.0])  # both sides of each kink, and across t_0
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_gradient_is_the_derivative(backend: Any, gap: float, reduction: Any) -> None:
    _, y = squares(images=3)
    x = (of_labels(y.clamp(min=0), gap, 3) + 0.01 * torch.randn(3, 3, 20, 20, dtype=torch.float64)).requires_grad_()
    weight = torch.rand(y.shape, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return (EdgeAwareLoss(backend=backend, reduction=reduction)(x, y) * weight).sum()

    assert torch.autograd.gradcheck(loss, x, fast_mode=True)


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.5, 1.0, 2.5, 3.0, 8.0, 14.0, 32.0, 100.0])
@pytest.mark.parametrize("classes", [2, 19, 66, 1000])
@pytest.mark.parametrize(("same", "other"), [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_the_focus_is_the_integral_of_its_slope(same: float, other: float, gamma: float, classes: int) -> None:
    options, scale = Options(edge_focus=gamma, same_side_weight=same, other_side_weight=other), same + other
    t_0 = uniform_edge_term(classes, options)
    t = torch.tensor([0.0, 1e-9, 1e-3, 0.1 * t_0, 0.5 * t_0, 0.9 * t_0, t_0, 1.5 * t_0], dtype=torch.float64)
    value, slope = focus(t, options, classes)
    # With e = 1 - exp(-t/λ) and dt = λ de / (1 - e), Φ is λ / e_0^γ times the series of the integral of e^γ / (1 - e).
    e, e_0 = -torch.expm1(-t / scale), -math.expm1(-t_0 / scale)
    j = torch.arange(1, 60_000 if classes > 19 else 4_000, dtype=torch.float64)
    expected = (scale * (e / e_0)[:, None] ** gamma * e[:, None] ** j / (gamma + j)).sum(1)
    expected[-1] = expected[-2] + 0.5 * t_0
    torch.testing.assert_close(value, expected if gamma else t, rtol=1e-13 if gamma <= 32 else 2e-12, atol=0)
    torch.testing.assert_close(slope, torch.where(t > t_0, 1.0, (e / e_0) ** gamma), rtol=1e-13, atol=0)


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_terms_add_up_to_the_loss(backend: Any) -> None:
    x, y = squares()
    weights: dict[str, Any] = {"ce_weight": 0.7, "edge_weight": 1.3, "region_weight": 2.0, "other_side_weight": 0.4}
    criterion = EdgeAwareLoss(**weights, backend=backend)
    loss, terms = criterion(x, y, return_terms=True)
    parts = 0.7 * terms["cross_entropy"] + 1.3 * terms["edge_focused"] + 2.0 * terms["region"]
    torch.testing.assert_close(parts, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(terms["edge"], 0.4 * terms["other_side"] + terms["same_side"], rtol=1e-12, atol=0)
    assert 0 < terms["edge_focus"] < 1
    summed = [EdgeAwareLoss(**weights, backend=backend, reduction=name)(x, y).sum() for name in ("sum", "none")]
    torch.testing.assert_close(summed[0], summed[1], rtol=1e-12, atol=0)
    _, plain = EdgeAwareLoss(edge_focus=0, backend=backend)(x, y, return_terms=True)
    torch.testing.assert_close(plain["edge_focused"], plain["edge"], rtol=1e-12, atol=0)
    assert plain["edge_focus"] == pytest.approx(1)


# ------------------------------------------------------------------------------------------------------------ the sign


def corner(size: int, *wrong: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return labels of a square of 3 × 3 pixels in a corner, and others with wrong pixels."""
    y = torch.zeros(1, size, size, dtype=torch.long)
    y[0, :3, :3] = 1
    other = y.clone()
    for place in wrong:
        other[(0, *place)] = 1 - other[(0, *place)]
    return y, other


def line(row: int, *wrong: tuple[int, int]) -> tuple[Tensor, Tensor]:
    y = torch.zeros(1, 16, 16, dtype=torch.long)
    y[0, row, : 15 if row == 0 else 16] = 1
    other = y.clone()
    for place in wrong:
        other[(0, *place)] = 0
    return y, other


WORST = [
    corner(16, (0, 0), (2, 3)),
    corner(32, (2, 3)),
    line(0, (0, 0), (0, 14)),
    line(8, (8, 0), (8, 1)),
]


@pytest.mark.parametrize("case", range(len(WORST)))
@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_no_worst_case_is_below_the_labels(case: int, backend: Any) -> None:
    y, other = WORST[case]
    gap, call = 16.0, {"backend": backend}
    at_labels = edge_aware_loss(of_labels(y, gap), y, **call)
    assert edge_aware_loss(of_labels(other, gap), y, **call) > at_labels
    _, terms = edge_aware_loss(of_labels(other, gap), y, return_terms=True, **call)
    assert 0 <= terms["region"] <= 2


@pytest.mark.slow
def test_no_random_labelling_is_below_the_labels() -> None:
    random, least = torch.Generator().manual_seed(0), math.inf
    for trial in range(1000):
        y = torch.zeros(1, 16, 18, dtype=torch.long)
        row, column = torch.randint(2, 12, (2,), generator=random).tolist()
        shapes = (slice(row, row + 1), slice(None)), (slice(0, row), slice(0, column)), (slice(row, row + 1),) * 2
        y[(0, *(shapes[trial % 4] if trial % 4 < 3 else (slice(2, 13), slice(2, 13))))] = 1
        if trial % 4 == 3:  # a ring
            y[0, 4:11, 4:11] = 0
        other = y.clone()
        edge = (F.max_pool2d(y[:, None].double(), 3, 1, 1) != -F.max_pool2d(-y[:, None].double(), 3, 1, 1))[0, 0]
        places = edge.nonzero()
        chosen = places[torch.randint(len(places), (1 + trial % 3,), generator=random)]
        other[0, chosen[:, 0], chosen[:, 1]] = 1 - other[0, chosen[:, 0], chosen[:, 1]]
        if not torch.equal(other, y):
            gap = float(6 + 10 * torch.rand((), generator=random))  # of softer ones the noise hides more
            lower = edge_aware_loss(of_labels(y, gap), y)
            least = min(least, float(edge_aware_loss(of_labels(other, gap), y) - lower))
    assert least > 0


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_an_inverted_prediction_is_worse_than_none(classes: int, backend: Any) -> None:
    y = torch.randint(max(2, classes), (3, 8, 8)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    drawn = 2.0 * y[:, None].double() - 1 if classes == 1 else of_labels(y, 1.0, classes)

    def region(gap: float) -> float:
        options: dict[str, Any] = {"return_terms": True, "backend": backend}
        return float(edge_aware_loss(gap * drawn, y, **options)[1]["region"])

    assert region(16.0) == pytest.approx(0, abs=1e-4)
    assert region(0.0) == pytest.approx(1, abs=3e-3)
    assert 1 < region(-16.0) <= 2
    assert 1 < region(-0.5) <= 2


def test_a_small_network_does_not_end_inverted() -> None:
    """A short form of benchmarks/inversion.py: the seeds and the kind of which 0.3 inverted most."""
    dice = []
    for seed in range(2):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1)]
        model, criterion = nn.Sequential(*layers), EdgeAwareLoss()
        with torch.no_grad():  # begin with the wrong sign
            layers[2].weight.copy_(-layers[2].weight.abs())
            layers[0].weight.copy_(layers[0].weight.abs())
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        for _ in range(150):
            noise = F.avg_pool2d(torch.randn(8, 1, 40, 40), 9, 1)
            y = (noise > noise.flatten(1).quantile(0.7, 1).view(-1, 1, 1, 1))[:, 0]
            optimizer.zero_grad()
            found = model(y[:, None] + 0.5 * torch.randn(8, 1, 32, 32))
            criterion(found, y).backward()
            optimizer.step()
        both, either = ((found[:, 0] > 0) & y).sum(), (found[:, 0] > 0).sum() + y.sum()
        dice.append(float(2 * both / either))
    assert min(dice) > 0.7


# --------------------------------------------------------------------------------------------------- kinds of tensors


class Meta(Tensor):
    """As a subclass of another library that adds to a tensor."""


def test_results_are_ordinary_tensors() -> None:
    x, y = squares()
    logits, target = x.as_subclass(Meta).requires_grad_(), y.as_subclass(Meta)
    criterion = EdgeAwareLoss(torch.ones(3).as_subclass(Meta))
    loss, maps, terms = criterion(logits, target, return_maps=True, return_terms=True)
    for value in (
        loss,
        *maps[:-1],
        *terms.values(),
        *normalizers(target, 3),
        *edge_weights(target, 3),
        criterion.weight,
    ):
        assert type(value) is Tensor
    loss.backward()
    assert logits.grad is not None
    leaf = x.clone().requires_grad_()
    EdgeAwareLoss(torch.ones(3))(leaf, y).backward()
    torch.testing.assert_close(logits.grad.as_subclass(Tensor), leaf.grad)
    assert type(balanced_edge_class_weight([target.clamp(min=0)], 3)) is Tensor


OVERLAPPING = [  # shapes and strides of logits whose gradient can't have them
    ((2, 2, 16, 7), (7, 224, 14, 2)),
    ((2, 2, 16, 7), (7, 224, 7, 1)),
    ((2, 2, 16, 7), (448, 7, 14, 2)),
    ((2, 2, 4, 3), (6, 24, 6, 2)),
    ((2, 2, 4, 4, 3), (3, 96, 24, 6, 2)),
]


@pytest.mark.parametrize("layout", range(len(OVERLAPPING)))
@pytest.mark.parametrize(
    "options", [{}, {"power": 1.0}, {"reduction": "none"}, {"upsample": True}, {"nll": True}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_any_layout(layout: int, options: dict[str, Any], dtype: torch.dtype) -> None:
    shape, strides = OVERLAPPING[layout]
    x = torch.randn(1000, dtype=dtype).as_strided(shape, strides)
    scale = 2 if "upsample" in options else 1
    y = torch.randint(2, (2, *(scale * n for n in shape[2:])))
    weight = torch.rand(2, 3 ** (len(shape) - 2) - 1, *shape[2:], dtype=dtype)

    def gradient(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        loss = neighbor_nll(leaf, y, weight) if "nll" in options else edge_aware_loss(leaf, y, **options)
        return torch.autograd.grad(loss.sum(), leaf)[0]

    torch.testing.assert_close(gradient(x), gradient(x.contiguous()), rtol=1e-6, atol=1e-9)


def test_fake_tensors_and_a_default_device_of_meta() -> None:
    x, y = squares()
    with FakeTensorMode() as mode:
        fake = EdgeAwareLoss()(mode.from_tensor(x.requires_grad_()), mode.from_tensor(y))
        assert fake.shape == ()
    traced = make_fx(EdgeAwareLoss(), tracing_mode="fake")(x.detach(), y)
    torch.testing.assert_close(traced(x, y), edge_aware_loss(x, y))
    with torch.device("meta"):
        criterion = EdgeAwareLoss()
        assert torch.equal(criterion(x, y), edge_aware_loss(x, y))
        assert balanced_edge_class_weight([y], 3).device.type == "cpu"
    assert torch.equal(criterion(x, y), edge_aware_loss(x, y))


def test_a_module_of_inference_mode() -> None:
    x, y = squares()
    with torch.inference_mode():
        criterion = EdgeAwareLoss()
        criterion.load_state_dict({})
    assert criterion(x, y) == edge_aware_loss(x, y)


def test_nothing_warns_in_a_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for multilabel, reduction in itertools.product((False, True), ("mean", "sum", "none")):
            x, y = squares()
            y = F.one_hot(y.clamp(min=0), 3).movedim(-1, 1) if multilabel else y
            EdgeAwareLoss(multilabel=multilabel, reduction=reduction)(x.requires_grad_(), y).sum().backward()  # type: ignore[arg-type]
