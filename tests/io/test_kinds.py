"""What people store: predictions, masks and photographs in all their forms, and the limits of what is read."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, TiffImagePlugin
from torch import Tensor

from edgeloss import io
from edgeloss.io import InputError, Size, limits
from edgeloss.io.images import picture_size

Pixels = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
LABELS = np.kron(RNG.integers(0, 3, (3, 4)), np.ones((8, 8), int)).astype(np.uint8)
LOGITS = (np.eye(3)[LABELS].transpose(2, 0, 1) * 4 + RNG.normal(size=(3, 24, 32))).astype(np.float32)
PROBS: Pixels = np.exp(LOGITS) / np.exp(LOGITS).sum(0)
PHOTO = RNG.integers(0, 255, (24, 32, 3)).astype(np.uint8)
MANY = np.exp(3 * RNG.normal(size=(150, 6, 8)))
MANY = (MANY / MANY.sum(0)).astype(np.float32)


def read(path: Path, values: Pixels, kind: io.PredictionKind | None = None, note: Any = io.images.no_note) -> Any:
    np.save(path / "p.npy", values)
    return io.read_prediction(path / "p.npy", kind, note=note)


def notes_of(path: Path, values: Pixels, kind: io.PredictionKind | None = None) -> list[str]:
    """Return the notes about how values were read, without the path."""
    notes: list[str] = []
    read(path, values, kind, notes.append)
    return [note.partition(": ")[2] for note in notes]


def cross_entropy(prediction: io.Prediction, target: Pixels) -> float:
    logits = prediction.logits(3)[None]
    return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(target).long()[None]))


# --------------------------------------------------------------------------------------------------------- predictions


@pytest.mark.parametrize(
    ("stored", "is_noted"),
    [
        (PROBS, False),
        (PROBS.astype(np.float16), False),
        (PROBS.astype(np.float64), False),
        (PROBS.round(2), True),
        (PROBS.round(3), True),
        ((PROBS * 100).round(), True),
        ((PROBS * 100).round().astype(np.uint8), False),  # integers are no logits
        ((PROBS * 255).round().astype(np.uint8), False),
        ((PROBS * 255).round().astype(np.int32), False),
    ],
)
def test_probabilities_are_those_however_they_are_stored(tmp_path: Path, stored: Pixels, is_noted: bool) -> None:
    prediction = read(tmp_path, stored)
    assert prediction.kind == "probabilities"
    sums = prediction.values.double().sum(0)
    assert float((sums - 1).abs().max()) < 2e-3  # float16 rounds them again
    np.testing.assert_allclose(prediction.values.double().numpy(), PROBS, atol=0.012)
    assert cross_entropy(prediction, LABELS) == pytest.approx(0.0842, abs=2e-3)  # as logits: 0.60
    assert ["divided by its sum" in note for note in notes_of(tmp_path, stored)] == [True] * is_noted


@pytest.mark.parametrize("kind", [None, "probabilities"])
def test_probabilities_of_many_classes_in_two_decimals(tmp_path: Path, kind: io.PredictionKind | None) -> None:
    stored = MANY.round(2)
    assert stored.sum(0).min() < 0.93  # far from 1
    prediction = read(tmp_path, stored, kind)
    assert prediction.kind == "probabilities"
    assert prediction.values.sum(0).numpy() == pytest.approx(1, abs=1e-4)
    assert torch.equal(prediction.values.argmax(0), torch.from_numpy(stored.argmax(0)))
    assert read(tmp_path, np.zeros((150, 2, 2), np.float32), "probabilities").values.unique().tolist() == [
        pytest.approx(1 / 150)
    ]


def test_a_probability_rounded_to_0_is_not_taken_for_0(tmp_path: Path) -> None:
    stored = np.array([[[0.0, 0.25]], [[1.0, 0.75]]], np.float32)
    assert float(read(tmp_path, stored).logits(2).min()) == pytest.approx(np.log(0.0025), abs=0.01)
    exact = np.array([[[0.0, 1.0]], [[1.0, 0.0]]], np.float32)
    assert float(read(tmp_path, exact).logits(2).min()) < -80


@pytest.mark.parametrize("kind", ["labels", None])
@pytest.mark.parametrize(
    "stored",
    [
        LABELS,
        LABELS[None],
        LABELS.astype(np.float32),
        LABELS.astype(np.float64)[None, None],
        LABELS.astype(np.uint16),
        np.eye(3, dtype=np.uint8)[LABELS].transpose(2, 0, 1),
        np.eye(3, dtype=bool)[LABELS].transpose(2, 0, 1),
    ],
)
def test_labels_are_those_however_they_are_stored(tmp_path: Path, stored: Pixels, kind: Any) -> None:
    prediction = read(tmp_path, stored, kind)
    assert prediction.kind == "labels"
    assert prediction.values.dtype == torch.int64
    assert torch.equal(prediction.values, torch.from_numpy(LABELS).long())
    assert torch.equal(io.read_labels(tmp_path / "p.npy"), torch.from_numpy(LABELS).long())


@pytest.mark.parametrize(
    ("stored", "kind", "values"),
    [
        (np.array([[-3.0, 2.0]], np.float32), "logits", [-3.0, 2.0]),
        (np.array([[0.25, 0.5]], np.float32), "probabilities", [0.25, 0.5]),
        (np.array([[0.0, 1.0]], np.float32), "probabilities", [0.0, 1.0]),
        (np.array([[0.25, 1.5]], np.float32), "logits", [0.25, 1.5]),
        (np.array([[0.25, 2.0]], np.float32), "logits", [0.25, 2.0]),
    ],
)
def test_one_channel_is_one_logit_or_one_probability(
    tmp_path: Path, stored: Pixels, kind: str, values: list[float]
) -> None:
    for shaped in (stored, stored[None], stored[None, None]):
        prediction = read(tmp_path, shaped)
        assert (prediction.kind, prediction.values.flatten().tolist()) == (kind, values)


def test_a_gray_picture_may_hold_the_probability_of_class_1(tmp_path: Path) -> None:
    for dtype, most in ((np.uint8, 255), (np.uint16, 65535)):
        Image.fromarray((PROBS[0] * most).round().astype(dtype)).save(tmp_path / "p.png")
        prediction = io.read_prediction(tmp_path / "p.png", "probabilities")
        assert prediction.values.shape == (1, 24, 32)
        np.testing.assert_allclose(prediction.values[0].numpy(), PROBS[0], atol=0.002)
    Image.fromarray(PHOTO).save(tmp_path / "p.png")
    with pytest.raises(InputError, match="expected probabilities in gray, but got mode RGB"):
        io.read_prediction(tmp_path / "p.png", "probabilities")


@pytest.mark.parametrize(
    ("stored", "kind", "message"),
    [
        (np.full((3, 2, 2), 9, np.uint8), None, r"but got uint8 \[3, 2, 2\], values are 9 to 9 and add up to 27 to 27"),
        (LOGITS, "probabilities", r"expected probabilities, in 0 to 1, 0 to 100 or 0 to 255, .* values are -3\.197 to"),
        (LOGITS, "labels", r"expected integer labels \[H, W\], but got float32 \[3, 24, 32\]"),
        (LOGITS[0], "labels", r"expected integer labels \[H, W\], but got float32 \[24, 32\] with fractions"),
        (np.full((3, 2, 2), 9, np.uint8), "logits", r"expected floating logits \[C, H, W\], but got uint8"),
        (np.full((3, 2, 2), 9.0, np.float32), "probabilities", "values are 9 to 9 and add up to 27 to 27"),
    ],
)
def test_what_fits_no_kind_is_an_error_with_the_range(tmp_path: Path, stored: Pixels, kind: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, stored, kind)


SIGMOID = (1 / (1 + np.exp(-LOGITS))).astype(np.float32)
HOT = np.eye(3, dtype=np.float32)[LABELS].transpose(2, 0, 1)
AS_LOGITS, AS_LABELS = (f"if they are {kind}, pass --pred-kind {kind}" for kind in ("probabilities", "labels"))


@pytest.mark.parametrize(
    ("stored", "kind", "note"),
    [
        (SIGMOID, None, ("read as logits, since values are ", AS_LOGITS)),
        (PROBS[0] * 255, None, ("read as logits, since values are ", AS_LOGITS)),
        (HOT, None, ("read as probabilities, since its values are 0 or 1", AS_LABELS)),
        (HOT[0], None, ("read as probabilities, since its values are 0 or 1", AS_LABELS)),
        (SIGMOID, "probabilities", ("each pixel is divided by its sum, since values are ", "over the classes")),
        (LOGITS, None, None),
        (LOGITS.clip(0), None, None),  # too large for probabilities
        (LOGITS[0], None, None),
        (PROBS[0], None, None),
        (LABELS, None, None),
        (LABELS.astype(np.float32), None, None),
        (HOT.astype(np.uint8), None, None),
        (SIGMOID, "logits", None),
        (HOT, "labels", None),
    ],
)
def test_a_note_stands_where_values_may_be_of_two_kinds(
    tmp_path: Path, stored: Pixels, kind: Any, note: tuple[str, str] | None
) -> None:
    notes = notes_of(tmp_path, stored, kind)
    assert len(notes) == (note is not None)
    for text in notes:
        assert note is not None
        assert text.startswith(note[0])
        assert text.endswith(note[1])
        if " --pred-kind " in text:  # which is taken
            read(tmp_path, stored, text.rpartition(" ")[2])  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------- masks


def test_a_mask_of_a_palette_is_read_by_its_colors_where_all_are_known(tmp_path: Path) -> None:
    picture = Image.frombytes("P", (3, 1), bytes([1, 2, 0]))
    picture.putpalette([0, 0, 200, 200, 0, 0, 0, 200, 0])
    picture.save(tmp_path / "m.png")
    colors = {(200, 0, 0): 0, (0, 200, 0): 1, (0, 0, 200): 2}
    notes: list[str] = []
    assert io.read_labels(tmp_path / "m.png", colors=colors, note=notes.append).tolist() == [[0, 1, 2]]
    assert notes == [
        f"{tmp_path / 'm.png'}: labels are those of its colors, not the indices of its palette, which differ"
    ]
    assert io.read_labels(tmp_path / "m.png", colors={(200, 0, 0): 0}).tolist() == [[1, 2, 0]]
    assert io.read_labels(tmp_path / "m.png").tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("suffix", ["tif", "npy"])
def test_a_mask_of_whole_floats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    for values in (LABELS.astype(np.float32), LABELS + np.float32(0.5)):
        Image.fromarray(values).save(path) if suffix == "tif" else np.save(path, values)
        if values[0, 0] == LABELS[0, 0]:
            assert torch.equal(io.read_labels(path), torch.from_numpy(LABELS).long())
            continue
        with pytest.raises(
            InputError, match=r"expected integer labels \[H, W\], but got float32 \[24, 32\] with fract"
        ):
            io.read_labels(path)


def test_one_hot_masks_with_the_classes_first_or_last(tmp_path: Path) -> None:
    hot = np.eye(3, dtype=np.uint8)[LABELS]
    for stored in (hot, hot.transpose(2, 0, 1)):
        np.save(tmp_path / "m.npy", stored)
        assert torch.equal(io.read_labels(tmp_path / "m.npy"), torch.from_numpy(LABELS).long())


def test_pages_of_a_tiff_are_counted_and_chosen(tmp_path: Path) -> None:
    pages = [Image.fromarray((LABELS + shift) % 3) for shift in range(3)]
    path = tmp_path / "p.tif"
    pages[0].save(path, save_all=True, append_images=pages[1:])
    for reader in (io.read_labels, io.read_image, io.read_prediction):
        with pytest.raises(InputError, match=r"p\.tif: expected one page, but got 3; choose one by --page 0 to 2"):
            reader(path)
    assert torch.equal(io.read_labels(path, page=2), torch.from_numpy((LABELS + 2) % 3).long())
    with pytest.raises(InputError, match="expected page 3, but got 3 pages"):
        io.read_labels(path, page=3)
    pages[0].save(tmp_path / "one.png")
    assert torch.equal(io.read_labels(tmp_path / "one.png", page=2), torch.from_numpy(LABELS).long())


# --------------------------------------------------------------------------------------------------------- photographs


def oriented(path: Path, pixels: Pixels, orientation: int) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return path


TURNED: dict[int, Callable[[Tensor], Tensor]] = {
    2: lambda x: x.flip(-1),
    3: lambda x: x.flip(-1, -2),
    4: lambda x: x.flip(-2),
    5: lambda x: x.mT,
    6: lambda x: x.rot90(-1, (-2, -1)),
    7: lambda x: x.mT.flip(-1, -2),
    8: lambda x: x.rot90(1, (-2, -1)),
}


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright_and_masks_are_not(tmp_path: Path, suffix: str, orientation: int) -> None:
    notes: list[str] = []
    path = oriented(tmp_path / f"photo.{suffix}", PHOTO, orientation)
    stored = torch.from_numpy(PHOTO).permute(2, 0, 1)
    assert torch.equal(io.read_image(path, note=notes.append), TURNED.get(orientation, lambda x: x)(stored))
    assert picture_size(path) == ((32, 24) if orientation >= 5 else (24, 32)) + (orientation,)
    path = oriented(tmp_path / f"mask.{suffix}", LABELS, orientation)
    assert torch.equal(io.read_labels(path, note=notes.append), torch.from_numpy(LABELS).long())
    assert len(notes) == (0 if orientation == 1 else 2)
    assert all(f"orientation {orientation}" in note for note in notes)


def test_damaged_exif_does_not_keep_a_photograph_from_being_read(tmp_path: Path) -> None:
    width_of_text, turned = struct.pack("<HHI4s", 0x0100, 2, 4, b"wide"), struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    for entries, count in ((width_of_text + turned, 2), (width_of_text + turned, 9999), (b"", 1)):
        exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, count) + entries + bytes(4)
        Image.fromarray(PHOTO).save(tmp_path / "a.jpg", exif=exif)
        assert io.read_image(tmp_path / "a.jpg").shape == ((3, 32, 24) if entries else (3, 24, 32))


def test_gray_of_more_than_8_bits_and_arrays_are_images(tmp_path: Path) -> None:
    ramp = np.linspace(-5, 5, 24 * 32).reshape(24, 32).astype(np.float32)
    gray = ((ramp + 5) * 25.5).round().astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "ramp.tif")
    Image.fromarray(gray.astype(np.uint16) * 200).save(tmp_path / "deep.png")
    np.save(tmp_path / "ramp.npy", ramp)
    for name in ("ramp.tif", "ramp.npy", "deep.png"):
        image = io.read_image(tmp_path / name)
        assert image.shape == (3, 24, 32)
        assert (image - torch.from_numpy(gray).int()).abs().max() <= 1
    for stored in (PHOTO, PHOTO.transpose(2, 0, 1), PHOTO[None]):
        np.save(tmp_path / "photo.npy", stored)
        assert torch.equal(io.read_image(tmp_path / "photo.npy"), torch.from_numpy(PHOTO).permute(2, 0, 1))
    np.save(tmp_path / "photo.npy", PHOTO[..., 0])
    assert torch.equal(io.read_image(tmp_path / "photo.npy")[0], torch.from_numpy(PHOTO[..., 0]))
    np.save(tmp_path / "photo.npy", np.zeros((5, 24, 32), np.uint8))
    with pytest.raises(InputError, match=r"expected an image \[H, W\], or \[3, H, W\] in 8 bits, but got"):
        io.read_image(tmp_path / "photo.npy")


def test_an_image_of_five_bands_is_refused_by_their_number(tmp_path: Path) -> None:
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    sizes = {256: 4, 257: 3, 258: (8,) * 5, 259: 1, 262: 1, 273: 200, 277: 5, 278: 3, 279: 60}
    for tag, value in sizes.items():
        directory[tag] = value
    with (tmp_path / "five.tif").open("wb") as file:
        file.write(b"II*\0" + struct.pack("<I", 8) + directory.tobytes(8))
        file.write(b"\0" * 400)
    for reader in (io.read_image, io.read_labels):
        with pytest.raises(InputError, match=r"five\.tif: expected 1, 3 or 4 channels, but got 5; store three of them"):
            reader(tmp_path / "five.tif")


# --------------------------------------------------------------------------------------------------- limits and safety


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt"])
def test_what_a_file_expands_to_is_limited_before_memory_is_taken(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, shape = tmp_path / f"p{suffix}", (3, 1000, 1000)
    if suffix == ".pt":
        torch.save(torch.zeros(1).expand(shape), path)
    else:
        {".npy": np.save, ".npz": np.savez_compressed}[suffix](path, np.zeros(shape, np.float32))
    monkeypatch.setattr(limits, "MAX_BYTES", 10**7)
    message = (
        r"expected at most 0\.0 GB of numbers, but got 0\.0 GB, \[3, 1000, 1000\]; pass --max-gigabytes to read it"
    )
    with pytest.raises(InputError, match=message):
        io.read_prediction(path)
    with pytest.raises(
        InputError, match=r"expected the 10 × 20 pixels of m\.png, or the same picture in lower resolution"
    ):
        io.read_prediction(path, within=Size(Path("m.png"), 10, 20))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**5)
    with pytest.raises(
        InputError, match=r"expected at most 100000 pixels, but got \[3, 1000, 1000\]; pass --max-pixels"
    ):
        io.read_labels(path)


def test_an_archive_that_promises_more_than_it_has_is_damaged(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 30000, 30000), }"
        header = header.ljust(117) + b"\n"
        archive.writestr("a.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + b"\0" * 64)
    with pytest.raises(InputError, match=r"p\.npz: is damaged: a should have 10800000000 bytes, but has 192"):
        io.read_prediction(tmp_path / "p.npz")


@pytest.mark.slow
def test_deep_nesting_is_one_error(tmp_path: Path) -> None:
    """A pickle of a list in a list in a list ..., which runs nothing."""
    with zipfile.ZipFile(tmp_path / "p.pt", "w") as archive:
        archive.writestr("p/data.pkl", b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".")
        archive.writestr("p/version", "3\n")
    with pytest.raises(InputError, match=r"p\.pt: "):
        io.read_prediction(tmp_path / "p.pt")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_a_view_of_gigabytes_is_refused_within_a_limit_of_memory(tmp_path: Path) -> None:
    torch.save(torch.zeros(1).expand(3, 20000, 20000), tmp_path / "p.pt")
    assert os.path.getsize(tmp_path / "p.pt") < 2000
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom edgeloss.io import InputError, Size, read_prediction\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "for within in (None, Size(Path('m.png'), 24, 32)):\n"
        "    try: read_prediction(sys.argv[1], within=within)\n"
        "    except InputError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "p.pt")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert re.search(r"expected at most 89478485 pixels.*\n.*expected the 24 × 32 pixels of m\.png", ran.stdout), ran
