"""Checking a page in the browser by the rules of axe-core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Sized = Callable[[int, int, bool], None]  # width, height, whether dark


def violations(driver: Any, axe: str) -> list[str]:
    """Return the rules that the page breaks, with the elements that break them."""
    driver.execute_script(axe)
    found = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")["violations"]
    return [f"{rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]
