"""The default loss on GPUs, in Triton: the formulas of ``csrc/cpu``, a file per step.

labels → the weights of the edge terms (``labels``); logits → sums of the terms, averages and the gradient (``loss``,
and ``upsampled`` for logits of lower resolution); averages → the region term and its slopes (``region``).
``operators`` calls them in order. The package is imported where a call needs it: it imports Triton.
"""
