"""Reading cases: what a prediction is taken for, and what fits a mask."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import C, H, W, half_logits, mask_array, options
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.cli.cases import Case, Reader
from edgeloss.cli.work import find_cases
from edgeloss.io import read_palette


def read_case(given: Namespace) -> Case:
    (files,) = find_cases(given)
    return Reader(given).read(files)


def read(folder: Path, pred: str, *words: object) -> Case:
    return read_case(options(folder / pred, folder / "mask.png", *words))


def write(path: Path, values: Tensor) -> None:
    """Write a tensor in the format of the suffix."""
    if path.suffix == ".pt":
        torch.save(values, path)
    elif path.suffix == ".npz":
        np.savez_compressed(path, values.numpy())
    elif path.suffix == ".png":
        Image.fromarray(values.to(torch.uint8).numpy()).save(path)
    else:
        np.save(path, values.numpy())


@pytest.mark.parametrize(
    ("suffix", "values", "interpretation"),
    [
        (".npy", half_logits(), "logits of 16 × 12 pixels, upsampled"),
        (".npy", half_logits()[None], "logits of 16 × 12 pixels, upsampled"),
        (".npz", half_logits().half(), "logits of 16 × 12 pixels, upsampled"),
        (".pt", half_logits().bfloat16().requires_grad_(), "logits of 16 × 12 pixels, upsampled"),
        (".pt", torch.randn(C, H, W).double(), "logits"),
        (".npy", half_logits().softmax(0), "probabilities of 16 × 12 pixels, upsampled"),
        (".npy", half_logits().softmax(0).half(), "probabilities of 16 × 12 pixels, upsampled"),
        (".pt", half_logits().softmax(0).bfloat16(), "probabilities of 16 × 12 pixels, upsampled"),
        (".npy", torch.ones(H, W).long(), "labels, each as a probability of 0.9"),
        (".pt", torch.ones(1, 1, H, W, dtype=torch.uint8), "labels, each as a probability of 0.9"),
        (".png", torch.ones(H, W), "labels, each as a probability of 0.9"),
        (".png", torch.ones(H // 2, W // 2), "labels of 16 × 12 pixels, upsampled, each as a probability of 0.9"),
    ],
)
def test_infers_what_a_prediction_is(folder: Path, suffix: str, values: Tensor, interpretation: str) -> None:
    write(folder / f"other{suffix}", values)
    case = read(folder, f"other{suffix}")
    assert case.interpretation == interpretation
    assert case.logits.shape[:2] == (1, C)
    if interpretation.startswith("logits"):
        assert torch.equal(case.logits[0], values.detach().view(C, *values.shape[-2:]))
    elif interpretation.startswith("probabilities"):
        torch.testing.assert_close(case.logits[0].softmax(0), values.float(), atol=1e-2, rtol=0)
    else:
        assert (case.logits[0].softmax(0)[1, 1:] - 0.9).abs().max() < 1e-6  # the first row is void


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (torch.tensor([[-3.0, 2.0]]), "auto", [-3.0, 2.0]),  # [H, W]
        (torch.tensor([[[-3.0, 2.0]]]), "auto", [-3.0, 2.0]),  # [1, H, W]
        (torch.tensor([[0.25, 0.5]]), "auto", [-np.log(3), 0.0]),
        (torch.tensor([[0.25, 0.5]]), "logits", [0.25, 0.5]),
    ],
)
def test_one_channel_is_one_logit_or_the_probability_of_class_1(
    tmp_path: Path, values: Tensor, kind: str, expected: list[float]
) -> None:
    np.save(tmp_path / "pred.npy", values.numpy())
    Image.fromarray(np.array([[0, 1]], np.uint8)).save(tmp_path / "mask.png")
    assert read(tmp_path, "pred.npy", "--pred-kind", kind).logits.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_probability_of_0_has_a_finite_logit(folder: Path, dtype: torch.dtype, channels: int) -> None:
    ones = torch.ones(1, H, W, dtype=dtype)
    torch.save(torch.cat([ones, 0 * ones])[-channels:], folder / "pred.pt")
    Image.fromarray(np.ones((H, W), np.uint8)).save(folder / "mask.png")
    case = read(folder, "pred.pt", "--pred-kind", "probabilities")
    assert case.logits.isfinite().all()
    assert case.logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert EdgeAwareLoss()(case.logits, case.target) > 8  # more than -log of float16's smallest number, 6e-8


def test_selects_the_named_one_of_several_arrays(folder: Path) -> None:
    np.savez(folder / "several.npz", logits=half_logits().numpy(), features=np.zeros(3))
    torch.save({"probs": half_logits().softmax(0), "epoch": 3, "loss": torch.tensor(0.5)}, folder / "several.pt")
    torch.save({"anything": half_logits(), "epoch": 3}, folder / "one.pt")
    np.savez(folder / "both.npz", first=half_logits(1).numpy(), second=half_logits(2).numpy())
    assert read(folder, "several.npz").interpretation.startswith("logits")
    assert read(folder, "several.pt").interpretation.startswith("probabilities")
    assert torch.equal(read(folder, "one.pt").logits[0], half_logits())
    assert torch.equal(read(folder, "both.npz", "--key", "second").logits[0], half_logits(2))


def test_reads_colors(folder: Path) -> None:
    colors = read_palette("voc")
    mask = np.array([[colors[label] for label in row] for row in mask_array().tolist()], np.uint8)
    Image.fromarray(mask).save(folder / "mask.png")
    assert torch.equal(read(folder, "pred.npy", "--palette", "voc").target[0], torch.from_numpy(mask_array()).long())


def test_reads_arrays_of_any_byte_order_and_precision(folder: Path) -> None:
    for dtype in (">f4", ">f8", np.longdouble):
        np.save(folder / "other.npy", half_logits().numpy().astype(dtype))
        assert torch.equal(read(folder, "other.npy").logits[0].float(), half_logits())


def test_label_under_void_is_not_read(folder: Path) -> None:
    labels = mask_array()
    Image.fromarray(labels).save(folder / "pred.png")
    assert read(folder, "pred.png", "--classes", C).logits.argmax(1)[0, 1:].eq(torch.from_numpy(labels[1:])).all()


@pytest.mark.parametrize(("region", "names"), [("1", None), ("1", "0 heart\n1 lung"), ("lung", "0 heart\n1 lung")])
@pytest.mark.parametrize("stored", ["logits", "probabilities", "labels"])
def test_a_region_is_a_binary_case(tmp_path: Path, region: str, names: str | None, stored: str) -> None:
    mask = np.array([[[1, 1, 0]], [[0, 1, 255]]], np.uint8)  # they overlap
    p = np.array([[[0.75, 0.5, 0.25]], [[0.25, 0.875, 0.5]]], np.float32)
    pred = {"logits": 8 * p - 4, "probabilities": p, "labels": (p > 0.5).astype(np.uint8)}[stored]
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "pred.npy", pred)
    if names:
        (tmp_path / "classes.txt").write_text(names)
    words = ["--classes", tmp_path / "classes.txt"] if names else []
    given = options(tmp_path / "pred.npy", tmp_path / "mask.npy", "--region", region, *words)
    reader, case = Reader(given), read_case(given)
    assert (reader.num_classes, reader.names) == (2, ["other", "lung" if names else "1"])
    assert case.target.tolist() == [[[0, 1, 255]]]
    logits = case.logits[0]
    if stored == "logits":
        assert logits.tolist() == [[[-2.0, 3.0, 0.0]]]
    elif stored == "probabilities":
        torch.testing.assert_close(logits.sigmoid(), torch.from_numpy(p[1:]))
    else:
        assert logits.argmax(0).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(
    ("remap", "stored", "labels"),
    [
        ("255:1", [0, 255], [0, 1]),
        ("0:255,1-150:0", [0, 1, 2], [255, 0, 1]),
        ("0:1,1:0", [0, 1], [1, 0]),  # all at once
        ("-1:255", [0, -1], [0, 255]),
    ],
)
def test_remap_replaces_labels(tmp_path: Path, remap: str, stored: list[int], labels: list[int]) -> None:
    np.save(tmp_path / "mask.npy", np.array([stored], np.int16))
    np.save(tmp_path / "pred.npy", np.zeros((C, 1, len(stored)), np.float32))
    given = options(tmp_path / "pred.npy", tmp_path / "mask.npy", "--remap", remap)
    assert read_case(given).target.tolist() == [[labels]]


@pytest.mark.parametrize(
    ("size", "is_stretched"), [((12, 16), False), ((6, 8), False), ((7, 9), False), ((16, 16), True), ((16, 12), True)]
)
def test_logits_of_another_aspect_ratio_are_noted(
    folder: Path, capsys: pytest.CaptureFixture[str], size: tuple[int, int], is_stretched: bool
) -> None:
    np.save(folder / "pred.npy", np.zeros((C, *size), np.float32))
    case = read(folder, "pred.npy")
    note = capsys.readouterr().err
    assert ("they are stretched over it" in note) == is_stretched
    assert ("if its axes are [C, W, H], swap them" in note) == (size == (16, 12))
    assert case.interpretation.endswith("stretched" if is_stretched else "upsampled")
