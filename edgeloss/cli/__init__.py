"""The command ``edgeloss``. Requires the extra ``edgeloss[cli]``."""

try:
    import typer as _  # noqa: F401
except ModuleNotFoundError:  # no command is defined yet that could report it
    raise SystemExit('edgeloss: error: the command needs typer: pip install "edgeloss[cli]"') from None

from edgeloss.cli.app import main

__all__ = ["main"]
