"""The frameworks that these tests need."""

from __future__ import annotations

from importlib.util import find_spec

from packages import import_torchvision

# Before anything else imports it, as torchmetrics does.
if find_spec("torchvision") is not None:
    import_torchvision()
