"""From an input that a check refuses to what its error message advises: how to fix it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor


def not_a_tensor(name: str, value: object) -> str:
    """Return the type of a value that is not a tensor, and how to pass it as one."""
    kind = _kind(value)
    if name == "logits" and (place := _logits_in(value)):
        return f"{kind}; pass {place}"
    if hasattr(value, "__array_interface__"):  # of NumPy, or an image of Pillow
        return f"{kind}; pass torch.as_tensor({name if hasattr(value, 'dtype') else f'numpy.asarray({name})'})"
    if isinstance(value, (list, tuple)) and value:
        of_tensors = all(isinstance(part, Tensor) for part in value)
        if name.endswith("weight") and not of_tensors:  # of integers as_tensor makes integers
            return f"{kind}; pass torch.tensor({name}, dtype=torch.float32)"
        return f"{kind}; pass torch.{'stack' if of_tensors else 'as_tensor'}({name})"
    return kind


def _logits_in(output: object) -> str | None:
    """Return where what a network returned most likely has its logits."""
    for name in ("logits", "out"):
        if isinstance(output, Mapping) and name in output:
            return f'output["{name}"]'
        if hasattr(output, name):
            return f"output.{name}"
    is_several = isinstance(output, (tuple, list)) and any(isinstance(part, Tensor) for part in output)
    return "one of its tensors" if is_several else None


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def of_shapes(name: str, logits: Sequence[int], target: Sequence[int], *, upsample: bool, multilabel: bool) -> str:
    """Return how to make the shape of a target, or that of the logits, the expected one."""
    lead, size, got = list(logits[: 1 + multilabel]), list(logits[2:]), list(target)
    if not multilabel and got == list(logits[:-1]):
        return "; for logits with the classes last pass logits.movedim(-1, 1)"
    if len(got) == len(lead + size) and got[: len(lead)] == lead and not upsample:
        return "; for logits of lower resolution than the target pass upsample=True"
    if got == [*logits[:1], *size, logits[1]]:
        last = f"{name}.movedim(-1, 1)"
        if multilabel:
            return f"; pass {last}"
        return f"; pass edgeloss.adapters.as_labels({last}, logits) if it is one-hot with the classes last"
    if multilabel and len(got) == len(logits) - 1:
        return "; pass labels for each class, or multilabel=False if each pixel has one class"
    if not multilabel and len(got) == len(logits) and got[0] == lead[0]:
        if got[1] == 1:
            return f"; pass {name}.squeeze(1)"
        if got[-1] == 1:
            return f"; pass {name}.squeeze(-1)"
        if got[1] == logits[1]:
            return (
                f"; pass edgeloss.adapters.as_labels({name}, logits) if it is one-hot, or multilabel=True if classes"
                " may overlap"
            )
    if got == [*lead, *size][1:] and lead[0] == 1:
        return f"; pass {name}.unsqueeze(0)"
    return ""
