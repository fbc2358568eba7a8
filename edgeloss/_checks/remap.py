"""Rules that replace labels: their text, and those of well-known data sets. This module does not import torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

Rule = tuple[int, int, int]  # the first and the last label to replace, and what replaces the first

_VOID = 255
# Cityscapes' ids of the 19 classes, in the order of trainId. The others are void, and so is -1 of license plates, which
# 8 bits store as 255.
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
# The numbers of COCO's things that no image has, from 0; stuff follows the things without a gap.
_COCO_UNUSED = {11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90}
_COCO_USED = [number for number in range(182) if number not in _COCO_UNUSED]

# By data set, from every number in its masks to its label.
REMAPS: dict[str, dict[int, int]] = {
    "ade20k": {0: _VOID} | {number: number - 1 for number in range(1, 151)},
    "camvid": {number: number for number in range(11)} | {11: _VOID},
    "cityscapes": dict.fromkeys((-1, *range(34), _VOID), _VOID)
    | {number: label for label, number in enumerate(_CITYSCAPES_IDS)},
    "coco-stuff": {number: label for label, number in enumerate(_COCO_USED)} | {_VOID: _VOID},
    # Of a trimap: 1 is the animal, 2 the background, and 3 the unclassified rim between them.
    "pet": {1: 1, 2: 0, 3: _VOID},
}


def parse_remap(text: str) -> list[Rule]:
    """Return the rules of a text: a key of ``REMAPS``, or FROM:TO or FIRST-LAST:TO, separated by commas.

    Raises:
        ValueError: if a part of the text is neither.

    Example:
        >>> parse_remap("0:255,1-150:0")
        [(0, 0, 255), (1, 150, 0)]
        >>> parse_remap("pet")
        [(1, 1, 1), (2, 2, 0), (3, 3, 255)]
    """
    if text in REMAPS:
        return table_rules(REMAPS[text])
    rules = []
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(-?[0-9]{1,9})(?:-([0-9]{1,9}))?:(-?[0-9]{1,9})", part)
        if match is None:
            raise ValueError(
                f"expected FROM:TO or FIRST-LAST:TO, separated by commas, or one of {', '.join(REMAPS)}, but got"
                f" {part!r}"
            )
        first, last, to = match.groups()
        rules.append((int(first), int(last or first), int(to)))
    return rules


def table_rules(table: Mapping[int, int]) -> list[Rule]:
    """Return a table from numbers to labels as rules."""
    return [(number, number, label) for number, label in table.items()]
