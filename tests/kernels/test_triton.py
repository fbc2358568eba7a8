"""The operators of Triton's kernels, in its interpreter: what torch knows of them, and that they repeat their bits."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from columns import INTERPRETED, Column
from recorded import check_registration, operators_of
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from edgeloss import check
from edgeloss._checks.inputs import Call
from edgeloss._checks.options import AFTER_SUMS, Options
from edgeloss._kernels import evaluate, library, operators
from edgeloss._reduction import VALUES, EdgeRow, Regions, SumRow, Sums, combine
from edgeloss.functional import edge_aware_loss

TRITON = Column("fused", interpreted=True)
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="make test runs it in a process with TRITON_INTERPRET=1")


def call(
    classes: int, size: tuple[int, int] = (12, 14), **options: Any
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return logits, labels and options of a call with edges and regions."""
    random = torch.Generator().manual_seed(0)
    y = torch.randint(max(2, classes), (1, *size), generator=random)
    x = torch.randn(1, classes, *size, generator=random, requires_grad=True)
    return x, y, {"region_weight": 3.0, "ignore_index": 1 if classes > 2 else None, **options}


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "decay"), [(3, None), (1, 1.5)])
def test_operators_are_as_torch_expects_them(classes: int, decay: float | None) -> None:
    x, y, options = call(classes, (7, 8), decay=decay)
    calls = operators_of(lambda: TRITON.loss(x, y, **options).backward())
    assert [operator.name() for operator, _ in calls] == [
        f"edgeloss_triton::{name}" for name in ("edge_loss", "reduce", "edge_loss_backward")
    ]
    for operator, arguments in calls:
        # On a GPU forward fills what backward reads of its state, and nothing else.
        check_registration(operator, [*arguments.values()], writes_all=False)


@pytest.mark.slow
def test_one_graph_has_the_bits_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, options = call(3)
    monkeypatch.setattr(library, "interprets", True)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return edge_aware_loss(x, y, backend="fused", validate="never", **options)

    results = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        value = function(x, y)
        results.append((value, *torch.autograd.grad(value, x)))
    assert all(torch.equal(eager, compiled) for eager, compiled in zip(*results, strict=True))


@pytest.mark.slow
def test_bits_repeat_and_a_graph_may_be_used_twice() -> None:
    x, y, options = call(4)
    first, second = (TRITON.loss(x, y, **options) for _ in range(2))
    assert torch.equal(first, second)
    (gradient,) = torch.autograd.grad(first, x, retain_graph=True)
    (doubled,) = torch.autograd.grad(2 * first, x)
    assert torch.equal(gradient, torch.autograd.grad(second, x)[0])
    assert torch.equal(doubled, 2 * gradient)
    (gradient,) = torch.autograd.grad(TRITON.loss(x, y, **options), x, create_graph=True)
    with pytest.raises(RuntimeError, match="the fused loss can't be differentiated twice; pass backend='reference'"):
        gradient.sum().backward()


def test_without_a_gradient_nothing_is_left_to_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeloss._kernels.triton.plans import Plan

    x, y, options = call(4, (9, 12))
    expected, kernels = TRITON.loss(x, y, **options), []
    launch = Plan.launch

    def record(plan: Plan, kernel: Any, *args: Any, **named: Any) -> None:
        kernels.append(kernel.fn.__name__)
        launch(plan, kernel, *args, **named)

    monkeypatch.setattr(Plan, "launch", record)
    with torch.no_grad():
        assert torch.equal(TRITON.loss(x, y, **options), expected)
    assert kernels[-5:] == ["products_kernel", "add_parts_kernel", "solve_kernel", "means_kernel", "reduce_kernel"]


@pytest.mark.slow
def test_launches_of_a_repeated_call_are_those_of_a_first_one() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, Path(__file__).with_name("launches.py"), "40"], check=True, env=environment)


