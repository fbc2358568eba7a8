"""Reading a page of the package: the data that its scripts draw."""

from __future__ import annotations

import json
import re
from typing import Any


def page_data(page: str) -> dict[str, Any]:
    """Return the data of a page."""
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data: dict[str, Any] = json.loads(content)
    return data


def parts_of(page: str, kind: str) -> list[dict[str, Any]]:
    """Return the parts of a page of one kind."""
    return [part for part in page_data(page)["parts"] if part["kind"] == kind]
