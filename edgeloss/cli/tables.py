"""Scores per class as text: a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(content: Any) -> str:  # noqa: ANN401
    """Return strict JSON: numbers with six digits, and null for those that are not finite."""

    def strict(part: Any) -> Any:  # noqa: ANN401
        if isinstance(part, Mapping):
            return {key: strict(value) for key, value in part.items()}
        if isinstance(part, (list, tuple)):
            return [strict(value) for value in part]
        if isinstance(part, float):
            return rounded(part) if math.isfinite(part) else None
        return part

    return json.dumps(strict(content), indent=1, ensure_ascii=False, allow_nan=False)


def print_json(content: Any) -> None:  # noqa: ANN401
    """Print strict JSON."""
    print(to_json(content))


def rounded(value: float) -> float:
    """Return a number to six digits: those beyond are noise of float32."""
    return float(f"{value:.6g}")


def to_csv(rows: Mapping[str, Mapping[str, float]], mean: Mapping[str, float]) -> str:
    """Return a line per class and one for the mean; nan is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *mean])
    for name, scores in [*rows.items(), ("mean", mean)]:
        writer.writerow([name, *("" if math.isnan(value) else rounded(value) for value in scores.values())])
    return text.getvalue().rstrip("\n")


def to_table(rows: Mapping[str, Mapping[str, float]], mean: Mapping[str, float]) -> str:
    """Return aligned columns with a line per class and one for the mean; nan is a dash."""
    lines = [["class", *(name.replace("_", " ") for name in mean)]]
    for name, scores in [*rows.items(), ("mean", mean)]:
        lines.append([name, *("-" if math.isnan(value) else f"{value:.4f}" for value in scores.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
