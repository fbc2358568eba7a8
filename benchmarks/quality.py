#!/usr/bin/env python3
"""Train one network under many losses and compare: scores over seeds, and differences to cross-entropy.

All runs of a seed share their initial weights, the order of the images, augmentation and schedule; only the loss
differs. Each run adds one row to a table, and is not run again. A run that was killed resumes after its last complete
epoch, and on the CPU ends with the same bits. The scores are those of the last epoch: no epoch is chosen by its score.

`tune` trains on four fifths of the training images and scores on the fifth, with the same number of trials for every
loss: the validation split is not used to choose anything.
"""

import sys

from quality.command import main

if __name__ == "__main__":
    sys.exit(main(__doc__))
