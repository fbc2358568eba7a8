"""From findings and the operation to blame to the text, the dict and the figure of a report."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from edgeloss.debug.trees import Node

if TYPE_CHECKING:
    from edgeloss.viz.drawing import TextFigure

TORCH = os.path.dirname(torch.__file__) + os.sep
_WIDTH = 110  # of the findings below the tree
LEVELS = ("error", "warning", "note")


class Finding(NamedTuple):
    """One problem, or one remark.

    Attributes:
        level: ``"error"`` for a non-finite value or an exception, ``"warning"`` for what is finite and probably wrong,
            ``"note"`` for context.
        message: what was found, and where.
        advice: how to fix it, in one sentence; empty if there is nothing to do.
    """

    level: Literal["error", "warning", "note"]
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Origin:
    """The operation that returns non-finite values for finite ones.

    Attributes:
        operation: its name, such as ``"div"``, or ``"DivBackward0"`` for the derivative of a division.
        made: the kinds of values that it returns with their counts, such as ``"nan 3"``.
        file: the file of the innermost line outside torch that called it; empty if unknown.
        line: the number of that line, from 1.
        source: the text of that line.
        cause: an earlier operation: the one that returned the infinities from which this one computes nan, or, for a
            derivative, the one that returned the non-finite values that the loss masks.
    """

    operation: str
    made: str
    file: str = ""
    line: int = 0
    source: str = ""
    cause: Origin | None = None

    def __str__(self) -> str:
        """Return the operation with its line, followed by its cause."""
        text = f"{self.operation} ({self.made}) at {shown_line(self.file, self.line, self.source)}"
        if self.cause is None:
            return text
        if (self.cause.file, self.cause.line) == (self.file, self.line):
            return f"{text}, on the result of {self.cause.operation} ({self.cause.made}) in the same line"
        return f"{text}, on the result of {self.cause}"


def shown_line(file: str, line: int, source: str) -> str:
    """Format a line, its file relative to the working directory if possible."""
    for root in (os.path.dirname(TORCH[:-1]), os.getcwd()):
        file = file.removeprefix(root + os.sep)
    return f"{file or 'an unknown file'}:{line} `{source}`" if source else f"{file or 'an unknown file'}:{line}"


@dataclass(frozen=True, repr=False)
class Report:
    """The result of :func:`diagnose`; ``print`` it.

    Attributes:
        ok: whether logits, target, loss and gradient are all finite, and nothing raised.
        name: the name of the loss.
        findings: problems and remarks, the most severe first.
        origin: the operation that produced the first non-finite value, None if unknown.
        gradient: the gradient of the loss with respect to the logits, in their shape and dtype; None if there is none.
    """

    ok: bool
    name: str
    findings: tuple[Finding, ...]
    origin: Origin | None
    gradient: Tensor | None
    _tree: Node
    _ignored: Tensor | None  # [B, *S] bool, the pixels that do not count; None if unknown

    def __str__(self) -> str:
        """Return the tree of tensors, and the findings below it."""
        lines = [self._tree.format(), ""]
        for level, message, advice in self.findings:
            lines += textwrap.wrap(message, _WIDTH, initial_indent=f"{level:<9}", subsequent_indent=" " * 9)
            lines += textwrap.wrap(advice, _WIDTH, initial_indent=" " * 7 + "→ ", subsequent_indent=" " * 9)
        if not self.findings:
            lines.append("All values are finite, and nothing looks wrong.")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to a dict that strict JSON can store.

        Returns:
            A dict with the keys ``ok``, ``name``, ``findings``, ``origin``, ``inputs``, and, where they exist,
            ``loss``, ``gradient`` and ``terms``. The last four hold the statistics of each tensor.
        """
        return {
            "ok": self.ok,
            "name": self.name,
            "findings": [finding._asdict() for finding in self.findings],
            "origin": None if self.origin is None else dataclasses.asdict(self.origin),
            **{section.name: section.to_dict() for section in self._tree.children},
        }

    def figure(self) -> TextFigure:
        """Draw log10 of the gradient's L2 norm over the classes, one map per image.

        Non-finite pixels are magenta and counted, ignored pixels gray, and pixels with a gradient of exactly 0 black.
        For a volume, the slice with the most non-finite values is drawn, or the middle one if all are finite. Requires
        the extra ``viz``.

        Returns:
            A Matplotlib figure without window or global state.

        Raises:
            ValueError: if there is no gradient, or the logits are not [B, C, H, W] or [B, C, D, H, W].
        """
        from edgeloss.viz.panel import gradient_figure

        if self.gradient is None:
            raise ValueError(f"gradient: expected one to draw, but got none from {self.name}; see the findings")
        return gradient_figure(self.gradient, self._ignored, title=f"|gradient| of {self.name}")
