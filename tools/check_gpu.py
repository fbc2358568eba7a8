"""Compile the kernels of GPUs as calls of the loss do, without a GPU, and print a table.

Usage, from the repository's root:

  python tools/check_gpu.py [--targets sm_90 gfx942] [--forms NAME ...] [--write]
  python tools/check_gpu.py --prototypes  # those of benchmarks/gpu/prototypes, for all targets

Fails on spills, on races, and on kernels that have more instructions than when `--write` recorded them. Triton has its
own compiler and assembler: a machine without a GPU compiles for all of them. Calls are made of tensors on the CPU, so
that what is compiled is what a call would launch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

sys.path.append(str(Path(__file__).parents[1] / "benchmarks/gpu"))

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
    "150 classes, 40 images": ((40, 150, 16, 16), (16, 16), "float32", {"region_weight": 0.0}),
    "150 classes, upsampled": ((2, 150, 32, 32), (128, 128), "float32", {"upsample": True}),
    "4 classes, volume": ((1, 4, 16, 16, 16), (16, 16, 16), "float32", {}),
    "4 classes, radius 7": ((2, 4, 64, 64), (64, 64), "float32", {"radius": 7, "region_weight": 0.0}),
    "4 classes, radius 7, decay": (
        (2, 4, 64, 64),
        (64, 64),
        "float32",
        {"radius": 7, "decay": 2.0, "region_weight": 0.0},
    ),
    "4 classes, float64": ((1, 4, 64, 64), (64, 64), "float64", {}),
}
COMMON = ["2 classes", "19 classes, bfloat16", "150 classes, upsampled"]  # for the other targets
PROTOTYPED = ["19 classes", "19 classes, bfloat16", "1 logit, multilabel", "19 classes, decay, smoothing"]
PROTOTYPED += ["150 classes", "4 classes, volume", "4 classes, radius 7", "4 classes, radius 7, decay"]
BOUNDS = Path(__file__).with_name("gpu_bounds.json")  # instructions of the kernels of each form, for the first target
MORE = 1.05  # than its bound is too much; another version of Triton may have a few more
REGISTERS = b"\x04\x2f\x08\x00"  # in .nv.info, before a symbol and how many it has
NOP, EXIT, SPILLS = 0x918, 0x94D, (0x983, 0x387)  # operations in the low 12 bits of an instruction; LDL and STL


class Row(NamedTuple):
    """Resources of a compiled kernel; spills are loads and stores of them, or of AMD spilled registers.

    A kernel has races where threads write what others have written, and do not wait for them.
    """

    form: str
    target: str
    kernel: str
    instructions: int  # in its code, 0 on AMD
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


def resources(compiled: Any) -> tuple[int, int, int]:  # noqa: ANN401
    """Return the instructions, the registers of a thread, and how many instructions or registers are for spills."""
    if "cubin" not in compiled.asm:
        code = compiled.asm["amdgcn"]
        used, spilled = (re.findall(rf"\.vgpr_{name}: +(\d+)", code) for name in ("count", "spill_count"))
        return 0, max(map(int, used)), sum(map(int, spilled))
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
    return sum(word != NOP for word in words), registers, sum(word in SPILLS for word in words)


def has_races(ttgir: str) -> bool:
    """Return whether two threads write an element: stores divide tiles of an array differently, without a barrier."""
    origins = dict(re.findall(r"(%[\w#]+) = [\w.]+ (%[\w#]+)", ttgir))  # of pointers, whose operation has them first
    layouts: dict[tuple[str, str], set[str]] = {}  # tiles of different sizes are different parts of the array
    for pointer, size, layout in re.findall(r"tt\.store (%[\w#]+), .* tensor<([\dx]+)!tt\.ptr<.*(#\w+)>", ttgir):
        while pointer in origins:
            pointer = origins[pointer]
        layouts.setdefault((pointer, size), set()).add(layout)
    return "barrier" not in ttgir and any(len(ways) > 1 for ways in layouts.values())


def compile_form(form: str, target: str, prototypes: bool) -> list[Row]:
    """Return a row for each kernel of a call for a target, or for each prototype that could replace some."""
    return [
        Row(form, target, name, *resources(compiled), compiled.metadata.shared, has_races(compiled.asm["ttgir"]))
        for name, compiled in kernels_of(FORMS[form], target, prototypes).items()
    ]


def kernels_of(form: Form, target: str, prototypes: bool) -> dict[str, Any]:
    """Compile the kernels of a call for a target, by their names, with a number where one is launched again."""
    warnings.simplefilter("ignore")
    import torch
    import triton
    from triton.runtime.jit import JITFunction

    from edgeloss._kernels import library
    from edgeloss._kernels.triton import plans
    from edgeloss.functional import edge_aware_loss

    plans.recorded.cache_clear()  # a call like one for another target
    triton.runtime.driver.set_active(_Driver(target))
    kernels, is_compiled = {}, not prototypes
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:  # noqa: ANN401
        name = self.fn.__name__.removesuffix("_kernel")
        again = sum(kernel.split()[0] == name for kernel in kernels)
        for values in args:  # sums, which are no numbers yet
            if isinstance(values, torch.Tensor) and values.dtype == torch.float64:
                values.detach().numpy().fill(0)
        if is_compiled:
            kernels[f"{name} {again + 1}" if again else name] = run(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only
    library.interprets = True  # CPU tensors take the kernels of GPUs
    try:
        x_shape, y_shape, dtype, options = form
        y = torch.randint(2, (*x_shape[: 1 + options.get("multilabel", False)], *y_shape))
        x = torch.randn(x_shape, dtype=getattr(torch, dtype), requires_grad=True)
        step = partial(edge_aware_loss, x, y, backend="fused", **{"region_weight": 3.0, **options})
        if prototypes:
            from prototypes import replacements

            launches = replacements.launches_of(lambda: step().backward())
            is_compiled = True
            for prototype in replacements.prototypes_of(launches):
                prototype.run()
        else:
            step().backward()
    finally:
        JITFunction.run = run
    return kernels


def failures(rows: list[Row], bounds: dict[str, dict[str, int]] | None) -> Iterator[str]:
    """Yield what is wrong with kernels; without bounds they may have any number of instructions."""
    for row in rows:
        where = f"for {row.target} ({row.form})"
        if row.spills:
            yield f"{row.kernel} spills {row.spills} {where}"
        if row.has_races:
            yield f"{row.kernel} writes what other threads write, without a barrier, {where}"
        if row.target != FIRST or bounds is None:
            continue
        bound = bounds.get(row.form, {}).get(row.kernel, 0)
        if row.instructions > MORE * bound:
            yield f"{row.kernel} has {row.instructions} instructions instead of {bound} {where}; --write records them"


def main() -> int:
    """Compile all forms for all targets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS))
    parser.add_argument("--write", action="store_true", help=f"record the instructions for {FIRST} in {BOUNDS.name}")
    parser.add_argument("--prototypes", action="store_true", help="compile the prototypes instead")
    given = parser.parse_args()
    forms = given.forms or (PROTOTYPED if given.prototypes else None)
    jobs = [
        (form, target, given.prototypes)
        for target in given.targets
        for form in forms or (COMMON if target in OTHERS else FORMS)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = [row for rows in pool.map(compile_form, *zip(*jobs, strict=True)) for row in rows]
    columns = Row._fields[3:-1]
    print(f"{'form':30} {'target':8} {'kernel':16}", *columns)
    bounds, counted = json.loads(BOUNDS.read_text()), {row.form: {} for row in rows if row.target == FIRST}
    for row in rows:
        figures = (f"{getattr(row, name):{len(name)}}" for name in columns)
        print(f"{row.form:30} {row.target:8} {row.kernel:16}", *figures)
        if row.target == FIRST:
            counted[row.form][row.kernel] = row.instructions
    if given.write and not given.prototypes:
        bounds |= counted
        lines = (f"{json.dumps(form)}: {json.dumps(kernels)}" for form, kernels in bounds.items())
        BOUNDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    messages = [*failures(rows, None if given.prototypes else bounds)]
    print(*messages, sep="\n", end="\n" * bool(messages), file=sys.stderr)
    return bool(messages)


if __name__ == "__main__":
    sys.exit(main())
