"""Which backend serves a call, and what is said of CUDA, with fake libraries, drivers and devices."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from edgeloss import EdgeAwareLoss, backends, check
from edgeloss._call import choose
from edgeloss._checks import inputs
from edgeloss._checks.options import Options
from edgeloss._kernels import backends as kernels
from edgeloss._kernels import library
from edgeloss.functional import edge_aware_loss, normalizers

# As the build records it: CUDA 12.8, machine code for 8.x and 9.x, PTX of 9.0.
RECORD = {"toolkit": [12, 8], "cubins": [80, 90], "ptx": [90]}


@pytest.mark.parametrize(
    ("driver", "capability", "expected"),
    [
        ((12, 8), (8, 0), None),
        ((13, 0), (9, 0), None),  # a driver serves all older toolkits
        ((12, 0), (8, 6), None),  # machine code: any driver of the major version, any higher minor capability
        ((12, 8), (12, 0), None),  # PTX, compiled by a driver as new as the toolkit
        ((13, 1), (10, 3), None),
        ((11, 8), (8, 0), "with CUDA 12.8, but the driver supports CUDA up to 11.8; update the driver"),
        ((12, 4), (12, 0), "for a device of compute capability 12.0 its PTX needs a driver of that version"),
        ((13, 0), (7, 5), "not built for a device of compute capability 7.5; run `EDGELOSS_CUDA_ARCHS=75 pip install"),
    ],
)
def test_which_device_a_library_serves(driver: tuple[int, int], capability: tuple[int, int], expected: Any) -> None:
    found = library._why_unfit(RECORD, driver, capability)
    assert found is None if expected is None else expected in (found or "")


@pytest.fixture
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend a library with CUDA kernels and a torch for CUDA, on a machine with two devices."""
    monkeypatch.setattr(library, "MISSING", None)
    monkeypatch.setattr(library, "RECORD", RECORD)
    monkeypatch.setattr(library, "_FIT", {})
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: key == "CUDA")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [(7, 5), (8, 6)][index])
    monkeypatch.setattr(library, "_driver_version", lambda: (13, 0))


@pytest.mark.usefixtures("_machine")
def test_reasons_come_in_the_order_in_which_to_fix_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.why_not_on_cuda(None) is None  # on the current device
    assert "capability 7.5" in str(library.why_not_on_cuda(0))
    with monkeypatch.context() as patch:  # a device is asked once
        patch.delattr(torch.cuda, "get_device_capability")
        assert library.why_not_on_cuda(1) is None
    library._FIT.clear()
    monkeypatch.setattr(library, "RECORD", {})
    assert "has no record" in str(library.why_not_on_cuda(1))
    library._FIT.clear()

    def no_driver() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check.")

    monkeypatch.setattr(torch.cuda, "init", no_driver)
    assert library.why_not_on_cuda(None) == "Found no NVIDIA driver on your system. Please check."
    monkeypatch.setattr(torch.version, "cuda", None)
    assert library.why_not_on_cuda(None) == f"torch {torch.__version__} is built without CUDA"
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: False)
    monkeypatch.setattr(library, "RECORD", {"without_cuda": "no nvcc was found"})
    assert library.why_not_on_cuda(None) == "the library was built without CUDA kernels: no nvcc was found"
    monkeypatch.setattr(library, "RECORD", {})
    missing = "; edgeloss/_build.json, which has the reason, is missing"
    assert library.why_not_on_cuda(None) == f"the library was built without CUDA kernels{missing}"
    monkeypatch.setattr(library, "MISSING", "no C++ compiler was found when it was installed")
    assert library.why_not_on_cuda(None) == library.MISSING
    assert backends()["cpu"] == "unavailable: no C++ compiler was found when it was installed"


@pytest.fixture
def on_gpu() -> Iterator[tuple[Tensor, Tensor]]:
    """Return logits and labels of a GPU that may be absent; they have no values."""
    with FakeTensorMode():
        target = torch.zeros(1, 4, 4, dtype=torch.long, device="cuda:1")
        yield torch.zeros(1, 2, 4, 4, device="cuda:1"), target


def served_by(logits: Tensor, target: Tensor, **options: Any) -> str:
    """Return which backend serves a call."""
    checked = inputs.check_inputs(logits, target, Options(**options), inputs.Given())
    return choose(inputs.Call(checked, Options(**options), maps=options.get("reduction") == "none")).name


