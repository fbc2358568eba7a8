"""The files that a program writes to a folder, which replace none that it has not written itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from edgeloss.io import InputError, atomic_write


class Outputs:
    """The outputs of a program in a folder; a hidden list in it says which files earlier calls have written.

    Args:
        folder: The folder, which is created.
        names: The outputs to be, relative to the folder.
        is_overwriting: Replace outputs of earlier calls.

    Raises:
        InputError: One of the files exists and is not an output of an earlier call, or may not be replaced.
    """

    def __init__(self, folder: Path, names: Sequence[str], *, is_overwriting: bool) -> None:
        """Check all files before the first one is written."""
        self._folder, self._list = folder, folder / ".edgeloss-outputs"
        written = self._read_list()
        for name in names:
            path = folder / name
            if not path.exists() and not path.is_symlink():
                continue
            if written.get(name) != _state(path):
                raise InputError(
                    f"{path}: expected no file, or an output of an earlier call, but got another; change -o"
                )
            if not is_overwriting:
                raise InputError(f"{path}: expected no file, but got an output of an earlier call; add --overwrite")

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """Open an output to write, as `edgeloss.io.atomic_write`."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as output:
            yield output
        with self._list.open("a", encoding="utf-8") as file:
            # The end of line comes first, since an earlier line may lack it.
            file.write(f"\n{json.dumps([name, _state(path)])}")

    def _read_list(self) -> dict[str, list[int]]:
        """Return the last state of each output that a line of the list has."""
        written = {}
        with suppress(OSError), self._list.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError, TypeError):  # nothing, or half of a line by a process that was killed
                    name, state = json.loads(line)
                    written[name] = state
        return written


def _state(path: Path) -> list[int]:
    """Return size and time of a file, by which a later change is seen."""
    about = path.lstat()  # a link to a file of others is not an output
    return [about.st_size, about.st_mtime_ns]
