"""Other boundary-aware losses to compare with.

Each is a short module written after its source, whose function returns the term alone. :mod:`baselines.recipes` adds it
to the cross-entropy as the source does. The mean over an empty set is 0; ignored pixels contribute to no term and get
no gradient.
"""
