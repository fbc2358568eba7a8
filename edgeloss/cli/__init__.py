"""The command ``edgeloss``. Requires the extra ``cli``."""

from __future__ import annotations

import os
import pkgutil
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
            import rich as _  # noqa: F401
        except ModuleNotFoundError:
            sys.exit(f"edgeloss: error: the command needs rich; {install_advice('cli')}")
        from edgeloss.cli.commands import parse
        from edgeloss.cli.messages import fail

        options = parse(arguments)
        try:
            code = pkgutil.resolve_name(options.run)(options)
            sys.stdout.flush()
            sys.exit(code)
        except ImportError as error:  # names the extra to install
            fail(str(error))
        except ValueError as error:
            from edgeloss.io import InputError  # here, so that --help does not import torch

            if not isinstance(error, InputError):
                raise
            fail(str(error))
    except BrokenPipeError:  # of `edgeloss ... | head`; what is still in the buffer has no reader either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)  # as a program that SIGPIPE ends
    except KeyboardInterrupt:  # here, so that imports can be interrupted too
        sys.exit(130)
