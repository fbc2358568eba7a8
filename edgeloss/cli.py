"""The command ``edgeloss``. Needs the extra ``edgeloss[cli]``."""

from __future__ import annotations

import base64
import csv
import enum
import functools
import html
import importlib.metadata
import inspect
import io
import json
import math
import platform
import sys
import urllib.parse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from PIL import Image

from edgeloss import EdgeAwareLoss, backends, library
from edgeloss import io as files_io
from edgeloss.io import Case, InputError, atomic_write
from edgeloss.reference import readable_logits

try:
    import typer
except ModuleNotFoundError:  # before there is a command that could tell it
    raise SystemExit('edgeloss: error: the command needs typer: pip install "edgeloss[cli]"') from None

_FIGURES = (".png", ".pdf", ".svg")
_PAGES = (*_FIGURES, ".html")
_THUMBNAIL = 360  # its longer side in pixels


app = typer.Typer(
    help="See where a segmentation network loses at the edges.",
    epilog="Exit codes: 0 fine, 1 'diagnose' found something, 2 the input can't be used, 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default the process's own, and exit; a user's error is one line on stderr."""
    try:
        app(arguments, prog_name="edgeloss")
    except (InputError, ImportError) as error:  # the latter tell which extra to install
        _say(f"error: {error}")
        sys.exit(2)


# ------------------------------------------------------------------------------------------------------------- options


class PredKind(str, enum.Enum):
    """What a file holds, as the command line says it."""

    auto = "auto"
    logits = "logits"
    probabilities = "probabilities"
    labels = "labels"


class PageFormat(str, enum.Enum):
    """What the pages of a folder are."""

    png = "png"
    html = "html"


class TableFormat(str, enum.Enum):
    """How figures are written."""

    table = "table"
    csv = "csv"
    json = "json"


PRED_HELP = (
    "Logits or probabilities [C, H, W] (.npy, .npz, .pt), or labels [H, W] (.png too). Lower resolution than the mask's"
    " is brought to it as the loss does it."
)
CLASSES_HELP = 'How many classes, or a text file with their names, "<index> <name>" a line.'
Pred = Annotated[Path, typer.Option(help=PRED_HELP, show_default=False)]
Mask = Annotated[Path, typer.Option(help="Labels [H, W]: a .png of class indices, or .npy, .npz, .pt.")]
ClassList = Annotated[
    str | None,
    typer.Option(metavar="N|FILE", help=CLASSES_HELP),
]
IgnoreIndex = Annotated[
    int | None,
    typer.Option(
        help='The label of pixels that do not count.  [default: 255, or the line "void" of --classes]',
        show_default=False,
    ),
]
Kind = Annotated[PredKind, typer.Option(help="What --pred holds.")]
SkipMissing = Annotated[
    bool, typer.Option("--skip-missing", help="Of folders, leave out names that are not in every one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]

# The options of the loss that a command can take: their types and what they mean. Names and defaults are the loss's.
_LOSS_OPTIONS: dict[str, tuple[Any, str]] = {
    "radius": (int, "Loss: reach of the neighbourhood in pixels."),
    "decay": (float | None, "Loss: length over which a neighbour's weight falls by e; equal weights without it."),
    "power": (float, "Loss: exponent of the mean; 0 is the mean of the logs, -1 dwells on the worst neighbour."),
    "ce_weight": (float, "Loss: weight of the cross-entropy."),
    "edge_weight": (float, "Loss: weight of the edge terms."),
    "other_side_weight": (float, "Loss: weight of the other side."),
    "same_side_weight": (float, "Loss: weight of the same side."),
    "false_edge_weight": (float, "Loss: weight of false edges among the edge terms."),
    "label_smoothing": (float, "Loss: of the cross-entropy."),
}


def _takes_loss(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the loss, and hand them to it as its argument ``loss``."""
    defaults = inspect.signature(EdgeAwareLoss).parameters
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "loss"]
    of_loss = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name].default,
            annotation=Annotated[kind, typer.Option(help=text)],
        )
        for name, (kind, text) in _LOSS_OPTIONS.items()
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401
        loss = {name: given.pop(name) for name in _LOSS_OPTIONS}
        command(**given, loss=loss)

    # Where typer looks for the options.
    called.__signature__ = inspect.Signature([*own, *of_loss])  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in [*own, *of_loss]}
    return called


class _Reading(NamedTuple):
    """How files are to be read."""

    kind: files_io.Kind | None
    classes: int | None
    names: list[str] | None
    ignore_index: int

    def read(self, files: files_io.Files) -> Case:
        """Read the files of one image, and tell of values that are not finite."""
        case = files_io.read_case(files, kind=self.kind, classes=self.classes, ignore_index=self.ignore_index)
        if case.broken:
            _say(f"note: {files.prediction}: {case.broken} of {case.logits.numel()} values are not finite")
        void = case.target == self.ignore_index
        if case.logits.shape[1] <= 2 and void.any() and not (case.target[~void] != 0).any():
            _say(f"note: {files.mask}: holds 0 and {self.ignore_index}, which does not count; class 1 is written as 1")
        return case


def _reading(classes: str | None, ignore_index: int | None, kind: PredKind) -> _Reading:
    """What the options say of how files are to be read."""
    count: int | None = None
    names, void = None, None
    if classes is not None and classes.isascii() and classes.isdigit():
        count = int(classes)
    elif classes is not None:
        names, void = files_io.read_classes(classes)
        count = len(names)
    if count is not None and not 2 <= count < 2**15:
        raise InputError(f"--classes: expected 2 to {2**15 - 1} classes but got {count}; one logit has two")
    if ignore_index is None:
        ignore_index = files_io.VOID_INDEX if void is None else void
    return _Reading(None if kind is PredKind.auto else kind.value, count, names, ignore_index)


def _criterion(loss: Mapping[str, Any], ignore_index: int) -> EdgeAwareLoss:
    try:
        return EdgeAwareLoss(ignore_index=ignore_index, upsample=True, **loss)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in what the library says of its contents."""
    try:
        yield
    except (TypeError, ValueError, MemoryError) as error:
        raise error if isinstance(error, InputError) else InputError(f"{path}: {error}") from error


def _say(text: str) -> None:
    print(_printable(f"edgeloss: {text}"), file=sys.stderr)


def _printable(text: str) -> str:
    """One line, whatever the name of a file holds."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _one_by_one(cases: Sequence[files_io.Files]) -> Iterator[files_io.Files]:
    """The elements, with a bar on a terminal's stderr if there are many."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(cases, "", console=console, transient=True, disable=len(cases) < 2 or not console.is_terminal)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text)
    else:
        with atomic_write(output) as file:
            file.write(f"{text}\n".encode())


def _json(content: Any) -> str:  # noqa: ANN401
    """Strict JSON: null for what is not finite."""

    def strict(part: Any) -> Any:  # noqa: ANN401
        if isinstance(part, Mapping):
            return {key: strict(value) for key, value in part.items()}
        if isinstance(part, (list, tuple)):
            return [strict(value) for value in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    return json.dumps(strict(content), indent=1, ensure_ascii=False, allow_nan=False)


# ---------------------------------------------------------------------------------------------------------------- view


class _Drawing(NamedTuple):
    """How a case becomes a page."""

    criterion: EdgeAwareLoss
    names: Sequence[str] | None
    colors: Mapping[int, tuple[int, int, int]] | None
    palette: Path | None  # where the colours come from
    terms: bool
    dpi: int

    def page(self, case: Case, suffix: str) -> bytes:
        """A file's content, of the kind that its suffix tells."""
        if suffix == ".html":
            from edgeloss.viz import report

            text: str = report(case.logits, case.target, **self._options(case))
            return text.encode()
        return self.figure(case, suffix, self.dpi)

    def figure(self, case: Case, suffix: str, dpi: int) -> bytes:
        """A picture of the panel."""
        from edgeloss.viz import panel

        picture = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a name in another script
            drawn = panel(case.logits, case.target, terms=self.terms, **self._options(case))
            drawn.savefig(picture, format=suffix[1:], dpi=dpi)
        return picture.getvalue()

    def _options(self, case: Case) -> dict[str, Any]:
        """What panel and report both take."""
        classes = max(2, case.logits.shape[1])
        colors = self.colors
        if colors is not None and (missing := [str(c) for c in range(classes) if c not in colors]):
            raise InputError(f"{self.palette}: expected {classes} colours but got none for class {', '.join(missing)}")
        return {
            "image": case.image,
            "criterion": self.criterion,
            "class_names": self.names,
            "palette": None if colors is None else [colors[c] for c in range(classes)],
            "title": _printable(f"{case.name}: {case.taken_for}"),
        }


@app.command()
@_takes_loss
def view(
    *,
    pred: Pred,
    mask: Mask,
    image: Annotated[Path | None, typer.Option(help="The picture, of the mask's size.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .png, .pdf, .svg or .html; for folders a folder, made if missing.")
    ],
    classes: ClassList = None,
    palette: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Colours: a text file, "<index> <r> <g> <b>" or "<index> #rrggbb" a line.'),
    ] = None,
    ignore_index: IgnoreIndex = None,
    pred_kind: Kind = PredKind.auto,
    page_format: Annotated[PageFormat, typer.Option("--format", help="Of a folder's pages.")] = PageFormat.png,
    skip_missing: SkipMissing = False,
    terms: Annotated[bool, typer.Option("--terms", help="Show the edge terms apart, too.")] = False,
    dpi: Annotated[int, typer.Option(min=20, max=600, help="Dots per inch of a picture.")] = 200,
    loss: Mapping[str, Any],
) -> None:
    """Draw what the loss sees in a prediction.

    Image, truth, prediction, loss maps and gradient: a picture, or with .html a report to explore.

    Folders, whose files are matched by name, give a page each and an index.html, worst edge loss first.

    \b
    Examples:
      edgeloss view --image a.jpg --mask a.png --pred a.npy -o panel.png
      edgeloss view --mask a.png --pred a.npy -o report.html --classes classes.txt
      edgeloss view --image images --mask masks --pred logits -o pages --classes 11
    """  # noqa: D301
    reading = _reading(classes, ignore_index, pred_kind)
    colors = None if palette is None else files_io.read_palette(palette)
    drawing = _Drawing(_criterion(loss, reading.ignore_index), reading.names, colors, palette, terms, dpi)
    files = files_io.match(pred, mask, image, skip_missing=skip_missing)
    if any(path is not None and output.resolve() == path.resolve() for path in (pred, mask, image)):
        raise InputError(f"{output}: is one of the inputs; expected another place to write to")
    if pred.is_dir():
        _view_folder(files, output, page_format.value, reading, drawing)
        return
    suffix = output.suffix.lower()
    if suffix not in _PAGES:
        raise InputError(f"{output}: expected an output that ends in {', '.join(_PAGES)}")
    with _naming(pred):
        page = drawing.page(reading.read(files[0]), suffix)
    with atomic_write(output) as file:
        file.write(page)


def _view_folder(
    cases: Sequence[files_io.Files], folder: Path, page_format: str, reading: _Reading, drawing: _Drawing
) -> None:
    """Write a page an image, and when all are there the index."""
    if page_format == "html" and any(files.name.lower() == "index" for files in cases):
        raise InputError(f"{folder}: expected no image of the name index, which the index.html takes")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be made ({error.strerror})") from error
    rows = []
    for files in _one_by_one(cases):
        with _naming(files.prediction):
            case = reading.read(files)
            page = drawing.page(case, f".{page_format}")
            picture = page if page_format == "png" else drawing.figure(case, ".png", dpi=72)
            _, terms = drawing.criterion(case.logits, case.target, return_terms=True)
        name = f"{files.name}.{page_format}"
        with atomic_write(folder / name) as file:
            file.write(page)
        rows.append(_Row(name, _thumbnail(picture), {term: float(value) for term, value in terms.items()}))
    with atomic_write(folder / "index.html") as file:
        file.write(_index(rows).encode())


def _thumbnail(picture: bytes) -> bytes:
    """A small JPEG of an image file."""
    small, file = Image.open(io.BytesIO(picture)).convert("RGB"), io.BytesIO()
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    small.save(file, "jpeg", quality=85)
    return file.getvalue()


class _Row(NamedTuple):
    """A page in the index."""

    page: str
    thumbnail: bytes
    terms: Mapping[str, float]


_COLUMNS = {
    "edge": "edge loss",
    "same_side": "same side",
    "other_side": "other side",
    "false_edge": "false edge",
    "cross_entropy": "cross-entropy",
    "edge_fraction": "edge pixels",
}


def _index(rows: Sequence[_Row]) -> str:
    """A page that links to all others and needs nothing from elsewhere but them: worst edge loss first."""

    def worst_first(row: _Row) -> tuple[float, str]:
        edge = row.terms["edge"]
        return -edge if math.isfinite(edge) else -math.inf, row.page

    # Of false edges it tells where there are any that count.
    columns = {k: title for k, title in _COLUMNS.items() if k != "false_edge" or any(row.terms[k] for row in rows)}
    lines = []
    for row in sorted(rows, key=worst_first):
        # "./" keeps a name with a colon from being read as a scheme.
        link = html.escape(f"./{urllib.parse.quote(row.page)}")
        name = html.escape(_printable(Path(row.page).stem))
        picture = base64.b64encode(row.thumbnail).decode()
        cells = "".join(f"<td>{row.terms[term]:{'.1%' if term == 'edge_fraction' else '.4f'}}</td>" for term in columns)
        lines.append(
            f'<tr><td><a href="{link}"><img src="data:image/jpeg;base64,{picture}" alt=""></a></td>'
            f'<th scope="row"><a href="{link}">{name}</a></th>{cells}</tr>'
        )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("", "name", *columns.values()))
    return _INDEX.format(count=len(rows), head=head, rows="\n".join(lines))


_INDEX = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>edgeloss: {count} images</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse }}
th, td {{ padding: .4em .8em; text-align: right; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums }}
th {{ text-align: left }}
th[scope=row] {{ font-weight: normal; overflow-wrap: anywhere }}
img {{ display: block }}
</style>
<h1>{count} images, worst edge loss first</h1>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</html>
"""


# ------------------------------------------------------------------------------------------------------------- metrics


@app.command()
def metrics(
    *,
    pred: Pred,
    mask: Mask,
    classes: Annotated[str, typer.Option(metavar="N|FILE", help=CLASSES_HELP)],
    ignore_index: IgnoreIndex = None,
    pred_kind: Kind = PredKind.auto,
    skip_missing: SkipMissing = False,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="How to write the figures.")
    ] = TableFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file to write to, instead of here.")] = None,
) -> None:
    """Measure predictions, by class and in the mean.

    IoU, Boundary IoU, boundary F1 at 1, 3 and 5 pixels, and the IoU within 3 pixels of a border (trimap).

    Files, or folders whose files are matched by name; counts add up over all images. A class that does not occur has no
    figure and no part in the mean.

    \b
    Examples:
      edgeloss metrics --pred predictions --mask masks --classes 11
      edgeloss metrics --pred logits --mask masks --classes classes.txt --json -o metrics.json
    """  # noqa: D301
    from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU  # first: it tells how to get torchmetrics

    # isort: split
    from torchmetrics.classification import MulticlassJaccardIndex

    reading = _reading(classes, ignore_index, pred_kind)
    assert reading.classes is not None
    count: int = reading.classes
    options: dict[str, Any] = {"ignore_index": reading.ignore_index, "average": "none"}
    measures = {
        "iou": MulticlassJaccardIndex(count, zero_division=math.nan, **options),
        "boundary_iou": BoundaryIoU(count, **options),
        **{f"boundary_f1_{radius}px": BoundaryF1(count, radius=radius, **options) for radius in (1, 3, 5)},
        "trimap_iou_3px": TrimapIoU(count, radius=3, **options),
    }
    cases = files_io.match(pred, mask, skip_missing=skip_missing)
    for files in _one_by_one(cases):
        case = reading.read(files)
        if case.broken:
            raise InputError(f"{files.prediction}: expected finite values to measure")
        labels = readable_logits(case.logits, case.target != reading.ignore_index).argmax(1)
        for measure in measures.values():
            measure.update(labels, case.target)
    names = reading.names or [str(c) for c in range(count)]
    table = {name: measure.compute().tolist() for name, measure in measures.items()}
    rows = {name: {measure: values[c] for measure, values in table.items()} for c, name in enumerate(names)}
    mean = {name: _mean(values) for name, values in table.items()}

    if as_json or table_format is TableFormat.json:
        text = _json({"images": len(cases), "mean": mean, "classes": rows})
    elif table_format is TableFormat.csv:
        text = _csv(rows, mean)
    else:
        text = _table(rows, mean)
    _write(text, output)


def _mean(values: Sequence[float]) -> float:
    """Over the classes that occur."""
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


def _csv(rows: Mapping[str, Mapping[str, float]], mean: Mapping[str, float]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *mean])
    for name, figures in [*rows.items(), ("mean", mean)]:
        writer.writerow([name, *("" if math.isnan(value) else value for value in figures.values())])
    return text.getvalue().rstrip("\n")


def _table(rows: Mapping[str, Mapping[str, float]], mean: Mapping[str, float]) -> str:
    lines = [["class", *(name.replace("_", " ") for name in mean)]]
    for name, figures in [*rows.items(), ("mean", mean)]:
        lines.append([name, *("-" if math.isnan(value) else f"{value:.4f}" for value in figures.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


# ------------------------------------------------------------------------------------------------------ diagnose, info


@app.command()
@_takes_loss
def diagnose(
    *,
    pred: Pred,
    mask: Mask,
    classes: ClassList = None,
    ignore_index: IgnoreIndex = None,
    pred_kind: Kind = PredKind.auto,
    as_json: AsJson = False,
    figure: Annotated[Path | None, typer.Option(help="A .png, .pdf or .svg to draw the findings to.")] = None,
    loss: Mapping[str, Any],
) -> None:
    """Look for what is wrong with a prediction.

    With its labels, its loss and its gradient, too. The exit code is 1 when something is not finite.

    \b
    Examples:
      edgeloss diagnose --pred a.npy --mask a.png
      edgeloss diagnose --pred a.pt --mask a.png --power -1 --json --figure findings.png
    """  # noqa: D301
    from edgeloss import debug

    reading = _reading(classes, ignore_index, pred_kind)
    criterion = _criterion(loss, reading.ignore_index)
    files = files_io.match(pred, mask)
    if pred.is_dir():
        raise InputError(f"{pred}: expected the file of one image but got a folder")
    if figure is not None and figure.suffix.lower() not in _FIGURES:
        raise InputError(f"{figure}: expected a figure that ends in {', '.join(_FIGURES)}")
    case = reading.read(files[0])
    with _naming(pred):
        report = debug.diagnose(criterion, case.logits, case.target)
    typer.echo(_json(report.to_dict()) if as_json else str(report))
    if figure is not None:
        with _naming(pred), atomic_write(figure) as file:
            report.figure().savefig(file, format=figure.suffix.lower()[1:])
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def info(*, as_json: AsJson = False) -> None:
    """Tell versions, devices and backends.

    To paste into a bug report.

    \b
    Examples:
      edgeloss info
      edgeloss info --json
    """  # noqa: D301
    cuda = torch.version.cuda
    found: dict[str, Any] = {
        "edgeloss": _version("edgeloss"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cpu": f"{_cpu()}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}",
        "torch": f"{torch.__version__} ({f'CUDA {cuda}' if cuda else 'without CUDA'})",
        **{name: _version(name) for name in _LIBRARIES},
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "backends": backends(),
        "build": library.RECORD,
    }
    if as_json:
        typer.echo(_json(found))
        return
    for name, value in found.items():
        if isinstance(value, Mapping):
            value = "".join(f"\n  {key}: {part}" for key, part in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        typer.echo(f"{name}: {value or 'none'}")


_LIBRARIES = ("numpy", "scipy", "opencv-python", "pillow", "matplotlib", "plotly", "torchmetrics", "rich", "typer")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    """The processor's name, which Linux tells in a file of its own."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
