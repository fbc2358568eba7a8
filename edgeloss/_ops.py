"""Which backends can serve a call here, and why the others can't."""

from __future__ import annotations


def backends() -> dict[str, str]:
    """Tell what is live in this installation.

    Returns:
        For each of ``"reference"``, ``"cpu"`` and ``"cuda"``, ``"available"`` or ``"unavailable: <reason>"``.

    Example:
        >>> from edgeloss import backends
        >>> backends()["reference"]
        'available'
    """
    reason = "unavailable: this version has no fused kernels"
    return {"reference": "available", "cpu": reason, "cuda": reason}
