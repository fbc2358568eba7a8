"""Cases → the pages of the commands ``view`` and ``compare``."""

from __future__ import annotations

import ctypes
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgeloss.cli.cases import Case, CaseFiles, Reader
from edgeloss.cli.messages import errors_named, printable, with_progress, write
from edgeloss.cli.options import loss_options
from edgeloss.io import InputError, Rgb, read_palette
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.arrays import Arrays, examine_images, stack_arrays
from edgeloss.viz.coloring import class_colors, read_look
from edgeloss.viz.gallery import Item, best_and_worst, compare_item, describe_changes, gallery, index_item
from edgeloss.viz.panel import draw_panel
from edgeloss.viz.report import draw_report

Said = Callable[[str], None]
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # of malloc.h


def make_criterion(options: Namespace, ignore_index: int) -> EdgeAwareLoss:
    """Return the loss that the options ask for.

    Raises:
        InputError: if an option is out of range.
    """
    try:
        stateless: dict[str, Any] = {"edge_class_weight": None, "edge_focus": 0.0}  # a command has no steps
        return EdgeAwareLoss(ignore_index=ignore_index, upsample=True, **stateless, **loss_options(options))
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error


class Written(NamedTuple):
    """A page that was written, its size in bytes, and what it shows."""

    path: Path
    size: int
    case: Case
    examined: list[Arrays]


class Painter:
    """Draw cases as the options of a command say.

    Attributes:
        reader: of the cases.
        criterion: the loss.

    Raises:
        InputError: if an option is out of range, or a file that it names cannot be used.
    """

    def __init__(self, options: Namespace) -> None:
        """Read what the options name."""
        _keep_freed_memory()
        self.reader = Reader(options)
        self.criterion = make_criterion(options, self.reader.ignore_index)
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

    def write(self, files: CaseFiles, output: Path, said: Said, links: Mapping[str, str] | None = None) -> Written:
        """Write the page of a case."""
        said("reading")
        with errors_named(files.prediction):
            case = self.reader.read(files)
            content, examined = self.draw(case, output.suffix.lower(), links, said)
        write(output, content)
        return Written(output, len(content), case, examined)

    def describe(self, page: Written) -> tuple[Item, dict[str, Any]]:
        """Return what an index shows of a page, and what --json prints."""
        case = page.case
        item = index_item(printable(case.name), page.examined, case.pictures(), page.path.name)
        iou = item.scores[0].iou.tolist()
        names = self.reader.names or [str(k) for k in range(len(iou))]
        about = {"page": str(page.path), "bytes": page.size, "prediction": case.interpretation}
        return item, about | item.figures[0] | {"iou": dict(zip(names, iou, strict=False))}


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory in one arena: to map large temporaries again takes a sixth of a large picture."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**30)):
            mallopt(parameter, value)


def write_folder(cases: Sequence[CaseFiles], folder: Path, page_format: str, painter: Painter) -> list[dict[str, Any]]:
    """Write a page per case and, once all are complete, the index; return what --json prints of each."""
    if page_format == "html" and any(files.name.lower() == "index" for files in cases):
        raise InputError(f"{folder}: expected names other than index, but got one; it would overwrite index.html")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be created ({error.strerror})") from error
    pages = [f"{files.name}.{page_format}" for files in cases]
    items, figures = [], []
    for at, (files, said) in enumerate(with_progress(cases)):
        item, shown = painter.describe(painter.write(files, folder / pages[at], said, _links(pages, at)))
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
    return figures


def _links(pages: Sequence[str], at: int) -> dict[str, str]:
    """Return the links of a page to the index and its neighbors, by their text."""
    links = {"All images": "index.html"}
    if at:
        links[f"← {printable(Path(pages[at - 1]).stem)}"] = pages[at - 1]
    if at + 1 < len(pages):
        links[f"{printable(Path(pages[at + 1]).stem)} →"] = pages[at + 1]
    return links


def compare_page(runs: Mapping[str, Sequence[CaseFiles]], painter: Painter) -> tuple[str, list[Item]]:
    """Return the page about the same images under two networks, and what it shows of each."""
    first, second = runs.values()
    names = [printable(run) for run in runs]
    items: list[Item] = []
    for other, (files, said) in zip(second, with_progress(first), strict=True):
        said("reading")
        cases = [painter.reader.read(one) for one in (files, other)]
        if cases[0].classes != cases[1].classes:
            raise InputError(
                f"{other.prediction}: expected {cases[0].logits.shape[1]} classes as in {files.prediction}, but got"
                f" {cases[1].logits.shape[1]}; of labels, pass the number as --classes"
            )
        colors = class_colors(painter.palette(cases[0].classes), cases[0].classes)
        with errors_named(files.prediction):
            both = zip(*(painter.examine(case, said) for case in cases), strict=True)
        for at, (examined, image) in enumerate(zip(both, cases[0].pictures(), strict=True)):
            slices = cases[0].slices
            name = printable(files.name if slices is None else f"{files.name}, {slices[at]}")
            items.append(compare_item(name, image, dict(zip(names, examined, strict=True)), colors))
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
    return page, items
