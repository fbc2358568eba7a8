"""The launches of a call of the loss → the prototypes that would replace them, with the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

from edgeloss._kernels.triton import plans
from edgeloss._kernels.triton.label_weights import EDGES, NEAR_EDGES
from edgeloss._kernels.triton.region import AHEAD, PRODUCTS
from edgeloss._kernels.triton.tiles import IGNORED, INTERPRETED, cdiv, constant, constants, tile_of
from prototypes import few, windows
from prototypes import solve as solve_
from prototypes import sums as sums_

MOST_COLUMNS = 9  # of a window at once: what four pixels read of them is in registers
MOST = 32  # classes whose logits fit in the registers of a thread
AT_ONCE = 4  # of more classes


class Launch(NamedTuple):
    """A kernel of a call, which can be launched again: what it reads is still there."""

    kernel: Any
    images: int
    count: int
    block: int
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the kernel's name."""
        return str(self.kernel.fn.__name__).removesuffix("_kernel")

    def run(self) -> Any:  # noqa: ANN401
        """Launch it, and return what was compiled."""
        options = {"warps": 4, "fuses": True, **self.options}
        options = {"num_warps": options.pop("warps"), "enable_fp_fusion": options.pop("fuses"), **options}
        return self.kernel[self.images * cdiv(self.count, self.block), 1, 1](*self.args, TILE=self.block, **options)


