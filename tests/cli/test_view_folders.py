"""The command ``view`` on folders: matched files, a page for each, and the index."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accessibility import Sized, violations
from command_line import ROOT, C, H, Run, W, gallery_items, mask_array, view_folders, wrote
from PIL import Image

from edgeloss import io
from edgeloss.cli import pages
from edgeloss.viz import arrays

ITEMS = "data.parts.find(({ kind }) => kind === 'gallery').items"  # of an index in a browser


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Replace reports, which take a second each and megabytes, by their titles; return the links of each."""
    found: dict[str, dict[str, str]] = {}

    def report(examined: Any, criterion: Any, look: Any, *, links: dict[str, str], **options: Any) -> str:
        found[look.title] = links
        return str(look.title)

    monkeypatch.setattr(pages, "draw_report", report)
    return found


def links(folder: Path) -> list[str]:
    return [item["link"] for item in gallery_items(folder / "index.html")]


def test_folders_give_pages_and_an_index(run: Run, folders: Path) -> None:
    (folders / "masks" / "Thumbs.db").write_bytes(b"")
    (folders / "masks" / ".hidden.png").write_bytes(b"")
    output = folders / "new" / "pages"
    ran = run(*view_folders(folders), "-o", output, "--dpi", 40, "--json")
    assert ran.code == 0
    assert re.fullmatch(wrote(output / "index.html", 3), ran.err)
    assert [Path(page["page"]).name for page in json.loads(ran.out)["pages"]] == ["a.png", "b.png", "c.png"]
    assert sorted(path.name for path in output.iterdir()) == ["a.png", "b.png", "c.png", "index.html"]
    assert links(output) == ["./a.png", "./b.png", "./c.png"]
    items = gallery_items(output / "index.html")
    assert all(item["figures"][-1]["source"].startswith("data:image/png;base64,") for item in items)
    assert all(item["photo"].startswith("data:image/jpeg;base64,") for item in items)
    assert "<title>preds: 3 images · edgeloss index</title>" in (output / "index.html").read_text("utf-8")


def test_folders_give_reports(run: Run, folders: Path, linked: dict[str, dict[str, str]]) -> None:
    assert run(*view_folders(folders), "-o", folders / "pages", "--format", "html").code == 0
    assert (folders / "pages" / "b.html").read_text("utf-8") == "b · preds\n<!-- edgeloss view -->\n"
    assert linked["b · preds"] == {"All images": "index.html", "← a": "a.html", "c →": "c.html"}
    assert links(folders / "pages")[0] == "./a.html"


