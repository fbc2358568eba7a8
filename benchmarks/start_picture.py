#!/usr/bin/env python3
"""Draw docs/images/start.png, the panel of docs/start.md, by the commands of that page.

    python benchmarks/start_picture.py

The file for narrow screens is narrower.
"""

from __future__ import annotations

import argparse
import ast
import re
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from edgeloss.viz import panel
from pictures import save_figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTHS = {"": 6.9, "-narrow": 3.3}  # in inches


def draw(width: float) -> Figure:
    """Run the programs of the page up to its figure, and return it in this width."""
    names: dict[str, Any] = {}
    page = "\n".join(re.findall(r"^```python\n(.*?)^```$", (DOCS / "start.md").read_text(), re.MULTILINE | re.DOTALL))
    for statement in ast.parse(page).body:
        exec(compile(ast.Module([statement], []), "start.md", "exec"), names)
        if names.get("panel") is panel:
            names["panel"] = partial(panel, width=width)
        if "figure" in names:
            break
    figure: Figure = names["figure"]
    return figure


def main() -> None:
    """Write the figure for both screens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=DOCS / "images", metavar="FOLDER", help="default: %(default)s")
    folder = parser.parse_args().output
    for ending, width in WIDTHS.items():
        save_figure(draw(width), folder / f"start{ending}.png", 220)


if __name__ == "__main__":
    main()