def test_what_is_available() -> None:
    assert set(backends()) == {"reference", "cpu", "cuda", "cuda, power != 0"}
    assert backends()["reference"] == "available"
    assert all(state == "available" or state.startswith("unavailable: ") for state in backends().values())
    logits, target = torch.zeros(1, 2, 4, 4, device="meta"), torch.zeros(1, 4, 4, dtype=torch.long, device="meta")
    with pytest.raises(RuntimeError, match="does not support this call: there are no kernels for meta tensors"):
        edge_aware_loss(logits, target, backend="fused")


@pytest.fixture
def _without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(kernels, "_REASONS", {})


@pytest.mark.usefixtures("_without_triton")
def test_without_triton_the_loss_on_gpus_is_plain_pytorch_and_says_so_once(on_gpu: tuple[Tensor, Tensor]) -> None:
    reason = "Triton is not installed, which compiles the kernels of GPUs; torch for CUDA brings it on Linux"
    assert backends()["cuda"] == f"unavailable: {reason}"
    with pytest.warns(RuntimeWarning, match=f"the loss on GPUs is plain PyTorch: {reason}"):
        assert served_by(*on_gpu) == "reference"
    assert served_by(*on_gpu) == "reference"  # a second warning would be an error
    with pytest.raises(RuntimeError, match=f"'fused' does not support this call: {reason}; pass 'auto' or"):
        edge_aware_loss(*on_gpu, backend="fused")


@pytest.mark.usefixtures("_machine", "_without_triton")
def test_with_power_gpus_have_the_kernels_of_nvcc(
    on_gpu: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backends()["cuda, power != 0"] == "available"
    assert served_by(*on_gpu, power=1.0) == "cuda, power != 0"
    assert kernels.why_no_neighbor_nll(on_gpu[0]) is None
    monkeypatch.setattr(library, "why_not_on_cuda", lambda index: "no nvcc was found")
    assert backends()["cuda, power != 0"] == "unavailable: no nvcc was found"
    assert served_by(*on_gpu, power=1.0) == "reference"
    with pytest.raises(RuntimeError, match="'fused' does not support this call: no nvcc was found; pass 'auto' or"):
        edge_aware_loss(*on_gpu, power=1.0, backend="fused")


def test_an_old_triton_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_REASONS", {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(kernels, "_version_of", lambda name: "3.5.1" if name == "pytorch-triton-rocm" else None)
    expected = "unavailable: Triton 3.5.1 is too old for the kernels of GPUs, which need 3.6 or newer"
    assert backends()["cuda"] == expected


def test_gpus_have_the_kernels_of_triton(on_gpu: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "why_no_triton", lambda: None)
    assert served_by(*on_gpu) == "cuda"
    assert served_by(*on_gpu, reduction="none") == "reference"
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "is built for CPUs" in backends()["cuda"]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backends()["cuda"] == "unavailable: torch sees no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backends()["cuda"] == "available"


def test_labels_that_nobody_waited_for_are_reported_once() -> None:
    check()
    for count in (2, 1):
        library.recorded_wrong(torch.device("cpu")).add_(count)
    with pytest.raises(ValueError, match="but got others at 3 pixels of the calls before; pass validate='sync'"):
        check()
    check()


def test_only_sync_reads_from_cuda() -> None:
    here, there = torch.ones(2), SimpleNamespace(is_cuda=True)
    assert all(inputs.may_read(here, validate) for validate in ("async", "sync", "never"))
    assert [inputs.may_read(there, validate) for validate in ("async", "sync", "never")] == [False, True, False]


@pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")
def test_nothing_else_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have no values to read: a call on them does all that it does on CUDA."""
    monkeypatch.setattr(inputs, "may_read", lambda values, validate: validate == "sync")
    with FakeTensorMode():
        x, y = torch.randn(2, 5, 8, 9, requires_grad=True), torch.zeros(2, 8, 9, dtype=torch.long)
        weight, v = torch.rand(5), torch.rand(2, 8, 9)
        options: dict[str, Any] = {"weight": weight, "pixel_weight": v, "distance": v, "decay": 1.0}
        for reduction in ("mean", "sum"):
            total = torch.rand(()), torch.rand(5)
            given = {"reduction": reduction, "normalizer": total, "return_terms": True, "backend": "fused"}
            loss, _ = edge_aware_loss(x, y, **given, **options)
            loss.backward()
        EdgeAwareLoss(backend="fused")(x, y, normalizer=normalizers(y, 5, pixel_weight=v))
        with pytest.raises(DataDependentOutputException):
            edge_aware_loss(x, y, validate="sync", backend="fused", **options)
