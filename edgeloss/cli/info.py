"""The command ``info``: versions, devices and backends."""

from __future__ import annotations

import importlib.metadata
import platform
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from edgeloss import _call
from edgeloss._kernels import library
from edgeloss.cli.messages import to_json

_LIBRARIES = ("numpy", "scipy", "opencv-python", "pillow", "matplotlib", "torchmetrics", "rich")


def info(options: Namespace) -> None:
    """Print versions, devices and backends."""
    cuda = torch.version.cuda
    facts: dict[str, Any] = {
        "edgeloss": _version("edgeloss"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cpu": f"{_cpu()}, threads: {torch.get_num_threads()}, {torch.backends.cpu.get_cpu_capability()}",
        "torch": f"{torch.__version__} ({f'CUDA {cuda}' if cuda else 'without CUDA'})",
        **{name: _version(name) for name in _LIBRARIES},
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "backends": _call.backends(),
        "build": library.RECORD,
    }
    if options.as_json:
        print(to_json(facts))
        return
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            print(f"{name}:")
            for key, part in value.items():
                state, _, reason = str(part).partition(": ")
                print(f"  {key}: {state}{reason and f' ({reason})'}")
        else:
            print(f"{name}: {(', '.join(value) if isinstance(value, list) else value) or 'none'}")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    """Return the name of the processor, which on Linux is in /proc/cpuinfo."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
