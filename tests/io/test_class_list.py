"""Files with a class list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeloss.io import read_classes


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
    assert read_classes(path) == expected


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
        read_classes(path)
