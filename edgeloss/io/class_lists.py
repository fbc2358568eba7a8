"""From text files with one class per line, or the names of well-known data sets, to class names and colors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from edgeloss.io.files import VOID_INDEX, InputError, reading

Rgb = tuple[int, int, int]
_MOST_BYTES = 1 << 20  # of a list of classes


class Classes(NamedTuple):
    """A class list.

    Attributes:
        names: of classes 0..C-1, in order.
        ignore_index: the label of ignored pixels; None if the list does not name one.
    """

    names: list[str]
    ignore_index: int | None


def read_classes(path: str | Path) -> Classes:
    r"""Read class names from a text file with one "<index> <name>" per line, or one name per line.

    Without any index, a line's index is its number among the names, from 0. Blank lines, and those that begin with "#",
    are skipped. A line with index 255 or the name "void" is the ignore index instead of a class.

    Args:
        path: the file, in UTF-8.

    Returns:
        The names and the ignore index.

    Raises:
        InputError: if the file cannot be read, a line is malformed or repeats an index or a name, or the indices are
            not 0..C-1. The message names file and line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "classes.txt"
        ...     _ = path.write_text("0 road\n1 car\n255 void\n")
        ...     read_classes(path)
        Classes(names=['road', 'car'], ignore_index=255)
    """
    names: dict[int, str] = {}
    line_numbers: dict[int, int] = {}
    ignore_index: int | None = None
    lines = _read_lines(path)
    has_indices = any(re.fullmatch(r"[-+]?\d+[:.]?", fields[0]) for _, _, fields in lines)
    plain = ((number, index, line.strip()) for index, (number, line, _) in enumerate(lines))
    for number, index, name in _indexed(lines, path, "<index> <name>") if has_indices else plain:
        where = f"{path}, line {number}"
        line_numbers[index] = number
        if (has_indices and index == VOID_INDEX) or name.lower() == "void":
            if ignore_index is not None:
                raise InputError(f"{where}: second void line, the first is line {line_numbers[ignore_index]}")
            ignore_index = index
        elif name in names.values():
            raise InputError(f"{where}: name {name!r} occurs twice")
        else:
            names[index] = name
    if not names:
        raise InputError(f"{path}: expected at least one class, but got none")
    for index in names:
        if index >= len(names):
            raise InputError(
                f"{path}, line {line_numbers[index]}: expected the indices of {len(names)} classes to be 0 to"
                f" {len(names) - 1} without a gap, but got {index}"
            )
    return Classes([names[index] for index in range(len(names))], ignore_index)


def read_palette(palette: str | Path) -> dict[int, Rgb]:
    r"""Read the colors of classes: of a data set, or from a text file.

    A line of the file is "<index> <r> <g> <b>" or "<index> #rrggbb". Commas count as spaces, text after the color is
    ignored, and blank lines are skipped.

    Args:
        palette: a key of ``PALETTES``, or a file in UTF-8.

    Returns:
        Class index to (r, g, b) in 0..255.

    Raises:
        InputError: if the file cannot be read, or a line is malformed or repeats an index. The message names file and
            line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "colors.txt"
        ...     _ = path.write_text("0 128 64 128 road\n1 #00008e\n")
        ...     read_palette(path)
        {0: (128, 64, 128), 1: (0, 0, 142)}
        >>> read_palette("voc")[15]
        (192, 128, 128)
    """
    if palette in PALETTES:
        return dict(PALETTES[str(palette)])
    if not os.path.lexists(palette):
        raise InputError(f"{palette}: expected a file, or one of {', '.join(PALETTES)}, but got neither")
    colors: dict[int, Rgb] = {}
    form = "<index> <r> <g> <b> or <index> #rrggbb"
    for number, index, rest in _indexed(_read_lines(palette, commas=True), palette, form):
        words = rest.split()
        try:
            if words[0].startswith("#"):
                r, g, b = bytes.fromhex(words[0][1:])
            else:
                r, g, b = bytes(int(word) for word in words[:3])  # bytes() rejects values outside 0..255
        except ValueError:
            raise InputError(
                f'{palette}, line {number}: expected "{form}", each of r, g, b 0 to 255, but got {rest!r}'
            ) from None
        colors[index] = (r, g, b)
    return colors


def color_labels(palette: str | Path) -> dict[Rgb, int]:
    """Return the label of each color of a palette, to read color-coded masks.

    Of several classes with the same color, the first is taken. The palette "cityscapes" includes the colors of the
    classes that are not evaluated, as 255.

    Args:
        palette: as in :func:`read_palette`.

    Returns:
        (r, g, b) in 0..255 to label.

    Raises:
        InputError: as in :func:`read_palette`.

    Example:
        >>> color_labels("voc")[192, 128, 128]
        15
    """
    labels = {color: index for index, color in reversed(read_palette(palette).items())}
    return (dict.fromkeys(_CITYSCAPES_VOID, VOID_INDEX) if palette == "cityscapes" else {}) | labels


_Line = tuple[int, str, list[str]]  # number, text, and the first word and the rest


def _indexed(lines: Sequence[_Line], path: str | Path, form: str) -> Iterator[tuple[int, int, str]]:
    """Yield number, index and rest of each line of a text file; ``form`` describes the lines in messages."""
    line_numbers: dict[int, int] = {}
    for number, line, fields in lines:
        word = fields[0].removesuffix(":")
        if len(fields) < 2 or not (word.isascii() and word.isdigit() and len(word) < 10):
            raise InputError(f'{path}, line {number}: expected "{form}", but got {line[:80]!r}')
        index = int(word)
        if index in line_numbers:
            raise InputError(f"{path}, line {number}: index {index} occurs twice, first in line {line_numbers[index]}")
        line_numbers[index] = number
        yield number, index, fields[1].strip()


def _read_lines(path: str | Path, *, commas: bool = False) -> list[_Line]:
    """Return the lines that hold something; commas count as spaces."""
    with reading(Path(path), "expected a text file in UTF-8, but got other bytes ({})"):
        if (size := Path(path).stat().st_size) > _MOST_BYTES:
            raise InputError(f"{path}: expected at most {_MOST_BYTES} bytes of text, but got {size}")
        text = Path(path).read_text(encoding="utf-8-sig")
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = (line.replace(",", " ") if commas else line).split(maxsplit=1)
        if fields and not line.lstrip().startswith("#"):
            lines.append((number, line, fields))
    return lines


# ------------------------------------------------------------------------------------------------- well-known data sets


def _colors(codes: str) -> list[Rgb]:
    rows = (bytes.fromhex(code) for code in codes.split())
    return [(r, g, b) for r, g, b in rows]


def _voc_color(label: int) -> Rgb:
    """Return the color of a label: its lowest three bits are the highest of r, g and b; the next three follow."""
    r, g, b = (sum((label >> 3 * bit + channel & 1) << 7 - bit for bit in range(3)) for channel in range(3))
    return r, g, b


_CAMVID = "808080 800000 c0c080 804080 0000c0 808000 c08080 404080 400080 404000 0080c0"
_CITYSCAPES = (  # in the order of trainId
    "804080 f423e8 464646 66669c be9999 999999 faaa1e dcdc00 6b8e23 98fb98 4682b4 dc143c ff0000 00008e 000046 003c64"
    " 005064 0000e6 770b20"
)
# Of dynamic, ground, parking, rail track, guard rail, bridge, tunnel, caravan and trailer. Polegroup has the color of
# pole, and license plate that of car.
_CITYSCAPES_VOID = _colors("6f4a00 510051 faaaa0 e6968c b4a5b4 966464 96785a 00005a 00006e")
_ADE20K = (
    "787878 b47878 06e6e6 503232 04c803 787850 8c8c8c cc05ff e6e6e6 04fa07 e005ff ebff07 96053d 787846 08ff33 ff0652 "
    "8fff8c ccff04 ff3307 cc4603 0066c8 3de6fa ff0633 0b66ff ff0747 ff09e0 0907e6 dcdcdc ff095c 7009ff 08ffd6 07ffe0 "
    "ffb806 0aff47 ff290a 07ffff e0ff08 6608ff ff3d06 ffc207 ff7a08 00ff14 ff0829 ff0599 0633ff eb0cff a09614 00a3ff "
    "8c8c8c fa0a0f 14ff00 1fff00 ff1f00 ffe000 99ff00 0000ff ff4700 00ebff 00adff 1f00ff 0bc8c8 ff5200 00fff5 003dff "
    "00ff70 00ff85 ff0000 ffa300 ff6600 c2ff00 008fff 33ff00 0052ff 00ff29 00ffad 0a00ff adff00 00ff99 ff5c00 ff00ff "
    "ff00f5 ff0066 ffad00 ff0014 ffb8b8 001fff 00ff3d 0047ff ff00cc 00ffc2 00ff52 000aff 0070ff 3300ff 00c2ff 007aff "
    "00ffa3 ff9900 00ff0a ff7000 8fff00 5200ff a3ff00 ffeb00 08b8aa 8500ff 00ff5c b800ff ff001f 00b8ff 00d6ff ff0070 "
    "5cff00 00e0ff 70e0ff 46b8a0 a300ff 9900ff 47ff00 ff00a3 ffcc00 ff008f 00ffeb 85ff00 ff00eb f500ff ff007a fff500 "
    "0abed4 d6ff00 00ccff 1400ff ffff00 0099ff 0029ff 00ffcc 2900ff 29ff00 ad00ff 00f5ff 4700ff 7a00ff 00ffb8 005cff "
    "b8ff00 0085ff ffd600 19c2c2 66ff00 5c00ff"
)
# The colors of the tools of each data set, by label. 255 is void: VOC's rim, and all that is black elsewhere.
_VOID = {VOID_INDEX: (0, 0, 0)}
PALETTES: dict[str, dict[int, Rgb]] = {
    "ade20k": dict(enumerate(_colors(_ADE20K))) | _VOID,
    "camvid": dict(enumerate(_colors(_CAMVID))) | _VOID,
    "cityscapes": dict(enumerate(_colors(_CITYSCAPES))) | _VOID,
    "voc": {label: _voc_color(label) for label in (*range(21), VOID_INDEX)},
}
