"""Find the files of folders, and match those that belong together by their names."""

from __future__ import annotations

import difflib
import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from edgeloss._checks.names import no_such_path, shortened
from edgeloss.io.files import InputError

_SHOWN = 3  # names in a message


class Folder(NamedTuple):
    """Where the files of a kind are, and how they are named.

    Attributes:
        path: the folder; its subfolders are searched too. Hidden files and folders are skipped.
        suffixes: the suffixes to accept, in lower case, such as ``IMAGE_SUFFIXES``.
        ends: how names end, such as "_mask" or "_mask.png"; or a pattern such as "{stem}_gtFine_labelIds.png". What it
            does not match is skipped.
    """

    path: Path
    suffixes: Sequence[str]
    ends: str = ""


def files_by_stem(folder: str | Path, suffixes: Sequence[str], ends: str = "") -> dict[str, Path]:
    """Return the files of a folder and its subfolders by their name without suffix, sorted.

    Where two subfolders have files of one name, the names contain the subfolders: "berlin/0001".

    Args:
        folder: see :class:`Folder`.
        suffixes: see :class:`Folder`.
        ends: see :class:`Folder`.

    Raises:
        InputError: if the folder can't be read, two files have the same name, or there are none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b_mask.png", "a_mask.PNG", "a.png", "notes.txt"):
        ...         (Path(folder) / name).touch()
        ...     list(files_by_stem(folder, [".png"], "_mask"))
        ['a', 'b']
    """
    return _by_stem([_list_files(Folder(Path(folder), suffixes, ends))])[0]


def pair_files(
    folders: Mapping[str, Folder], names: Collection[str] | None = None, *, skip_missing: bool = False, advice: str = ""
) -> dict[str, dict[str, Path]]:
    """Match the files of folders by name: all, or those of a list of names.

    Names are compared in Unicode's normal form NFC.

    Args:
        folders: by kind, such as "image" and "mask".
        names: the names to find, in the order of the result; by default all, sorted.
        skip_missing: leave out names that a folder lacks.
        advice: the end of the message about missing names.

    Returns:
        By name, the file of each kind.

    Raises:
        InputError: if a folder can't be read, no name is in all folders, or a name is missing from one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("images/a.jpg", "masks/a_L.png"):
        ...         (Path(root) / name).parent.mkdir()
        ...         (Path(root) / name).touch()
        ...     images, masks = Folder(Path(root, "images"), [".jpg"]), Folder(Path(root, "masks"), [".png"], "_L")
        ...     list(pair_files({"image": images, "mask": masks}))
        ['a']
    """
    files = dict(zip(folders, _by_stem([_list_files(folder) for folder in folders.values()]), strict=True))
    paths = {kind: folder.path for kind, folder in folders.items()}
    return match_files(files, paths, names, skip_missing=skip_missing, advice=advice)


def match_files(
    files: Mapping[str, Mapping[str, Path]],
    folders: Mapping[str, Path],
    names: Collection[str] | None = None,
    *,
    skip_missing: bool = False,
    advice: str = "",
) -> dict[str, dict[str, Path]]:
    """Match files by name as :func:`pair_files` does.

    Args:
        files: by kind and name.
        folders: of each kind, for messages.
        names: as of :func:`pair_files`.
        skip_missing: as of :func:`pair_files`.
        advice: as of :func:`pair_files`.

    Example:
        >>> a, b = Path("a.png"), Path("b.png")
        >>> list(match_files({"image": {"a": a, "b": b}, "mask": {"b": b}}, {}, skip_missing=True))
        ['b']
    """
    wanted = list(names) if names is not None else sorted(set().union(*files.values()))
    complete = [name for name in wanted if all(name in found for found in files.values())]
    if not complete:
        raise InputError(_nothing_in_common(folders, files, names))
    if not skip_missing:
        for kind, found in files.items():
            if missing := [name for name in wanted if name not in found]:
                raise InputError(_missing(folders[kind], missing, found) + advice)
    return {name: {kind: found[name] for kind, found in files.items()} for name in complete}


def nearest_names(name: str, known: Collection[str]) -> str:
    """Return the names most like one, as text.

    Example:
        >>> nearest_names("img_2", ["img_1", "img_3", "mask", "img_02"])
        'img_02, img_3, img_1'
    """
    # Many names are compared by their ends only, where numbers are: the comparison takes their product in time.
    candidates = list(known) if len(known) <= 1000 else [other for other in known if other[-4:] == name[-4:]][:1000]
    return ", ".join(difflib.get_close_matches(name, candidates, n=_SHOWN, cutoff=0.0))