def test_each_picture_is_examined_once(run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    examine = arrays.examine
    monkeypatch.setattr(arrays, "examine", lambda *given, **more: seen.append(given) or examine(*given, **more))
    assert run(*view_folders(folders), "-o", folders / "pages", "--dpi", 20, "--json").code == 0
    assert len(seen) == 3


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_the_gallery_sorts_and_filters(
    run: Run, folders: Path, browse: Callable[[Path], Any], axe: str, sized: Sized, width: int, dark: bool
) -> None:
    sized(width, 844, dark)
    Image.fromarray(mask_array().clip(min=1)).save(folders / "masks" / "b.png")  # no pixel of class 0
    torch.save(torch.full((C, H, W), float("nan")), folders / "preds" / "b.pt")
    ran = run(*view_folders(folders), "-o", folders / "pages", "--format", "html")
    assert ran.code == 0
    assert "b.pt: 2304 of 2304 values are not finite" in ran.err
    page = browse(folders / "pages" / "index.html")
    scores = page.execute_script(f"return {ITEMS}.map(({{ name, values }}) => [values.boundary_f1_1px, name])")

    def shown() -> list[str]:
        script = "return findAll('.gallery > li:not([hidden]) strong').map((one) => one.textContent)"
        names: list[str] = page.execute_script(script)
        return names

    def choose(name: str, value: str) -> None:
        script = "const menu = find(arguments[0]); menu.value = arguments[1]; menu.dispatchEvent(new Event('change'))"
        page.execute_script(script, name, value)

    assert shown() == [name for _, name in sorted(scores)]
    choose("#sort", "edge")
    assert shown() == ["b", "c", "a"]  # a loss of nan, then the highest
    script = "return findAll('.gallery > li').map((one) => find('.spread .own', one)?.getAttribute('d') ?? '')"
    bars = page.execute_script(script)  # of a histogram from the lowest to the highest finite one
    assert [bar.partition(" ")[0] for bar in bars] == ["", "M23.1", "M0.1"]
    assert page.execute_script("return find('.spread .all').getAttribute('d')") == bars[2] + bars[1]
    assert page.execute_script("return find('.toolbar + .hint').textContent").startswith(
        "Bars: the edge loss of all images, from "
    )
    names = "return findAll('.gallery strong').map((one) => getComputedStyle(one).textDecorationLine)"
    assert set(page.execute_script(names)) == {"underline"}
    assert page.execute_script("return findAll('.gallery a').length") == 3  # of a card, one stop of the Tab key
    lead = page.execute_script("return find('.lead').textContent")
    assert re.search(r", and highest in b: nan\. The weakest class is ", lead)
    choose("#sort", "boundary_f1_1px")
    page.execute_script("find('#order').click()")
    assert shown() == [name for _, name in sorted(scores, reverse=True)]
    occurring = page.execute_script(
        f"return {ITEMS}.filter(({{ iou }}) => iou[0][0] !== null).map(({{ name }}) => name)"
    )
    choose("#class", "0")
    assert sorted(shown()) == sorted(occurring)
    assert violations(page, axe) == []
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    page.execute_script("find('#search').value = 'C'; find('#search').dispatchEvent(new Event('input'))")
    assert shown() == ["c"]


NAMES = [
    'a"><img src=x onerror=alert(1)>',
    "ä ö",
    "#1?",
    "100%41",
    "$x^$",
    "a&lt;b",
    "javascript:alert(1)",
    "x\ny",
    "日本",
    "{{x}}",
]


@pytest.mark.usefixtures("linked")
def test_names_with_markup_are_text(run: Run, folders: Path, browse: Callable[[Path], Any]) -> None:
    for kind, suffix in {"images": "jpg", "masks": "png", "preds": "pt"}.items():
        for name in NAMES:
            (folders / kind / f"{name}.{suffix}").write_bytes((folders / kind / f"a.{suffix}").read_bytes())
    output = folders / "pages"
    assert run(*view_folders(folders), "-o", output, "--format", "html").code == 0
    targets = [urllib.parse.urlsplit(link) for link in links(output)]
    linked = {urllib.parse.unquote(target.path) for target in targets}
    assert linked == {f"./{name}.html" for name in ["a", "b", "c", *NAMES]}
    assert not any(target.scheme for target in targets)
    assert all((output / path).is_file() for path in linked)
    page = browse(output / "index.html")
    shown = page.execute_script("return findAll('.gallery strong').map((one) => one.textContent)")
    assert set(shown) == {"a", "b", "c", *(name.replace("\n", "\\n") for name in NAMES)}
    assert page.execute_script("return document.images.length") == 5 * (3 + len(NAMES))  # one of four over a photograph
    visible = "return findAll('.gallery > li').filter((one) => one.offsetParent).length"
    assert page.execute_script(visible) == 8  # the first few
    assert page.execute_script("find('#more').click(); return find('#more').textContent") == "Show the first 8 only"
    assert page.execute_script(visible) == 3 + len(NAMES) == 13
    assert page.execute_script("return findAll('[onerror]').length") == 0


@pytest.mark.usefixtures("linked")
def test_bad_files_are_skipped_counted_and_listed(run: Run, folders: Path) -> None:
    (folders / "preds" / "a.pt").write_bytes(b"")
    (folders / "masks" / "b.png").write_bytes(b"bad")
    command = [*view_folders(folders), "-o", folders / "pages", "--format", "html"]
    ran = run(*command, "--json")
    assert ran.code == 2
    assert f"edgeloss: skipped: {folders / 'preds' / 'a.pt'}: expected numbers" in ran.err
    assert f"edgeloss: skipped: {folders / 'masks' / 'b.png'}: can't be read" in ran.err
    assert ran.err.endswith("edgeloss: error: 2 of 3 images were skipped: a, b\n")
    assert links(folders / "pages") == ["./c.html"]
    assert list(json.loads(ran.out)["skipped"]) == ["a", "b"]
    # Pages link to their neighbors, whose pages say why there is nothing to see.
    assert "got a damaged file" in (folders / "pages" / "a.html").read_text("utf-8")
    shutil.rmtree(folders / "pages")
    ran = run(*command, "--strict")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"edgeloss: error: {folders / 'preds' / 'a.pt'}: expected numbers")
    assert not (folders / "pages").exists()


@pytest.mark.usefixtures("linked")
def test_incomplete_cases_can_be_skipped(run: Run, folders: Path) -> None:
    (folders / "masks" / "b.png").unlink()
    (folders / "preds" / "c.pt").unlink()
    assert run(*view_folders(folders), "-o", folders / "pages", "--format", "html", "--skip-missing").code == 0
    assert sorted(path.name for path in (folders / "pages").iterdir()) == ["a.html", "index.html"]


@pytest.mark.slow
def test_a_signal_stops_between_pages(folders: Path) -> None:
    for kind, suffix in {"images": "jpg", "masks": "png", "preds": "pt"}.items():
        for i in range(400):  # far more than are drawn before the signal arrives
            (folders / kind / f"n{i}.{suffix}").write_bytes((folders / kind / f"a.{suffix}").read_bytes())
    pages = folders / "pages"
    command = [sys.executable, "-m", "edgeloss", *map(str, view_folders(folders)), "-o", str(pages)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as child:
        for _ in range(3000):
            if (pages / "a.png").exists():
                break
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in errors
    for path in pages.iterdir():
        io.read_image(path)  # each is complete
