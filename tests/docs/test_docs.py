"""The documents: their examples run, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, name_of, run_examples, sections

# Those of frameworks.md run in tests/integrations.
SECTIONS = {
    f"{name_of(document)}: {title}": examples
    for document in DOCUMENTS
    if document.name != "frameworks.md"
    for title, examples in sections(document).items()
}
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
SOURCE = re.compile(r'\bsrc(?:set)?="([^"]+)"')  # of a <picture>


# gradcheck warns about float32, and the document shows that it fails there.
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double precision:UserWarning")
@pytest.mark.parametrize("examples", SECTIONS.values(), ids=SECTIONS)
def test_examples(examples: str, request: pytest.FixtureRequest) -> None:
    run_examples(examples, request.node.callspec.id)


def test_every_pitfall_has_an_example() -> None:
    pitfalls = re.findall("^## ", (ROOT / "docs" / "pitfalls.md").read_text(), re.MULTILINE)
    assert len(pitfalls) == sum(section.startswith("docs/pitfalls.md") for section in SECTIONS)


def anchors(document: Path) -> set[str]:
    """The headings as GitHub names them: lower case, without punctuation, hyphens for spaces."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(document.read_text())}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links(document: Path) -> None:
    text = document.read_text()
    for path, anchor in [*LINK.findall(text), *((path, "") for path in SOURCE.findall(text))]:
        target = document.parent / path if path else document
        assert target.exists(), f"{name_of(document)}: {path}"
        assert not anchor or anchor in anchors(target), f"{name_of(document)}: {path}#{anchor}"
