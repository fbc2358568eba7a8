"""The parser of a command line: its help, in two lengths and wrapped to the terminal, and errors of one line."""

from __future__ import annotations

import itertools
import re
import textwrap
from argparse import PARSER, Action, ArgumentError, ArgumentParser, HelpFormatter, _ArgumentGroup
from typing import Any, NoReturn

from edgeloss._checks.names import did_you_mean
from edgeloss.cli.messages import fail

ArgumentGroup = _ArgumentGroup  # which argparse does not export


_SPACE = "\N{NO-BREAK SPACE}"
# What stays on one line: a shape or a range, a short default, a quotation, a bound, an option with its value.
_UNBROKEN = re.compile(r'\[[^]a-z]*\]|\[default: \S+\]|"[^"]*"|≥ \S+|--?[a-z-]+ [^\s-]\S*')


def _wrap(text: str, width: int, indent: str = "", *, end: str = "") -> list[str]:
    """Return lines of at most ``width`` characters, broken between words, all but the last with an end."""
    text = _UNBROKEN.sub(lambda match: match[0].replace(" ", _SPACE), text)
    lines = textwrap.wrap(
        text, width - len(end), subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return f"{end}\n".join(lines).replace(_SPACE, " ").split("\n")


def _wrap_line(line: str, width: int) -> list[str]:
    """Wrap a line that is no part of a paragraph; a command so that it can still be pasted into a shell."""
    if len(line) <= width:
        return [line]
    is_command, indent = line.startswith("  edgeloss "), len(line) - len(line.lstrip())
    return _wrap(line, width, " " * (indent and indent + 2), end=" \\" * is_command)


class _HelpFormatter(HelpFormatter):
    """Wrap paragraphs, and indented lines each by itself, and append what an option is without it."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for part in text.split("\n\n"):
            whole = part.split("\n") if "\n  " in part else [" ".join(part.split())]
            lines += [*itertools.chain(*(_wrap_line(line, width) for line in whole)), ""]
        return "\n".join(lines)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(" ".join(text.split()), width)

    def _format_usage(self, usage: str | None, *rest: Any) -> str:  # noqa: ANN401
        text = super()._format_usage(usage, *rest)
        if usage is None:  # which argparse wraps
            return text
        return "\n".join(_wrap(text.strip(), self._width, " " * len("usage: "))) + "\n\n"

    def _get_help_string(self, action: Action) -> str:
        has_default = action.nargs != 0 and action.default not in (None, "") and "default:" not in str(action.help)
        return str(action.help) + "  [default: %(default)s]" * has_default


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
        self._option_string_actions["--help"].help = "Show this help and exit."

    def add_hidden_group(self, title: str) -> _ArgumentGroup:
        """Return a group of options that ``--help`` leaves out."""
        if not self.hidden:
            self._option_string_actions["--help"].help = "Show the usual options and exit."
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="Show every option and exit.")
        group = self.add_argument_group(title)
        self.hidden.append(group)
        return group

    def format_help(self) -> str:
        """Return the help. Of the groups that are hidden it has the names of the options only."""
        groups, epilog = self._action_groups, self.epilog
        if self.hidden:
            names = {group.title: [one.option_strings[0] for one in group._group_actions] for group in self.hidden}
            lists = [f"  {title}: {', '.join(options)}" for title, options in names.items()]
            count = sum(map(len, names.values()))
            self.epilog = "\n".join([f"{count} more options, which {self.prog} --help-all describes:", *lists])
        try:
            shown = [group for group in groups if group not in self.hidden]
            self._action_groups = sorted(shown, key=lambda group: group is self._optionals)  # --help last
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
