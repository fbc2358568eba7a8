"""Compile the kernels of GPUs as calls of the loss do, without a GPU; print a table, and fail on spills and races.

Usage, from the repository's root: python tools/check_gpu.py [--targets sm_90 gfx942] [--forms NAME ...]

Triton has its own compiler and assembler: a machine without a GPU compiles for all of them. Calls are made of tensors
on the CPU, whose kernels are compiled and not run, so that what is compiled is what a call would launch.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, TypeAlias

FIRST, *OTHERS = TARGETS = ["sm_90", "sm_80", "sm_100", "sm_120", "gfx942"]
# A call: the shape of the logits and of the labels, the dtype, and options that change what is compiled.
Form: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], str, dict[str, Any]]
FORMS: dict[str, Form] = {
    "2 classes": ((2, 2, 64, 64), (64, 64), "float32", {}),
    "2 classes, bfloat16": ((2, 2, 64, 64), (64, 64), "bfloat16", {}),
    "1 logit, multilabel": ((2, 3, 64, 64), (64, 64), "float32", {"multilabel": True}),
    "19 classes": ((2, 19, 64, 64), (64, 64), "float32", {}),
    "19 classes, no regions": ((2, 19, 64, 64), (64, 64), "float32", {"region_weight": 0.0}),
    "19 classes, bfloat16": ((2, 19, 64, 64), (64, 64), "bfloat16", {}),
    "19 classes, decay, smoothing": ((2, 19, 64, 64), (64, 64), "float32", {"decay": 2.0, "label_smoothing": 0.1}),
    "150 classes": ((2, 150, 64, 64), (64, 64), "float32", {}),
    "150 classes, upsampled": ((2, 150, 32, 32), (128, 128), "float32", {"upsample": True}),
    "4 classes, volume": ((1, 4, 16, 16, 16), (16, 16, 16), "float32", {}),
    "4 classes, float64": ((1, 4, 64, 64), (64, 64), "float64", {}),
}
COMMON = ["2 classes", "19 classes, bfloat16", "150 classes, upsampled"]  # for the other targets


REWRITING = "backward"  # the kernel that writes some elements more than once
REGISTERS = b"\x04\x2f\x08\x00"  # in .nv.info, before a symbol and how many it has
EXIT, SPILLS = 0x94D, (0x983, 0x387)  # operations in the low 12 bits of an instruction: EXIT; LDL and STL


class Row(NamedTuple):
    """Resources of a compiled kernel; spills are loads and stores of them, or of AMD spilled registers.

    A kernel has races where threads write what others have written, and do not wait for them.
    """

    form: str
    target: str
    kernel: str
    registers: int
    spills: int
    shared: int
    has_races: bool


class _Driver:
    """Stands for a device that is not there."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        number, self._number = target.split("_")[-1], TARGETS.index(target)
        self._target = GPUTarget("hip", target, 64) if target.startswith("gfx") else GPUTarget("cuda", int(number), 32)

    def get_current_device(self) -> int:
        return self._number  # Triton keeps what it has compiled for each device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:  # noqa: ANN401
        return self._target


def resources(compiled: Any) -> tuple[int, int]:  # noqa: ANN401
    """Return the registers of a thread, and how many instructions, or on AMD registers, are for spilled ones."""
    if "cubin" not in compiled.asm:
        code = compiled.asm["amdgcn"]
        used, spilled = (re.findall(rf"\.vgpr_{name}: +(\d+)", code) for name in ("count", "spill_count"))
        return max(map(int, used)), sum(map(int, spilled))
    cubin = compiled.asm["cubin"]  # ELF; its tools take longer to start than all else takes
    registers = struct.unpack_from("<I", cubin, cubin.index(REGISTERS) + len(REGISTERS) + 4)[0]
    start, count = struct.unpack_from("<Q", cubin, 0x28)[0], struct.unpack_from("<H", cubin, 0x3C)[0]
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + 64 * i) for i in range(count)]
    words = [
        struct.unpack_from("<H", cubin, at)[0] & 0xFFF
        for _, kind, flags, _, first, size in sections
        if kind == 1 and flags & 4  # what is executed
        for at in range(first, first + size, 16)
    ]
    assert EXIT in words
    return registers, sum(word in SPILLS for word in words)


def has_races(kernel: str, compiled: Any) -> bool:  # noqa: ANN401
    """Return whether several threads write an element: stores divide a tile in different ways, without a barrier."""
    layouts = set(re.findall(r"tt\.store .*(#blocked\d*)>", compiled.asm["ttgir"]))
    return kernel == REWRITING and len(layouts) > 1 and "barrier" not in compiled.asm["ttgir"]


def compile_form(form: str, target: str) -> list[Row]:
    """Return a row for each kernel of a call for a target."""
    return [
        Row(form, target, name, *resources(compiled), compiled.metadata.shared, has_races(name, compiled))
        for name, compiled in kernels_of(FORMS[form], target).items()
    ]


def kernels_of(form: Form, target: str) -> dict[str, Any]:
    """Compile the kernels of a call for a target, by their names, with a number where one is launched again."""
    warnings.simplefilter("ignore")
    import torch
    import triton
    from triton.runtime.jit import JITFunction

    from edgeloss import library
    from edgeloss.functional import edge_aware_loss

    triton.runtime.driver.set_active(_Driver(target))
    kernels = {}
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:  # noqa: ANN401
        name = self.fn.__name__.removesuffix("_kernel")
        again = sum(kernel.split()[0] == name for kernel in kernels)
        for values in args:  # sums, which are no numbers yet
            if isinstance(values, torch.Tensor) and values.dtype == torch.float64:
                values.detach().numpy().fill(0)
        kernels[f"{name} {again + 1}" if again else name] = run(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only
    library.interprets = True  # CPU tensors take the kernels of GPUs
    try:
        x_shape, y_shape, dtype, options = form
        y = torch.randint(2, (*x_shape[: 1 + options.get("multilabel", False)], *y_shape))
        x = torch.randn(x_shape, dtype=getattr(torch, dtype), requires_grad=True)
        edge_aware_loss(x, y, backend="fused", **{"region_weight": 3.0, **options}).backward()
    finally:
        JITFunction.run = run
    return kernels


def main() -> int:
    """Compile all forms for all targets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS))
    given = parser.parse_args()
    jobs = [
        (form, target) for target in given.targets for form in given.forms or (COMMON if target in OTHERS else FORMS)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = [row for rows in pool.map(compile_form, *zip(*jobs, strict=True)) for row in rows]
    print(f"{'form':30} {'target':8} {'kernel':16} {'registers':>9} {'spills':>6} {'shared':>6}")
    for row in found:
        print(f"{row.form:30} {row.target:8} {row.kernel:16} {row.registers:9} {row.spills:6} {row.shared:6}")
    failed = [row for row in found if row.spills or row.has_races]
    for row in failed:
        reason = f"spills {row.spills}" if row.spills else "writes what other threads write, without a barrier,"
        print(f"{row.kernel} {reason} for {row.target} ({row.form})", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
