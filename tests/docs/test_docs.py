"""The documents: their examples run, and their links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = re.compile(r"^```python\n(>>> .*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def sections() -> list[pytest.param]:
    """Each second-level section of a document that has examples, after those of the document's beginning."""
    found = []
    for document in DOCUMENTS:
        beginning, *rest = re.split(r"(?=^## )", document.read_text(), flags=re.MULTILINE)
        shared = EXAMPLES.findall(beginning)
        for section in rest:
            if own := EXAMPLES.findall(section):
                title = section.splitlines()[0].removeprefix("## ")
                found.append(pytest.param("\n".join(shared + own), id=f"{document.name}: {title}"))
    return found


# gradcheck warns about float32, and the document shows that it fails there.
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double precision:UserWarning")
@pytest.mark.parametrize("examples", sections())
def test_examples(examples: str, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    test = doctest.DocTestParser().get_doctest(examples, {}, name, None, None)
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)


def test_every_pitfall_has_an_example() -> None:
    pitfalls = re.findall("^## ", (ROOT / "docs" / "pitfalls.md").read_text(), re.MULTILINE)
    assert len(pitfalls) == sum(str(section.id).startswith("pitfalls.md") for section in sections())


def anchors(document: Path) -> set[str]:
    """The headings as GitHub names them: lower case, without punctuation, hyphens for spaces."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(document.read_text())}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links(document: Path) -> None:
    for path, anchor in LINK.findall(document.read_text()):
        target = document.parent / path if path else document
        assert target.exists(), f"{document.name}: {path}"
        assert not anchor or anchor in anchors(target), f"{document.name}: {path}#{anchor}"
