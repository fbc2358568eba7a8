"""Find non-finite values in a loss, and print nested structures as trees."""

from edgeloss.debug.diagnosis import diagnose
from edgeloss.debug.origin import Origin
from edgeloss.debug.report import Finding, Report
from edgeloss.debug.trees import format_tree, tree

__all__ = ["Finding", "Origin", "Report", "diagnose", "format_tree", "tree"]
