"""The command: what it reads, writes and prints, and the one line it has for everything that can't be used."""

from __future__ import annotations

import html.parser
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss, cli, io, viz
from edgeloss.io import InputError

H, W, C = 24, 32, 3  # the masks; predictions are of half the resolution
ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process."""

    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(int(stopped.value.code or 0), out, err)

    return run


def process(*arguments: object, code: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line, or Python code, in a process of its own."""
    start = ["-m", "edgeloss.cli", *map(str, arguments)] if code is None else ["-c", code]
    return subprocess.run([sys.executable, *start], cwd=ROOT, capture_output=True, text=True, timeout=120)


def mask_array() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Ground with a box and a bar on it; the first row is void."""
    mask = np.zeros((H, W), np.uint8)
    mask[6:18, 5:20] = 1
    mask[:, 26:28] = 2
    mask[0] = 255
    return mask


def half_logits(seed: int = 0) -> Tensor:
    return torch.randn(C, H // 2, W // 2, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A picture, its mask and a prediction: a.png, mask.png and pred.npy."""
    Image.fromarray(np.full((H, W, 3), 90, np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(mask_array()).save(tmp_path / "mask.png")
    np.save(tmp_path / "pred.npy", half_logits().numpy())
    return tmp_path


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """images/, masks/ and preds/ of three images: the nearer to the truth, the later in the alphabet."""
    for kind in ("images", "masks", "preds"):
        (tmp_path / kind).mkdir()
    truth = torch.from_numpy(mask_array()).long().clamp(max=C - 1)
    for name, gain in {"a": 2.0, "b": 4.0, "c": -4.0}.items():
        Image.fromarray(np.full((H, W), 90, np.uint8)).save(tmp_path / "images" / f"{name}.jpg")
        Image.fromarray(mask_array()).save(tmp_path / "masks" / f"{name}.png")
        logits = gain * torch.nn.functional.one_hot(truth, C).permute(2, 0, 1).float()
        torch.save(logits, tmp_path / "preds" / f"{name}.pt")
    return tmp_path


def arguments(folder: Path, pred: str = "pred.npy") -> list[object]:
    return ["--mask", folder / "mask.png", "--pred", folder / pred]


class Drawn(NamedTuple):
    """What was given to a figure or a report."""

    logits: Tensor
    target: Tensor
    options: dict[str, Any]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """Panels as they are drawn."""
    calls: list[Drawn] = []
    panel = viz.panel

    def spy(logits: Tensor, target: Tensor, **options: Any) -> Any:
        calls.append(Drawn(logits, target, options))
        return panel(logits, target, **options)

    monkeypatch.setattr(viz, "panel", spy)
    return calls


def read(folder: Path, pred: str, **options: Any) -> io.Case:
    files = io.Files("x", folder / pred, folder / "mask.png", None)
    return io.read_case(files, **{"kind": None, "classes": None, "ignore_index": 255} | options)


# -------------------------------------------------------------------------------------------------------- predictions


def write(path: Path, values: Tensor) -> None:
    """A tensor as a file of the kind that its suffix tells."""
    if path.suffix == ".pt":
        torch.save(values, path)
    elif path.suffix == ".npz":
        np.savez_compressed(path, values.numpy())
    elif path.suffix == ".png":
        Image.fromarray(values.to(torch.uint8).numpy()).save(path)
    else:
        np.save(path, values.numpy())


@pytest.mark.parametrize(
    ("suffix", "values", "taken_for"),
    [
        (".npy", half_logits(), "logits of 12 × 16 pixels, upsampled"),
        (".npy", half_logits()[None], "logits of 12 × 16 pixels, upsampled"),
        (".npz", half_logits().half(), "logits of 12 × 16 pixels, upsampled"),
        (".pt", half_logits().bfloat16().requires_grad_(), "logits of 12 × 16 pixels, upsampled"),
        (".pt", torch.randn(C, H, W).double(), "logits"),
        (".npy", half_logits().softmax(0), "probabilities of 12 × 16 pixels, upsampled"),
        (".npy", half_logits().softmax(0).half(), "probabilities of 12 × 16 pixels, upsampled"),
        (".pt", half_logits().softmax(0).bfloat16(), "probabilities of 12 × 16 pixels, upsampled"),
        (".npy", torch.ones(H, W).long(), "labels, as one-hot smoothed to 0.9"),
        (".pt", torch.ones(1, 1, H, W, dtype=torch.uint8), "labels, as one-hot smoothed to 0.9"),
        (".png", torch.ones(H, W), "labels, as one-hot smoothed to 0.9"),
        (".png", torch.ones(H // 2, W // 2), "labels, as one-hot smoothed to 0.9 of 12 × 16 pixels, upsampled"),
    ],
)
def test_tells_what_a_prediction_is(folder: Path, suffix: str, values: Tensor, taken_for: str) -> None:
    write(folder / f"other{suffix}", values)
    case = read(folder, f"other{suffix}")
    assert case.taken_for == taken_for
    assert case.logits.shape[:2] == (1, C)
    if taken_for.startswith("logits"):
        assert torch.equal(case.logits[0], values.detach().view(C, *values.shape[-2:]))
    elif taken_for.startswith("probabilities"):
        torch.testing.assert_close(case.logits[0].softmax(0), values, atol=1e-2, rtol=0)
    else:
        assert (case.logits[0].softmax(0)[1, 1:] - 0.9).abs().max() < 1e-6  # the first row is void


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (torch.tensor([[-3.0, 2.0]]), None, [-3.0, 2.0]),  # [H, W]
        (torch.tensor([[[-3.0, 2.0]]]), None, [-3.0, 2.0]),  # [1, H, W]
        (torch.tensor([[0.25, 0.5]]), None, [-np.log(3), 0.0]),
        (torch.tensor([[0.25, 0.5]]), "logits", [0.25, 0.5]),
    ],
)
def test_one_channel_is_one_logit_or_the_probability_of_class_1(
    tmp_path: Path, values: Tensor, kind: io.Kind | None, expected: list[float]
) -> None:
    np.save(tmp_path / "pred.npy", values.numpy())
    Image.fromarray(np.array([[0, 1]], np.uint8)).save(tmp_path / "mask.png")
    assert read(tmp_path, "pred.npy", kind=kind).logits.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_probability_of_0_has_a_finite_logit(folder: Path, dtype: torch.dtype, channels: int) -> None:
    ones = torch.ones(1, H, W, dtype=dtype)
    torch.save(torch.cat([ones, 0 * ones])[-channels:], folder / "pred.pt")
    Image.fromarray(np.ones((H, W), np.uint8)).save(folder / "mask.png")
    case = read(folder, "pred.pt", kind="probabilities")
    assert case.logits.dtype == dtype
    assert case.logits.isfinite().all()
    assert EdgeAwareLoss()(case.logits, case.target) > 8  # more than -log of float16's smallest number, 6e-8


def test_takes_the_named_one_of_several_arrays(folder: Path) -> None:
    np.savez(folder / "several.npz", logits=half_logits().numpy(), features=np.zeros(3))
    torch.save({"probs": half_logits().softmax(0), "epoch": 3, "loss": torch.tensor(0.5)}, folder / "several.pt")
    torch.save({"anything": half_logits(), "epoch": 3}, folder / "one.pt")
    assert read(folder, "several.npz").taken_for.startswith("logits")
    assert read(folder, "several.pt").taken_for.startswith("probabilities")
    assert torch.equal(read(folder, "one.pt").logits[0], half_logits())


def test_reads_arrays_of_foreign_byte_order_and_precision(folder: Path) -> None:
    for dtype in (">f4", ">f8", np.longdouble):
        np.save(folder / "other.npy", half_logits().numpy().astype(dtype))
        assert torch.equal(read(folder, "other.npy").logits[0].float(), half_logits())


def test_label_under_void_is_not_read(folder: Path) -> None:
    labels = mask_array()
    Image.fromarray(labels).save(folder / "pred.png")
    assert read(folder, "pred.png", classes=C).logits.argmax(1)[0, 1:].eq(torch.from_numpy(labels[1:])).all()
    labels[5, 7] = 255  # where the truth is known
    Image.fromarray(labels).save(folder / "pred.png")
    with pytest.raises(
        InputError, match=r"pred\.png: expected labels 0 to 2, but got 255 at 1 pixel, first at \[5, 7\]"
    ):
        read(folder, "pred.png", classes=C)


def test_reads_masks_by_index_and_of_16_bits(tmp_path: Path) -> None:
    palette = Image.frombytes("P", (2, 1), bytes([2, 1]))
    palette.putpalette([9, 9, 9, 200, 0, 0, 0, 0, 200])
    palette.save(tmp_path / "palette.png")
    Image.fromarray(np.array([[300, 1]], np.uint16)).save(tmp_path / "deep.png")
    assert io.read_labels(tmp_path / "palette.png").tolist() == [[2, 1]]
    assert io.read_labels(tmp_path / "deep.png").tolist() == [[300, 1]]


def test_turns_an_image_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # its top is the right-hand side
    Image.fromarray(np.zeros((H, W), np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    assert io.read_image(tmp_path / "turned.jpg").shape == (3, W, H)


# --------------------------------------------------------------------------------------------------------------- view


def test_view_draws_the_panel(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    output = folder / "panel.png"
    loss = ["--radius", 2, "--decay", 1.5, "--power", -1, "--same-side-weight", 0.25, "--false-edge-weight", 0.5]
    assert run("view", *arguments(folder), "--image", folder / "a.png", "-o", output, "--terms", *loss) == (0, "", "")
    assert output.read_bytes().startswith(b"\x89PNG")
    (call,) = drawn
    assert torch.equal(call.logits[0], half_logits())
    assert torch.equal(call.target[0], torch.from_numpy(mask_array()).long())
    assert call.options["image"].shape == (1, 3, H, W)
    assert call.options["title"] == "pred: logits of 12 × 16 pixels, upsampled"
    assert call.options["terms"] is True
    criterion = call.options["criterion"]
    assert (criterion.radius, criterion.decay, criterion.power, criterion.same_side_weight) == (2, 1.5, -1.0, 0.25)
    assert criterion.false_edge_weight == 0.5
    assert (criterion.ignore_index, criterion.upsample) == (255, True)


def test_the_loss_has_its_own_defaults(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    run("view", *arguments(folder), "-o", folder / "panel.png")
    criterion = drawn[0].options["criterion"]
    assert criterion.options() == EdgeAwareLoss(ignore_index=255, upsample=True).options()


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_view_writes_the_kind_of_its_suffix(run: Run, folder: Path, suffix: str) -> None:
    output = folder / f"panel.{suffix}"
    assert run("view", *arguments(folder), "-o", output, "--dpi", 40).code == 0
    assert output.read_bytes().startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix])


def test_names_and_colors_come_from_files(run: Run, folder: Path, drawn: list[Drawn]) -> None:
    (folder / "classes.txt").write_text("0 ground\n1 $box^$\n\n2 _bar\n9 void\n")
    (folder / "colors.txt").write_text("0 1 2 3 ground\n2,#0a0B0c\n1, 255, 0, 9\n255 0 0 0 void\n")
    mask = mask_array()
    mask[mask == 255] = 9
    Image.fromarray(mask).save(folder / "mask.png")
    options = ["--classes", folder / "classes.txt", "--palette", folder / "colors.txt"]
    assert run("view", *arguments(folder), "-o", folder / "panel.png", *options) == (0, "", "")
    (call,) = drawn
    assert call.options["class_names"] == ["ground", "$box^$", "_bar"]
    assert call.options["palette"] == [(1, 2, 3), (255, 0, 9), (10, 11, 12)]
    assert call.options["criterion"].ignore_index == 9


def test_tells_of_what_is_not_finite_and_draws_it(run: Run, folder: Path) -> None:
    logits = half_logits()
    logits[0, 3, 4], logits[1, 3, 4] = float("nan"), float("inf")
    np.save(folder / "pred.npy", logits.numpy())
    ran = run("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran == (0, "", f"edgeloss: note: {folder / 'pred.npy'}: 2 of 576 values are not finite\n")
    assert (folder / "panel.png").exists()


def test_tells_of_a_binary_mask_whose_class_1_is_void(run: Run, folder: Path) -> None:
    Image.fromarray(np.where(mask_array() == 1, 255, 0).astype(np.uint8)).save(folder / "mask.png")
    np.save(folder / "pred.npy", half_logits()[:1].numpy())
    ran = run("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran.code == 0
    assert ran.err.endswith("mask.png: holds 0 and 255, which does not count; class 1 is written as 1\n")


def test_view_writes_a_report(run: Run, folder: Path) -> None:
    (folder / "<b>$x$.npy").write_bytes((folder / "pred.npy").read_bytes())
    assert run("view", *arguments(folder, "<b>$x$.npy"), "-o", folder / "report.html") == (0, "", "")
    page = (folder / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;$x$: logits of 12 × 16 pixels, upsampled" in page
    assert "<b>$x$" not in page


class Page(html.parser.HTMLParser):
    """The links, pictures and cells of a page."""

    def __init__(self, text: str) -> None:
        """Read a page."""
        super().__init__()
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "a" and (link := dict(attrs)["href"]) not in self.links:
            self.links.append(str(link))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data)


def view_folders(folder: Path) -> list[object]:
    return ["view", "--image", folder / "images", "--mask", folder / "masks", "--pred", folder / "preds"]


def test_folders_give_pages_and_an_index_worst_first(run: Run, folders: Path) -> None:
    (folders / "masks" / "Thumbs.db").write_bytes(b"")
    (folders / "masks" / ".hidden.png").write_bytes(b"")
    output = folders / "new" / "pages"
    assert run(*view_folders(folders), "-o", output, "--dpi", 40) == (0, "", "")
    assert sorted(path.name for path in output.iterdir()) == ["a.png", "b.png", "c.png", "index.html"]
    page = Page((output / "index.html").read_text("utf-8"))
    assert page.links == ["./c.png", "./a.png", "./b.png"]
    edges = [float(page.texts[page.texts.index(name) + 1]) for name in ("c", "a", "b")]
    assert edges == sorted(edges, reverse=True)
    thumbnails = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(thumbnails) == 3
    assert all(str(source).startswith("data:image/jpeg;base64,") for source in thumbnails)


def test_the_index_tells_of_false_edges_where_they_count(run: Run, folders: Path) -> None:
    torch.save(torch.randn(C, H, W), folders / "preds" / "a.pt")
    for weight in (0, 0.5):
        options = ["-o", folders / "pages", "--dpi", 20, "--false-edge-weight", weight]
        assert run(*view_folders(folders), *options) == (0, "", "")
        page = Page((folders / "pages" / "index.html").read_text("utf-8"))
        assert ("false edge" in page.texts) == (weight > 0)
    column = page.texts.index("false edge") - page.texts.index("name")
    assert float(page.texts[page.texts.index("a") + column]) > 0


def test_folders_give_reports(run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stand-in, since the real one is a few megabytes a page.
    monkeypatch.setattr(viz, "report", lambda logits, target, **options: options["title"])
    assert run(*view_folders(folders), "-o", folders / "pages", "--format", "html").code == 0
    assert (folders / "pages" / "b.html").read_text("utf-8") == "b: logits"
    assert Page((folders / "pages" / "index.html").read_text("utf-8")).links[0] == "./c.html"


def test_a_nan_loss_is_the_worst(run: Run, folders: Path) -> None:
    torch.save(torch.full((C, H, W), float("nan")), folders / "preds" / "b.pt")
    ran = run(*view_folders(folders), "-o", folders / "pages", "--dpi", 40)
    assert ran.code == 0
    assert "b.pt: 2304 of 2304 values are not finite" in ran.err
    assert Page((folders / "pages" / "index.html").read_text("utf-8")).links == ["./b.png", "./c.png", "./a.png"]


HOSTILE = [
    'a"><img src=x onerror=alert(1)>',
    "ä ö",
    "#1?",
    "100%41",
    "$x^$",
    "a&lt;b",
    "javascript:alert(1)",
    "x\ny",
    "日本",
]


def test_hostile_names_are_only_names(run: Run, folders: Path) -> None:
    for kind, suffix in {"images": "jpg", "masks": "png", "preds": "pt"}.items():
        for name in HOSTILE:
            (folders / kind / f"{name}.{suffix}").write_bytes((folders / kind / f"a.{suffix}").read_bytes())
    output = folders / "pages"
    assert run(*view_folders(folders), "-o", output, "--dpi", 20) == (0, "", "")
    page = Page((output / "index.html").read_text("utf-8"))
    linked = {urllib.parse.unquote(urllib.parse.urlsplit(link).path) for link in page.links}
    assert linked == {f"./{name}.png" for name in ["a", "b", "c", *HOSTILE]}
    assert not any(urllib.parse.urlsplit(link).scheme for link in page.links)
    assert all((output / path).is_file() for path in linked)
    assert {name.replace("\n", "\\n") for name in HOSTILE} <= set(page.texts)
    assert not any("onerror" in attrs for _, attrs in page.tags)
    assert sum(tag == "img" for tag, _ in page.tags) == 3 + len(HOSTILE)


# ------------------------------------------------------------------------------------------------------------- metrics


def measure(run: Run, folders: Path, *options: object) -> Ran:
    return run("metrics", "--pred", folders / "preds", "--mask", folders / "masks", "--classes", C, *options)


def test_metrics_are_those_of_the_library_over_all_images(run: Run, folders: Path) -> None:
    from torchmetrics.classification import MulticlassJaccardIndex

    from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU

    for i, name in enumerate("abc"):
        np.save(folders / "preds" / f"{name}.npy", half_logits(i).numpy())  # of half the masks' resolution
        (folders / "preds" / f"{name}.pt").unlink()
    logits = torch.stack([half_logits(i) for i in range(3)])
    labels = torch.nn.functional.interpolate(logits, (H, W), mode="bilinear").argmax(1)
    target = torch.from_numpy(mask_array()).long().expand(3, H, W)
    found = json.loads(measure(run, folders, "--json").out)
    assert found["images"] == 3
    for name, metric in {
        "iou": MulticlassJaccardIndex(C, average="none", ignore_index=255),
        "boundary_iou": BoundaryIoU(C, average="none", ignore_index=255),
        "boundary_f1_1px": BoundaryF1(C, average="none", ignore_index=255, radius=1),
        "boundary_f1_3px": BoundaryF1(C, average="none", ignore_index=255, radius=3),
        "boundary_f1_5px": BoundaryF1(C, average="none", ignore_index=255, radius=5),
        "trimap_iou_3px": TrimapIoU(C, average="none", ignore_index=255, radius=3),
    }.items():
        expected = metric(labels, target)
        assert [found["classes"][str(c)][name] for c in range(C)] == pytest.approx(expected.tolist())
        assert found["mean"][name] == pytest.approx(float(expected.mean()))


def test_a_class_that_does_not_occur_has_no_figure(run: Run, folders: Path) -> None:
    for path in (folders / "preds").iterdir():
        path.unlink()
    for name in "abc":
        Image.fromarray(mask_array()).save(folders / "preds" / f"{name}.png")  # all right, also under void
    options = ["--classes", folders / "classes.txt", "-o", folders / "metrics"]
    (folders / "classes.txt").write_text("0 ground\n1 box\n2 bar\n3 unicorn\n255 void\n")

    assert measure(run, folders, *options, "--format", "json") == (0, "", "")
    found = json.loads((folders / "metrics").read_text())
    assert set(found["classes"]["unicorn"].values()) == {None}
    assert set(found["mean"].values()) == set(found["classes"]["box"].values()) == {1.0}

    assert measure(run, folders, *options, "--format", "csv") == (0, "", "")
    lines = (folders / "metrics").read_text().splitlines()
    assert lines[0] == "class,iou,boundary_iou,boundary_f1_1px,boundary_f1_3px,boundary_f1_5px,trimap_iou_3px"
    assert lines[2:] == ["box" + 6 * ",1.0", "bar" + 6 * ",1.0", "unicorn" + 6 * ",", "mean" + 6 * ",1.0"]

    assert measure(run, folders, *options) == (0, "", "")
    lines = (folders / "metrics").read_text().splitlines()
    assert lines[-2].split() == ["unicorn", *6 * "-"]
    assert lines[-1].split() == ["mean", *6 * ["1.0000"]]
    assert len({len(line) for line in lines}) == 1  # columns stand under each other


def test_metrics_measure_one_pair_of_files(run: Run, folder: Path) -> None:
    assert json.loads(run("metrics", *arguments(folder), "--classes", C, "--json").out)["images"] == 1


def test_metrics_refuse_what_has_no_largest_logit(run: Run, folders: Path) -> None:
    torch.save(torch.full((C, H, W), float("nan")), folders / "preds" / "b.pt")
    ran = measure(run, folders, "-o", folders / "metrics.csv")
    assert ran.code == 2
    assert ran.err.endswith(f"edgeloss: error: {folders / 'preds' / 'b.pt'}: expected finite values to measure\n")
    assert not (folders / "metrics.csv").exists()


# ------------------------------------------------------------------------------------------------------------ diagnose


def test_diagnose_is_content_with_what_is_finite(run: Run, folder: Path) -> None:
    np.save(folder / "pred.npy", torch.randn(C, H, W).numpy())
    ran = run("diagnose", *arguments(folder))
    assert ran.code == 0
    assert ran.out.startswith("diagnose(EdgeAwareLoss)")
    ran = run("diagnose", *arguments(folder), "--json", "--power", 0)
    assert ran.code == 0
    assert json.loads(ran.out)["ok"] is True


def test_diagnose_fails_on_what_is_not(run: Run, folder: Path) -> None:
    logits = torch.randn(C, H, W)
    logits[1, 3, 4] = float("nan")
    np.save(folder / "pred.npy", logits.numpy())
    ran = run("diagnose", *arguments(folder), "--figure", folder / "figure.png")
    assert ran.code == 1
    assert "first at [0, 1, 3, 4]" in ran.out
    assert ran.err == f"edgeloss: note: {folder / 'pred.npy'}: 1 of {C * H * W} values are not finite\n"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    ran = run("diagnose", *arguments(folder), "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["ok"] is False


def test_diagnose_takes_one_image(run: Run, folders: Path) -> None:
    ran = run("diagnose", "--pred", folders / "preds", "--mask", folders / "masks")
    assert ran.code == 2
    assert ran.err == f"edgeloss: error: {folders / 'preds'}: expected the file of one image but got a folder\n"


# ----------------------------------------------------------------------------------------------------------- bad input


class Bomb:
    """An object whose unpickling leaves a mark."""

    def __init__(self, mark: Path) -> None:
        """Choose the folder to make."""
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a folder."""
        return os.mkdir, (str(self.mark),)


def bad_file(folder: Path, case: str) -> Path:
    """A file that can't be used, of a kind."""
    pred, mask, picture = folder / "pred.npy", folder / "mask.png", folder / "a.png"
    bomb = Bomb(folder / "mark")
    if case == "pickled array":
        np.save(pred, np.array([bomb], dtype=object), allow_pickle=True)
    elif case == "pickle":
        pred.write_bytes(pickle.dumps(bomb))
    elif case == "pickle in an archive":
        pred = folder / "pred.npz"
        np.savez(pred, logits=np.array([bomb], dtype=object), allow_pickle=True)
    elif case == "pickle in a .pt":
        pred = folder / "pred.pt"
        torch.save({"logits": bomb}, pred)
    elif case == "model in a .pt":
        pred = folder / "pred.pt"
        torch.save(torch.nn.Conv2d(1, 1, 1), pred)
    elif case == "truncated array":
        pred.write_bytes(pred.read_bytes()[:-100])
    elif case == "empty array":
        pred.write_bytes(b"")
    elif case == "text":
        np.save(pred, np.array(["sky"]))
    elif case == "complex":
        torch.save(torch.zeros(C, H, W, dtype=torch.complex64), folder / "pred.pt")
        pred = folder / "pred.pt"
    elif case == "sparse":
        torch.save(torch.eye(H).to_sparse(), folder / "pred.pt")
        pred = folder / "pred.pt"
    elif case == "two arrays":
        pred = folder / "pred.npz"
        np.savez(pred, a=np.zeros(3), b=np.zeros(3))
    elif case == "no pixel":
        np.save(pred, np.zeros((C, 0, W), np.float32))
    elif case == "volume":
        np.save(pred, np.zeros((2, C, H, W), np.float32))
    elif case == "classes last":
        np.save(pred, np.zeros((H, W, C), np.float32))
    elif case == "larger than the mask":
        np.save(pred, np.zeros((C, H + 1, W), np.float32))
    elif case == "float labels":
        np.save(pred, np.zeros((C, H, W), np.int64))
    elif case == "missing":
        pred.unlink()
    elif case == "coloured mask":
        Image.fromarray(np.zeros((H, W, 3), np.uint8)).save(mask)
        return mask
    elif case == "label out of range":
        Image.fromarray(np.full((H, W), 7, np.uint8)).save(mask)
        return mask
    elif case == "truncated mask":
        mask.write_bytes(mask.read_bytes()[:-30])
        return mask
    elif case == "no mask":
        mask.write_bytes(b"not an image")
        return mask
    elif case == "large image":
        Image.fromarray(np.zeros((2000, 2000), np.uint8)).save(picture)
        return picture
    elif case == "image of another size":
        Image.fromarray(np.zeros((H, W + 1), np.uint8)).save(picture)
        return picture
    elif case == "deep image":
        Image.fromarray(np.zeros((H, W), np.uint16)).save(picture)
        return picture
    return pred


@pytest.mark.parametrize(
    ("case", "message"),
    {
        "pickled array": "holds something else than numbers",
        "pickle": "holds something else than numbers",
        "pickle in an archive": "holds something else than numbers",
        "pickle in a .pt": "pickled objects are not read",
        "model in a .pt": "pickled objects are not read",
        "truncated array": "is damaged",
        "empty array": "is damaged",
        "text": "expected an array of real numbers but got dtype <U3",
        "complex": "expected dense real numbers but got complex64 [3, 24, 32]",
        "sparse": "expected dense real numbers but got float32 [24, 24], torch.sparse_coo",
        "two arrays": "expected one array, or one named logits, pred,",
        "no pixel": "expected at least one pixel but got float32 [3, 0, 32]",
        "volume": "expected floating logits [C, H, W] but got float32 [2, 3, 24, 32]",
        "classes last": "got 32 × 3; classes come first, [C, H, W]",
        "larger than the mask": "or the same picture in lower resolution, but got 25 × 32",
        "float labels": "expected integer labels [H, W] but got int64 [3, 24, 32]",
        "missing": "no such file or folder",
        "coloured mask": "expected one channel of class indices but got colours (mode RGB)",
        "label out of range": "expected labels 0 to 2, or ignore_index=255, but got 7 at 768 pixels, first at [0, 0]",
        "truncated mask": "can't be read as an image",
        "no mask": "can't be read as an image",
        "large image": "expected at most 1000000 pixels",
        "image of another size": "mask.png but got 24 × 33",
        "deep image": "expected 8 bits per channel but got an image of mode I;16",
    }.items(),
)
def test_bad_files_are_one_line_that_names_them(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, case: str, message: str
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # so that a large image need not be large
    path = bad_file(folder, case)
    assert (b"mkdir" in path.read_bytes() if path.exists() else False) == case.startswith("pickle")
    pred = path if path.name.startswith("pred") else folder / "pred.npy"
    output = folder / "panel.png"
    output.write_bytes(b"from before")
    ran = run("view", *arguments(folder, pred.name), "--image", folder / "a.png", "-o", output)
    assert ran.code == 2
    assert ran.err.startswith(f"edgeloss: error: {path}: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""
    assert output.read_bytes() == b"from before"
    assert not (folder / "mark").exists()
    assert not list(folder.glob(".edgeloss*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--radius", "0"], "radius: expected ≥ 1"),
        (["--decay", "nan"], "decay: expected a finite number > 0"),
        (["--classes", "1"], "--classes: expected 2 to 32767 classes but got 1; one logit has two"),
        (["--classes", "4"], "pred.npy: expected 4 classes but got 3; classes come first"),
        (["--classes", "none.txt"], "none.txt: No such file or directory"),
        (["--palette", "mask.png"], "mask.png: expected a text file in UTF-8"),
        (["--palette", "colors.txt"], "colors.txt: expected 3 colours but got none for class 1, 2"),
        (["--palette", "reds.txt"], 'reds.txt, line 2: expected "<index> <r> <g> <b> or <index> #rrggbb"'),
        (["--classes", "gap.txt"], "gap.txt, line 2: expected the indices of 2 classes to be 0 to 1"),
        (["--pred-kind", "probabilities"], "pred.npy: expected probabilities in [0, 1] that sum to 1"),
        (["--pred-kind", "labels"], "pred.npy: expected integer labels [H, W] but got float32 [3, 12, 16]"),
        (["-o", "panel.gif"], "panel.gif: expected an output that ends in .png, .pdf, .svg, .html"),
        (["-o", "none/panel.png"], "panel.png: can't be written (No such file or directory)"),
        (["-o", "a.png/panel.png"], "panel.png: can't be written (Not a directory)"),
        (["-o", "folder.png"], "folder.png: expected a file to write to but got something else"),
        (["-o", "mask.png"], "mask.png: is one of the inputs"),
        (["--image", "."], "expected folders for all, or files for all"),
    ],
)
def test_bad_options_are_one_line(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    (folder / "colors.txt").write_text("0 1 2 3\n")
    (folder / "reds.txt").write_text("0 1 2 3\n1 256 0 0\n")
    (folder / "gap.txt").write_text("0 ground\n2 box\n")
    (folder / "folder.png").mkdir()
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    ran = run("view", "--mask", "mask.png", "--pred", "pred.npy", "-o", "panel.png", *options)
    assert ran.code == 2
    assert ran.err.startswith("edgeloss: error: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_files_stay_whole_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"from before")
    with pytest.raises(RuntimeError), io.atomic_write(path) as file:  # noqa: PT012
        file.write(b"half")
        raise RuntimeError
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("page.html", b"from before")]


def test_a_bad_file_among_many_stops_and_keeps_what_is_done(run: Run, folders: Path) -> None:
    (folders / "preds" / "b.pt").write_bytes(b"")
    ran = run(*view_folders(folders), "-o", folders / "pages", "--dpi", 40)
    assert ran.code == 2
    assert ran.err.startswith(f"edgeloss: error: {folders / 'preds' / 'b.pt'}: is damaged")
    assert [path.name for path in (folders / "pages").iterdir()] == ["a.png"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "masks" / "b.png").unlink(), "masks: expected a file for each name but got none for b"),
        (lambda root: (root / "preds" / "a.npy").write_bytes(b""), "a.pt: same name as"),
        (lambda root: [path.unlink() for path in (root / "preds").iterdir()], "preds: expected .png,"),
    ],
)
def test_folders_must_fit(run: Run, folders: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folders)
    ran = run(*view_folders(folders), "-o", folders / "pages")
    assert ran.code == 2
    assert message in ran.err
    assert not (folders / "pages").exists()


def test_names_that_are_not_everywhere_can_be_left_out(run: Run, folders: Path) -> None:
    (folders / "masks" / "b.png").unlink()
    (folders / "preds" / "c.pt").unlink()
    assert run(*view_folders(folders), "-o", folders / "pages", "--dpi", 40, "--skip-missing").code == 0
    assert sorted(path.name for path in (folders / "pages").iterdir()) == ["a.png", "index.html"]
    (folders / "images" / "a.jpg").unlink()
    ran = run(*view_folders(folders), "-o", folders / "pages", "--skip-missing")
    assert ran.code == 2
    assert "got none that is in all folders" in ran.err


def test_ctrl_c_leaves_nothing_half(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    assert run("view", *arguments(folder), "-o", folder / "panel.png").code == 130
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "mask.png", "pred.npy"]


_WHOLE = {
    ".npy": lambda path: np.save(path, half_logits().numpy()),
    ".npz": lambda path: np.savez(path, half_logits().numpy()),
    ".pt": lambda path: torch.save({"logits": half_logits()}, path),
    ".png": lambda path: Image.fromarray(mask_array()).save(path),
}


@pytest.mark.parametrize("suffix", _WHOLE)
@given(st.data())
def test_damaged_files_are_told_of_or_read(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    _WHOLE[suffix](path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(InputError):  # and of no other error
        assert io.read_prediction(path).values.dim() in (2, 3)


# ------------------------------------------------------------------------------------------------- the program as such


@pytest.mark.parametrize("command", ["view", "metrics", "diagnose", "info"])
def test_help_has_examples(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"  Examples:\n    edgeloss {command}" in ran.out  # a line each, not filled up as prose


def test_missing_options_are_told(run: Run) -> None:
    ran = run("view", "--mask", "mask.png")
    assert ran.code == 2
    assert "Missing option '--pred'" in ran.err


def test_info(run: Run) -> None:
    found = json.loads(run("info", "--json").out)
    assert found["torch"].startswith(torch.__version__)
    assert found["backends"]["reference"] == "available"
    text = run("info").out
    assert re.search(r"^numpy: \d", text, re.MULTILINE)
    assert "\n  reference: available\n" in text


def test_runs_as_a_program(folder: Path) -> None:
    ran = process("view", *arguments(folder), "-o", folder / "panel.png")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    (folder / "mask.png").write_bytes(b"")
    ran = process("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran.returncode == 2
    assert re.fullmatch(r"edgeloss: error: .*mask\.png: can't be read as an image \(.*\)\n", ran.stderr)


def test_the_library_does_not_import_the_command() -> None:
    heavy = {"typer", "rich", "matplotlib", "torchmetrics", "PIL", "cv2", "scipy"}
    ran = process(code=f"import sys, edgeloss; print(sorted({heavy} & set(sys.modules)))")
    assert ran.stdout == "[]\n", ran.stderr


def test_without_typer_tells_how_to_get_it() -> None:
    ran = process(code="import sys; sys.modules['typer'] = None; from edgeloss.cli import main; main()")
    assert ran.returncode == 1
    assert ran.stderr == 'edgeloss: error: the command needs typer: pip install "edgeloss[cli]"\n'


@pytest.mark.slow
def test_a_signal_stops_between_pages(folders: Path) -> None:
    for kind, suffix in {"images": "jpg", "masks": "png", "preds": "pt"}.items():
        for i in range(40):  # far more than are drawn before the signal arrives
            (folders / kind / f"n{i}.{suffix}").write_bytes((folders / kind / f"a.{suffix}").read_bytes())
    pages = folders / "pages"
    command = [sys.executable, "-m", "edgeloss.cli", *map(str, view_folders(folders)), "-o", str(pages)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as child:
        for _ in range(600):
            if (pages / "a.png").exists():
                break
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in errors
    for path in pages.iterdir():
        io.read_image(path)  # each is whole
