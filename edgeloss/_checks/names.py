"""Names in messages: those that a user may have meant, and lists of them. This module does not import torch."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

_MOST = 1000  # names of a folder that a missing one is compared with, which takes a tenth of a second


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint at the name that is most like a word; nothing if none is."""
    nearest = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def no_such_path(path: Path) -> str:
    """Return the message about a missing path: which one is most like it, or what its folder has.

    Example:
        >>> no_such_path(Path("/no-such-folder")).partition("; ")[0]
        '/no-such-folder: no such file or folder'
    """
    text = f"{path}: no such file or folder"
    try:
        folder = next(parent for parent in path.parents if parent.is_dir())
        entries = [entry for entry in itertools.islice(folder.iterdir(), _MOST) if not entry.name.startswith(".")]
    except (OSError, StopIteration):  # a folder may be entered, but not listed
        return text
    names, (missing, *rest) = sorted(entry.name for entry in entries), path.relative_to(folder).parts
    same_number = [name for name in names if missing[:1].isdigit() and name.lstrip("0") == missing.lstrip("0")]
    for nearest in [*same_number, *difflib.get_close_matches(missing, names)]:
        if (meant := folder.joinpath(nearest, *rest)).exists():
            return f"{text}; did you mean {meant}?"
    where = folder if folder.name else folder.absolute()
    return f"{text}; {where} has {shortened(names)}" if names else f"{text}; {where} is empty"


def shortened(words: Sequence[str], most: int = 8) -> str:
    """Return words as a list of text: the first few and the number of the others, or all if that would be one.

    Example:
        >>> shortened([str(number) for number in range(150)], 3)
        '0, 1, 2 and 147 more'
    """
    if len(words) <= most + 1:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"
