"""Find non-finite values in a loss, and print nested structures as trees."""

from edgeloss.debug.calls import Finding, Origin
from edgeloss.debug.diagnosis import Report, diagnose
from edgeloss.debug.trees import format_tree, tree

__all__ = ["Finding", "Origin", "Report", "diagnose", "format_tree", "tree"]
