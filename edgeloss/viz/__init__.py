"""Figures of the loss and its gradient, pixel by pixel. Requires the extra ``viz``."""

from edgeloss._checks.extras import install_advice

try:
    import matplotlib as _  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(f"edgeloss.viz needs matplotlib; {install_advice('viz')}") from None

from edgeloss.viz.arrays import Arrays, compute_arrays
from edgeloss.viz.palette import distinct_colors
from edgeloss.viz.panel import panel
from edgeloss.viz.report import report
from edgeloss.viz.tensorboard import log_maps

__all__ = ["Arrays", "compute_arrays", "distinct_colors", "log_maps", "panel", "report"]
