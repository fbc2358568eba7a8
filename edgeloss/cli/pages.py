"""The pages of the commands ``view`` and ``compare``: a picture or report per case, and galleries of thumbnails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edgeloss.cli.cases import Case, CaseFiles, Reader, make_criterion
from edgeloss.cli.messages import errors_named, printable, with_progress, write
from edgeloss.cli.options import FileOptions
from edgeloss.io import InputError, Rgb, read_palette
from edgeloss.loss import EdgeAwareLoss

if TYPE_CHECKING:
    from edgeloss.viz.gallery import Item, Prediction


class Painter(NamedTuple):
    """Draw cases as pages.

    Attributes:
        reader: of the cases.
        criterion: the loss.
        colors: by class, if they are known.
        palette: where the colors come from.
        drawn: keywords of the panel: terms, contours and width.
        dpi: of pictures.
    """

    reader: Reader
    criterion: EdgeAwareLoss
    colors: Mapping[int, Rgb] | None
    palette: str | None
    drawn: Mapping[str, Any]
    dpi: int

    @classmethod
    def from_options(
        cls, source: FileOptions, loss: Mapping[str, Any], drawn: Mapping[str, Any] | None = None, dpi: int = 0
    ) -> Painter:
        """Return what the options ask for.

        Raises:
            InputError: if an option is out of range, or a file that it names cannot be used.
        """
        reader = Reader.from_options(source)
        colors = None if source.palette is None else read_palette(source.palette)
        return cls(reader, make_criterion(loss, reader.ignore_index), colors, source.palette, drawn or {}, dpi)

    def page(
        self, case: Case, suffix: str, links: Mapping[str, str] | None = None, said: Callable[[str], None] | None = None
    ) -> bytes:
        """Return the content of a file with this suffix; a report shows the links."""
        from edgeloss.viz import panel, report

        classes = max(2, case.logits.shape[1])
        options: dict[str, Any] = {
            "image": case.image,
            "criterion": self.criterion,
            "class_names": self.reader.names,
            "palette": self.class_palette(classes),
            "title": printable(f"{case.name}: {case.interpretation}"),
        }
        if suffix == ".html":
            options |= {} if said is None else {"said": said}
            return report(case.logits, case.target, links=links, names=case.slices, **options).encode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for names in other scripts
            figure = panel(case.logits, case.target, **self.drawn, **options)
            return figure.content(suffix, dpi=self.dpi)

    def class_palette(self, classes: int) -> list[Rgb] | None:
        """Return the colors of the classes, None if they are not known."""
        colors = self.colors
        if colors is not None and (missing := [str(c) for c in range(classes) if c not in colors]):
            raise InputError(f"{self.palette}: expected {classes} colors, but got none for class {', '.join(missing)}")
        return None if colors is None else [colors[c] for c in range(classes)]

    def predictions(self, case: Case) -> list[Prediction]:
        """Return labels, edge map, figures and scores of each picture of a case."""
        from edgeloss.viz import compute_arrays
        from edgeloss.viz.gallery import Prediction
        from edgeloss.viz.scores import compute_scores

        found = []
        for x, y in zip(case.logits, case.target, strict=True):
            arrays = compute_arrays(x, y, self.criterion)
            scores = compute_scores(arrays.target, arrays.prediction, arrays.classes)
            figures = arrays.terms | scores.means
            found.append(Prediction(arrays.prediction[0], arrays.maps["edge"][0], figures, scores))
        return found

    def item(self, case: Case, link: str) -> Item:
        """Return what a gallery shows of a case; of several slices their mean figures, and the middle one."""
        from edgeloss.viz.coloring import error_picture
        from edgeloss.viz.gallery import Item
        from edgeloss.viz.scores import mean_of_present, small_jpeg

        found, middle = self.predictions(case), len(case.target) // 2
        total = found[0].scores
        for one in found[1:]:
            total = total.plus(one.scores)
        figures = {key: mean_of_present([one.figures[key] for one in found]) for key in found[0].figures} | total.means
        truth, image = case.truth(self.criterion.ignore_index)[middle], case.pictures()[middle]
        picture = small_jpeg(error_picture(truth, found[middle].labels, image))
        return Item(printable(case.name), [figures], [total], {"": picture}, link)


class Written(NamedTuple):
    """A page that was written.

    Attributes:
        path: of its file.
        size: in bytes.
        interpretation: how the prediction was read, in words.
        item: what a gallery shows of it; None if it was not asked for.
    """

    path: Path
    size: int
    interpretation: str
    item: Item | None

    def to_dict(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Return what --json prints."""
        assert self.item is not None
        iou = self.item.scores[0].iou.tolist()
        classes = names or [str(k) for k in range(len(iou))]
        about = {"page": str(self.path), "bytes": self.size, "prediction": self.interpretation}
        return about | self.item.figures[0] | {"iou": dict(zip(classes, iou, strict=False))}


