"""Folders of predictions → how their networks were trained, if the folder of the run is around them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_CONFIG, _FIGURES, _PAGE = "config.yaml", "metrics.json", "report.html"
_LINKS = "page.links."  # settings of the files that the page of a run links to
_UP = 2  # folders above the predictions in which a run is looked for
_MOST = 2**20  # bytes of a configuration
_ALWAYS = ("seed_everything", "epochs")  # settings that are shown where they are equal, too
_PLACES = ("default_root_dir", "root")  # where a run reads and writes says nothing about its network


def compared_settings(first: Path, second: Path) -> dict[str, tuple[str, str]]:
    """Return the seed, the epochs and the settings that differ of two runs, by name; empty unless both are known.

    Args:
        first: predictions of a run: its folder, or one in it.
        second: those of the other.
    """
    before, after = (_settings(path) for path in (first, second))
    if not before or not after:
        return {}
    settings = (name for name in dict.fromkeys((*_ALWAYS, *before, *after)) if not name.startswith(_LINKS))
    names = [name for name in settings if name.rpartition(".")[2] not in _PLACES]
    pairs = {name: (before.get(name, "–"), after.get(name, "–")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] or name in _ALWAYS}


def _settings(predictions: Path) -> dict[str, str]:
    """Return the settings of the run that made predictions, by their names; empty if there is no run."""
    for folder in _run_folders(predictions):
        try:
            if (config := folder / _CONFIG).stat().st_size > _MOST:
                continue
            epochs = json.loads((folder / _FIGURES).read_text("utf-8"))["epochs"]
            return flat_settings(config.read_text("utf-8")) | {"epochs": str(epochs[-1]["epoch"])}
        except (OSError, ValueError, LookupError, TypeError):  # another file of that name
            continue
    return {}


def _run_folders(predictions: Path) -> list[Path]:
    """Return the folders around predictions that may be that of their run, the innermost first."""
    real = predictions.resolve()
    folders = (real, *real.parents)[: _UP + 1]
    return [folder for folder in folders if all((folder / name).is_file() for name in (_CONFIG, _FIGURES))]


def network_name(predictions: Path) -> str:
    """Return the name of the network of predictions: of the folder of its run, or of the folder that they are in."""
    folder = predictions.parent if predictions.is_file() else predictions
    return next(iter(_run_folders(folder)), folder.resolve()).name


def run_pages(predictions: Path, name: str) -> dict[str, Path]:
    """Return the page about the training of the network of predictions, and those that it links to, by their texts.

    Like the page itself, this takes its links as the configuration has them: those pages may still be written.

    Args:
        predictions: of a run: its folder, a file or folder in it.
        name: of the network.
    """
    folder = predictions.parent if predictions.is_file() else predictions
    for run in _run_folders(folder):
        page, settings = run / _PAGE, _settings(folder).items()
        links = {key.removeprefix(_LINKS): run / value for key, value in settings if key.startswith(_LINKS)}
        return ({f"Training of {name}": page} if page.is_file() else {}) | links
    return {}


def flat_settings(text: str) -> dict[str, str]:
    r"""Return the settings of a configuration in YAML, by the names of a command line.

    Raises:
        ValueError: if the text is not YAML, or repeats parts by reference, of which a few lines make any size.

    Example:
        >>> flat_settings("a: 1\nb:\n  c: x\n  d:\n  - 2\n  - 3\n")
        {'a': '1', 'b.c': 'x', 'b.d': '2, 3'}
    """
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("expected YAML without references")
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"expected YAML: {error}") from error
    return dict(_flat(settings, "")) if isinstance(settings, dict) else {}


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    if isinstance(value, dict):
        for key, part in value.items():
            # The arguments of a class stand under the class's name.
            yield from _flat(part, name if key == "init_args" else f"{name}.{key}".removeprefix("."))
    else:
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