class Prototype(NamedTuple):
    """Kernels next to those that they would replace."""

    replaces: tuple[str, ...]
    launches: list[Launch]
    pairs: Callable[[], list[tuple[Tensor, Tensor]]]  # their results and those of the others, after both have run

    def run(self) -> None:
        """Launch all of them."""
        for launch in self.launches:
            launch.run()

    def error(self) -> float:
        """Return by how much results differ at most, in proportion to the largest one of a tensor; inf of nan."""
        errors = []
        for found, expected in self.pairs():
            found, expected = found.double(), expected.double()
            errors.append((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        return float(torch.stack(errors).nan_to_num(nan=float("inf")).max())


def launches_of(step: Callable[[], object]) -> dict[str, Launch]:
    """Return the launches of a step by the names of the kernels; of one that is launched again, the last one."""
    plans.recorded.cache_clear()  # a repeated call has addresses, and no tensors
    found: dict[str, Launch] = {}
    launch = plans.Plan.launch

    def keep(plan: Any, kernel: Any, images: int, count: int, block: int, *args: Any, **options: Any) -> None:  # noqa: ANN401
        launch(plan, kernel, images, count, block, *args, **options)
        this = Launch(kernel, images, count, block, args, options)
        found[this.name if this.name != "add_parts" or this.name not in found else "add_parts 2"] = this

    plans.Plan.launch = keep  # type: ignore[method-assign]
    try:
        step()
    finally:
        plans.Plan.launch = launch  # type: ignore[method-assign]
        plans.recorded.cache_clear()
    return found


def new(values: Tensor | None) -> Tensor | None:
    """Return a tensor like another one, of what no kernel writes."""
    if values is None:
        return None
    return torch.full_like(values, float("nan") if values.is_floating_point() else 77)


def limits_registers() -> bool:
    """Return whether a number of registers can be asked for."""
    return not INTERPRETED and driver.active.get_current_target().backend == "cuda"


def forward(launches: dict[str, Launch]) -> Prototype:
    """Return the prototype of the cross-entropy and the averages."""
    x, maps, of_terms, _, grid = launches["forward"].args
    classes, z, r, present, cells = grid.classes.value, None, None, None, grid.cells
    if "averages" in launches:
        (_, z, r), present = launches["averages"].args[1:4], launches["collect"].args[12]
    steps = 27 if grid.size.depth > 1 or cells.depth > 1 else 9
    count, statistics = cells.depth * cells.height * cells.width, ("m", "r", "top")
    block = tile_of(count, 32)
    others = maps._replace(**{name: new(getattr(maps, name)) for name in statistics})
    z_map, r_map = (None if values is None else torch.zeros_like(values) for values in (z, r))
    images = len(maps.label)
    sums = of_terms.new_empty(images * cdiv(count, block))
    numbers = tuple(map(constant, range(classes))), tuple(map(constant, range(cdiv(classes, 4))))
    args = x, others, z_map, r_map, present, sums, count, constant(steps), *numbers, grid

    def pairs() -> list[tuple[Tensor, Tensor]]:
        found = [(sums.sum(), of_terms.sum())]
        counts = maps.label >= 0
        if maps.m is not None:
            found += [
                (torch.where(counts, getattr(others, n), 0), torch.where(counts, getattr(maps, n), 0))
                for n in statistics
            ]
        if z is not None:
            has_map = (maps.average_class >= 0).view(*maps.average_class.shape, *(1,) * (z.dim() - 2))
            found += [(torch.where(has_map, a, 0), torch.where(has_map, b, 0)) for a, b in ((z_map, z), (r_map, r))]
        return found

    launch = Launch(few.forward_few_kernel, images, count, block, args, {"warps": 1})
    return Prototype(("forward", "averages")[: 1 + ("averages" in launches)], [launch], pairs)


def backward(launches: dict[str, Launch]) -> Prototype:
    """Return the prototype of the gradient."""
    launch = launches["backward"]
    x, g, *others, grid = launch.args
    gradient = new(g.data)
    given, classes, options = (x, g._replace(data=gradient), *others), grid.classes.value, {"warps": 1}
    if classes > MOST:
        if limits_registers():
            options["maxnreg"] = 104
        at_once = [tuple(map(constant, range(number))) for number in (AT_ONCE, classes % AT_ONCE)]
        launch = launch._replace(kernel=few.backward_many_kernel, args=(*given, *at_once, grid), options=options)
        return Prototype(("backward",), [launch], lambda: [(gradient, g.data)])
    args = *given, tuple(map(constant, range(classes))), grid
    block = launch.block if INTERPRETED else 32
    if grid.decay.value and limits_registers():
        options["maxnreg"] = 96  # with fewer, which ptxas chooses for sm_120, a rare path spills some
    launch = launch._replace(kernel=few.backward_few_kernel, args=args, block=block, options=options)
    return Prototype(("backward",), [launch], lambda: [(gradient, g.data)])


def products(launches: dict[str, Launch]) -> Prototype:
    """Return the prototype of the products: what counts of them is their sums over the parts of a map."""
    z, r, map_class, expected, parts = launches["products"].args
    add_parts, found, sums = launches["add_parts"], new(expected), new(launches["add_parts"].args[3])
    args = z, r, map_class, found, parts, constant(cdiv(parts.size.width, launches["products"].block))
    add_parts = add_parts._replace(args=(found, *add_parts.args[1:3], sums, *add_parts.args[4:]))
    programs = map_class.numel() * parts.number * parts.slices.value
    kernels = (
        Launch(sums_.products_few_kernel, programs, 1, 32, args, {"warps": 1}),
        Launch(sums_.product_ends_kernel, programs, 1, 8, args, {"warps": 1}),
    )
    has_other = others_of(sums.shape[1], parts.slices.value).to(z.device) & (map_class >= 0).view(-1, 1, 1)

    def pairs() -> list[tuple[Tensor, Tensor]]:
        add_parts.run()
        return [(torch.where(has_other, sums, 0), torch.where(has_other, launches["add_parts"].args[3], 0))]

    return Prototype(("products",), [*kernels], pairs)


def others_of(members: int, slices: int) -> Tensor:
    """Return which sums of products of members are with other members, or of one alone, and so are read."""
    member, place = torch.arange(members)[:, None], torch.arange(slices * PRODUCTS.value)
    n, group = place % PRODUCTS.value // 4, place // PRODUCTS.value
    depth, row, column = member // 9 + group - slices // 2, member // 3 % 3 + (n + 2) // 5, member % 3 + (n + 2) % 5 - 2
    return (depth >= 0) & (depth < 3) & (row < 3) & (column >= 0) & (column < 3) | (n == AHEAD.value)


def solve(launches: dict[str, Launch]) -> Prototype:
    """Return the prototype of R and the slopes by members."""
    sums, map_class, values, work, of_members, *others = launches["solve"].args
    found, slopes_found = new(values), new(of_members)
    args = sums, map_class, found, new(work), slopes_found, *others
    has_term = (values[:, 1] > 0).view(-1, 1, 1)

    def pairs() -> list[tuple[Tensor, Tensor]]:
        return [(found, values), (torch.where(has_term, slopes_found, 0), torch.where(has_term, of_members, 0))]

    return Prototype(("solve",), [launches["solve"]._replace(kernel=solve_.solve_few_kernel, args=args)], pairs)


def slopes(launches: dict[str, Launch]) -> Prototype:
    """Return the prototype of the slopes."""
    z, r, values, terms, stencil, expected, parts, maps = launches["slopes"].args
    found, (depth, height, width) = new(expected), parts.size
    given, count = (z, r, values, terms, stencil, found, parts, maps), 4 * width + 4 * max(height - 4, 0)
    number, strips = values.shape[0] * depth, cdiv(max(height - 4, 0), parts.strip.value)
    kernels = [Launch(sums_.slope_ends_kernel, number, count, tile_of(count, 32), (*given, count), {"warps": 1})]
    if strips:
        options = {"warps": 1}
        if depth > 1 and limits_registers() and driver.active.get_current_target().arch == 100:
            options["maxnreg"] = 168  # with the 128 that ptxas chooses, some spill
        kernels.append(Launch(sums_.slopes_few_kernel, number * strips, 1, 32, (*given, strips), options))
    has_term = values[:, 1].view(*expected.shape[:2], *(1,) * (expected.dim() - 2)) > 0
    return Prototype(
        ("slopes",), kernels, lambda: [(torch.where(has_term, found, 0), torch.where(has_term, expected, 0))]
    )


def labels(launches: dict[str, Launch]) -> Prototype:
    """Return the prototype of what comes from the labels; with decay these have been read."""
    target, label, present, expected, ignore, grid, _ = launches["read_labels"].args
    maps, decays = launches["find_sides"].args[0], bool(grid.decay.value)
    if decays:
        target, present, ignore = label, None, IGNORED.value
    results, between = ("same_side", "other_side", "other_class"), ("same_scale", "same_least")
    of_edges = ("other_scale", "other_least")  # what edge pixels give, and nothing elsewhere
    found = maps._replace(**{name: new(getattr(maps, name)) for name in (*results, *between, *of_edges)})
    there = None if present is None else torch.zeros_like(present)
    if not decays:
        found = found._replace(label=new(label))
    tile = 16 if INTERPRETED else 4
    size, columns = grid.size, 4 * tile  # of the tiles, of 8 rows
    programs = len(label) * size.depth * cdiv(size.height, 8) * cdiv(size.width, columns)
    sums = new(expected.new_empty(programs, expected.shape[1]))
    flags, (depth, height, width) = label.new_empty(programs, dtype=torch.int8), map(int_of, grid.radius)
    strips = cdiv(2 * width + 1, MOST_COLUMNS)
    window = tuple(map(constant, range(3 + cdiv(2 * width + 1, strips)))), *constants([strips])
    rows = constant((2 * depth + 1) * (2 * height + 1) * strips)
    times = cdiv(4 * height, 8) + 1, cdiv(4 * width, columns) + 1
    times = constant((4 * depth + 1) * math.prod(times)), *constants(times)
    given = found, there, sums, flags, ignore, window, rows, times, grid, constant(8)
    sides = Launch(windows.sides_few_kernel, programs, 1, tile, (target, *given), {"warps": 1})
    weights = Launch(
        windows.weights_few_kernel, programs, 1, tile, (found, flags, window, rows, grid, constant(8)), {"warps": 1}
    )

    def pairs() -> list[tuple[Tensor, Tensor]]:
        rows = slice(EDGES.value, EDGES.value + 1) if decays else slice(NEAR_EDGES.value)
        pairs = [(found.label, label), (sums[:, rows].sum(0), expected[:, rows].sum(0))]
        pairs += [(getattr(found, n), getattr(maps, n)) for n in results if getattr(maps, n) is not None]
        is_edge = (maps.other_scale != 0) & (expected[:, NEAR_EDGES.value :].sum() > 0)
        is_edge = is_edge & (found.other_scale == found.other_scale)
        for name in of_edges[: 1 + decays]:
            pairs.append(tuple(torch.where(is_edge, getattr(of, name), 0) for of in (found, maps)))
        return pairs if there is None else [*pairs, (there, present)]

    return Prototype(("read_labels", "find_sides", "weigh_pixels")[decays:], [sides, weights], pairs)


def int_of(value: Any) -> int:  # noqa: ANN401
    """Return a number, or that of a constant."""
    return int(getattr(value, "value", value))


def prototypes_of(launches: dict[str, Launch]) -> Iterator[Prototype]:
    """Yield the prototypes that can replace kernels of a call, none of one that launches nothing.

    There are none for logits that are interpolated, and none for the forward pass of many classes, which waits for
    memory.
    """
    if "forward" not in launches:
        return
    x, *_, grid = launches["forward"].args
    is_plain = x.axes.value == 0
    if is_plain and grid.classes.value <= MOST:
        yield forward(launches)
    if is_plain and "backward" in launches:
        yield backward(launches)
    if "find_sides" in launches:
        yield labels(launches)
    if "products" in launches:
        yield products(launches)
        yield solve(launches)
        if "slopes" in launches:
            yield slopes(launches)
