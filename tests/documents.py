"""The documents that are tested, their blocks of code, and how examples run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(?!>>> )(.*?)^```$(?:\s+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
EXAMPLES = re.compile(r"^```python\n(>>> .*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(document: Path) -> str:
    """Return the path from the root, as tests are named."""
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path, *languages: str) -> list[str]:
    """Return the blocks of code in one of the languages; "" for blocks without one."""
    return [text for language, text in BLOCK.findall(document.read_text()) if language in languages]


def programs(document: Path) -> list[tuple[str, str]]:
    """Return the blocks of Python without the prompts of a session, each with the output below it or ""."""
    return PROGRAM.findall(document.read_text())


def sections(document: Path) -> dict[str, str]:
    """Return the examples of each second-level section that has some, after those of the document's beginning."""
    beginning, *rest = re.split(r"(?=^## )", document.read_text(), flags=re.MULTILINE)
    shared = EXAMPLES.findall(beginning)
    titled = {section.splitlines()[0].removeprefix("## "): EXAMPLES.findall(section) for section in rest}
    return {title: "\n".join(shared + own) for title, own in titled.items() if own}


def run_examples(examples: str, name: str) -> None:
    """Run examples, and compare their output."""
    test = doctest.DocTestParser().get_doctest(examples, {}, name, None, None)
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)
