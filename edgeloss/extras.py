"""How to install the optional parts: one sentence for every message that asks for one."""

from __future__ import annotations


def install_advice(extra: str) -> str:
    """Return what to do where a package of an extra is missing.

    Args:
        extra: its name in pyproject.toml, such as ``"viz"``.

    Example:
        >>> install_advice("viz")
        "run `pip install '.[viz]'` in the folder of edgeloss's sources"
    """
    return f"run `pip install '.[{extra}]'` in the folder of edgeloss's sources"
