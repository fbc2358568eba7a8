"""Reading and writing files: what arrives, and that damaged files and failed writes do no harm."""

from __future__ import annotations

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
        ([".a.png", "a.txt"], r"expected \.png, .* files, but got none"),
    ],
)
def test_a_folder_has_one_file_per_name(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=message):
        io.files_by_stem(tmp_path, io.IMAGE_SUFFIXES)


def test_all_public_names_exist() -> None:
    assert all(hasattr(io, name) for name in io.__all__)
