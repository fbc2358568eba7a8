"""The commands ``view`` and ``compare``: cases → pages."""

from __future__ import annotations

import ctypes
import sys
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeloss.cli.cases import Case, CaseFiles, Reader, find_cases
from edgeloss.cli.messages import Said, errors_named, open_page, printable, say_wrote, to_json, with_progress, write
from edgeloss.io import InputError, Rgb, read_palette
from edgeloss.viz.arrays import Arrays, examine_images, stack_arrays
from edgeloss.viz.coloring import class_colors, read_look
from edgeloss.viz.gallery import Item, best_and_worst, compare_item, describe_changes, gallery, index_item
from edgeloss.viz.panel import draw_panel
from edgeloss.viz.report import draw_report

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # of malloc.h


class Painter:
    """Draw cases as the options of a command say.

    Attributes:
        reader: of the cases.
        criterion: the loss.

    Raises:
        InputError: if a file that an option names cannot be used.
    """

    def __init__(self, options: Namespace) -> None:
        """Read what the options name."""
        _keep_freed_memory()
        self.reader = Reader(options)
        self.criterion = self.reader.criterion
        self._colors = None if options.palette is None else read_palette(options.palette)
        self._options = options

    def examine(self, case: Case, said: Said, *, details: bool = False) -> list[Arrays]:
        """Examine each picture of a case."""
        return examine_images(case.logits, case.target, self.criterion, details=details, said=said)

    def draw(self, case: Case, suffix: str, links: Mapping[str, str] | None, said: Said) -> tuple[bytes, list[Arrays]]:
        """Return the content of a file with this suffix, and what it shows; a report has the links."""
        examined = self.examine(case, said, details=suffix == ".html")
        title = printable(f"{case.name}: {case.interpretation}")
        arrays = stack_arrays(examined)
        look = read_look(arrays, case.image, self.reader.names, self.palette(case.classes), title)
        if suffix == ".html":
            page = draw_report(examined, self.criterion, look, links=links, names=case.slices, said=said)
            return page.encode(), examined
        said("drawing")
        shown = {name: getattr(self._options, name) for name in ("terms", "contours", "width")}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for names in other scripts
            figure = draw_panel(arrays, look, **shown)
            return figure.content(suffix, dpi=self._options.dpi), examined

    def palette(self, classes: int) -> list[Rgb] | None:
        """Return the colors of the classes, None if they are not known."""
        colors = self._colors
        if colors is not None and (missing := [str(c) for c in range(classes) if c not in colors]):
            path = self._options.palette
            raise InputError(f"{path}: expected {classes} colors, but got none for class {', '.join(missing)}")
        return None if colors is None else [colors[c] for c in range(classes)]

    def write(
        self, files: CaseFiles, output: Path, said: Said, links: Mapping[str, str] | None = None
    ) -> tuple[Case, list[Arrays]]:
        """Write the page of a case; return what it shows."""
        said("reading")
        with errors_named(files.prediction):
            case = self.reader.read(files)
            content, examined = self.draw(case, output.suffix.lower(), links, said)
        write(output, content)
        return case, examined

    def describe(self, page: Path, case: Case, examined: Sequence[Arrays]) -> tuple[Item, dict[str, Any]]:
        """Return what an index shows of a page, and what --json prints."""
        item = index_item(printable(case.name), examined, case.pictures(), page.name)
        iou = item.scores[0].iou.tolist()
        names = self.reader.names or [str(k) for k in range(len(iou))]
        about = {"page": str(page), "bytes": page.stat().st_size, "prediction": case.interpretation}
        return item, about | item.figures[0] | {"iou": dict(zip(names, iou, strict=False))}


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory in one arena: to map large temporaries again takes a sixth of a large picture."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**30)):
            mallopt(parameter, value)


def view(options: Namespace) -> None:
    """Write a picture or report per case, and an index of the cases of a folder."""
    output, painter = options.output, Painter(options)
    cases = [files for (files,) in find_cases(options)]
    if options.takes_folders:
        page, figures = _write_folder(cases, output, options.page_format, painter)
    else:
        page = output
        for (files,), said in with_progress([tuple(cases)]):
            written = painter.write(files, output, said)
        say_wrote(output)
        figures = painter.describe(output, *written)[1] if options.as_json else {}
    if options.as_json:
        print(to_json(figures))
    if options.show:
        open_page(page)


