"""The table of the commands, and the parser of their options. Nothing here imports torch, so that --help is quick."""

from __future__ import annotations

import inspect
import re
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from edgeloss import __version__
from edgeloss.cli import compare, diagnose, info, metrics, view
from edgeloss.cli.messages import say
from edgeloss.cli.options import FILES, LOSS, MASK, PALETTE_NAMES, PRED, Option

# The function of each command, whose docstring is its help, and its options.
COMMANDS = {
    "view": (view.view, [PRED, MASK, *view.OPTIONS, *FILES, *LOSS]),
    "compare": (compare.compare, [*compare.OPTIONS, MASK, *FILES, *LOSS]),
    "metrics": (metrics.metrics, [PRED, MASK, *metrics.OPTIONS, *FILES]),
    "diagnose": (diagnose.diagnose, [PRED, MASK, *diagnose.OPTIONS, *FILES, *LOSS]),
    "info": (info.info, info.OPTIONS),
}
_EPILOG = "Exit codes: 0 success, 1 'diagnose' found non-finite values, 2 invalid input, 130 interrupted."


class _HelpFormatter(RawDescriptionHelpFormatter):
    """Keep the lines of docstrings, and append what an option is without it."""

    def _get_help_string(self, action: object) -> str:
        text, default = getattr(action, "help", None) or "", getattr(action, "default", None)
        is_told = default in (None, False, SUPPRESS) or "default:" in text
        return text if is_told else f"{text}  [default: %(default)s]"


def make_parser() -> ArgumentParser:
    """Return the parser of the program."""
    program = ArgumentParser(
        "edgeloss", description="Show where a segmentation network fails at edges.", epilog=_EPILOG
    )
    program.add_argument("--version", action="version", version=f"edgeloss {__version__}")
    commands = program.add_subparsers(metavar="COMMAND", required=True)
    for name, (function, options) in COMMANDS.items():
        about = inspect.getdoc(function) or ""
        summary = about.partition("\n")[0]
        parser = commands.add_parser(
            name, help=summary, description=about, formatter_class=_HelpFormatter, allow_abbrev=False
        )
        parser.set_defaults(run=function)
        own: dict[tuple[str, ...], Option] = {}
        for option in options:
            own.setdefault(option.flags, option)  # one of the command precedes that of all commands
        for option in own.values():
            parser.add_argument(*option.flags, **option.about)
    return program


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of a command line, whose function is ``run``, and check that the files it names exist.

    Args:
        arguments: what follows the name of the program; by default, the arguments of the process.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    for at in reversed(range(1, len(words))):  # argparse takes a value that begins with a minus for an option
        if words[at - 1].startswith("--") and re.match(r"-[\d.]", words[at]):
            words[at - 1 : at + 1] = [f"{words[at - 1]}={words[at]}"]
    options = make_parser().parse_args(words)
    if error := _missing(options):  # before the command imports torch, which takes seconds
        say(f"error: {error}")
        raise SystemExit(2)
    return options


def _missing(options: Namespace) -> str:
    """Return what is wrong with the paths of inputs, nothing if all exist."""
    paths = [getattr(options, name, None) for name in ("first", "second", "pred", "mask", "image")]
    classes = getattr(options, "classes", None)
    if classes is not None and not classes.isdigit():
        paths.append(Path(classes))
    for path in paths:
        if path is not None and not path.exists():
            return f"{path}: no such file or folder"
    palette = getattr(options, "palette", None)
    if palette is not None and palette not in PALETTE_NAMES and not Path(palette).exists():
        return f"{palette}: expected a file, or one of {', '.join(PALETTE_NAMES)}, but got neither"
    return ""
