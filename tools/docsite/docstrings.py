"""A Griffe extension: docstrings with Sphinx's roles and formulas, as Markdown.

mkdocstrings makes the pages, and takes the text of docstrings for Markdown: it has no option or extension for roles,
``.. math::`` and ``Example:``, which would be shown as they are. The docstrings keep them for editors, whose hints know
them, as those of PyTorch.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod):`(~?)([\w.]+)`")
INLINE_MATH = re.compile(r":math:`([^`]+)`")
BLOCK_MATH = re.compile(r"^\.\. math::(.*(?:\n(?:[ \t]+.+|(?=\n)))*)", re.MULTILINE)


class SphinxDocstrings(griffe.Extension):
    """Convert what editors and Sphinx read to what Markdown reads."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:  # noqa: ANN401
        """Convert the docstrings of a package, when all of its names are known."""
        convert(pkg, pkg)


def convert(obj: griffe.Object, package: griffe.Module) -> None:
    """Convert the docstrings of an object and its members; a constructor says nothing that its class does not."""
    if obj.name == "__init__" and obj.is_function:
        obj.docstring = None
    if obj.docstring:
        obj.docstring.value = to_markdown(obj.docstring.value, obj, package)
    for member in obj.members.values():
        if not member.is_alias:
            convert(member, package)


def to_markdown(text: str, obj: griffe.Object, package: griffe.Module) -> str:
    """Return a docstring in Markdown; references to names of the package become links."""

    def link(match: re.Match[str]) -> str:
        short, name = match.groups()
        shown = name.rpartition(".")[2] if short else name
        try:
            path = name if name.startswith(f"{package.name}.") else obj.resolve(name)
        except griffe.NameResolutionError:  # a name of another package
            return f"`{shown}`"
        target = package[path.removeprefix(f"{package.name}.")]
        if not target.is_alias and target.is_module and target.name in target.members:  # hidden by its module
            path += f".{target.name}"
        return f"[`{shown}`][{path}]"

    text = BLOCK_MATH.sub(lambda match: f"\n$$\n\\begin{{aligned}}{match[1].rstrip()}\n\\end{{aligned}}\n$$\n", text)
    text = INLINE_MATH.sub(r"$\1$", text)
    text = ROLE.sub(link, text)
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
