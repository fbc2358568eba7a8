"""Hooks of MkDocs: pages that are not in docs/, links that lead out of it, tables and pictures on any screen."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KATEX = ROOT / "build" / "katex" / "dist"
IFRAME_WORKER = ROOT / "build" / "iframe-worker" / "shim" / "index.js"
# The modules of the API; where it is not all that a module exports, the names.
API = {
    "edgeloss": ("EdgeAwareLoss", "LossMaps", "backends", "check"),
    "edgeloss.functional": (),
    "edgeloss.metrics": (),
    "edgeloss.adapters": (),
    "edgeloss.debug": (),
    # Two functions have the names of their modules.
    "edgeloss.viz": ("panel.panel", "report.report", "log_maps", "compute_arrays", "Arrays", "distinct_colors"),
    "edgeloss.io": (),
    "edgeloss.fields": (),
    "edgeloss.numerics": (),
}
COMMANDS = re.compile(r"^```\n(?=(?:edgeloss|make|pip|python) )", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./|(?=docs/))[^)#\s]*)([^)\s]*)\)")
ROW = re.compile(r"^\|.*", re.MULTILINE)
BETWEEN_NUMBERS = re.compile(r"(?<=[\d,×±/–]) (?=[-\d×±/–%])| (?=[↑↓])")  # and before the sign of a score
WIDE = 1.6  # the width of a picture to its height, from which its text would be too small on a narrow screen
PICTURE = re.compile(
    r'(?:<picture><source [^>]*>\s*)?(<img [^>]*src="([^"]*images/([^"/]+))\.png"[^>]*>)(?:\s*</picture>)?'
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the API, the changelog, and the files of the theme."""
    paths = {"CHANGELOG.md": ROOT / "CHANGELOG.md"}
    paths |= {f"assets/{name}": HERE / name for name in ("style.css", "math.js", "favicon.svg")}
    paths["assets/iframe-worker.js"] = IFRAME_WORKER
    katex = (KATEX / "katex.min.css", KATEX / "katex.min.js", *KATEX.glob("fonts/*.woff2"))
    paths |= {f"assets/katex/{path.relative_to(KATEX).as_posix()}": path for path in katex}
    for page, text in api_pages().items():
        files.append(File.generated(config, f"api/{page}.md", content=text))
    for name, path in paths.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def api_pages() -> dict[str, str]:
    """Return a page for each public module, with the names that its docstrings describe."""
    frameworks = sorted(path.stem for path in (ROOT / "edgeloss" / "integrations").glob("[!_]*.py"))
    pages = {}
    for module, names in {**API, "edgeloss.integrations": frameworks}.items():
        options = f"members: {'false' if names else 'null'}, show_root_heading: false, show_root_toc_entry: false"
        blocks = [f"# {module}", f"::: {module}\n    options: {{{options}}}"]
        for name in names:
            last = name.rpartition(".")[2]
            blocks.append(f"::: {module}.{name}\n    options: {{heading: {module}.{last}, toc_label: {last}}}")
        pages[module.rpartition(".")[2]] = "\n\n".join(blocks)
    return pages


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the API or name the file, keep figures of tables whole, and color examples."""

    def target(match: re.Match[str]) -> str:
        text, path, anchor = match.groups()
        path = path.removeprefix("../")
        module = path.removesuffix(".py").replace("/", ".").removesuffix(".loss")  # whose class the package exports
        if path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif path == "CHANGELOG.md":
            pass
        elif module in API:
            path = f"api/{module.rpartition('.')[2]}.md"
        else:  # a file of the repository, which has no address
            return f"`{path}`" if path.endswith(text.strip("`")) else f"{text}: `{path}`"
        return f"[{text}]({path}{anchor})"

    if page.file.src_uri == "README.md":
        page.meta["title"] = "A PyTorch loss for sharp borders between classes"  # the name of the window
    markdown = ROW.sub(lambda row: BETWEEN_NUMBERS.sub("\N{NO-BREAK SPACE}", row[0]), LINK.sub(target, markdown))
    markdown = markdown.replace("  # doctest: +SKIP", "").replace("```python\n>>>", "```pycon\n>>>")
    return COMMANDS.sub("```sh\n", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the version for narrow screens of the pictures that have one, and mark the wide ones that have none."""

    def size(path: Path) -> tuple[int, int]:
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        return width, height

    def picture(match: re.Match[str]) -> str:
        image, path, name = match.group(1, 2, 3)
        wide, narrow = (ROOT / "docs" / "images" / f"{name}{ending}.png" for ending in ("", "-narrow"))
        width, height = size(wide)
        image = image.replace("<img ", f'<img width="{width}" height="{height}" ')
        if not narrow.exists():
            marked = f'<img class="wide" style="--aspect: {width / height:.3f}" '
            return image.replace("<img ", marked) if width > WIDE * height else image
        sizes = 'width="{}" height="{}"'.format(*size(narrow))
        return f'<picture><source media="(max-width: 44rem)" srcset="{path}-narrow.png" {sizes}>{image}</picture>'

    return PICTURE.sub(picture, html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's search for screen readers, and give the logo its size, so that nothing moves when it loads."""
    output = output.replace('alt="logo"', 'alt="logo" width="24" height="24"')
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
