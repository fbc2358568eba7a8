"""The package: colors, imports and global state."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import matplotlib
import numpy as np
from figures import render
from scenes import scene

from edgeloss.extras import install_advice
from edgeloss.viz import distinct_colors, panel

# Linear sRGB as seen without the long or the middle cones (Viénot, Brettel & Mollon 1999).
PROTANOPE = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPE = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


def test_colors_are_distinct_for_every_reader() -> None:
    reserved = np.array([(1, 0, 1), (0, 0, 0), (0.62, 0.62, 0.62)])
    linear = ((np.vstack([reserved, distinct_colors(300)]) + 0.055) / 1.055) ** 2.4
    for seen, few, more in ((np.eye(3), 0.2, 0.12), (PROTANOPE, 0.09, 0.09), (DEUTERANOPE, 0.09, 0.09)):
        colors = (linear @ seen.T).clip(0, 1) ** (1 / 2.4)
        for count, least in ((11, few), (20, more)):
            some = colors[: 3 + count]
            gaps = np.linalg.norm(some[:, None] - some, axis=-1)[~np.eye(3 + count, dtype=bool)]
            assert gaps.min() > least, (seen, count)
    assert len(np.unique(distinct_colors(300), axis=0)) == 300
    assert distinct_colors(3).tolist() == distinct_colors(150)[:3].tolist()


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_the_package_does_not_import_matplotlib() -> None:
    result = run("import sys, edgeloss; print('matplotlib' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


def test_a_missing_extra_is_one_line() -> None:
    result = run("import sys; sys.modules['matplotlib'] = None; import edgeloss.viz")
    assert result.stderr.splitlines()[-1] == f"ImportError: edgeloss.viz needs matplotlib; {install_advice('viz')}"
    assert "During handling" not in result.stderr


def test_pyplot_is_not_touched() -> None:
    result = run(
        "import io, sys, torch; from edgeloss.viz import panel\n"
        "panel(torch.zeros(2, 4, 4), torch.zeros(4, 4, dtype=torch.int64)).savefig(io.BytesIO())\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert result.stdout.strip() == "False", result.stderr


def test_no_global_state_remains() -> None:
    settings = dict(matplotlib.rcParams)
    figure = panel(*scene())
    render(figure)
    alive = weakref.ref(figure)
    del figure
    gc.collect()
    assert alive() is None
    assert dict(matplotlib.rcParams) == settings
