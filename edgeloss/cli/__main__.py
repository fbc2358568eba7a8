"""Run the command with ``python -m edgeloss.cli``."""

from edgeloss.cli import main

if __name__ == "__main__":
    main()
