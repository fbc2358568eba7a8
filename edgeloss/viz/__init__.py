"""Figures of where the loss and its gradient come from. Needs the extra ``edgeloss[viz]``."""

try:
    import matplotlib as _  # noqa: F401
except ModuleNotFoundError:
    raise ImportError('edgeloss.viz needs matplotlib: pip install "edgeloss[viz]"') from None

from edgeloss.viz.arrays import Arrays, compute_arrays
from edgeloss.viz.board import log_maps
from edgeloss.viz.figure import panel
from edgeloss.viz.interactive import report
from edgeloss.viz.palette import distinct_colors

__all__ = ["Arrays", "compute_arrays", "distinct_colors", "log_maps", "panel", "report"]
