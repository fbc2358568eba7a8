"""The build backend: setuptools, with the torch of the environment that edgeloss is installed into.

A build under isolation does not see that environment. With torch among the fixed build requirements pip would fetch a
second one of gigabytes, and without it a machine that has none yet could not build. So torch is looked for where it
will be used, and is a build requirement only if it is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  # what is not defined below

from toolchain import OLDEST_TORCH, choice, find_compiler, find_torch


def _requirements() -> list[str]:
    if choice() == "none" or find_compiler() is None or find_torch():
        return []
    return [f"torch>={'.'.join(map(str, OLDEST_TORCH))}"]


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return what to install before a wheel is built."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_requirements()]


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return what to install before an editable wheel is built."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_requirements()]