def write_page(
    files: CaseFiles,
    output: Path,
    painter: Painter,
    *,
    links: Mapping[str, str] | None = None,
    figures: bool = True,
    said: Callable[[str], None] | None = None,
) -> Written:
    """Write the page of one case."""
    with errors_named(files.prediction):
        case = painter.reader.read(files)
        page = painter.page(case, output.suffix.lower(), links, said)
        item = painter.item(case, output.name) if figures else None
    write(output, page)
    return Written(output, len(page), case.interpretation, item)


def write_folder(cases: Sequence[CaseFiles], folder: Path, page_format: str, painter: Painter) -> list[Written]:
    """Write a page per case and, once all are complete, the index."""
    from edgeloss.viz.gallery import gallery

    if page_format == "html" and any(files.name.lower() == "index" for files in cases):
        raise InputError(f"{folder}: expected names other than index, but got one; it would overwrite index.html")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be created ({error.strerror})") from error
    pages = [f"{files.name}.{page_format}" for files in cases]
    written = [
        write_page(files, folder / pages[at], painter, links=_links(pages, at))
        for at, files in enumerate(with_progress(cases))
    ]
    index = gallery(
        [page.item for page in written if page.item is not None],
        title=f"edgeloss: {len(written)} images",
        by="edge",
        class_names=painter.reader.names,
        footer="thumbnails show wrong pixels in red; scores count the pixels of all images together, losses are means",
    )
    write(folder / "index.html", index.encode())
    return written


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
    from edgeloss.viz.coloring import class_colors
    from edgeloss.viz.gallery import best_and_worst, compare_item, describe_changes, gallery

    items: list[Item] = []
    large: dict[str, dict[str, bytes]] = {}
    for both in with_progress(list(zip(*runs.values(), strict=True))):
        cases = [painter.reader.read(files) for files in both]
        classes = max(2, *(case.logits.shape[1] for case in cases))
        if any(max(2, case.logits.shape[1]) != classes for case in cases):
            raise InputError(
                f"{both[1].prediction}: expected {cases[0].logits.shape[1]} classes as in {both[0].prediction}, but got"
                f" {cases[1].logits.shape[1]}; of labels, pass the number as --classes"
            )
        colors = class_colors(painter.class_palette(classes), classes)
        with errors_named(both[0].prediction):
            found = [painter.predictions(case) for case in cases]
        truth, images = cases[0].truth(painter.criterion.ignore_index), cases[0].pictures()
        for at, predictions in enumerate(zip(*found, strict=True)):
            slices = cases[0].slices
            name = printable(both[0].name if slices is None else f"{both[0].name}, {slices[at]}")
            item, pictures = compare_item(
                name, truth[at], images[at], dict(zip(runs, predictions, strict=True)), colors
            )
            items.append(item)
            large[name] = pictures
        kept = {item.name for chosen in best_and_worst(items) for item in chosen}
        large = {name: pictures for name, pictures in large.items() if name in kept}
    page = gallery(
        items,
        title=" compared with ".join(runs),
        by="boundary_f1_1px",
        runs=[printable(run) for run in runs],
        class_names=painter.reader.names,
        about=describe_changes(items, large, [printable(run) for run in runs]),
        footer="scores count the pixels of all images together, losses are means; images are sorted by what the"
        " second network gains over the first",
    )
    return page, items
