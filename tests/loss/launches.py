"""Check that kernels launched again are those that Triton would launch; nothing is compiled, and there is no GPU.

A process of its own, since Triton's interpreter launches nothing. Usage: launches.py CALLS
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
import triton
from calls import ON_GPU, random_case
from triton.runtime.jit import JITFunction

from check_gpu import FIRST, _Driver
from edgeloss import EdgeAwareLoss
from edgeloss._kernels import library
from edgeloss._kernels.triton import interpolate
from edgeloss.functional import edge_aware_loss

find = JITFunction.run
launches = {"first": 0, "again": 0}


class _Compiled:
    """What Triton would have compiled of a kernel."""

    def __init__(self, kernel: Any, options: dict[str, Any]) -> None:
        self.kernel, self.options = kernel, options

    def __getitem__(self, programs: tuple[int, int, int]) -> Any:
        def launch(*args: Any) -> None:
            launches["again"] += 1
            found = find(self.kernel, *args[:-1], TILE=args[-1], grid=programs, warmup=True, **self.options)
            assert found is self, self.kernel.fn.__name__

        return launch


def compile_nothing(kernel: Any, key: Any, _: Any, device: Any, constants: Any, options: Any, *others: Any) -> Any:
    chosen = {name: getattr(options, name) for name in ("num_warps", "enable_fp_fusion")}
    kernel.device_caches[device][0][key] = compiled = _Compiled(kernel, chosen)
    launches["first"] += 1
    return compiled


def find_only(kernel: Any, *args: Any, warmup: bool, **options: Any) -> Any:
    return find(kernel, *args, warmup=True, **options)


def main(calls: int) -> None:
    """Run random calls, options and devices, each more than once."""
    triton.runtime.driver.set_active(_Driver(FIRST))
    JITFunction._do_compile, JITFunction.run = compile_nothing, find_only
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
            criterion(x, torch.zeros(images, size, size, dtype=torch.int64)).backward()
    assert launches["again"] > launches["first"] > 0, launches
    print(launches)


if __name__ == "__main__":
    main(int(sys.argv[1]))
