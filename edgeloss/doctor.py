"""Alias of :mod:`edgeloss.debug`, its former name."""

from edgeloss.debug import Finding, Origin, Report, diagnose, format_tree, tree

__all__ = ["Finding", "Origin", "Report", "diagnose", "format_tree", "tree"]
