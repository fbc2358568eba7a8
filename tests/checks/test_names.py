"""Names in messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloss._checks.names import no_such_path


@pytest.mark.parametrize(
    ("word", "meant"),
    [("05.png", "005.png"), ("0015.png", "015.png"), ("image1.png", "image10.png"), ("0.png", "000.png")],
)
def test_a_number_of_other_length_is_meant_before_a_name_of_like_letters(word: str, meant: str, tmp_path: Path) -> None:
    for name in ("000.png", "005.png", "015.png", "050.png", "image10.png"):
        (tmp_path / name).touch()
    assert no_such_path(tmp_path / word).endswith(f"; did you mean {tmp_path / meant}?")
