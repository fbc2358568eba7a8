"""Packages that tests need: skip where one is absent, import it where a part of it is."""

from __future__ import annotations

import importlib
import os
import sys
import types

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded


def require(*names: str) -> None:
    """Skip the test unless these modules are installed; with FRAMEWORKS=installed, they have to be."""
    for name in names:
        if name == "mmseg":
            sys.modules.setdefault("mmcv.ops", _Absent("mmcv.ops"))
        if os.environ.get("FRAMEWORKS") == "installed":
            importlib.import_module(name)
        else:
            pytest.importorskip(name, reason=f"{name} is not installed: make test-frameworks")


def import_torchvision() -> None:
    """Import torchvision, also one that was compiled for CUDA next to a torch that was not.

    Its compiled operators do not load there, and its import fails where it describes the first ones. No test calls
    them.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


class _Absent(types.ModuleType):
    """The compiled operators of mmcv, which mmcv-lite lacks: heads that no test builds import them by name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
