"""The command ``edgeloss``. Requires the extra ``cli``."""

from edgeloss.extras import install_advice

try:
    import typer as _  # noqa: F401
except ModuleNotFoundError:  # no command is defined yet that could report it
    raise SystemExit(f"edgeloss: error: the command needs typer; {install_advice('cli')}") from None

from edgeloss.cli.app import main

__all__ = ["main"]
