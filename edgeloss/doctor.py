"""The former name of :mod:`edgeloss.debug`; it goes with version 0.5."""

import warnings

from edgeloss.debug import Finding, Origin, Report, diagnose, format_tree, tree

__all__ = ["Finding", "Origin", "Report", "diagnose", "format_tree", "tree"]

message = "edgeloss.doctor is edgeloss.debug since version 0.2, and goes with version 0.5; import edgeloss.debug"
warnings.warn(message, DeprecationWarning, stacklevel=2)
