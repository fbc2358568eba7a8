"""The earlier name of :mod:`edgeloss.debug`."""

from edgeloss.debug import Finding, Origin, Report, diagnose, format_tree, tree

__all__ = ["Finding", "Origin", "Report", "diagnose", "format_tree", "tree"]
