"""The package: colors and global state."""

from __future__ import annotations

import gc
import weakref

import matplotlib
import numpy as np
from figures import render
from scenes import scene

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


def test_no_global_state_remains() -> None:
    settings = dict(matplotlib.rcParams)
    figure = panel(*scene())
    render(figure)
    alive = weakref.ref(figure)
    del figure
    gc.collect()
    assert alive() is None
    assert dict(matplotlib.rcParams) == settings
