"""The commands of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeloss import __version__
from edgeloss.cli.compare import compare
from edgeloss.cli.diagnose import diagnose
from edgeloss.cli.info import info
from edgeloss.cli.metrics import metrics
from edgeloss.cli.view import view

app = typer.Typer(
    help="Show where a segmentation network fails at edges.",
    epilog="Exit codes: 0 success, 1 'diagnose' found non-finite values, 2 invalid input, 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (view, compare, metrics, diagnose, info):
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"edgeloss {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None: ...
