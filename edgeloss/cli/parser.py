"""The parser of a command line: its help, in two lengths and wrapped to the terminal, and errors of one line."""

from __future__ import annotations

import itertools
import re
import textwrap
from argparse import PARSER, SUPPRESS, Action, ArgumentError, ArgumentParser, HelpFormatter, _ArgumentGroup
from typing import Any, NoReturn

from edgeloss._checks.names import did_you_mean
from edgeloss.cli.messages import fail


class _HelpFormatter(HelpFormatter):
    """Wrap the paragraphs of descriptions but not indented lines, and append what an option is without it."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(part if "\n  " in part else textwrap.fill(part, width) for part in paragraphs) + "\n"

    def _format_usage(self, usage: str | None, *rest: Any) -> str:  # noqa: ANN401
        text = super()._format_usage(usage, *rest)
        if usage is None:  # which argparse wraps
            return text
        return textwrap.fill(text.strip(), self._width, subsequent_indent=" " * len("usage: ")) + "\n\n"

    def _get_help_string(self, action: Action) -> str:
        is_told = action.nargs == 0 or action.default in (None, "") or "default:" in str(action.help)
        return str(action.help) + ("" if is_told else "  [default: %(default)s]")


class _HelpAll(Action):
    """Print the help with every option."""

    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        parser.hidden.clear()
        parser.print_help()
        parser.exit()


class Parser(ArgumentParser):
    """A parser with errors of one line, and with groups of options that only ``--help-all`` shows."""

    def __init__(self, prog: str, **options: Any) -> None:  # noqa: ANN401
        """Create a parser that has ``--help`` only."""
        super().__init__(prog, **(options | {"formatter_class": _HelpFormatter, "allow_abbrev": False}))
        self.hidden: list[_ArgumentGroup] = []

    def add_hidden_group(self, title: str) -> _ArgumentGroup:
        """Return a group of options that ``--help`` leaves out."""
        if not self.hidden:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help=SUPPRESS)
        group = self.add_argument_group(title)
        self.hidden.append(group)
        return group

    def format_help(self) -> str:
        """Return the help, without the groups that are hidden, which its last line counts."""
        groups, epilog = self._action_groups, self.epilog
        if self.hidden:
            count, titles = (
                sum(len(group._group_actions) for group in self.hidden),
                [group.title for group in self.hidden],
            )
            self.epilog = f"{self.prog} --help-all has {count} more options: {' and '.join(map(str, titles))}"
        try:
            self._action_groups = [group for group in groups if group not in self.hidden]
            return super().format_help()
        finally:
            self._action_groups, self.epilog = groups, epilog

    def print_help(self, file: Any = None) -> None:  # noqa: ANN401
        """Print the help."""
        print(self.format_help(), end="", file=file)  # argparse drops errors of writing, as on a full disk

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Parse words; report an unknown option before what is required, which it may be a wrong name of."""
        words = args or ()
        if self._subparsers is not None:  # what follows the command is for another parser
            words = itertools.takewhile(lambda word: word.startswith("-"), words)
        names = [name[0] for word in words if (name := re.match("--[^=]+|-[a-zA-Z]", word))]
        if unknown := [name for name in names if name not in self._option_string_actions]:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            self.error(f"no option {unknown[0]}{did_you_mean(unknown[0], known, 0.75)}")
        return super().parse_known_args(args, namespace)

    def _match_argument(self, action: Action, pattern: str) -> int:
        try:
            return int(super()._match_argument(action, pattern))
        except ArgumentError as error:
            form = self._get_formatter()._format_args(action, str(action.metavar or action.dest.upper()))
            count = len(pattern) - len(pattern.lstrip("A"))  # words that are no options
            raise ArgumentError(
                action, f"expected {form}, but got {count or 'no'} value{'s' * (count != 1)}"
            ) from error

    def _check_value(self, action: Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint, expected = did_you_mean(str(value), names), f"expected one of {', '.join(names)}"
            if action.nargs == PARSER:  # a command
                raise ArgumentError(None, f"no command {value}{hint or f'; {expected}'}")
            raise ArgumentError(action, f"{expected}, but got {value}{hint}")

    def error(self, message: str) -> NoReturn:
        """Exit with an error of one line; where words are missing or too many, it shows the form of the call."""
        message = message.removeprefix("argument ")
        if message.startswith(required := "the following arguments are required: "):
            self.error_of_form(f"expected {message.removeprefix(required)}, but got none")
        fail(f"{message}{' See' if message.endswith('?') else '; see'} {self.prog} --help")

    def error_of_form(self, message: str) -> NoReturn:
        """Exit with an error of one line that ends with the form of the call."""
        fail(f"{message}; the form is: {self.usage}")
