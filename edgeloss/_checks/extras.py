"""How to install the package: one sentence for every message that asks for it."""

from __future__ import annotations


def install_advice(extra: str = "", **variables: object) -> str:
    """Return what to do where an optional package or a compiled kernel is missing.

    Args:
        extra: its name in pyproject.toml, such as ``"viz"``; empty for the package alone.
        variables: environment variables of the build.

    Example:
        >>> install_advice("viz")
        "run `pip install '.[viz]'` in the folder of edgeloss's sources"
        >>> install_advice(EDGELOSS_CUDA_ARCHS=90)
        "run `EDGELOSS_CUDA_ARCHS=90 pip install .` in the folder of edgeloss's sources"
    """
    words = [f"{name}={value}" for name, value in variables.items()]
    command = " ".join([*words, "pip install", f"'.[{extra}]'" if extra else "."])
    return f"run `{command}` in the folder of edgeloss's sources"
