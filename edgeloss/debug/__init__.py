"""What is not finite in a loss or its gradient, where it comes from, and what to do."""

from edgeloss.debug.diagnosis import Finding, Report, diagnose
from edgeloss.debug.tracing import Origin
from edgeloss.debug.trees import format_tree, tree

__all__ = ["Finding", "Origin", "Report", "diagnose", "format_tree", "tree"]
