"""The default loss on GPUs, in Triton: the formulas of ``csrc/cpu``, a file per step.

labels → the weights of the edge terms (``label_weights``); logits → the cross-entropy, averages and the gradient
(``terms``, and ``interpolate`` for logits of lower resolution), and the edge terms by image and class (``edges``);
averages → the region term and its slopes (``region``); sums → the loss and its derivatives by them (``sums``). ``call``
runs them in order, with the tensors of ``workspace``. All but the last import Triton, so a call imports them.
"""
