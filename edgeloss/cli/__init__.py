"""The command ``edgeloss``. Requires the extra ``cli``."""

from __future__ import annotations

import io
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence

from edgeloss._checks.extras import install_advice

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit; errors of the user are one line on stderr.

    Args:
        arguments: what follows the name of the program; by default, the arguments of the process.
    """
    try:
        code = _run(arguments)
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:  # of `edgeloss ... | head`; what is still in the buffer has no reader either
        _discard_output()
        sys.exit(128 + 13)  # as a program that SIGPIPE ends
    except OSError as error:  # files have errors of their own: this is standard output, as on a full disk
        if error.errno is None or error.filename is not None:
            raise
        from edgeloss.cli.messages import fail

        _discard_output()
        fail(f"standard output: can't be written ({error.strerror or error})")
    except KeyboardInterrupt:  # here, so that imports can be interrupted too
        sys.exit(130)


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command line and return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a console may have no character for what is printed
        sys.stdout.reconfigure(errors="replace")
    try:
        import rich as _  # noqa: F401
    except ModuleNotFoundError:
        sys.exit(f"edgeloss: error: the command needs rich; {install_advice('cli')}")
    from edgeloss.cli.commands import parse
    from edgeloss.cli.messages import fail, say

    reasons: set[str] = set()

    def show_warning(message: Warning | str, *_: object) -> None:
        text = str(message)
        reason = text.partition(": ")[2] or text  # several metrics, which it begins with, may have the same one
        if reason not in reasons:
            reasons.add(reason)
            say(f"warning: {text}")

    try:
        options = parse(arguments)
        with warnings.catch_warnings():  # of the library, in one line as errors are
            warnings.showwarning = show_warning  # type: ignore[assignment]
            return int(pkgutil.resolve_name(options.run)(options) or 0)
    except SystemExit as end:  # of --help, whose output is to be flushed too, or of an error
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except ImportError as error:  # its message names the extra to install, unless it is Python's own
        is_bare = str(error).startswith("No module named")
        fail(f"the command needs {error.name}; {install_advice('cli')}" if is_bare else str(error))
    except ValueError as error:
        from edgeloss.io import InputError  # here, so that --help does not import torch

        if not isinstance(error, InputError):
            raise
        fail(str(error))


def _discard_output() -> None:
    """Drop what standard output still holds, which Python would write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
