"""Check that what a call repeats is what it would launch first; nothing is compiled, and there is no GPU.

A process of its own, since Triton's interpreter launches nothing. Usage: launches.py CALLS
"""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import torch
import triton
from calls import ON_GPU, random_case
from triton.runtime.jit import JITFunction

from check_gpu import FIRST, _Driver
from edgeloss import EdgeAwareLoss
from edgeloss._kernels import library
from edgeloss._kernels.triton import interpolate, plans
from edgeloss.functional import edge_aware_loss

find, run = JITFunction.run, plans.run
times = {"first": 0, "again": 0}
addresses: set[int] = set()  # and other integers that kernels got from repeated calls


def integers_of(values: tuple[Any, ...]) -> set[int]:
    """Return all integers in nested tuples."""
    return {n for v in values for n in (integers_of(v) if isinstance(v, tuple) else {v} if type(v) is int else ())}


def run_and_compare(describe: Any, given: Any, *numbers: Any) -> list[torch.Tensor]:
    """Return what a call does; of a repeated one, compare the launches with those of a first one."""
    known = plans.recorded(describe, given[0].get_device(), *numbers, *map(plans.kind_of, given))
    times["again" if known else "first"] += 1
    results = run(describe, given, *numbers)
    new = plans.Plan(given := [t if t is None else t.detach() for t in given])
    assert len(describe(new, given, *numbers)) == len(results)
    starts = [2**20 * n for n in range(100)]
    for old, other in itertools.zip_longest(known[0].launches(starts), new.launches(starts)):
        assert old == other, (describe, numbers)
    return results


def compile_nothing(kernel: Any, key: Any, _: Any, device: Any, constants: Any, options: Any, *others: Any) -> Any:
    def run(programs: int, *others: Any) -> None:
        assert programs > 0
        assert others[:7] == (1, 1, 0, "function", "metadata", None, None)
        addresses.update(integers_of(others[8:]))

    compiled = SimpleNamespace(run=run, function="function", packed_metadata="metadata")
    kernel.device_caches[device][0][key] = compiled
    return compiled


def find_only(kernel: Any, *args: Any, warmup: bool, **options: Any) -> Any:
    return find(kernel, *args, warmup=True, **options)


def main(calls: int) -> None:
    """Run random calls, options and devices, each more than once."""
    triton.runtime.driver.set_active(_Driver(FIRST))
    JITFunction._do_compile, JITFunction.run, plans.run = compile_nothing, find_only, run_and_compare
    library.interprets = True  # CPU tensors take the kernels of GPUs
    for number in range(calls):
        case = random_case(number, **ON_GPU)
        x = case.x.detach()
        memory = torch.empty(x.numel() + 1, dtype=x.dtype)[number % 2 :]  # of which one half is not aligned
        places = [x, memory[: x.numel()].view(x.shape)]
        for logits in places * 2:
            leaf = logits.detach().requires_grad_()
            edge_aware_loss(leaf, case.y, backend="fused", **{**case.options, "validate": "never"}).backward()
    interpolate.PART = 1  # an image at a time
    y = torch.zeros(3, 10, 10, dtype=torch.int64)
    given: list[dict[str, Any]] = [{}, {"weight": torch.ones(3)}, {"pixel_weight": torch.ones(y.shape)}]
    given += [{"radius": 2}, {"decay": 2.0}, {"decay": 3.0}, {"label_smoothing": 0.1}, {"region_weight": 0.0}]
    given += [{"reduction": "sum"}, {"edge_focus": 0.0}, {"edge_focus": 3.0}, {"edge_class_weight": None}]
    given += [{"edge_class_weight": torch.ones(3), "normalizer": (9.0, n)} for n in (9.0, torch.ones(3))]
    for size, options in itertools.product((10, 5, 10, 5), given):
        x = torch.zeros(3, 3, size, size, requires_grad=True)
        edge_aware_loss(x, y, backend="fused", validate="never", upsample=True, **options).backward()
    for classes, device in itertools.product((1, 2, 19), (0, 1)):
        _Driver.get_current_device = torch.Tensor.get_device = lambda *_, device=device: device
        criterion = EdgeAwareLoss(backend="fused", validate="never")
        for size, images in itertools.product((12, 16), (2, 200, 2, 200)):
            x = torch.zeros(images, classes, size, size, requires_grad=True)
            y = torch.zeros(images, size, size, dtype=torch.int64)
            criterion(x, y).backward()
    assert x.grad is not None
    assert addresses >= {x.data_ptr(), y.data_ptr(), x.grad.data_ptr()}
    assert times["again"] > times["first"] > 0, times
    print(times)


if __name__ == "__main__":
    main(int(sys.argv[1]))