def _write_folder(
    cases: Sequence[CaseFiles], folder: Path, page_format: str, painter: Painter
) -> tuple[Path, dict[str, Any]]:
    """Write a page per case and, once all are complete, the index; return its path and what --json prints."""
    if page_format == "html" and any(files.name.lower() == "index" for files in cases):
        raise InputError(f"{folder}: expected names other than index, but got one; it would overwrite index.html")
    pages = [folder / f"{files.name}.{page_format}" for files in cases]
    items, figures = [], []
    for at, ((files,), said) in enumerate(with_progress([(files,) for files in cases])):
        written = painter.write(files, pages[at], said, _links(pages, at))
        item, shown = painter.describe(pages[at], *written)
        items.append(item)
        figures.append(shown)
    index = gallery(
        items,
        title=f"edgeloss: {len(items)} images",
        by="edge",
        class_names=painter.reader.names,
        footer="thumbnails show wrong pixels in red; scores count the pixels of all images together, losses are means",
    )
    write(folder / "index.html", index.encode())
    say_wrote(folder / "index.html", pages)
    return folder / "index.html", {"index": str(folder / "index.html"), "pages": figures}


def _links(pages: Sequence[Path], at: int) -> dict[str, str]:
    """Return the links of a page to the index and its neighbors, by their text."""
    links = {"All images": "index.html"}
    if at:
        links[f"← {printable(pages[at - 1].stem)}"] = pages[at - 1].name
    if at + 1 < len(pages):
        links[f"{printable(pages[at + 1].stem)} →"] = pages[at + 1].name
    return links


def compare(options: Namespace) -> None:
    """Write the page about the same images under two networks."""
    painter, cases, output = Painter(options), find_cases(options), options.output
    names = [printable(name) for name in options.names or _names(options.first, options.second)]
    items: list[Item] = []
    for both, said in with_progress(cases):
        said("reading")
        items += _compare_case(both, names, painter, said)
        kept = {item.name for chosen in best_and_worst(items) for item in chosen}
        items = [item if item.name in kept else item._replace(large={}) for item in items]
    page = gallery(
        items,
        title=" compared with ".join(names),
        by="boundary_f1_1px",
        runs=names,
        class_names=painter.reader.names,
        about=describe_changes(items, names),
        footer="scores count the pixels of all images together, losses are means; images are sorted by what the"
        " second network gains over the first",
    )
    write(output, page.encode())
    say_wrote(output)
    if options.as_json:
        images = {
            item.name: [
                figures | {"iou": scores.iou.tolist()}
                for figures, scores in zip(item.figures, item.scores, strict=True)
            ]
            for item in items
        }
        print(to_json({"page": str(output), "images": images}))
    if options.show:
        open_page(output)


def _compare_case(both: Sequence[CaseFiles], names: Sequence[str], painter: Painter, said: Said) -> list[Item]:
    """Return what the page shows of each picture of a case."""
    first, second = (painter.reader.read(files) for files in both)
    if first.classes != second.classes:
        raise InputError(
            f"{both[1].prediction}: expected {first.logits.shape[1]} classes as in {both[0].prediction}, but got"
            f" {second.logits.shape[1]}; of labels, pass the number as --classes"
        )
    colors, items = class_colors(painter.palette(first.classes), first.classes), []
    with errors_named(both[0].prediction):
        examined = zip(*(painter.examine(case, said) for case in (first, second)), strict=True)
    for at, (pair, image) in enumerate(zip(examined, first.pictures(), strict=True)):
        name = printable(first.name if first.slices is None else f"{first.name}, {first.slices[at]}")
        items.append(compare_item(name, image, dict(zip(names, pair, strict=True)), colors))
    return items


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Return names for two paths: the last of their parts that differ."""
    for one, other in zip(reversed(first.resolve().parts), reversed(second.resolve().parts), strict=False):
        if one != other:
            return Path(one).stem if first.is_file() else one, Path(other).stem if second.is_file() else other
    return f"{first} (A)", f"{second} (B)"
