"""What a program that uses the package imports, and what it says where an extra is missing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import edgeloss
from edgeloss._checks.extras import install_advice

# Python imports the package of a module that is run with -m before it sets sys.argv.
PACKAGE = """
import sys, torch
before = set(sys.modules)
import edgeloss
from edgeloss import EdgeAwareLoss
"""
PROGRAM = """
import io, sys, edgeloss, torch
from project import before

def imported(*names):
    print(*(name for name in names if name in sys.modules and name not in before))

print([name for name in edgeloss.__all__ if not hasattr(edgeloss, name)])
imported("cv2", "matplotlib", "omegaconf", "PIL", "rich", "scipy", "torchmetrics")
x = torch.randn(1, 3, 12, 12, requires_grad=True)
edgeloss.EdgeAwareLoss()(x, torch.randint(3, (1, 12, 12))).backward()
edgeloss.backends()
imported("triton")

absent = ["matplotlib", "rich", "torchmetrics"]
sys.modules |= dict.fromkeys(absent)
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
try:
    cli.main()
except SystemExit as end:
    print(end)

for name in absent:
    del sys.modules[name]
from edgeloss.viz import panel
panel(torch.zeros(2, 4, 4), torch.zeros(4, 4, dtype=torch.int64)).savefig(io.BytesIO())
imported("matplotlib", "matplotlib.pyplot")
"""


@pytest.mark.slow
def test_only_what_is_used_is_imported_and_a_missing_extra_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "project" / "train.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "project.train", "--help"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines() == [
        "[]",  # all names are there
        "",
        "",
        "1.0",  # the functions need no torchmetrics
        f"edgeloss.metrics.BoundaryF1 needs torchmetrics; {install_advice('metrics')}",
        f"edgeloss.viz needs matplotlib; {install_advice('viz')} None True",
        f"edgeloss: error: the command needs rich; {install_advice('cli')}",
        "matplotlib",
    ], ran.stderr


def test_the_former_name_of_debug_warns_where_it_is_read() -> None:
    for read in (lambda: edgeloss.doctor.diagnose, lambda: importlib.import_module("edgeloss.doctor").tree):
        with pytest.warns(DeprecationWarning, match="edgeloss.doctor is edgeloss.debug since version 0.2") as warned:
            assert read() in (edgeloss.diagnose, edgeloss.tree)
        assert [each.filename for each in warned] == [__file__]
    assert not hasattr(edgeloss.doctor, "nothing")
