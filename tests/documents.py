"""The examples of a document, and how they run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

EXAMPLES = re.compile(r"^```python\n(>>> .*?)^```$", re.MULTILINE | re.DOTALL)


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
