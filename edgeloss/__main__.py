"""Run the command with ``python -m edgeloss``."""

from edgeloss.cli import main

if __name__ == "__main__":
    main()
