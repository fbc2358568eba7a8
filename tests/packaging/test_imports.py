"""What is imported, and what is said where an extra is missing, in processes that begin without either."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeloss.extras import install_advice

LIGHT = """
import io, sys, torch
before = set(sys.modules)

def imported(*names):
    print(*(name for name in names if name in sys.modules and name not in before))

import edgeloss, edgeloss.debug
imported("cv2", "matplotlib", "omegaconf", "PIL", "rich", "scipy", "torchmetrics", "typer")
x = torch.randn(1, 3, 12, 12, requires_grad=True)
edgeloss.EdgeAwareLoss()(x, torch.randint(3, (1, 12, 12))).backward()
edgeloss.backends()
imported("triton")
from edgeloss.viz import panel
panel(torch.zeros(2, 4, 4), torch.zeros(4, 4, dtype=torch.int64)).savefig(io.BytesIO())
imported("matplotlib", "matplotlib.pyplot")
"""
WITHOUT_EXTRAS = """
import sys, torch
sys.modules |= dict.fromkeys(["matplotlib", "torchmetrics", "typer"])
from edgeloss import cli, metrics
y = torch.arange(4).view(1, 2, 2)
print(metrics.boundary_f1(y, y, 4).item())
try:
    metrics.BoundaryF1
except ImportError as error:
    print(error)
try:
    import edgeloss.viz
except ImportError as error:
    print(error, error.__cause__, error.__suppress_context__)
cli.main()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_only_what_is_used_is_imported() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    ran = run(LIGHT)
    assert ran.stdout.splitlines() == ["", "", "matplotlib"], ran.stderr


def test_a_missing_extra_is_one_line() -> None:
    ran = run(WITHOUT_EXTRAS)
    assert ran.stdout.splitlines() == [
        "1.0",  # the functions need no torchmetrics
        f"edgeloss.metrics.BoundaryF1 needs torchmetrics; {install_advice('metrics')}",
        f"edgeloss.viz needs matplotlib; {install_advice('viz')} None True",
    ]
    assert ran.stderr == f"edgeloss: error: the command needs typer; {install_advice('cli')}\n"
    assert ran.returncode == 1
