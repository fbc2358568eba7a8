"""The former name of :mod:`edgeloss.debug`; it goes with version 0.5."""

import warnings
from typing import Any

from edgeloss import debug


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Return what :mod:`edgeloss.debug` has under this name, with a warning at the line that reads it."""
    if name not in debug.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "edgeloss.doctor is edgeloss.debug since version 0.2, and goes with version 0.5; import edgeloss.debug"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return getattr(debug, name)
