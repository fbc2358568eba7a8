"""Tests for tools/sass.py and tools/cuda_model.py: machine code, its loops, and the figures from them."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import cuda_model
import sass
from cuda_model import DEVICES, Case, Launch, Total, estimate

SOURCE = """
__global__ void __launch_bounds__(128) scale(const float4* x, float* y, int rows, int columns) {
  for (int i = blockIdx.x * 128 + threadIdx.x; i < rows; i += 1 << 16) {
    float sum = 0;
#pragma unroll 1
    for (int j = 0; j < columns; ++j) {
      const float4 v = x[i + j * rows];
      sum += v.x + v.y + v.z + v.w;
    }
    y[i] = sum;
  }
}
"""
# Its two loops, as ptxas 13.0 compiles them.
CODE = {
    80: bytes.fromhex(
        """
        247403ff10000000ff008e0700e20f0019780bff1f0000000014010000e20f00057808000000000000ff010000c40f00
        257602000058000003028e0700ca0f008179040204000000001d1e0c00a20e001078080801000000ffe0ff0700c80f00
        0c7a0008005d00007062f00300e20f0021720504050000000000000000c84f0021720606050000000000000000e40f00
        247605ff005c0000ff008e0700e40f0021720607060000000000000000e40f00257802051000000002028e0700c80f00
        21720906090000000000000000e20f004789000060ffffffffff830300ea0f00117a0200005a0000ff10800700c80f00
        117a0300005b00000b140f0000e40f041078000000000100ffe0ff0700c60f0086790002090000000419100c00e20100
        0c7a0000005c00007062f00300da0f0047890000c0feffffffff830300ea1f004d790000000000000000800300ea0f00
        """
    ),
    90: bytes.fromhex(
        """
        827b08ff00840000000a000000220e00357400ff00000000ff01000000e20f00197802ff1f0000000314010000e20f00
        24720bffff000000ff008e0700ca0f00827b0cff00880000000a000000620e00257808031000000008028e0700ce1f00
        8179040804000000001d1e0c00a2000036780000010000000000000000ca0f000c7200000d0000007062f00300e22f00
        2578080c1000000008028e0700c81f0021720504050000000000000000c84f0021720606050000000000000000c80f00
        21720607060000000000000000c80f0021720b060b0000000000000000e20f004789dc00fcffffffffff830300ec0f00
        b97a060000860000000a000000e40f00117c040306000000ff10800f00c80f00117c05030700000002140f0800e40f04
        1078030300000100ffe0ff0700c60f00867900040b0000000419100c00e201000c7200030c0000007062f00300da0f00
        4789a800fcffffffffff830300ea1f004d790000000000000000800300ea0f00
        """
    ),
}
DEVICE = DEVICES["h200"]
CASE = Case(2, 8, (32, 64), "float")


def kernel(arch: int = 90) -> sass.Kernel:
    return sass.Kernel("scale", 64, 0, 128, sass.decode(CODE[arch], arch))


@pytest.mark.parametrize(("arch", "own"), [(80, [1, 10, 10]), (90, [1, 13, 9])])
def test_finds_the_loops_of_machine_code(arch: int, own: list[int]) -> None:
    body = kernel(arch).body
    rows, columns = body.inner[0], body.inner[0].inner[0]
    assert [len(loop.own) for loop in body.walk()] == own  # outside of both stands EXIT
    assert [rows.head, columns.head] == [0, 0x40 if arch == 80 else 0x60]
    assert [sum(i.loaded for i in loop.own) for loop in body.walk()] == [0, 0, 16]
    assert [sum(i.stored for i in loop.own) for loop in body.walk()] == [0, 4, 0]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on PATH")
@pytest.mark.parametrize("arch", CODE)
def test_reads_a_cubin(arch: int, tmp_path: Path) -> None:
    source, cubin = tmp_path / "scale.cu", tmp_path / "scale.cubin"
    source.write_text(SOURCE)
    subprocess.run(["nvcc", "-cubin", f"-arch=sm_{arch}", str(source), "-o", str(cubin)], check=True)
    (found,) = cuda_model.kernels_of([cubin]).values()
    assert found.threads == 128
    assert found.shared == 0
    assert 8 < found.registers <= 64
    assert any(sum(i.loaded for i in loop.own) == 16 for loop in found.body.walk())


def code(*instructions: tuple[int, int | None, bool]) -> list[sass.Instruction]:
    """Return instructions from operations, targets and whether they may be skipped."""
    return [
        sass.Instruction(sass.SIZE * n, operation, conditional, None if target is None else sass.SIZE * target)
        for n, (operation, target, conditional) in enumerate(instructions)
    ]


def test_a_jump_back_to_a_rare_case_is_no_loop() -> None:
    add, branch, end = (0x210, None, False), sass.BRANCH, (sass.EXIT, None, False)
    # 1 leaves for 5, which comes back to 2.
    body = sass.loops(code(add, (branch, 5, True), add, add, end, add, (branch, 2, False)))
    assert [len(loop.own) for loop in body.walk()] == [7]
    # The same around 1 to 4, whose rare case belongs to it.
    body = sass.loops(code(add, add, (branch, 6, True), add, (branch, 1, True), end, add, (branch, 3, False)))
    assert [len(loop.own) for loop in body.walk()] == [2, 6]


def test_what_serves_a_loop_alone_is_counted_for_its_share() -> None:
    add, again, end = (0x210, None, False), (sass.BRANCH, 3, True), (sass.EXIT, None, False)
    # A part of the warps ends at 1, the others go on to the loop of 3 and 4.
    instructions = code(add, (sass.EXIT, None, True), add, add, again, end)
    assert sass.loops(instructions).inner[0].serving == {sass.SIZE * 2, sass.SIZE * 5}
    launch = Launch("loop", lambda case: 0, is_repeated=False, trips=lambda case: [0.25])
    found = estimate(sass.Kernel("loop", 64, 0, 128, instructions), launch, CASE, DEVICE)
    assert found.per_item == 2 + 0.25 * 4


def test_leaves_out_the_way_of_a_warp_that_is_apart() -> None:
    # BRA.DIV UR4, 0x17dd0 at 0xa80, and @!P1 BRA 0x900 at 0x250, both of sm_90.
    words = {0xA80: (0x0000017204D07947, 0x000FEA000B800000), 0x250: (0x0000000400A89947, 0x000FEC0003800000)}
    found = [sass.decode(bytes(at) + struct.pack("<QQ", *pair), 90)[-1] for at, pair in words.items()]
    assert [(i.target, i.conditional) for i in found] == [(None, True), (0x900, True)]
    body = sass.loops(code((sass.BRANCH, None, True), (sass.EXIT, None, False), (0x210, None, False)))
    assert len(body.own) == 2


def test_estimates_from_loops_and_bytes() -> None:
    found = estimate(kernel(), Launch("scale", lambda case: case.logits, per_class=None), CASE, DEVICE)
    assert found.loop == 9 / 4  # a thread loads 4 floats an iteration
    assert found.per_item == 13 + 2 * 9
    assert found.instructions == 31 * CASE.pixels
    assert found.memory == pytest.approx(2 * 8 * 32 * 64 * 4 / 4.3e12)
    assert found.issue == pytest.approx(31 * CASE.pixels / 32 / (132 * 4 * 1.98e9 * 0.65))
    assert found.occupancy == 0.5  # 64 of 65,536 registers a thread: 1024 of 2048 threads
    assert found.wait == pytest.approx(CASE.pixels / 32 * 2 * 0.6e-6 / (132 * 32))
    assert found.time == max(found.memory, found.issue) + 3e-6


def test_loops_run_as_often_as_the_launch_says() -> None:
    launch = Launch("scale", lambda case: 0, lambda case: case.pixels / 2, trips=lambda case: [case.classes])
    found = estimate(kernel(), launch, CASE, DEVICE)
    assert found.loop is None
    assert found.per_item == 13 + 8 * 9
    assert found.instructions == 85 * CASE.pixels / 2


def test_leaves_out_a_rare_loop_and_what_stands_around_it() -> None:
    add, branch, end = (0x210, None, False), sass.BRANCH, (sass.EXIT, None, False)
    # 1 leaves for 4 to 7, of which 5 and 6 are a loop and 7 comes back to 2.
    body = sass.loops(code(add, (branch, 4, True), add, end, add, add, (branch, 5, True), (branch, 2, False)))
    (rare,) = body.inner
    assert [len(loop.own) for loop in body.walk()] == [6, 2]
    assert rare.serving == {sass.SIZE * n for n in (4, 7)}
    found = sass.Kernel("rare", 32, 0, 128, code(add, (branch, 4, True), add, end, add, add, (branch, 5, True), end))
    launch = Launch("rare", lambda case: 0, is_repeated=False, trips=lambda case: [None])
    assert estimate(found, launch, CASE, DEVICE).per_item == 4


def test_judges_held_bounds_only() -> None:
    case = Case(8, 19, (512, 1024), "float")
    launch = Launch("scale", lambda c: 1.1 * c.floor, per_class=8)
    totals = [Total("two reads", case, [estimate(kernel(), launch, case, DEVICE)], case.floor / DEVICE.bandwidth)]
    lines, failed = cuda_model.judge(totals, {"loops": "", "bytes": "bfloat16"})
    assert "loops ≤ 12: holds, at most 1.12" in lines
    assert "bytes ≤ 1.07: not reached: [8, 19, 512, 1024] float32 1.1" in lines
    assert "time-one-read ≤ 1: no such kernels" in lines
    assert failed == [
        "bytes ≤ 1.07: not reached: [8, 19, 512, 1024] float32 1.1"
    ]  # there is no such call to hold it for
    _, failed = cuda_model.judge(totals, {"bytes": "float32", "time-one-read": ""})
    assert failed == [
        "time-one-read ≤ 1: no such kernels",
        "bytes ≤ 1.07: EXCEEDED: [8, 19, 512, 1024] float32 1.1",
    ]


def test_names_kernels_that_are_not_there() -> None:
    totals, missing = cuda_model.estimates({"scale": kernel()}, DEVICE)
    assert totals == []
    assert missing[0].startswith("two reads: there is no kernel ")