def test_distances_of_nan_reach_the_loss() -> None:
    """Nothing checks them; edge pixels that have them write what their neighbors read."""
    x, y, options = call(3, (7, 8), decay=1.5, validate="never", distance=torch.full((1, 7, 8), torch.nan))
    loss, terms = TRITON.loss(x, y, return_terms=True, **options)
    _, expected = Column("reference").loss(x, y, return_terms=True, **options)
    assert loss.isnan()
    assert terms["edge_fraction"] == expected["edge_fraction"] > 0


def sums_of(images: int, classes: int, tables: int, regions: int) -> list[torch.Tensor]:
    """Return random sums of a call: most images have few of the classes, and terms from 0 to beyond t_0."""
    random = torch.Generator().manual_seed(images)

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(size, generator=random, dtype=torch.float64)

    n = 50 * uniform(images, classes) * (uniform(images, classes) < 0.4)
    terms = n * 4 * uniform(2, images, classes) ** 3
    edge_sums = torch.cat([n[None], terms]).view(3, images * tables, classes // tables)
    return [100 * uniform(len(SumRow)), edge_sums, uniform(regions), 9 * uniform(regions)]


def terms_of(sums: list[torch.Tensor], given: dict[str, Any], options: Options, tables: int) -> list[torch.Tensor]:
    """Return the loss of sums, its figures and its derivatives, by plain PyTorch."""
    of_call, edge_sums, region, weight = (values.clone().requires_grad_() for values in sums)
    found = Sums(of_call, edge_sums.view(3, -1, edge_sums.shape[2] * tables), None, Regions(region, weight))
    inputs = SimpleNamespace(
        tables=tables, is_balanced=given["is_balanced"], edge_class_weight=given["u"], normalizer=None
    )
    combined = combine(found, Call(inputs, options), given["normalizer"])  # type: ignore[arg-type]
    gradients = torch.autograd.grad(combined.loss, [of_call, edge_sums, region], materialize_grads=True)
    slopes = gradients[0][:1], gradients[1][EdgeRow.SAME_SIDE :].flatten(), gradients[2]
    values = torch.stack([combined.values[name] for name in VALUES])
    return [combined.loss.detach(), torch.cat(slopes), values.detach()]


GIVEN: list[dict[str, Any]] = [
    {},
    {"edge_focus": 0.0, "balanced": False},
    {"edge_focus": 0.5, "reduction": "sum"},
    {"edge_focus": 32.0, "region_weight": 0.0, "other_side_weight": 0.4},
    {"balanced": False, "u": True, "same_side_weight": 0.0, "normalizer": 1},
    {"balanced": False, "edge_weight": 0.0, "normalizer": 0},
    {"normalizer": 1, "ce_weight": 0.0},
    {"other_side_weight": 0.0, "same_side_weight": 0.0},
]
SIZES = [(3, 2, 1), (0, 5, 1), (2, 1500, 1), (600, 8, 4), (1500, 2, 1)]  # images, classes and tables
LARGE = (70, 40, 1)  # in several programs, by the options that differ most at every change
REDUCED = [(size, GIVEN[0]) for size in SIZES] + [((4, 6, 3), given) for given in GIVEN] + [(LARGE, GIVEN[4])]
REDUCED += [pytest.param(LARGE, given, marks=pytest.mark.slow) for given in GIVEN if given is not GIVEN[4]]


@pytest.mark.parametrize(("size", "given"), REDUCED, ids=str)
def test_the_loss_of_sums_is_that_of_the_reference(size: tuple[int, int, int], given: dict[str, Any]) -> None:
    """In one program, and of many images or classes in several."""
    images, classes, tables = size
    given, numbers = dict(given), torch.linspace(0.0, 3.0, classes, dtype=torch.float64)
    u = numbers.float() if given.pop("u", False) else None
    is_balanced, normalizer = given.pop("balanced", True), given.pop("normalizer", None)
    if normalizer is not None:  # W and n, or W and E
        normalizer = torch.cat([torch.tensor([70.0]), 20 * numbers]) if normalizer else torch.tensor([70.0, 9.0])
        normalizer = normalizer.double()
    options, sums = Options(**given), sums_of(images, classes, tables, images if given.get("region_weight", 1) else 0)
    of_call = {"is_balanced": is_balanced, "u": u, "normalizer": normalizer}
    expected = terms_of(sums, of_call, options, tables)
    weights = (getattr(options, name) for name in AFTER_SUMS)
    of_loss = u, normalizer, tables, is_balanced, options.reduction == "mean", True, *weights
    found = operators.of_triton.reduce(*sums, *of_loss)
    torch.testing.assert_close([*found], expected, rtol=1e-12, atol=1e-13)


def test_infinite_terms_without_a_weight_do_not_reach_the_loss() -> None:
    """Nor those of classes with u = 0, nor what images without edges of a class have."""
    sums = sums_of(2, 3, 1, 2)
    sums[0][SumRow.CROSS_ENTROPY], sums[1][EdgeRow.SAME_SIDE], sums[1][EdgeRow.OTHER_SIDE, :, 1] = (torch.inf,) * 3
    sums[2][:] = torch.nan
    u = torch.tensor([1.0, 0.0, 2.0])
    weights = 0.0, 1.0, 1.0, 0.0, 0.0, 8.0
    loss, slopes, _ = operators.of_triton.reduce(*sums, u, None, 1, False, True, True, *weights)
    assert 0 < loss < torch.inf
    assert slopes.isfinite().all()
    of_same, of_other = slopes[1:13].view(2, 2, 3)
    assert not of_same.any()
    assert not of_other[:, 1].any()
    assert of_other[:, [0, 2]][sums[1][EdgeRow.WEIGHT][:, [0, 2]] > 0].all()


def test_maps_of_the_loss_are_not_those_of_kernels() -> None:
    x, y, options = call(3)
    calls = operators_of(lambda: TRITON.loss(x, y, **options).backward())
    operator, arguments = calls[-1]
    with pytest.raises(
        ValueError, match="edge_pixel_weight: expected None, but got a tensor; pass backend='reference'"
    ):
        operator(*{**arguments, "edge_pixel_weight": torch.ones(y.shape)}.values())


@pytest.mark.parametrize("options", [{}, {"radius": 2, "edge_focus": 0.0}, {"multilabel": True}])
def test_gradients_of_a_negative_multiple_are_those_of_the_reference(options: dict[str, Any]) -> None:
    """Where the prediction is sure of a class across the edge, which the others take the gradient of."""
    x, y, _ = call(4, (9, 10))
    y = torch.stack([(y == k).long() for k in range(4)], 1) if "multilabel" in options else y
    x = (x.detach().double() + 30 * one_hot_of_neighbors(y, x)).requires_grad_()
    gradients = []
    for column in (TRITON, Column("reference")):
        loss = -0.3 * column.loss(x, y, edge_class_weight="balanced", **options)
        gradients += torch.autograd.grad(loss, x)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-14)


