"""Command lines of programs with several commands, from a table of options."""

from __future__ import annotations

from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Mapping
from typing import Any

Option = tuple[str, str, Any, str, dict[str, Any]]


class _Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Print defaults, and descriptions as they are."""


def make_parser(about: str, examples: str, commands: Mapping[str, str], options: Iterable[Option]) -> ArgumentParser:
    """Return a parser of commands.

    Args:
        about: what the program does.
        examples: commands to copy.
        commands: what each command does, in one line and maybe more.
        options: the commands that take an option, its name, default, meaning, and other arguments of ``add_argument``.
    """
    parser = ArgumentParser(description=about, epilog=examples, formatter_class=RawDescriptionHelpFormatter)
    added = parser.add_subparsers(dest="command", required=True)
    options = [*options]
    for command, text in commands.items():
        one = added.add_parser(command, description=text, help=text.splitlines()[0], formatter_class=_Formatter)
        for takers, name, default, meaning, kind in options:
            if command in takers.split():
                one.add_argument(name, help=meaning, **({"default": default} if name.startswith("-") else {}), **kind)
    return parser
