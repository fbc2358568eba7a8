"""Reading and writing files: what arrives, and that damaged files and failed writes do no harm."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edgeloss import io
from edgeloss.io import InputError
from edgeloss.io.arrays import Choice, count_slices

H, W, C = 24, 32, 3
LOGITS = torch.randn(C, H // 2, W // 2, generator=torch.Generator().manual_seed(0))
LABELS = np.arange(H * W, dtype=np.uint8).reshape(H, W) % C


def test_reads_masks_by_index_and_of_16_bits(tmp_path: Path) -> None:
    palette = Image.frombytes("P", (2, 1), bytes([2, 1]))
    palette.putpalette([9, 9, 9, 200, 0, 0, 0, 0, 200])
    palette.save(tmp_path / "palette.png")
    Image.fromarray(np.array([[300, 1]], np.uint16)).save(tmp_path / "deep.png")
    assert io.read_labels(tmp_path / "palette.png").tolist() == [[2, 1]]
    assert io.read_labels(tmp_path / "deep.png").tolist() == [[300, 1]]


def test_slices_of_an_archive_are_expanded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask, pred, expanded = tmp_path / "mask.npz", tmp_path / "pred.npz", []
    read = np.lib.npyio.NpzFile.__getitem__
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", lambda *of: expanded.append(of[1]) or read(*of))
    for labels in (
        np.stack([LABELS] * 3),
        np.stack([LABELS, LABELS.T.reshape(H, W)] * 2),
    ):  # then other files
        expanded.clear()
        np.savez_compressed(mask, label=labels, image=labels)
        np.savez_compressed(pred, logits=np.eye(C)[labels].transpose(3, 0, 1, 2))
        assert count_slices(mask, Choice(["label"])) == count_slices(pred, Choice(["logits"])) == len(labels)
        for at, expected in enumerate(labels):
            assert torch.equal(io.read_labels(mask, at=at), torch.from_numpy(expected).long())
            assert torch.equal(io.read_prediction(pred, at=at).values.argmax(0), torch.from_numpy(expected).long())
        assert expanded == ["label", "logits"]


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.png"
    Image.new("L", (3, 2), 1).save(path)
    for read in (io.read_labels, io.read_image, io.read_prediction):
        assert str(read(path)) == str(read(Path(path)))
    assert io.files_by_stem(str(tmp_path), [".png"]) == {"a": Path(path)}
    with io.atomic_write(path) as file:
        file.write(b"done")
    assert Path(path).read_bytes() == b"done"


def test_reads_colors_and_gray_values_in_color(tmp_path: Path) -> None:
    colors = io.color_labels("cityscapes")
    path = tmp_path / "colors.png"
    pixels = np.array([[(128, 64, 128), (0, 0, 0), (119, 11, 32), (111, 74, 0)]], np.uint8)
    Image.fromarray(np.dstack([pixels, np.full((1, 4), 255, np.uint8)])).save(path)  # RGBA, as Cityscapes stores them
    assert io.read_labels(path, colors=colors).tolist() == [[0, 255, 18, 255]]
    pixels[0, 1] = 1, 2, 3
    Image.fromarray(pixels).save(path)
    with pytest.raises(
        InputError,
        match=r"expected colors of the palette, but got 1 unknown, such as \(1, 2, 3\) at \[0, 1\]; name another",
    ):
        io.read_labels(path, colors=colors)
    Image.fromarray(np.array([[(3, 3, 3), (255, 255, 255)]], np.uint8)).save(path)
    assert io.read_labels(path).tolist() == io.read_labels(path, colors=colors).tolist() == [[3, 255]]


@pytest.mark.parametrize(("name", "classes"), {"ade20k": 150, "camvid": 11, "cityscapes": 19, "voc": 21}.items())
def test_palettes_have_a_color_for_each_class(name: str, classes: int) -> None:
    palette, labels = io.read_palette(name), io.color_labels(name)
    assert sorted(palette) == [*range(classes), io.VOID_INDEX]
    assert all(0 <= channel <= 255 for color in palette.values() for channel in color)
    differing = [k for k, color in palette.items() if labels[color] != k]
    assert differing == ([48] if name == "ade20k" else [])  # a skyscraper has the color of a road


def test_chooses_an_array_by_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", logits=LOGITS.numpy(), labels=LABELS)
    assert io.read_prediction(tmp_path / "both.npz").kind == "logits"
    assert io.read_labels(tmp_path / "both.npz").tolist() == LABELS.tolist()
    assert io.read_prediction(tmp_path / "both.npz", key="labels").kind == "labels"
    torch.save({"a": LOGITS, "b": 2 * LOGITS}, tmp_path / "both.pt")
    assert torch.equal(io.read_prediction(tmp_path / "both.pt", key="b").values, 2 * LOGITS)


def test_turns_an_image_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # its top is the right-hand side
    Image.fromarray(np.zeros((H, W), np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    assert io.read_image(tmp_path / "turned.jpg").shape == (3, W, H)


def test_files_remain_unchanged_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"from before")
    with pytest.raises(RuntimeError), io.atomic_write(path) as file:  # noqa: PT012
        file.write(b"half")
        raise RuntimeError
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("page.html", b"from before")]


_WHOLE = {
    ".npy": lambda path: np.save(path, LOGITS.numpy()),
    ".npz": lambda path: np.savez(path, LOGITS.numpy()),
    ".pt": lambda path: torch.save({"logits": LOGITS}, path),
    ".png": lambda path: Image.fromarray(LABELS).save(path),
}


@pytest.mark.parametrize("suffix", _WHOLE)
@given(st.data())
def test_damaged_files_are_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    _WHOLE[suffix](path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(InputError):  # and no other error
        assert io.read_prediction(path).values.dim() in (2, 3)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.png", "a.jpg"], r"a\.png: expected one file per name, but got .*a\.jpg too; rename one of them"),
        ([".a.png", "a.txt"], r"expected \.png, .* files, but got .txt"),
    ],
)
def test_a_folder_has_one_file_per_name(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=message):
        io.files_by_stem(tmp_path, io.IMAGE_SUFFIXES)


# ---------------------------------------------------------------------------------------------------------- class lists


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 b\n\n0 a\n", (["a", "b"], None)),
        ("0 traffic light\r\n255 void\r\n", (["traffic light"], 255)),
        ("\ufeff0 a\n1 Void\n", (["a"], 1)),
        ("0 a\n255 unlabeled", (["a"], 255)),
    ],
)
def test_read_classes(text: str, expected: tuple[list[str], int | None], tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text(text, encoding="utf-8", newline="")
    assert io.read_classes(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 a\nb 1\n", """, line 2: expected "<index> <name>", but got 'b 1'"""),
        ("0\n", """, line 1: expected "<index> <name>", but got '0'"""),
        ("-1 a\n", """, line 1: expected "<index> <name>", but got '-1 a'"""),
        ("0 a\n0 b\n", ", line 2: index 0 occurs twice, first in line 1"),
        ("0 a\n1 a\n", ", line 2: name 'a' occurs twice"),
        ("0 a\n255 void\n7 void\n", ", line 3: second void line, the first is line 2"),
        ("0 a\n2 b\n", ", line 2: expected the indices of 2 classes to be 0 to 1 without a gap, but got 2"),
        ("255 void\n", ": expected at least one class, but got none"),
    ],
)
def test_read_classes_names_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        io.read_classes(path)
