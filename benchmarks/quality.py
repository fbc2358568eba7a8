#!/usr/bin/env python3
"""Train one network under many losses and compare them."""

import sys

from quality.command import main

if __name__ == "__main__":
    sys.exit(main())
