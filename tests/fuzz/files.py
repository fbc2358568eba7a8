"""Damaged files for every reader: each is read or refused in one line, within a limit of memory and of time.

    python tests/fuzz/files.py --count 2000

A file is damaged by a seed: bytes are changed, parts are removed, repeated or moved, lengths in headers are made large.
The readers run in a process of their own, whose address space is limited; a seed that hangs or kills it is reported.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from edgeloss.io import (
    InputError,
    Size,
    find_split,
    read_classes,
    read_image,
    read_labels,
    read_palette,
    read_prediction,
)

H, W, C = 12, 16, 3
_MASK = Size(Path("mask.png"), H, W)
_LABELS = np.arange(H * W, dtype=np.uint8).reshape(H, W) % C
_LOGITS = np.random.default_rng(0).normal(size=(C, H, W)).astype(np.float32)
MEMORY = 2**30  # bytes beyond what the process has at its start
SECONDS = 20  # of a file
# What damaged sizes are made of: limits of the types of numbers in headers.
_SIZES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


class Reader(NamedTuple):
    """A reader and the files that it reads.

    Attributes:
        suffix: of the files.
        write: writes a whole file.
        reads: what is read from it.
    """

    suffix: str
    write: Callable[[Path], object]
    reads: tuple[Callable[[Path], object], ...]


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    return exif


def _palette(path: Path) -> None:
    picture = Image.frombytes("P", (W, H), _LABELS.tobytes())
    picture.putpalette(bytes(range(9)))
    picture.save(path)


_IMAGE = (read_image,)
_LABEL = (read_labels, lambda path: read_labels(path, colors={(0, 1, 2): 0, (3, 4, 5): 1, (6, 7, 8): 2}))
_PREDICTION = (lambda path: read_prediction(path, within=_MASK), read_labels)
READERS: dict[str, Reader] = {
    "png": Reader(".png", lambda path: Image.fromarray(_LABELS).save(path), (*_LABEL, *_IMAGE)),
    "png-palette": Reader(".png", _palette, (*_LABEL, *_IMAGE)),
    "png-16": Reader(".png", lambda path: Image.fromarray(_LABELS.astype(np.uint16)).save(path), (*_LABEL, *_IMAGE)),
    "jpeg-exif": Reader(".jpg", lambda path: Image.fromarray(_LABELS).save(path, exif=_exif()), _IMAGE),
    "tiff": Reader(".tif", lambda path: Image.fromarray(_LABELS).save(path, exif=_exif()), (*_LABEL, *_IMAGE)),
    "bmp": Reader(".bmp", lambda path: Image.fromarray(_LABELS).save(path), (*_LABEL, *_IMAGE)),
    "webp": Reader(".webp", lambda path: Image.fromarray(_LABELS).save(path, lossless=True), _IMAGE),
    "npy": Reader(".npy", lambda path: np.save(path, _LOGITS), (*_PREDICTION, *_IMAGE)),
    "npz": Reader(".npz", lambda path: np.savez_compressed(path, logits=_LOGITS, labels=_LABELS), _PREDICTION),
    "pt": Reader(".pt", lambda path: torch.save({"logits": torch.from_numpy(_LOGITS)}, path), _PREDICTION),
    "pt-legacy": Reader(
        ".pt",
        lambda path: torch.save(torch.from_numpy(_LOGITS), path, _use_new_zipfile_serialization=False),
        _PREDICTION,
    ),
    "classes": Reader(".txt", lambda path: path.write_text("0 sky\n1 road\n255 void\n"), (read_classes,)),
    "names": Reader(".txt", lambda path: path.write_text("sky\nroad\n# cars\ncar\n", "utf-8"), (read_classes,)),
    "palette": Reader(".txt", lambda path: path.write_text("0 1 2 3 sky\n1,#0a0b0c\n"), (read_palette,)),
    "list": Reader(".txt", lambda path: path.write_text("# names\na 1 1 1\n"), (lambda path: _read_list(path),)),
}


def _read_list(path: Path) -> object:
    """Read a list of names, as the data set Pet has it."""
    root = path.parent / "pet"
    for name in ("images/a.jpg", "annotations/trimaps/a.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "annotations" / "train.txt").write_bytes(path.read_bytes())
    return find_split("pet", root, "train")


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return the content of a file with one to eight faults."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        at = int(rng.integers(0, max(1, len(data))))
        length = int(rng.integers(1, 17))
        match int(rng.integers(0, 7)):
            case 0:
                data[at : at + 1] = bytes([int(rng.integers(0, 256))])
            case 1:  # one bit
                if data:
                    data[at % len(data)] ^= 1 << int(rng.integers(0, 8))
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length]
            case 4:
                data[at : at + length] = rng.bytes(length)
            case 5:  # a length, an offset or a count
                size = int(rng.choice([1, 2, 4, 8]))
                value = int(rng.choice(_SIZES)) & (256**size - 1)
                data[at : at + size] = value.to_bytes(size, str(rng.choice(["little", "big"])))  # type: ignore[arg-type]
            case 6:
                data = data[: int(rng.integers(0, len(data) + 1))]
    return bytes(data)


def _damaged_archive(content: bytes, rng: np.random.Generator, path: Path) -> None:
    """Write an archive with a damaged member, whose checksum is right, so that the damage is not found at once."""
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = str(rng.choice(list(members)))
    members[chosen] = damaged(members[chosen], rng)
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)


def write_damaged(name: str, seed: int, path: Path) -> None:
    """Write the damaged file of a reader for a seed."""
    READERS[name].write(path)
    content, rng = path.read_bytes(), np.random.default_rng([seed, list(READERS).index(name)])
    if content.startswith(b"PK") and rng.random() < 0.7:
        _damaged_archive(content, rng, path)
    else:
        path.write_bytes(damaged(content, rng))


def failures(names: list[str], seeds: range, folder: Path) -> Iterator[str]:
    """Yield a text for every damaged file that is neither read nor refused in one line."""
    for name in names:
        for seed in seeds:
            path = folder / f"{name}{READERS[name].suffix}"
            write_damaged(name, seed, path)
            for at, read in enumerate(READERS[name].reads):
                begin = time.monotonic()
                try:
                    read(path)
                except InputError as error:
                    if "\n" in str(error) or (name not in str(error) and name != "list"):
                        yield f"{name}, seed {seed}, reader {at}: not one line that names the file: {error!r}"
                except Exception:  # any other is what is looked for
                    yield f"{name}, seed {seed}, reader {at}: {traceback.format_exc()}"
                if (seconds := time.monotonic() - begin) > SECONDS:
                    yield f"{name}, seed {seed}, reader {at}: took {seconds:.0f} s"


def limit_memory() -> None:
    """On Linux, limit the address space of this process to its present size plus ``MEMORY``."""
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def main(arguments: Any = None) -> int:
    """Read damaged files, and print those that are neither read nor refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="damaged files for each reader (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--reader", choices=list(READERS), nargs="*", default=list(READERS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    limit_memory()
    signal.alarm(SECONDS * 60 * len(options.reader))  # a hang ends the process
    count, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.reader:
            start = time.monotonic()
            found = list(failures([name], range(options.first, options.first + options.count), Path(folder)))
            count += len(found)
            print(*found, sep="\n", end="\n" if found else "")
            print(f"{name}: {options.count} damaged files, {len(found)} failures, {time.monotonic() - start:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total, seconds = options.count * len(options.reader), time.monotonic() - begin
    print(f"{total} files, {count} failures, {seconds:.0f} s, at most {peak:.0f} MB")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
