"""Parsing the report of the CUDA compiler, on an example in the format of ptxas."""

from __future__ import annotations

import check_cuda

REPORT = """\
ptxas info    : 28 bytes gmem
ptxas info    : Compiling entry function '_Z4edgeIfEvPKT_i' for 'sm_90'
ptxas info    : Function properties for _Z4edgeIfEvPKT_i
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 8 bytes cmem[2]
ptxas info    : Compile time = 7.160 ms
ptxas info    : Compiling entry function '_Z3sumPd' for 'sm_90'
ptxas info    : Function properties for _Z3sumPd
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers
ptxas info    : Function properties for _Z4restf
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
WARNINGS = """\
csrc/neighbors/nll.cu(12): warning #177-D: variable "x" was declared but never referenced
ptxas warning : Stack size for entry function '_Z3sumPd' cannot be statically determined
"""


def test_report() -> None:
    kernels, warnings = check_cuda.parse(REPORT)
    assert kernels == [
        check_cuda.Kernel("_Z4edgeIfEvPKT_i", "sm_90", registers=255, stack=16, spills=20, shared=1024),
        check_cuda.Kernel("_Z3sumPd", "sm_90", registers=18),
        check_cuda.Kernel("_Z4restf", "sm_90", stack=8),  # a function that was not inlined
    ]
    assert warnings == []
    assert check_cuda.parse(WARNINGS) == ([], WARNINGS.splitlines())


def test_table_is_aligned() -> None:
    assert check_cuda.table([("kernel", "spills"), ("a", 12)]) == "kernel  spills\na           12"
