"""Tests for tools/check_gpu.py: what it finds in compiled kernels."""

from __future__ import annotations

import json

import check_gpu


def test_what_is_wrong_with_kernels_is_named() -> None:
    row = check_gpu.Row("2 classes", "sm_90", "forward", 105, registers=90, spills=0, shared=0, has_races=False)
    bounds = {"2 classes": {"forward": 100}}
    assert not [*check_gpu.failures([row], bounds)]
    rows = [row._replace(instructions=106), row._replace(spills=2), row._replace(has_races=True)]
    assert [*check_gpu.failures([*rows, row._replace(form="new")], bounds)] == [
        "forward has 106 instructions instead of 100 for sm_90 (2 classes); --write records them",
        "forward spills 2 for sm_90 (2 classes)",
        "forward writes what other threads write, without a barrier, for sm_90 (2 classes)",
        "forward has 105 instructions instead of 0 for sm_90 (new); --write records them",
    ]
    assert json.loads(check_gpu.BOUNDS.read_text()).keys() == check_gpu.FORMS.keys()


def test_stores_of_an_element_by_several_threads_are_found() -> None:
    """Each divides the tile among threads in another way."""
    one = """%a = tt.splat %to : !tt.ptr<f32> -> tensor<32x!tt.ptr<f32>, #blocked> loc(#loc1)
        %b = tt.addptr %a, %n : tensor<32x!tt.ptr<f32>, #blocked>, tensor<32xi32, #blocked> loc(#loc2)
        tt.store %b, %value, %mask : tensor<32x!tt.ptr<f32>, #blocked> loc(#loc3)
    """
    other = one.replace("#blocked>", "#blocked1>").replace("%a", "%c").replace("%b", "%d")
    assert not check_gpu.has_races(one + one)
    assert check_gpu.has_races(one + other)
    assert not check_gpu.has_races(one + "gpu.barrier\n" + other)
    assert not check_gpu.has_races(one + other.replace("%to", "%another"))