def one_hot_of_neighbors(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return 1 for the class of the pixel to the left, of every third row."""
    shown = y.roll(1, -1)
    marked = shown if y.dim() == x.dim() else torch.nn.functional.one_hot(shown, x.shape[1]).movedim(-1, 1)
    return marked * (torch.arange(x.shape[-2]) % 3 == 0).view(-1, 1)


@pytest.mark.parametrize(
    ("classes", "slices", "options"),
    [
        (3, 0, {"radius": (2, 1)}),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in ((3, 0, {"decay": 2.0}), (40, 0, {}), (3, 3, {"radius": 1, "region_weight": 0.0}))
        ),
    ],
)
def test_tiles_as_small_as_those_of_a_device_agree(
    classes: int, slices: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most have labels of one class within reach, and are skipped where pixels get the weights of edges.

    Of 40 classes most are in no image; those that are, and those around pixels, get their gradient last. In a volume,
    slices of one class are out of reach of the labels, or in reach of what these give to their neighbors, or of them.
    """
    from edgeloss._kernels.triton import call

    monkeypatch.setattr(call, "INTERPRETED", False)
    monkeypatch.setattr(call, "COLUMNS", 8)
    monkeypatch.setattr(call, "EDGE_PROGRAMS", 3)
    monkeypatch.setattr(call, "tile_of", lambda _, on_device: 64 if on_device == call.OF_LABELS else 1024)
    y = torch.zeros(1, 19, 27, dtype=torch.int64)
    y[:, 9, 9], y[:, 12:, 18:], y[:, :3, 22:] = 1, 2, -100
    y[:, 9, 10] = 2
    y = torch.stack([*torch.zeros(slices, *y.shape, dtype=y.dtype), y], 1) if slices else y
    x = torch.randn(1, classes, *y.shape[1:], generator=torch.Generator().manual_seed(0), requires_grad=True)
    results = []
    for column in (TRITON, Column("reference")):
        value, terms = column.loss(x, y, return_terms=True, **options)
        results.append((value, *terms.values(), *torch.autograd.grad(value, x)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-9)


def test_labels_out_of_range_are_ignored_and_recorded() -> None:
    x, y, options = call(4)
    wrong = y.masked_fill(y == 0, 77)
    ignored = TRITON.loss(x, y.masked_fill(y == 0, 1), **options)
    assert torch.equal(TRITON.loss(x, wrong, validate="never", **options), ignored)
    check()
    with pytest.raises(ValueError, match="expected labels 0 to 3, or ignore_index=1, but got 77"):
        TRITON.loss(x, wrong, **options)


@pytest.mark.parametrize("options", [{}, {"upsample": True}, {"decay": 1.5, "region_weight": 0.0}])
def test_a_step_reads_no_value_of_a_device(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On fake tensors, which have no values, but for the tables that a first call of a size makes."""
    from edgeloss._kernels.triton import interpolate, plans, region, sums

    kernels = []
    monkeypatch.setattr(plans.Plan, "launch", lambda _, kernel, *__, **___: kernels.append(kernel.fn.__name__))
    monkeypatch.setattr(operators, "_is_seen", lambda tensors: False)  # the operators would return fake tensors alone
    mode = FakeTensorMode()
    for module, name in ((region, "_parts"), (interpolate, "_along"), (sums, "_quadrature")):

        def made_before(*args: Any, make: Any) -> Any:
            with unset_fake_temporarily():
                made = make(*args)
            return tree_map_only(torch.Tensor, mode.from_tensor, made)

        monkeypatch.setattr(module, name, partial(made_before, make=getattr(module, name)))
    for name in ("cpu", "numpy", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a step read values"))
    monkeypatch.setattr(library, "interprets", True)
    monkeypatch.setattr(library, "_WRONG", {})
    monkeypatch.setattr(evaluate, "check_labels_of", lambda *_: None)  # of labels on a CPU
    with mode:
        x, y, given = call(4)
        x = x.detach()[..., :: 2 if "upsample" in options else 1, :].contiguous().requires_grad_()
        loss = edge_aware_loss(x, y, backend="fused", **{**given, **options})
        loss.backward()
        with pytest.raises(DataDependentOutputException):  # such a read is noticed
            loss.item()
    assert {"forward_kernel", "reduce_kernel", "backward_kernel"} < {*kernels}
    assert ("adjoint_kernel" in kernels) == ("upsample" in options)


@pytest.mark.slow
def test_what_nobody_sees_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the operators, of which a profiler shows the names."""
    x, y, options = call(4)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        loss = TRITON.loss(x, y, **options)
        return loss.detach(), *torch.autograd.grad(loss, x)

    with torch.profiler.profile() as profiled:
        by_operators = step()
    seen = [event.name for event in profiled.events() if event.name.startswith(operators.TRITON)]
    assert seen == [f"{operators.TRITON}::{name}" for name in ("edge_loss", "reduce", "edge_loss_backward")]
    nothing = SimpleNamespace(default=None)
    monkeypatch.setattr(
        operators, "of_triton", SimpleNamespace(edge_loss=nothing, edge_loss_backward=nothing, reduce=nothing)
    )
    assert all(map(torch.equal, step(), by_operators))
