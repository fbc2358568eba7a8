"""The commands ``view`` and ``compare``: cases → pages."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
import webbrowser
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeloss.cli.cases import Case, Reader
from edgeloss.cli.messages import printable, say, to_json
from edgeloss.cli.outputs import say_wrote, why_not, write
from edgeloss.cli.runs import compared_settings, network_name, run_pages
from edgeloss.cli.work import CaseFiles, Work, read_split
from edgeloss.io import InputError
from edgeloss.viz.arrays import Arrays, Said, examine_images, stack_arrays
from edgeloss.viz.coloring import class_colors, read_look
from edgeloss.viz.comparison import compare_item, describe_change, draw_comparison
from edgeloss.viz.gallery import Item, draw_index, index_item
from edgeloss.viz.pages import page as draw_page
from edgeloss.viz.panel import draw_panel
from edgeloss.viz.pictures import side_for
from edgeloss.viz.report import describe_loss, draw_report
from edgeloss.viz.scores import shown_figures

_INDEX = "All images"  # the text of a link to the index of pages
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # of malloc.h


def view(options: Namespace) -> int:
    """Write a picture or report per case, and an index of the cases of a folder; return 2 if images were skipped."""
    _keep_freed_memory()
    split = read_split(options)
    reader, work, is_folder = Reader(options, split), Work(options, split), options.takes_folders
    pages = work.outputs(options, f".{options.page_format}")
    index = options.output / "index.html" if is_folder else None
    if index is not None:
        _check_index(index, [*pages.values()], options)
    runs = {network_name(options.pred): options.pred}
    items: dict[str, Item] = {}
    figures: list[dict[str, Any]] = []
    for files, said in work:
        page = pages[files.name]
        links = _links([*pages.values()], page, index) | _training_links(runs, page)
        with work.skipping(files):
            case, examined = _write_page(files, page, reader, options, said, links)
            items[files.name], shown = _describe(page, case, examined, reader, index)
            figures.append(shown)
        if files.name in work.skipped and page.suffix == ".html":  # its neighbors link to it
            parts = [{"kind": "note", "text": printable(work.skipped[files.name])}]
            write(page, draw_page(printable(files.name), parts, links=links).encode(), options.command)
    if index is not None and items:
        title = f"{printable(network_name(options.pred))}: {len(items)} images"
        about = _configuration({"predictions": options.pred}, reader)
        classes = max(len(item.scores[0].pixels) for item in items.values())
        text = draw_index(
            [*items.values()],
            title=title,
            by="boundary_f1_1px",
            class_names=reader.names,
            colors=class_colors(reader.palette(classes), classes),
            configuration=about,
            links=_training_links(runs, index),
        )
        write(index, text.encode(), options.command)
    if items:
        written = [pages[name] for name in items]
        say_wrote(index or options.output, written if is_folder else ())
        found = {"index": str(index), "pages": figures, "skipped": work.skipped} if is_folder else figures[0]
        _finish(index or options.output, found, options)
    reader.say_at_the_end()
    return work.finish()


def _check_index(index: Path, pages: Sequence[Path], options: Namespace) -> None:
    """Check that the index of pages may be written, and is none of them."""
    if index in {path.with_name(path.name.lower()) for path in pages}:
        raise InputError(
            f"{options.output}: expected names other than index, but got one; it would overwrite index.html"
        )
    if reason := why_not(index, options.command, flag=options.output_flag):
        raise InputError(reason)


def _finish(page: Path, figures: Mapping[str, Any], options: Namespace) -> None:
    """Print the figures of a page and open it, as the options ask."""
    if options.as_json:
        print(to_json(figures))
    if options.show and not webbrowser.open(page.resolve().as_uri()):
        say(f"note: no browser found; open {page} yourself")


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory in one arena: to map large temporaries again takes a sixth of a large picture."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**30)):
            mallopt(parameter, value)


def _write_page(
    files: CaseFiles, output: Path, reader: Reader, options: Namespace, said: Said, links: Mapping[str, str]
) -> tuple[Case, list[Arrays]]:
    """Write the picture or report of a case; return what it shows."""
    said("reading")
    suffix = output.suffix.lower()
    case = reader.read(files)
    examined = examine_images(case.logits, case.target, reader.criterion, details=suffix == ".html", said=said)
    arrays = stack_arrays(examined)
    title = [printable(case.name)]
    if suffix == ".html":  # which has another place for scores
        title.append(printable(network_name(options.pred)))
    elif len(examined) == 1:
        title += [" ".join(score) for score in shown_figures(examined[0].figures).items()][:2]
    look = read_look(arrays, case.image, reader.names, reader.palette(case.classes), " · ".join(title))
    if suffix == ".html":
        read = printable(case.interpretation)
        page = draw_report(examined, reader.criterion, look, links=links, names=case.slices, said=said, about=read)
        content = page.encode()
    else:
        said("drawing")
        shown = {name: getattr(options, name) for name in ("terms", "contours", "width")}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for names in other scripts
            content = draw_panel(
                arrays, look, names=case.slices, read=case.interpretation.partition(",")[0], **shown
            ).content(suffix, dpi=options.dpi)
    write(output, content, options.command)
    return case, examined


def _configuration(paths: Mapping[str, Path], reader: Reader) -> str:
    """Return what the figures of a page depend on: predictions by the name of their network, and the loss."""
    lines = [f"{name}: {printable(str(path))}" for name, path in paths.items()]
    return "\n".join([*lines, f"loss: {describe_loss(reader.criterion)}"])


def _links(pages: Sequence[Path], page: Path, index: Path | None) -> dict[str, str]:
    """Return the links of a page to the index and its neighbors, by their text; none without an index."""
    if index is None:
        return {}
    at, links = pages.index(page), {_INDEX: _relative(index, page)}
    if at:
        links[f"← {printable(pages[at - 1].stem)}"] = _relative(pages[at - 1], page)
    if at + 1 < len(pages):
        links[f"{printable(pages[at + 1].stem)} →"] = _relative(pages[at + 1], page)
    return links


def _training_links(predictions: Mapping[str, Path], page: Path) -> dict[str, str]:
    """Return the links of a page to those about the trainings of networks, and to what these link to, by their texts.

    Args:
        predictions: by the names of their networks.
        page: to which a link that leads to itself is left out.
    """
    here, links = page.resolve(), {}
    for name, path in predictions.items():
        for text, linked in run_pages(path, name).items():
            if linked.resolve() != here:
                links[printable(text)] = _relative(linked, here)
    return links


def _relative(path: Path, page: Path) -> str:
    """Return where a file is, as seen from a page."""
    return Path(os.path.relpath(path, page.parent)).as_posix()


def _describe(
    page: Path, case: Case, examined: Sequence[Arrays], reader: Reader, index: Path | None
) -> tuple[Item, dict[str, Any]]:
    """Return what an index shows of a page, and what --json prints."""
    colors = class_colors(reader.palette(case.classes), case.classes)
    item = index_item(printable(case.name), examined, case.pictures(), colors, _relative(page, index or page))
    iou = item.scores[0].iou.tolist()
    names = reader.names or [str(k) for k in range(len(iou))]
    about = {"page": str(page), "bytes": page.stat().st_size, "prediction": case.interpretation}
    return item, about | item.figures[0] | {"iou": dict(zip(names, iou, strict=False))}


def compare(options: Namespace) -> int:
    """Write the page about the same images under two networks; return 2 if images were skipped."""
    _keep_freed_memory()
    split = read_split(options)
    reader, work, output = Reader(options, split), Work(options, split), options.output
    names = [printable(name) for name in options.names or _names(options.first, options.second)]
    side = side_for(len(work.cases) * len(options.slice or [0]))
    paths = dict(zip(names, (options.first, options.second), strict=True))
    links = _training_links(paths, output)
    items: list[Item] = []
    for files, said in work:
        said("reading")
        with work.skipping(files):
            link = _page_of(files, links, output)
            items += [item._replace(link=link) for item in _compare_case(files, names, reader, side, said)]
    if not items:
        return work.finish()
    classes = max(len(item.scores[0].pixels) for item in items)
    settings = compared_settings(options.first, options.second)
    verdict = describe_change(items, names, class_names=reader.names, settings=settings)
    page = draw_comparison(
        items,
        names,
        class_names=reader.names,
        colors=class_colors(reader.palette(classes), classes),
        settings=settings,
        verdict=verdict,
        configuration=_configuration(paths, reader),
        links=links,
    )
    write(output, page.encode(), options.command)
    say_wrote(output)
    images = {
        item.name: [
            figures | {"iou": scores.iou.tolist()} for figures, scores in zip(item.figures, item.scores, strict=True)
        ]
        for item in items
    }
    found = {"page": str(output), "verdict": verdict, "images": images, "skipped": work.skipped}
    _finish(output, found, options)
    reader.say_at_the_end()
    return work.finish()


def _page_of(files: CaseFiles, links: Mapping[str, str], output: Path) -> str:
    """Return the link to the page of an image, next to the index that the output links to; empty if there is none."""
    if _INDEX not in links:
        return ""
    page = (output.parent / links[_INDEX]).with_name(f"{files.name}.html")
    return _relative(page, output) if page.is_file() else ""


def _compare_case(files: CaseFiles, names: Sequence[str], reader: Reader, side: int, said: Said) -> list[Item]:
    """Return what the page shows of each picture of a case."""
    assert files.second is not None
    first, second = reader.read(files), reader.read(files._replace(prediction=files.second))
    if first.classes != second.classes:
        raise InputError(
            f"{files.second}: expected {first.logits.shape[1]} classes as in {files.prediction}, but got"
            f" {second.logits.shape[1]}; of labels, pass the number as --classes"
        )
    colors, items = class_colors(reader.palette(first.classes), first.classes), []
    first_arrays, second_arrays = (
        examine_images(case.logits, case.target, reader.criterion, details=False, said=said) for case in (first, second)
    )
    for at, (*pair, image) in enumerate(zip(first_arrays, second_arrays, first.pictures(), strict=True)):
        name = printable(first.name if first.slices is None else f"{first.name}, {first.slices[at]}")
        items.append(compare_item(name, image, dict(zip(names, pair, strict=True)), colors, side))
    return items


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Return names for two paths: the last of their parts that differ."""
    for one, other in zip(reversed(first.resolve().parts), reversed(second.resolve().parts), strict=False):
        if one != other:
            return Path(one).stem if first.is_file() else one, Path(other).stem if second.is_file() else other
    return f"{first} (A)", f"{second} (B)"