def _missing(folder: Path, missing: Sequence[str], known: Collection[str]) -> str:
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    nearest = nearest_names(missing[0], known)
    about = f"; nearest to {missing[0]}: {nearest}" if nearest else ""
    return f"{folder}: expected a file for each name, but got none for {', '.join(missing[:_SHOWN])}{more}{about}"


def _nothing_in_common(
    folders: Mapping[str, Path], files: Mapping[str, Mapping[str, Path]], names: Collection[str] | None
) -> str:
    """Return the message about folders without a common name, with the option that would help."""
    first, *others = folders
    common = set(files[first]) & set(files[first] if names is None else names)
    culprit = first
    for kind in others if common else ():
        culprit, common = kind, common & set(files[kind])
        if not common:
            break
    if names is None:
        known, where = sorted(files[first]), f"as in {folders[first]}"
    else:
        known, where = [*names], "of its list"
    one, other = known[0], sorted(files[culprit])[0]
    text = f"{folders[culprit]}: expected names {where}, but got none that is in all folders: {other}, not {one}"
    if inside := sorted(str(folders[culprit] / Path(name).parent) for name in files[culprit] if Path(name).name == one):
        return f"{text}; pass one of its folders, {shortened(inside)}"
    for kind, longer, shorter in ((culprit, files[culprit], one), (first, known, other)):
        flag = f"--{_FLAGS.get(kind, kind)}-suffix"
        ends = {name[len(shorter) :] for name in longer if name.startswith(shorter)}
        if len(ends) == 1:
            return f"{text}; pass {flag} {ends.pop()}"
        if begins := [name.removesuffix(shorter) for name in longer if name.endswith(shorter)]:
            return f"{text}; pass {flag} '{begins[0]}{{stem}}'"
    return f"{text}; pass --mask-suffix or --pred-suffix where names differ in a part"


# The options of the command about the names of a kind, where they are not named after it.
_FLAGS = {"prediction": "pred", "second": "pred"}


def _list_files(folder: Folder) -> dict[str, Path]:
    """Return the files of a folder by their relative path without suffix and without what ``ends`` names."""
    ends = unicodedata.normalize("NFC", folder.ends)
    before, has_stem, after = ends.partition("{stem}")
    if not has_stem:
        before, after = "", ends
    files: dict[str, Path] = {}
    others: list[str] = []
    suffixes: set[str] = set()
    for path in sorted(_walk(folder.path)):
        # macOS has written names in another form than other systems do.
        relative = PurePosixPath(unicodedata.normalize("NFC", path.relative_to(folder.path).as_posix()))
        if relative.suffix.lower() not in folder.suffixes:
            suffixes.add(relative.suffix)
            continue
        whole = relative.name if after and relative.name.endswith(after) else relative.stem
        if not (whole.startswith(before) and whole.endswith(after) and len(whole) > len(before) + len(after)):
            others.append(path.name)
            continue
        name = str(relative.parent / whole[len(before) : len(whole) - len(after)])
        if name in files:
            raise InputError(f"{path}: expected one file per name, but got {files[name]} too; rename one of them")
        files[name] = path
    if not files:
        pattern = folder.ends if has_stem else f"NAME{folder.ends}"
        expected = pattern if others else f"{', '.join(folder.suffixes)} files"
        got = shortened(others or sorted(suffixes), _SHOWN) or "none"
        raise InputError(f"{folder.path}: expected {expected}, but got {got}")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, those behind links too, each folder once."""
    waiting, seen = [folder], set()
    while waiting:
        place = waiting.pop()
        try:
            about = place.stat()
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            with os.scandir(place) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        if entry.is_dir():
                            waiting.append(place / entry.name)
                        else:
                            yield place / entry.name
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            raise InputError(no_such_path(place) if is_missing else f"{place}: {error.strerror}") from error


def _by_stem(listed: Sequence[dict[str, Path]]) -> Sequence[dict[str, Path]]:
    """Name files without their subfolders, if that names each file of a folder differently."""
    bare = [[PurePosixPath(name).name for name in files] for files in listed]
    if any(most > 1 for names in bare for _, most in Counter(names).most_common(1)):
        return listed
    renamed = [dict(zip(names, files.values(), strict=True)) for names, files in zip(bare, listed, strict=True)]
    return [dict(sorted(files.items())) for files in renamed]
