"""Other boundary-aware losses, to compare with: each a short module after its source.

Each function gives the term alone, without the cross-entropy that goes with it: :mod:`peers.recipes` adds it up as the
source does. The mean over an empty set is 0, and ignored pixels have no part in a term nor any gradient.
"""
