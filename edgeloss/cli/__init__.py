"""The command ``edgeloss``. Requires the extra ``cli``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgeloss.extras import install_advice

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit; errors of the user are one line on stderr.

    Args:
        arguments: what follows the name of the program; by default, the arguments of the process.
    """
    try:
        try:
            import typer as _  # noqa: F401
        except ModuleNotFoundError:  # no command is defined yet that could report it
            sys.exit(f"edgeloss: error: the command needs typer; {install_advice('cli')}")
        from edgeloss.cli.app import run

        run(arguments)
    except KeyboardInterrupt:  # here, so that imports can be interrupted too
        sys.exit(130)
