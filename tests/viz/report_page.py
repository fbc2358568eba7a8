"""Reading a report: its numbers, and the page in a browser."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def carried(page: str) -> dict[str, Any]:
    """Return the numbers in a page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def decoded(array: dict[str, Any]) -> npt.NDArray[Any]:
    """Decode an array of a page as its script does."""
    packed = zlib.decompress(base64.b64decode(array["data"]))
    if array["kind"] != "float":
        return np.frombuffer(packed, array["kind"]).reshape(array["shape"])
    high, low = np.frombuffer(packed, np.uint8).reshape(2, -1).astype(np.uint32)
    return ((high << 8 | low) << 15).view(np.float32).reshape(array["shape"])


class Page:
    """A report in a browser."""

    def __init__(self, driver: Any) -> None:
        """Take the page that is open."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver = driver
        self._wait = WebDriverWait(driver, 60)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def choose(self, side: int, layer: str) -> None:
        """Select a layer from the menu of a view."""
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_elements("css selector", ".layer")[side]).select_by_value(layer)
        self._wait.until(lambda d: self.run("return views.dataset[arguments[0]]", ["left", "right"][side]) == layer)

    def picture(self, side: int) -> npt.NDArray[Any]:
        """Return the picture of a view, [h, w, 3]."""
        source = self.run("return views.data[2 * arguments[0]].source", side)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).convert("RGB"))

    def point(self, side: int, row: int, column: int, *, click: bool = False) -> None:
        """Move the pointer to a pixel of a view."""
        from selenium.webdriver.common.action_chains import ActionChains

        script = """
            const [side, row, column] = arguments;
            const [x, y] = ["x", "y"].map((axis) => views._fullLayout[`${axis}axis${side ? 2 : ""}`]);
            const box = views.getBoundingClientRect();
            return [box.left + x._offset + x.d2p(column), box.top + y._offset + y.d2p(row)];
        """
        left, top = self.run(script, side, int(row), int(column))
        chain = ActionChains(self.driver, duration=20)
        chain.w3c_actions.pointer_action.move_to_location(round(left) - 2, round(top))
        chain.w3c_actions.pointer_action.move_to_location(round(left), round(top))
        if click:
            chain.w3c_actions.pointer_action.click()
        chain.perform()
        pinned = " (pinned)" if click else ""
        self._wait.until(lambda d: f"Row {row}, column {column}{pinned}" in self.pixel_text())

    def pixel_text(self) -> str:
        text: str = self.driver.find_element("id", "pixel").text
        return text

    def table(self, name: str) -> list[list[str]]:
        """Return the rows of a table of the pixel's values."""
        rows: list[list[str]] = self.run(
            "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))",
            name,
        )
        return rows


Opened = Callable[..., Page]
