"""Reading a report: its numbers, and the page in a browser."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from page_data import parts_of

from edgeloss.viz.packing import decode


def carried(page: str) -> dict[str, Any]:
    """Return what the views of a page show."""
    (viewer,) = parts_of(page, "viewer")
    return viewer


def codes(array: dict[str, Any]) -> npt.NDArray[Any]:
    """Unpack the codes of an array as the script of a page does."""
    size = np.dtype(array["kind"]).itemsize
    bands = [np.frombuffer(zlib.decompress(base64.b64decode(band)), np.uint8) for band in array["bands"]]
    parts = [band.reshape(size, -1)[::-1].T.copy().view(array["kind"]) for band in bands]
    rows = [part.reshape(-1, array["shape"][1]).cumsum(0, dtype=array["kind"]) for part in parts]
    return np.concatenate(rows)


def decoded(array: dict[str, Any]) -> npt.NDArray[Any]:
    """Decode an array of floats; codes that are no numbers become 0."""
    return decode(codes(array))


def number_of(text: str) -> float:
    """Return a number that a page shows."""
    digits, _, exponent = text.partition("×10")
    return float(f"{digits}e{exponent.translate(str.maketrans('⁻⁰¹²³⁴⁵⁶⁷⁸⁹', '-0123456789'))}" if exponent else digits)


class Page:
    """A report in a browser."""

    def __init__(self, driver: Any) -> None:
        """Take the page that is open."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver = driver
        self._wait = WebDriverWait(driver, 60)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, expected: Any = True) -> None:
        self._wait.until(lambda d: self.run(script) == expected)

    def choose(self, side: int, layer: str) -> None:
        """Select a layer from the menu of a view."""
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_elements("css selector", ".layer")[side]).select_by_value(layer)
        self.wait_for(f"return drawn[{side}]", layer)

    def layer(self, key: str, level: int = 0) -> npt.NDArray[Any]:
        """Return the colors of a layer, [h, w, 4], at a level of half the resolution of the one before."""
        script = """
            const [key, level] = arguments;
            const painted = () => {
                const [width, height] = [image.columns, image.rows].map((size) => Math.ceil(size / 2 ** level));
                return [height, width, [...cells(key, level, 0, 0, width, height).data]];
            };
            return image.has(key) ? image.need(key).then(painted) : painted();
        """
        height, width, values = self.run(script, key, level)
        return np.array(values).reshape(height, width, 4)

    def dots(self, side: int) -> npt.NDArray[Any]:
        """Return the dots of a view as drawn, [h, w, 3]."""
        script = """
            drawView(arguments[0]);
            const { width, height } = canvases[arguments[0]];
            return [height, width, [...canvases[arguments[0]].getContext("2d").getImageData(0, 0, width, height).data]];
        """
        height, width, values = self.run(script, side)
        return np.array(values).reshape(height, width, 4)[..., :3]

    def view(self) -> dict[str, float]:
        """Return the middle of the views and their zoom."""
        state: dict[str, float] = self.run("return view")
        return state

    def point(self, side: int, row: int, column: int, *, click: bool = False) -> None:
        """Move the pointer to a pixel of a view."""
        from selenium.webdriver.common.action_chains import ActionChains

        script = """
            const [side, row, column] = arguments;
            canvases[side].scrollIntoView({ block: "center" });
            const { left, top } = canvases[side].getBoundingClientRect();
            const frame = frameOf(canvases[side]);
            return [left + (column + 0.5 - frame.left) * view.zoom, top + (row + 0.5 - frame.top) * view.zoom];
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

    def press(self, *keys: str) -> None:
        """Press keys in the left view."""
        canvas = self.driver.find_element("css selector", ".pane canvas")
        self.run("arguments[0].focus()", canvas)
        for key in keys:
            canvas.send_keys(key)

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
