"""Findings and the operation to blame → the text, the dict and the figure of a report."""

from __future__ import annotations

import dataclasses
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor

from edgeloss.debug.origin import Origin
from edgeloss.debug.trees import Node

if TYPE_CHECKING:
    from edgeloss.viz.drawing import TextFigure

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
